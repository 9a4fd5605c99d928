"""Lists of tensors in native launches: what kernels read, what they may touch, and what is held."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import rawkern
from rawkern.errors import OutOfBoundsError
from rawkern.launch import intercept, lists, native

SOURCE = r"""
#include <cstdio>

extern "C" __global__ void sum(const float* const* at, float** to, int count, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float total = 0;
    for (int k = 0; k < count; ++k) if (at[k]) total += at[k][i];
    to[0][i] = total;
}
extern "C" __global__ void put(float* const* at, int k, int i) { at[k][i] = 7; }
extern "C" __global__ void table(float** at, int k) { at[k] = at[0]; }
extern "C" __global__ void read(const float* const* at, float* y, int k, int i) { y[0] = at[k][i]; }
extern "C" __global__ void may_write(const float* const* at, int k, int i) { if (k) ((float*)at[k])[i] = 7; }
extern "C" __global__ void maybe(float* const* at, int now, int i) { if (now) at[0][i] = 7; }
extern "C" __global__ void say(float* const* at, int k, int i) { printf("%d\n", i); at[k][i] = 7; }
extern "C" __global__ void slow(float* const* at, int n) {
    for (int k = 0; k < n; ++k) at[k % 2][threadIdx.x] += 1;
}
"""


@pytest.fixture(scope="module")
def kernels() -> rawkern.RawModule:
    return rawkern.RawModule(SOURCE)


@contextmanager
def all_native(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No launch takes the slow path."""

    def never(*_: Any) -> None:
        raise AssertionError("a launch took the slow path")

    with monkeypatch.context() as patch:
        patch.setattr(intercept, "start", never)
        yield


def warmed(kernels: rawkern.RawModule, name: str, *args: Any, grid: int = 1, block: int = 1) -> Any:
    launcher = kernels.get_function(name)[grid, block]
    launcher(*args)
    native.wait()
    for _ in range(3):
        launcher(*args)
    return launcher


def test_sums(kernels: rawkern.RawModule, monkeypatch: pytest.MonkeyPatch) -> None:
    x = [torch.randn(100) for _ in range(3)]
    y = torch.empty(100)
    launcher = warmed(kernels, "sum", x, [y], 3, 100, grid=4, block=32)
    same = torch.randn(300)
    for given in (x, tuple(x), [x[0], None, x[0]], [same[:100], same[50:150], same[20:120]], [None, None, x[1]]):
        before = y._version, x[0]._version
        with all_native(monkeypatch):
            launcher(given, (y,), 3, 100)
        assert torch.equal(y, sum((t for t in given if t is not None), torch.zeros(100)))
        assert (y._version, x[0]._version) == (before[0] + 1, before[1])


def test_others_take_the_slow_path(kernels: rawkern.RawModule) -> None:
    x, y = [torch.ones(4), torch.ones(4)], torch.empty(4)
    launcher = warmed(kernels, "sum", x, [y], 2, 4, block=4)
    many = [torch.full((4,), float(k)) for k in range(lists.MOST + 1)]
    launcher(many, [y], len(many), 4)
    assert y[0] == sum(range(len(many)))
    launcher([], [y], 0, 4)
    assert y[0] == 0
    addresses = torch.tensor([t.data_ptr() for t in x])
    launcher(addresses, [y], 2, 4)
    assert y[0] == 2
    for wrong, error in (([x[0], 3], "at\\[1\\]' is the int 3"), ([x[0], x[1].double()], "at\\[1\\]' is float64")):
        with pytest.raises(TypeError, match=error):
            launcher(wrong, [y], 2, 4)
    grad = torch.ones(4, requires_grad=True)
    with pytest.raises(RuntimeError, match="to\\[0\\]' requires grad"):
        launcher(x, [grad], 2, 4)
    launcher([grad, x[1]], [y], 2, 4)
    assert y[0] == 2


def refused(monkeypatch: pytest.MonkeyPatch, launcher: Any, good: tuple[Any, ...], bad: tuple[Any, ...], **how) -> None:
    """A native launch raises; after one that raised, the next takes the slow path once."""
    launcher(*good)
    with all_native(monkeypatch), pytest.raises(OutOfBoundsError, **how):
        launcher(*bad)


