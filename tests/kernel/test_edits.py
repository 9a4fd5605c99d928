"""Files that are edited, and copies of kernels: pickled, copied, freed."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from pathlib import Path

import pytest
import torch

import rawkern
from rawkern.errors import CompileError
from tests.kernel.kit import MANY, SAXPY, Recorder, one_file, write, xy


def test_an_edit_is_compiled_at_the_next_launch(recorder: Recorder, tmp_path: Path) -> None:
    path = one_file(tmp_path)
    times = rawkern.load(path).times
    x, y = xy()
    times[1, 64](x, y, 37)
    times[1, 64](x, y, 37)
    assert recorder.loaded == 1
    write(path, path.read_text().replace("FACTOR *", "FACTOR + "))
    times[1, 64](x, y, 37)
    assert recorder.loaded == 2
    write(tmp_path / "factor.h", "#define FACTOR 3.5f\n")
    times[1, 64](x, y, 37)
    times[1, 64](x, y, 37)
    assert recorder.loaded == 3
    codes = [one["program"].code for one in recorder.launches]
    assert codes[0] == codes[1] and codes[3] == codes[4] and len({*codes}) == 3


def test_an_edit_that_does_not_compile_raises_until_it_is_fixed(recorder: Recorder, tmp_path: Path) -> None:
    path = one_file(tmp_path)
    good = path.read_text()
    times = rawkern.load(path).times
    x, y = xy()
    launch = times[1, 64]
    launch(x, y, 37)
    write(path, good.replace("y[i] =", "y[i] ="[:-1] + "!"))
    for _ in range(3):
        with pytest.raises(CompileError, match=r"times\.cu:4") as caught:
            launch(x, y, 37)
        assert caught.value.line == 4 and "^" in caught.value.excerpt
    assert len(recorder.launches) == 1
    write(path, good + "\n")
    launch(x, y, 37)
    assert len(recorder.launches) == 2


def test_an_edit_that_changes_parameters_or_drops_the_kernel(recorder: Recorder, tmp_path: Path) -> None:
    path = one_file(tmp_path)
    good = path.read_text()
    times = rawkern.load(path).times
    x, y = xy()
    times[1, 64](x, y, 37)
    write(path, good.replace("int n)", "int n, double extra)"))
    with pytest.raises(TypeError, match=r"times takes 4 arguments, 3 were given: .*double extra\)"):
        times[1, 64](x, y, 37)
    times[1, 64](x, y, 37, 0.5)
    write(path, good.replace("void times", "void other"))
    with pytest.raises(ValueError, match="there is no kernel 'times'; the source has other"):
        times[1, 64](x, y, 37)


def test_all_kernels_of_a_module_see_an_edit_and_a_reload(recorder: Recorder, tmp_path: Path) -> None:
    two = "__global__ void a(int* x) { *x = 1; }\n__global__ void b(int* x) { *x = 2; }\n"
    path = write(tmp_path / "two.cu", two)
    pair = rawkern.load(path)
    x = torch.zeros(1, dtype=torch.int32)
    pair.a[1, 1](x)
    pair.b[1, 1](x)
    assert recorder.loaded == 1
    write(path, two.replace("= 2", "= 3"))
    pair.a[1, 1](x)
    pair.b[1, 1](x)
    assert recorder.loaded == 2
    pair.reload()
    pair.b[1, 1](x)
    pair.a[1, 1](x)
    assert recorder.loaded == 3
    write(path, "__global__ void a(int* x) { nonsense }\n")
    with pytest.raises(CompileError, match="nonsense"):
        pair.reload()


def test_a_file_edited_before_its_first_use(recorder: Recorder, tmp_path: Path) -> None:
    path = one_file(tmp_path)
    times = rawkern.RawKernel(path=path)
    write(path, path.read_text().replace("void times", "void later"))
    assert times.signature.startswith("void later(")


def test_an_edit_does_not_disturb_launches_of_other_threads(recorder: Recorder, tmp_path: Path) -> None:
    path = one_file(tmp_path)
    times = rawkern.load(path).times
    x, y = xy()
    errors: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                times[1, 64](x, y, 37)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for factor in range(3, 8):
        write(tmp_path / "factor.h", f"#define FACTOR {factor}\n")
        times[1, 64](x, y, 37)
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert recorder.loaded >= 5


def test_pickling_keeps_source_options_and_name(recorder: Recorder) -> None:
    kernel = rawkern.RawKernel(MANY, "axpy<float, 3>", ("-DUNUSED=1",), enable_cooperative_groups=True)
    again = pickle.loads(pickle.dumps(kernel))
    assert again is not kernel
    assert again.signature == kernel.signature
    assert again.unit.settings == kernel.unit.settings
    x, y = xy()
    again[1, 64](2.0, x, y, 37)
    assert recorder.launches[-1]["attributes"].cooperative and again.enable_cooperative_groups


def test_kernels_of_a_file_pickle_by_path(recorder: Recorder, tmp_path: Path) -> None:
    path = one_file(tmp_path)
    source_module = rawkern.load(path)
    first, second, again = pickle.loads(pickle.dumps((source_module.times, source_module.times, source_module)))
    assert first is second and first.unit is again.unit
    write(path, path.read_text().replace("void times", "void times2"))
    assert again.kernels == ("times2",)


def test_a_copy_is_the_kernel_itself() -> None:
    kernel = rawkern.RawKernel(SAXPY)
    assert copy.copy(kernel) is kernel and copy.deepcopy({"k": kernel})["k"] is kernel
    source_module = rawkern.RawModule(SAXPY)
    assert copy.deepcopy(source_module) is source_module


def test_launches_are_copied_and_pickled(device: str) -> None:
    """As parts of a module of torch's, which is copied for an average and pickled for other processes."""
    code = """extern "C" __global__ void k(float* x, int by) {
        extern __shared__ float s[];
        x[blockIdx.x * blockDim.x + threadIdx.x] += by;
    }"""
    kernel = rawkern.RawKernel(code)
    for launch in (kernel[2, 4], kernel[(2, 1), (4, 1)], kernel[2, 4, 64], kernel.forall(8), kernel.forall(8, block=4)):
        assert copy.copy(launch) is launch and copy.deepcopy([launch])[0] is launch
        first, second = pickle.loads(pickle.dumps((launch, launch)))
        assert first is second and repr(first) == repr(launch)
        x = torch.zeros(256, device=device)
        for by in range(4):  # the slow path and the native one
            first(x, by)
        assert x[:8].tolist() == [6] * 8
    one, other = pickle.loads(pickle.dumps((kernel[1, 4], kernel.forall(4))))
    assert one.plan.kernel.unit is other.plan.kernel.unit


