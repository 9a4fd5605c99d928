"""Forms of launch: grid and block, elements, keywords, streams; without running anything."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
import torch

import rawkern
from rawkern import kernel as kernels
from rawkern.base.attributes import Attributes
from rawkern.errors import LaunchError, UnsupportedError
from tests.kernel.kit import SAXPY, Recorder, xy


def test_the_three_forms_say_the_same(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    arguments = (37, 2.0, x, y)
    kernel[1, 256](*arguments)
    kernel.forall(37)(*arguments)
    kernel((1,), (256,), arguments)
    kernel(1, 256, list(arguments))
    kernel(grid=(1,), block=(256,), args=arguments)
    kernel((1,), args=arguments, block=(256,), shared_mem=0)
    kernel[1, 256](y=y, x=x, a=2.0, n=37)
    kernel.forall(37, block=256)(37, 2.0, y=y, x=x)
    assert recorder.configurations() == [((1, 1, 1), (256, 1, 1), 0)] * 8
    assert {one["values"] for one in recorder.launches} == {(37, 2.0, x.data_ptr(), y.data_ptr())}
    kernel[(2, 3), (8, 4), 512](*arguments)
    kernel((2, 3), (8, 4), arguments, shared_mem=512)
    assert recorder.configurations()[-2:] == [((2, 3, 1), (8, 4, 1), 512)] * 2


def test_launch_attributes_go_with_every_form(recorder: Recorder) -> None:
    recorder.architecture, recorder.most_of_cluster = "sm_90", 16
    plain = rawkern.RawKernel(SAXPY)
    kernel = plain.configured(cluster=(2, 1, 1), programmatic=True)
    assert plain.configured() is plain and kernel.configured(cluster=2) is kernel
    assert plain.configured(cluster=(2, 1, 1), programmatic=True) is kernel
    x, y = xy()
    for _ in range(3):  # on the slow path, then by native code
        kernel[4, 256](37, 2.0, x, y)
        kernel.forall(513)(37, 2.0, x, y)
        kernel(2, 64, (37, 2.0, x, y))
    for again in (pickle.loads(pickle.dumps(kernel)), kernel.variant(options=("-DN=1",))):
        again[4, 256](37, 2.0, x, y)
    grids = [one["grid"][0] for one in recorder.launches]
    assert grids == [4, 4, 2] * 3 + [4, 4]
    assert {one["attributes"] for one in recorder.launches} == {Attributes((2, 1, 1), programmatic=True)}
    plain[3, 64](37, 2.0, x, y)
    assert recorder.launches[-1]["attributes"] == Attributes()
    assert repr(kernel[3, 64]).startswith("<launch of saxpy, LaunchConfig(grid=(3, 1, 1)")
    with pytest.raises(ValueError, match=r"grid.x is 3, and cluster.x is 2; a grid .*: use 4 blocks"):
        plain.configured(cluster=2)[3, 64](37, 2.0, x, y)


def test_clusters_that_source_and_device_do_not_take(recorder: Recorder) -> None:
    x, y = xy()
    arguments = (37, 2.0, x, y)

    def rejected(error: type[Exception], message: str, **attributes: object) -> None:
        kernel = rawkern.RawKernel(SAXPY)  # loaded again
        with pytest.raises(error, match=message):
            kernel.configured(**attributes)[16, 64, 128](*arguments)  # type: ignore[arg-type]

    needs = "saxpy: this kernel needs compute capability 9.0: "
    rejected(UnsupportedError, f"{needs}clusters; sm_80 does not support that", cluster=2)
    rejected(UnsupportedError, f"{needs}programmatic dependent launch; sm_80", programmatic=True)
    recorder.architecture, recorder.most_of_cluster = "sm_90", 8
    most = r"cluster \(16, 1, 1\) has 16 blocks; with 64 threads and 128 bytes .* a cluster .* has at most 8 on sm_90"
    rejected(ValueError, most, cluster=16)
    recorder.cluster = (0, 0, 0)
    rejected(ValueError, r"but not their size; launch saxpy\.configured\(cluster=\(2, 1, 1\)\)")
    rawkern.RawKernel(SAXPY).configured(cluster=4)[16, 64](*arguments)
    assert recorder.launches[-1]["attributes"] == Attributes((4, 1, 1))
    recorder.cluster = (2, 2, 1)
    rejected(ValueError, r"grid.y is 1, and cluster.y is 2")
    rejected(ValueError, r"cluster is \(4, 1, 1\), and the source has __cluster_dims__\(2, 2, 1\); leave", cluster=4)
    rawkern.RawKernel(SAXPY)[(2, 4), 64](*arguments)
    rawkern.RawKernel(SAXPY).configured(cluster=(2, 2))[(2, 4), 64](*arguments)
    assert [one["attributes"] for one in recorder.launches[1:]] == [Attributes((2, 2, 1))] * 2


@pytest.mark.parametrize("n", [1, 31, 255, 256, 257, 100_003])
def test_forall_covers_n(recorder: Recorder, n: int) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    kernel.forall(n)(37, 2.0, x, y)
    kernel.forall(n, block=96)(37, 2.0, x, y)
    assert recorder.configurations() == [
        ((-(-n // 256), 1, 1), (256, 1, 1), 0),
        ((-(-n // 96), 1, 1), (96, 1, 1), 0),
    ]


def test_forall_of_nothing_checks_and_launches_nothing(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    empty = torch.empty(0)
    for _ in range(2):
        kernel.forall(0)(0, 2.0, empty, empty)
    assert recorder.launches == []
    with pytest.raises(TypeError, match="saxpy takes 4 arguments, 3 were given: void saxpy"):
        kernel.forall(0)(0, 2.0, empty)


def test_forall_picks_a_block_the_kernel_can_run_with(recorder: Recorder) -> None:
    recorder.attributes = {**recorder.attributes, "max_threads_per_block": 100}
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    kernel.forall(1000)(37, 2.0, x, y)
    assert recorder.configurations() == [((11, 1, 1), (96, 1, 1), 0)]
    with pytest.raises(
        ValueError, match=r"saxpy: block \(128, 1, 1\) has 128 threads, this kernel supports at most 100"
    ):
        kernel.forall(1000, block=128)(37, 2.0, x, y)
    with pytest.raises(ValueError, match=r"this kernel supports at most 100 per block"):
        kernel[1, 101](37, 2.0, x, y)
    assert len(recorder.launches) == 1


def test_shared_memory_has_a_limit(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    kernel[1, 32, 49152](37, 2.0, x, y)
    with pytest.raises(ValueError, match="saxpy: shared_mem is 49153 bytes, the maximum on sm_80 is 49152 bytes"):
        kernel[1, 32, 49153](37, 2.0, x, y)


def test_a_launch_written_as_a_call_says_how_to_write_it(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY, "saxpy")
    x, y = xy()
    for wrong in (lambda: kernel(37, 2.0, x, y), lambda: kernel(1, 32, x)):
        with pytest.raises(TypeError, match=r"saxpy: a launch is kernel\[grid, block\]\(\*args\), kernel.forall\(n\)"):
            wrong()
    with pytest.raises(TypeError, match=r"got kernel\(int, int, tuple, block=\.\.\.\)"):
        kernel(1, 32, (37, 2.0, x, y), block=3)
    with pytest.raises(TypeError, match="saxpy takes 4 arguments, 0 were given"):
        kernel(1, 32)
    with pytest.raises(TypeError, match=r"a launch is kernel\[grid, block\]\(\.\.\.\).*; got kernel\["):
        kernel[5]
    with pytest.raises(ValueError, match=r"saxpy: grid.x is 0"):
        kernel[0, 32]
    assert recorder.launches == []


@pytest.mark.parametrize("launches", [0, 1, 3])
def test_what_equals_an_int_is_none_after_launches_either(recorder: Recorder, launches: int) -> None:
    kernel = rawkern.RawKernel(SAXPY, "saxpy")
    x, y = xy()
    for _ in range(launches):
        kernel[1, 64, 0](37, 2.0, x, y)
        kernel[(1,), (64,)](37, 2.0, x, y)
        kernel.forall(1)(37, 2.0, x, y)
        kernel.forall(37, block=64)(37, 2.0, x, y)
    for key in ((1.0, 64), (1, 64.0), (True, 64, 0), (1, 64, False), ((1.0,), (64,)), ((1,), (np.float64(64),))):
        with pytest.raises(TypeError, match=r"saxpy: (grid|block|shared_mem) is a.* got (float|bool)"):
            kernel[key]
    for n in (1.0, True, np.float32(1), 1 + 0j):
        with pytest.raises(TypeError, match="saxpy: forall takes the number of elements as an int"):
            kernel.forall(n)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the block of forall is an int"):
        kernel.forall(37, block=64.0)  # type: ignore[arg-type]
    assert len(recorder.launches) == 4 * launches
    for settled in (kernel[np.int64(1), 64, 0], kernel[[1], (64,), 0], kernel.forall(np.int32(37), block=np.int8(64))):
        for _ in range(3):
            settled(37, 2.0, x, y)
        assert recorder.launches[-1]["grid"] == (1, 1, 1) and recorder.launches[-1]["block"] == (64, 1, 1)


def test_many_sizes_and_blocks_do_not_pile_up(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    for n in range(1, 1000):
        for _ in range(3):
            kernel.forall(n)(37, 2.0, x, y)
            kernel[n, 64](37, 2.0, x, y)
        kernel[1, n](37, 2.0, x, y)
        kernel[1, 32, n](37, 2.0, x, y)
    assert len(kernel._plans) == kernels.PLANS_KEPT
    assert recorder.loaded == 1
    assert {one["grid"][0] for one in recorder.launches} == set(range(1, 1000))


@pytest.mark.rawkern_unchecked("launches take another way")
def test_a_million_sizes_leave_memory_flat(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    for _ in range(3):
        kernel.forall(1)(37, 2.0, x, y)
        kernel[1, 64](37, 2.0, x, y)
    before = sys.getallocatedblocks()
    for n in range(1, 500_000):
        kernel.forall(n)
        kernel[n, 64]
    assert sys.getallocatedblocks() - before < 1000


def test_cooperative_reaches_the_engine(recorder: Recorder) -> None:
    x, y = xy()
    rawkern.RawKernel(SAXPY, enable_cooperative_groups=True)[1, 64](37, 2.0, x, y)
    rawkern.RawKernel(SAXPY)[1, 64](37, 2.0, x, y)
    assert [one["attributes"].cooperative for one in recorder.launches] == [True, False]


def test_strided_accepts_what_is_not_contiguous(recorder: Recorder) -> None:
    x, y = xy(74)
    with pytest.raises(ValueError, match=r"'x'.*contiguous"):
        rawkern.RawKernel(SAXPY).forall(37)(37, 2.0, x[::2], y)
    rawkern.RawKernel(SAXPY, strided=True).forall(37)(37, 2.0, x[::2], y)
    assert len(recorder.launches) == 1


def test_fake_tensors_are_rejected_outside_an_operator(recorder: Recorder) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    kernel = rawkern.RawKernel(SAXPY)
    with FakeTensorMode():
        x = torch.empty(37)
        with pytest.raises(LaunchError, match=r"wrap this in rawkern\.op"):
            kernel.forall(37)(37, 2.0, x, x)
    assert recorder.launches == []


def test_a_fake_launch_inside_an_operator_checks_and_runs_nothing(recorder: Recorder) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    from rawkern.base import operator_state

    kernel = rawkern.RawKernel(SAXPY)
    environment, real = ShapeEnv(), torch.empty(37)
    dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    with FakeTensorMode(shape_env=environment) as mode, operator_state.inside_op(fake=True):
        x = mode.from_tensor(real, symbolic_context=dynamic)
        n = x.numel()
        assert isinstance(n, torch.SymInt)
        kernel.forall(n)(n, 2.0, x, x)
        with pytest.raises(TypeError, match="float64"):
            kernel.forall(n)(n, 2.0, x.double(), x)
    assert environment.guards == []
    assert recorder.launches == []


def test_a_tensor_that_requires_grad_is_not_written(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(SAXPY)
    x, y = xy()
    y.requires_grad_()
    with pytest.raises(LaunchError, match=r"torch.no_grad\(\) or rawkern.op"):
        kernel.forall(37)(37, 2.0, x, y)
    with torch.no_grad():
        kernel.forall(37)(37, 2.0, x, y)
    assert len(recorder.launches) == 1
