"""Grid, block and shared memory: what is accepted, and the words for what is not."""

from __future__ import annotations

import re
import types
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rawkern.base.attributes import Attributes
from rawkern.errors import LaunchError
from rawkern.launch import config as launch
from rawkern.launch.config import LaunchConfig, make_config


@pytest.mark.parametrize(
    ("grid", "block", "expected"),
    [
        (4, 256, LaunchConfig((4, 1, 1), (256, 1, 1))),
        ((4,), (256,), LaunchConfig((4, 1, 1), (256, 1, 1))),
        ((2, 3), (8, 16), LaunchConfig((2, 3, 1), (8, 16, 1))),
        ((2, 3, 4), [8, 4, 2], LaunchConfig((2, 3, 4), (8, 4, 2))),
        (np.int64(7), np.uint8(32), LaunchConfig((7, 1, 1), (32, 1, 1))),
        (torch.Size([5, 2]), 1, LaunchConfig((5, 2, 1), (1, 1, 1))),
        ((2**31 - 1, 65535, 65535), (1024, 1, 1), LaunchConfig((2**31 - 1, 65535, 65535), (1024, 1, 1))),
        (1, (4, 4, 64), LaunchConfig((1, 1, 1), (4, 4, 64))),
    ],
)
def test_accepted(grid: Any, block: Any, expected: LaunchConfig) -> None:
    config = make_config("k", grid, block)
    assert config == expected
    assert all(type(size) is int for size in (*config.grid, *config.block))


@pytest.mark.parametrize(
    ("grid", "block", "shared_mem", "error", "message"),
    [
        (0, 1, 0, ValueError, "k: grid.x is 0, it must be positive; forall(n) takes n = 0"),
        ((1, 0), 1, 0, ValueError, "k: grid.y is 0, it must be positive"),
        (-3, 1, 0, ValueError, "k: grid.x is -3, it must be positive"),
        (1, 0, 0, ValueError, "k: block.x is 0, it must be positive"),
        (1, (1, 1, -1), 0, ValueError, "k: block.z is -1, it must be positive"),
        (
            2**31,
            1,
            0,
            ValueError,
            "k: grid.x is 2147483648, the maximum is 2147483647; let each thread process several",
        ),
        ((1, 65536), 1, 0, ValueError, "k: grid.y is 65536, the maximum is 65535; put the longest axis on x"),
        ((1, 1, 70000), 1, 0, ValueError, "k: grid.z is 70000, the maximum is 65535"),
        (1, 1025, 0, ValueError, "k: block.x is 1025, the maximum is 1024; use a smaller block and a larger grid"),
        (1, (1, 2000), 0, ValueError, "k: block.y is 2000, the maximum is 1024; use a smaller block and a larger grid"),
        (1, (1, 1, 65), 0, ValueError, "k: block.z is 65, the maximum is 64; put the longest axis on x"),
        (1, (32, 33), 0, ValueError, "k: block (32, 33, 1) has 1056 threads, a block has at most 1024; use a smaller"),
        ((), 1, 0, ValueError, "k: grid has 0 axes; pass 1 to 3"),
        ((1, 1, 1, 1), 1, 0, ValueError, "k: grid has 4 axes; pass 1 to 3: grid=(1, 1, 1, 1)"),
        (1.5, 1, 0, TypeError, "k: grid is an int or a tuple of 1 to 3 ints, got float 1.5; divide with //"),
        (1, (32, 2.0), 0, TypeError, "k: block is an int or a tuple of 1 to 3 ints, got float 2.0 for axis y"),
        (True, 1, 0, TypeError, "k: grid is an int or a tuple of 1 to 3 ints, got bool True"),
        ("4", 1, 0, TypeError, "k: grid is an int or a tuple of 1 to 3 ints, got str '4'"),
        (None, 1, 0, TypeError, "k: grid is an int or a tuple of 1 to 3 ints, got NoneType None"),
        (torch.tensor(3), 1, 0, TypeError, "got torch.Tensor; pass int(...)"),
        (1, 1, -4, ValueError, "k: shared_mem is -4, it must be 0 or more bytes"),
        (1, 1, 1e3, TypeError, "k: shared_mem is a number of bytes, an int, got float 1000.0"),
    ],
)
def test_rejected(grid: Any, block: Any, shared_mem: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        make_config("k", grid, block, shared_mem)


@given(n=st.integers(0, 2**40), block=st.integers(1, 1024))
def test_forall_covers_n_and_wastes_less_than_a_block(n: int, block: int) -> None:
    if -(-n // block) > 2**31 - 1:
        with pytest.raises(ValueError, match="a grid has at most 2147483647; let each thread process several"):
            launch.cover("k", n, block)
        return
    config = launch.cover("k", n, block)
    threads = config.grid[0] * config.block[0]
    assert config.block == (block, 1, 1)
    assert threads >= n
    assert threads - n < block or (n == 0 and threads == block)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"cluster": 0}, ValueError, "k: cluster.x is 0, it must be positive"),
        ({"cluster": (2, 1.5)}, TypeError, "k: cluster is an int or a tuple of 1 to 3 ints, got float 1.5 for axis y"),
        ({"cluster": (1, 32)}, ValueError, "k: cluster.y is 32, the maximum is 16; use a smaller cluster"),
        ({"cluster": (4, 4, 2)}, ValueError, "k: cluster (4, 4, 2) has 32 blocks, a cluster has at most 16"),
        ({"cooperative": 1}, TypeError, "k: cooperative is int; pass True or False"),
        ({"programmatic": "yes"}, TypeError, "k: programmatic is str 'yes'; pass True or False"),
    ],
)
def test_bad_launch_attributes(given: dict[str, Any], error: type[Exception], message: str) -> None:
    none = dict.fromkeys(("cluster", "cooperative", "programmatic"))
    with pytest.raises(error, match=re.escape(message)):
        launch.make_attributes("k", Attributes(), **{**none, **given})
    before = Attributes((2, 1, 1), cooperative=True)
    assert launch.make_attributes("k", before, **none) == before
    asked = launch.make_attributes("k", before, cluster=(1, 4), cooperative=False, programmatic=True)
    assert asked == Attributes((1, 4, 1), programmatic=True) and asked.together == 4


