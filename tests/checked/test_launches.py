"""Checked launches through the public interface: when they happen, what they raise, what they leave alone."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import threading
import warnings

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import rawkern
from rawkern.checked import launches
from rawkern.compile import compile as compiler
from rawkern.compile import nvrtc
from tests import forked

TWICE = r"""
extern "C" __global__ void twice(int n, const float* x, float* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n)
        out[i] = 2.0f *
            x[i];
}"""


def test_out_of_bounds_names_line_thread_parameter_index_and_size():
    kernel = rawkern.RawKernel(TWICE)
    x, out = torch.randn(1000), torch.full((1000,), float("nan"))
    with rawkern.check(), pytest.raises(rawkern.OutOfBoundsError) as caught:
        kernel[4, 256](1000, x, out)
    read, wrote = caught.value.reports
    assert read.file is not None and re.fullmatch(r".*test_launches\.py:\d+", read.file)
    who = "thread (232,0,0) of block (3,0,0)"
    assert read.message == f"{read.file}, line 6: {who} reads x[1000]; x has 1000 elements"
    assert wrote.message == f"{read.file}, line 5: {who} writes out[1000]; out has 1000 elements"
    assert (read.line, read.name, read.index, read.size, read.kernel) == (6, "x", 1000, 1000, "twice")
    assert read.access.thread == (232, 0, 0) and read.access.block == (3, 0, 0)
    assert "6 |             x[i];" in read.access.excerpt and read.access.excerpt in str(caught.value)
    assert torch.equal(out, 2 * x)  # the other lanes go on
    assert isinstance(caught.value, rawkern.LaunchError)


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (None, "x is None, or has no elements"),
        (torch.empty(0), "x has 0 elements"),
        (torch.empty(3)[:0], "x has 0 elements"),
    ],
)
def test_nothing_to_read(x, says: str):
    kernel = rawkern.RawKernel(TWICE)
    with rawkern.check(), pytest.raises(rawkern.OutOfBoundsError) as caught:
        kernel[1, 1](1, x, torch.empty(1))
    assert caught.value.reports[0].message.endswith(f"reads x[0]; {says}")


def test_the_usual_code_is_compiled_only_where_checked_code_does_not_tell_its_limits(monkeypatch: pytest.MonkeyPatch):
    """Its parameters are those of the code that is checked; the registers of a large block are its own."""
    compiled, build = [], compiler.build
    monkeypatch.setattr(
        compiler, "build", lambda source, *more: compiled.append(source.options) or build(source, *more)
    )
    kernel = rawkern.RawKernel(TWICE + "  // compiled here first")
    x, out = torch.randn(1024), torch.empty(1024)
    with rawkern.check():
        kernel[4, 256](1000, x, out)
        assert [len(options) for options in compiled] == [1] and torch.equal(out[:1001], 2 * x[:1001])
        kernel[1, 1024](1000, x, out)
    assert [len(options) for options in compiled] == [1, 0]
    kernel[4, 256](1000, x, out)
    assert len(compiled) == 2


def test_a_source_with_an_error_is_compiled_once(monkeypatch: pytest.MonkeyPatch):
    runs, run = [], nvrtc._run
    monkeypatch.setattr(nvrtc, "_run", lambda *args: runs.append(args) or run(*args))
    kernel = rawkern.RawKernel('extern "C" __global__ void broken(float* y) { y[0] = 1 }')
    with rawkern.check(), pytest.raises(rawkern.CompileError, match='expected a ";"'):
        kernel[1, 1](torch.zeros(1))
    assert len(runs) == 1


def test_only_what_exceeds_a_limit_is_left_to_the_usual_code(monkeypatch: pytest.MonkeyPatch):
    def wrong(needs: object) -> None:
        raise KeyError("wrong")

    monkeypatch.setattr(launches, "ptxas_errors", wrong)
    with rawkern.check(), pytest.raises(KeyError, match="wrong"):
        rawkern.RawKernel(TWICE)[1, 1](0, None, torch.empty(1))


def test_memory_that_only_checked_code_needs_is_no_error():
    """80 kB that are written and never read, which the compiler leaves out; no GPU of this kind would have them."""
    kernel = rawkern.RawKernel(
        """extern "C" __global__ void k(float* x, int n) {
        __shared__ float left_out[20000];
        for (int i = threadIdx.x; i < n; i += blockDim.x) left_out[i] = i;
        x[threadIdx.x] = threadIdx.x;
    }"""
    )
    x = torch.zeros(32)
    with rawkern.check():
        kernel[1, 32](x, 32)
    assert x.tolist() == list(range(32)) and kernel.shared_size_bytes == 0


def test_checks_hold_inside_the_context_only_and_for_launches_made_fast_before():
    kernel = rawkern.RawKernel(TWICE)
    x, out = torch.randn(1001)[:1000], torch.empty(1001)[:1000]
    launch = kernel[4, 256]
    for _ in range(3):
        launch(999, x, out)
        kernel[4, 256](999, x, out)
    with rawkern.check():
        for call in (launch, kernel[4, 256], lambda *a: kernel((4,), (256,), a), kernel.forall(1001)):
            with pytest.raises(rawkern.OutOfBoundsError):
                call(1000, x, out)
            assert str(kernel.signature).startswith("void twice")  # asking must not bring the fast launch back
    launch(999, x, out)

    @rawkern.check()
    def checked():
        launch(1000, x, out)

    with pytest.raises(rawkern.OutOfBoundsError):
        checked()


def test_contexts_nest_and_count_for_all_threads():
    kernel = rawkern.RawKernel(TWICE)
    x, out = torch.randn(1001)[:1000], torch.empty(1001)[:1000]
    caught = []

    def other():
        try:
            kernel[4, 256](1000, x, out)
        except rawkern.CheckError as error:
            caught.append(error)

    with rawkern.check():
        with rawkern.check():
            pass
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(caught) == 1
    with rawkern.check(level="off"):
        other()  # memory past the end exists
    assert len(caught) == 1
    other()
    assert len(caught) == 2 and caught[0].reports[0].message == caught[1].reports[0].message


def test_tensors_that_are_given_along_are_taken_back_in_any_order():
    """As threads do; and by an object that is entered twice."""
    kernel = rawkern.RawKernel("""extern "C" __global__ void k(unsigned long long hidden) {
    ((float*)(hidden ^ ~0ull))[threadIdx.x] += 1;
}""")
    x, y = torch.zeros(4), torch.zeros(4)

    def add(t):
        kernel[1, 4](t.data_ptr() ^ (1 << 64) - 1)

    first, second = rawkern.check(x, level="bounds"), rawkern.check(y)
    with second:
        first.__enter__()
        with second:
            first.__exit__(None, None, None)
            add(y)
            with pytest.raises(rawkern.OutOfBoundsError):
                add(x)
        add(y)
    assert y.tolist() == [2] * 4 and not x.any()
    with pytest.raises(rawkern.OutOfBoundsError):
        add(y)


def test_addresses_that_lead_into_an_argument():
    """In a table, a struct or a number: what they lead to may be another part of an argument's storage."""
    kernel = rawkern.RawKernel(r"""
struct Where { float* from; long long n; };
extern "C" __global__ void k(float* x, const long long* table, Where where, unsigned long long number) {
    float* const second = (float*)table[0];
    x[threadIdx.x] = second[threadIdx.x] + where.from[threadIdx.x] + ((float*)number)[threadIdx.x];
}""")
    whole = torch.arange(16.0)
    x, table = whole[:4], torch.tensor([whole[4:].data_ptr()])
    struct = np.array([whole[8:].data_ptr(), 4]).tobytes()
    with rawkern.check():
        kernel[1, 4](x, table, struct, whole[12:].data_ptr())
    assert torch.equal(whole[:4], whole[4:8] + whole[8:12] + whole[12:])
    with rawkern.check(), pytest.raises(rawkern.OutOfBoundsError):
        kernel[1, 5](x, table, struct, whole[12:].data_ptr())
    with FakeTensorMode():
        fake = torch.empty(5)
    with rawkern.check(), warnings.catch_warnings():  # all live tensors are looked at; this one has no address
        warnings.simplefilter("error")
        kernel[1, 4](x, table, struct, whole[12:].data_ptr())
    assert fake.shape == (5,)