def test_attributes_that_are_not_there_cannot_be_set():
    """A misspelled setting would change nothing, and say nothing."""
    kernel = rawkern.RawKernel('extern "C" __global__ void k(float* x) {}')
    module = rawkern.RawModule('extern "C" __global__ void k(float* x) {}')
    tuned = rawkern.autotune(kernel, configs=[{"block": 32}], key=("x",))
    formula = rawkern.elementwise("T x", "T y", "y = x", "settable")
    total = rawkern.reduction("T x", "T y", "x", "a + b", "y = a", "0", "settable_total")
    for public in (kernel, module, tuned, formula, total, kernel.forall(3), kernel[1, 32]):
        with pytest.raises(AttributeError, match="has no attribute 'block_size'"):
            public.block_size = 128
        assert not hasattr(public, "__dict__") or "block_size" not in vars(public)
    for public in (kernel, module, formula):
        with pytest.raises(AttributeError):
            public.source = "another"


def test_kernels_are_freed_with_their_last_launcher() -> None:
    """At once: nothing of them is in a circle that waits for Python's search for garbage."""
    x, y = torch.ones(37), torch.zeros(37)
    kernel = rawkern.RawKernel(SAXPY)
    launcher = kernel.forall(37)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):  # with care, and natively
            launcher(37, 2.0, x, y)
            kernel[1, 64](37, 2.0, x, y)
        target = launcher.plan.built[1]
        dead = [weakref.ref(each) for each in (kernel.unit, *target.values())]
        del kernel, target
        launcher(37, 2.0, x, y)
        assert y.eq(14).all() and all(ref() for ref in dead)
        del launcher
        assert not any(ref() for ref in dead)
    finally:
        gc.enable()