@pytest.mark.parametrize(
    ("n", "error", "message"),
    [
        (-1, ValueError, "k: forall(-1) is negative; the number of elements is 0 or more"),
        (2.0, TypeError, "k: forall takes the number of elements as an int, got float 2.0"),
        (True, TypeError, "k: forall takes the number of elements as an int, got bool True"),
        (torch.tensor(4), TypeError, "got torch.Tensor; pass int(...)"),
    ],
)
def test_bad_n(n: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        launch.count("k", n)


@pytest.mark.parametrize(
    ("block", "error", "message"),
    [
        (0, ValueError, "k: the block of forall is 0; pass 1 to 1024 threads"),
        (1025, ValueError, "k: the block of forall is 1025; pass 1 to 1024 threads"),
        ((32, 32), TypeError, "k: the block of forall is an int (it launches one dimension), got tuple"),
    ],
)
def test_bad_block_of_forall(block: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        launch.cover("k", 10, block)


def limited(threads: int, static: int, local: int = 524288) -> Any:
    attributes = {"max_threads_per_block": threads, "shared_size_bytes": static, "local_size_bytes": local}
    return types.SimpleNamespace(attributes=attributes, max_shared_mem=49152, architecture="sm_75")


def test_limits_of_the_compiled_kernel() -> None:
    config = make_config("k", 1, (16, 16), 40000)
    launch.check_kernel_limits("k", config, limited(256, 9152))
    with pytest.raises(
        ValueError, match=re.escape("k: block (16, 16, 1) has 256 threads, this kernel supports at most 255")
    ):
        launch.check_kernel_limits("k", config, limited(255, 0))
    expected = (
        "k: shared_mem is 40000 bytes, the maximum on sm_75 is 39999 bytes (49152 less 9153 that the kernel declares"
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        launch.check_kernel_limits("k", config, limited(256, 9153))
    expected = "k: a thread needs 524289 bytes of local memory, the maximum is 524288 bytes on sm_75"
    with pytest.raises(LaunchError, match=re.escape(expected)):
        launch.check_kernel_limits("k", config, limited(256, 9152, local=524289))


@pytest.mark.parametrize(("most", "block"), [(1024, 256), (256, 256), (255, 224), (100, 96), (31, 31), (1, 1)])
def test_the_block_forall_picks_fits_the_kernel(most: int, block: int) -> None:
    assert launch.auto_block(most) == block