def test_a_checked_program_computes_the_same(device):
    kernel = rawkern.RawKernel(TWICE)
    x, out = torch.randn(1000, device=device), torch.zeros(1000, device=device)
    with rawkern.check():
        kernel[4, 256](999, x, out)
        kernel[4, 256](999, out, x)
        assert torch.equal(x, 2 * out) and out.any()
        out.zero_()
        with pytest.raises(rawkern.OutOfBoundsError):
            kernel[4, 256](1000, x[:999], out)
    if device == "cuda":
        assert not out.any()  # nothing is launched there after a finding


def test_errors_pickle():
    x = torch.randn(1000)
    with rawkern.check(), pytest.raises(rawkern.OutOfBoundsError) as caught:
        rawkern.RawKernel(TWICE)[4, 256](1000, x, torch.empty(1000))
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is rawkern.OutOfBoundsError
    assert again.reports == caught.value.reports and str(again) == str(caught.value)


def test_the_environment_asks_for_checks_of_a_program_that_names_none():
    code = """
import torch, rawkern
kernel = rawkern.RawKernel(
    'extern "C" __global__ void k(int* x) '
    '{ __shared__ int s[64]; int t = threadIdx.x; s[t / 2] = t; __syncthreads(); x[t] = s[63 - t / 2]; }'
)
kernel[1, 64](torch.zeros(64, dtype=torch.int32))
"""
    for level, raises in (("full", True), ("bounds", False)):
        done = subprocess.run(
            [*forked.python(), "-c", code], env={**os.environ, "RAWKERN_CHECK": level}, capture_output=True, text=True
        )
        assert ("rawkern.errors.RaceError" in done.stderr) == raises == bool(done.returncode), done.stderr


def test_an_edit_is_seen_at_once(tmp_path):
    file = tmp_path / "put.cu"
    x = torch.zeros(1)
    kernel = None
    for value in range(5):  # far less than Watch.INTERVAL apart
        file.write_text(f'extern "C" __global__ void put(float* x) {{ *x = {value}; }}')
        kernel = kernel or rawkern.load(file).put
        with rawkern.check():
            kernel[1, 1](x)
        assert x.item() == value


def test_a_barrier_that_threads_end_without_in_a_source_with_line_directives() -> None:
    """Whether the source has them return there is read by the directives' numbers."""
    code = """#line 10 "made.template"
    extern "C" __global__ void k(int* x) {
        int i = threadIdx.x;
        %s
            int last = x[i + 1];
            __syncthreads();
            x[i] = last;
        }
    }"""
    with rawkern.check():
        rawkern.RawKernel(code % "if (i % 2) return; {")[1, 32](torch.zeros(64, dtype=torch.int32))
        with pytest.raises(rawkern.BarrierError, match=r"made\.template:14: .* ends without this barrier"):
            rawkern.RawKernel(code % "if (i % 2 == 0) {")[1, 32](torch.zeros(64, dtype=torch.int32))