@pytest.mark.parametrize("name", ["put", "say"])
def test_each_tensor_has_its_own_bounds(kernels: rawkern.RawModule, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Also where tensors are parts of one, and where the launch has stopped to print before."""
    whole = torch.zeros(20)
    x = [whole[12:16], whole[:10]]
    launcher = warmed(kernels, name, x, 1, 9)
    with all_native(monkeypatch):
        for k, i in ((0, 3), (1, 9)):
            launcher(x, k, i)
            assert x[k][i] == 7
    for k, i in ((0, 4), (1, 10)) * 2:
        refused(monkeypatch, launcher, (x, 0, 0), (x, k, i), match="writes .* not in the memory of any argument")
    assert not whole[16:].any() and not whole[10:12].any()


def test_the_first_that_is_out_of_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no launch has led to a tensor of the list before."""
    kernels, whole = rawkern.RawModule(SOURCE), torch.zeros(20)
    launcher = warmed(kernels, "maybe", [whole[:8]], 0, 0)
    with all_native(monkeypatch), pytest.raises(OutOfBoundsError, match="not in the memory of any argument"):
        launcher([whole[:8]], 1, 8)
    assert not whole.any()


def test_other_tensors_than_before(kernels: rawkern.RawModule, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one launch was told of, the next is not."""
    x, y = [torch.ones(8) for _ in range(6)], torch.zeros(1)
    launcher = warmed(kernels, "read", x, y, 5, 7)
    addresses = torch.tensor([t.data_ptr() for t in x])
    good, rest = (x, y, 5, 7), [None] * 3
    for _ in range(3):
        launcher(*good)
        with all_native(monkeypatch):
            launcher(x[:3] + rest, y, 2, 7)
            launcher(addresses, y, 4, 7)
            launcher(list(reversed(x)), y, 0, 7)
        refused(monkeypatch, launcher, good, (x[:3] + rest, y, 5, 7))
        refused(monkeypatch, launcher, good, ([x[0][:4], *x[1:]], y, 0, 7))


def test_what_is_const_is_only_read(kernels: rawkern.RawModule, monkeypatch: pytest.MonkeyPatch) -> None:
    x = [torch.ones(8), torch.ones(8)]
    launcher = warmed(kernels, "may_write", x, 0, 7)
    with all_native(monkeypatch), pytest.raises(rawkern.errors.ReadOnlyError, match=r"only read at\[1\]"):
        launcher(x, 1, 7)
    assert x[1][7] == 1


def test_the_table_has_bounds(kernels: rawkern.RawModule, monkeypatch: pytest.MonkeyPatch) -> None:
    x = [torch.ones(8), torch.ones(8)]
    launcher = warmed(kernels, "table", x, 1)
    refused(monkeypatch, launcher, (x, 1), (x, 2), match=r"writes at\[2\]; at has 2 elements")


def test_many_ranges(kernels: rawkern.RawModule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of one tensor in any order, which may overlap: exactly what one of them has may be read."""
    whole, y = torch.arange(4000.0), torch.zeros(1)
    launcher, chosen = warmed(kernels, "read", [whole], y, 0, 0), random.Random(7)
    for count in (1, 2, 5, 40, lists.MOST):
        starts = [chosen.randrange(3900) for _ in range(count)]
        parts = [whole[start : start + chosen.randrange(1, 60)] for start in starts]
        inside = {i for part in parts for i in range(int(part[0]), int(part[-1]) + 1)}
        for i in [*chosen.sample(range(4000), 10), *chosen.sample(sorted(inside), 1)]:
            k = chosen.randrange(count)
            if i in inside:
                launcher(parts, y, k, i - starts[k])
                with all_native(monkeypatch):
                    launcher(parts, y, k, i - starts[k])
                assert y[0] == i
            else:
                refused(monkeypatch, launcher, (parts, y, 0, 0), (parts, y, k, i - starts[k]))


def test_nothing_stays_held(kernels: rawkern.RawModule) -> None:
    x, y = [torch.ones(4), torch.ones(4)], torch.empty(4)
    launcher = warmed(kernels, "sum", x, [y], 2, 4, block=4)
    pair = tuple(x)
    before = [sys.getrefcount(one) for one in (*x, pair, y)]
    for _ in range(100):
        launcher(pair, [y], 2, 4)
        launcher(x, [y], 2, 4)
        for wrong in ([*x, 3], [x[0], x[1].double()]):
            with pytest.raises(TypeError):
                launcher(wrong, [y], 2, 4)
        with pytest.raises(OutOfBoundsError):
            launcher(x, [y], 3, 4)
        del wrong
    assert [sys.getrefcount(one) for one in (*x, pair, y)] == before


def test_a_list_may_change_while_a_launch_runs(kernels: rawkern.RawModule, monkeypatch: pytest.MonkeyPatch) -> None:
    x = [torch.zeros(32), torch.zeros(32)]
    launcher = warmed(kernels, "slow", x, 10, block=32)
    for t in x:
        t.zero_()
    given, first = list(x), x[0]
    count = 40_000_000
    thread = threading.Thread(target=launcher, args=(given, count))
    with all_native(monkeypatch):
        launcher(x, 0)
        for t in x:
            t.zero_()
        begun = first._version
        thread.start()
        time.sleep(0.05)
        x.clear()
        given.clear()
        others = [torch.full((32,), -1.0) for _ in range(50)]  # would be where the tensors were
        thread.join()
    assert first._version == begun + 1 and (first == min(count // 2, 1 << 24)).all()
    assert all((t == -1).all() for t in others)
