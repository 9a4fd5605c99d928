"""Ordinary launches on the CPU stay inside their memory: whatever a kernel does, it raises before it does it."""

from __future__ import annotations

import struct
import threading

import numpy as np
import pytest
import torch

import rawkern
from rawkern.engines.cpu.checker.bounds import Memory
from rawkern.launch import intercept, native
from tests.engines.cpu.checker import random_wild, wild
from tests.engines.cpu.emit.memory.test_access import UNROLLED

N, ZONE = 64, 4096  # elements, and bytes of the zone on each side of an array


@pytest.fixture(scope="module")
def module() -> rawkern.RawModule:
    return rawkern.RawModule(wild.source())


class Guarded:
    """Arrays with guard zones around them that must not change."""

    def __init__(self) -> None:
        self.zones: list[torch.Tensor] = []

    def array(self, dtype: torch.dtype) -> torch.Tensor:
        whole = torch.full((2 * ZONE + 4 * N,), 0x5A, dtype=torch.uint8)
        self.zones += [whole[:ZONE], whole[ZONE + 4 * N :]]
        array = whole[ZONE : ZONE + 4 * N].view(dtype)
        return array.copy_(torch.arange(N))

    def intact(self) -> bool:
        return all(bool((zone == 0x5A).all()) for zone in self.zones)


@pytest.mark.parametrize(("name", "error", "body"), wild.ROWS, ids=[row[0] for row in wild.ROWS])
def test_what_leaves_its_memory_raises(module, name: str, error: str, body: str) -> None:
    kernel, memory = module.get_function(name), Guarded()
    for _ in range(3):  # the third launch is native, where it may be
        x, y, out, p, first, second = (
            memory.array(dtype) for dtype in (torch.float32, torch.float32, torch.int32, *[torch.float32] * 3)
        )
        before = y.clone()
        with pytest.raises(getattr(rawkern, error)) as caught:
            kernel[1, N, 256](N, x, y, out, {"p": p, "n": 16}, [first, second], None)
        assert memory.intact() and torch.equal(y, before)
        assert str(caught.value).startswith(f"{name}: ") or "printf" in str(caught.value)
    assert len(wild.ROWS) >= 60


RIGHT = r"""
struct S { float* p; long long n; };
__constant__ float factors[4] = {1, 2, 3, 4};
__device__ __noinline__ float element(const float* a, int k) { return a[k]; }
extern "C" __global__ void right(int n, float* x, const float* y, S s, float** table, const long long* addresses) {
    extern __shared__ float d[];
    __shared__ float a[33];
    int t = threadIdx.x;
    float local[5];
    for (int i = 0; i < 5; ++i) local[i] = y[(t + i) % n];
    if (t < 33) a[t] = y[t];
    d[t] = table[t % 2][t % n];
    __syncthreads();
    float* p = t % 3 ? a : d;
    int* mine = (int*)malloc(4 * (t + 1));
    mine[t] = t;
    if (t < n)
        x[t] += p[t % 33] + element(local, t % 5) + factors[t % 4] + s.p[t % s.n] + mine[t] + ((float*)addresses[0])[t];
    free(mine);
}"""


def test_what_stays_inside_runs_as_it_is() -> None:
    """Lanes that do nothing may have any address; memory may be reached through structs, tables, numbers and calls."""
    kernel, n = rawkern.RawKernel(RIGHT), 50
    y, p, first, second, far = (torch.randn(n) for _ in range(5))
    addresses = torch.tensor([far.data_ptr()])
    results = []
    for level in ("off", "bounds", "bounds", "bounds", "full"):
        x = torch.zeros(n)
        with rawkern.check(level=level):
            kernel[1, 64, 256](n, x, y, {"p": p, "n": 7}, [first, second], addresses)
        results.append(x)
    assert all(torch.equal(results[0], each) for each in results[1:])


LED = r"""
struct S { const float* a; const int* offset; };
extern "C" __global__ void led(float* y, S s, const long long* at) {
    int i = threadIdx.x;
    y[i] = s.a[i + s.offset[0]] + ((const float*)at[0])[i] + (at[1] ? ((const float**)at[1])[0][i] : 0);
}"""


def test_what_addresses_lead_to_is_found_anew_in_each_launch() -> None:
    """Earlier launches may have read it, which does not count once the address or the memory is gone."""
    kernel, offset = rawkern.RawKernel(LED)[2, 32], torch.zeros(1, dtype=torch.int32)
    y, a, b, c, d = (torch.randn(32) for _ in range(5))
    chain, at = torch.tensor([d.data_ptr()]), torch.zeros(2, dtype=torch.int64)

    def launch(first: torch.Tensor, second: torch.Tensor, third: torch.Tensor | None = None) -> torch.Tensor:
        at[0], at[1] = second.data_ptr(), third.data_ptr() if third is not None else 0
        kernel(y.fill_(torch.nan), struct.pack("QQ", first.data_ptr(), offset.data_ptr()), at)
        return y

    for _ in range(3):
        assert torch.equal(launch(a, b), a + b)
        assert torch.equal(launch(b, c), b + c)
        assert torch.equal(launch(b, c, chain), b + c + d)
    offset.fill_((c.data_ptr() - a.data_ptr()) // 4)
    assert torch.equal(launch(a, c), c + c)  # c stands among the addresses
    with pytest.raises(rawkern.OutOfBoundsError, match="reads address 0x"):
        launch(a, b)
    offset.zero_()
    assert torch.equal(launch(a, b, chain), a + b + d)
    gone = d.data_ptr()
    d.untyped_storage().resize_(0)
    with pytest.raises(rawkern.OutOfBoundsError):
        launch(a, b, chain)
    short = a.data_ptr()
    a.untyped_storage().resize_(0)
    assert torch.equal(launch(b, c), b + c)
    at[0], at[1] = short, 0
    with pytest.raises(rawkern.OutOfBoundsError):
        kernel(y, struct.pack("QQ", b.data_ptr(), offset.data_ptr()), at)
    del d
    chain[0] = gone
    with pytest.raises(rawkern.OutOfBoundsError):
        launch(b, c, chain)


MEMBERS = r"""
struct P { const float* x; float* y; const float* in[2]; int k, at, to; };
extern "C" __global__ void direct(P p) { if (p.k < 0) ((float*)p.x)[0] = 1; else p.y[p.to] = p.x[p.at]; }
extern "C" __global__ void indexed(P p) { p.y[p.to] = p.in[p.k][p.at]; }
"""


@pytest.mark.parametrize("name", ["direct", "indexed"])
@pytest.mark.parametrize("before", [False, True])
def test_members_of_dicts_are_the_slices_that_are_given(
    name: str, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In native launches, too, and also after bytes have led to all of the storage."""
    whole, y = torch.arange(64.0), torch.zeros(4)
    given = {"x": whole[8:16], "y": y, "in": [whole[8:16], whole[24:32]], "k": 0, "at": 7, "to": 3}
    launch = rawkern.RawModule(MEMBERS).get_function(name)[1, 1]
    if before:
        words = [t.data_ptr() for t in (given["x"], y, *given["in"])]
        launch(struct.pack("<4Q3i4x", *words, 0, 40, 1))
        assert y[1] == 48
    wrongs = [({"at": 8}, "OutOfBoundsError"), ({"at": -1}, "OutOfBoundsError"), ({"at": 40}, "OutOfBoundsError")]
    wrongs += [({"to": 4}, "OutOfBoundsError")]
    wrongs += [({"k": -1}, "ReadOnlyError"), ({"x": None}, "OutOfBoundsError")] if name == "direct" else []
    for wrong, error in wrongs:
        for _ in range(3):  # launches after an error take the slow path
            launch(given)
            native.wait()
        assert y[3] == 15
        with monkeypatch.context() as patched:
            patched.setattr(intercept, "start", lambda *args: pytest.fail("the slow path"))
            launch(given | {"at": 0})
            assert y[3] == 8
            with pytest.raises(
                getattr(rawkern, error), match=r"p\.[xy]" if name == "direct" and "x" not in wrong else None
            ):
                launch(given | wrong)
    launch(given | {"k": 1})
    assert y[3] == (15 if name == "direct" else 31)
    assert torch.equal(whole, torch.arange(64.0))


LISTS = r"""
extern "C" __global__ void lists(const float* const* read, float** write, int k, int from, int to) {
    if (from < 0) ((float*)read[k])[0] = 1;
    else write[k][to] = read[k][from];
}"""


def test_lists_of_tensors_are_told_of_before_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first launch asks for them; each has the slices of its own list."""
    asked = []
    answer = Memory._answer
    monkeypatch.setattr(Memory, "_answer", lambda self, *args: (asked.append(args), answer(self, *args))[1])
    launch = rawkern.RawKernel(LISTS)[1, 1]
    whole = torch.arange(64.0)
    first, second = [whole[8:16], whole[24:32]], [whole[16:20], whole[40:48]]
    outs, others = ([torch.zeros(4) for _ in range(2)] for _ in range(2))
    launch(first, outs, 0, 7, 3)
    assert asked and outs[0][3] == 15
    asked.clear()
    for read, write in ((first, outs), (second, others), (first, outs), (first, others)):
        for k in (0, 1):
            launch(read, write, k, 3, 1)
            assert write[k][1] == read[k][3]
    assert not asked
    wrongs = [(0, 8, 0), (1, -1, 0), (0, 32, 0), (0, 0, 4), (1, 0, -1)]
    for k, start, to in wrongs:
        with pytest.raises(rawkern.ReadOnlyError if start < 0 else rawkern.OutOfBoundsError):
            launch(first, outs, k, start, to)
        launch(second, others, 0, 3, 1)
        assert others[0][1] == 19
    with pytest.raises(rawkern.OutOfBoundsError):  # what the launch before has been told of
        launch(second, others, 0, 4, 0)
    assert torch.equal(whole, torch.arange(64.0))


def test_lists_of_tensors_from_several_threads() -> None:
    """A launch is told of its own lists, whatever another thread prepares at the time."""
    launch = rawkern.RawKernel(LISTS)[1, 1]
    failed = []

    def run(number: int) -> None:
        read, write = [torch.full((4,), float(number))], [torch.zeros(4)]
        for _ in range(200):
            launch(read, write, 0, 1, 1)
            if write[0][1] != number:
                failed.append(number)
            write[0].zero_()

    threads = [threading.Thread(target=run, args=(k + 1,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_strides_of_any_sign_reach_where_they_do() -> None:
    kernel = rawkern.RawKernel(
        'extern "C" __global__ void k(int n, const float* x, long long step, float* y) '
        "{ int i = threadIdx.x; if (i < n) y[i] = x[i * step]; }",
        strided=True,
    )
    x = np.arange(40, dtype=np.float32)
    for view, step in ((x[::2], 2), (x[::-2], -2), (x[5:], 1)):
        y = np.zeros(len(view), np.float32)
        kernel[1, 64](len(view), view, step, y)
        assert (y == view).all()
        with pytest.raises(rawkern.OutOfBoundsError, match=f"x has {len(view)} elements" if step == 1 else "reads x"):
            kernel[1, 64](len(view), view, 2 * step, y)
    t = torch.arange(40.0)[1::3]
    y = torch.zeros(len(t))
    kernel[1, 64](len(t), t, 3, y)
    assert torch.equal(y, t)


def test_levels() -> None:
    kernel = rawkern.RawKernel('extern "C" __global__ void k(float* x) { x[threadIdx.x] = 1; }')
    whole = torch.zeros(64)
    x = whole[:16]
    for _ in range(4):
        with rawkern.check(level="off"):
            kernel[1, 32](x)
        assert whole[:32].all()
        for level in ("bounds", "full"):
            whole.zero_()
            with rawkern.check(level=level), pytest.raises(rawkern.OutOfBoundsError, match="x has 16 elements"):
                kernel[1, 32](x)
            assert not whole[16:].any()
    with pytest.raises(ValueError, match="level is 'most'; it is one of off, bounds, full"):
        rawkern.check(level="most")  # type: ignore[arg-type]


def test_an_error_leaves_the_next_launch_right() -> None:
    """Also of a kernel with barriers on many blocks, of which others are under way."""
    kernel = rawkern.RawKernel(r"""extern "C" __global__ void k(int n, const float* x, float* y) {
    __shared__ float s[128];
    s[threadIdx.x] = x[blockIdx.x * 128 + threadIdx.x];
    __syncthreads();
    y[blockIdx.x * 128 + threadIdx.x] = s[127 - threadIdx.x];
}""")
    x = torch.randn(128 * 64)
    for _ in range(3):
        y = torch.zeros_like(x)
        with pytest.raises(rawkern.OutOfBoundsError):
            kernel[65, 128](0, x, y)
        kernel[64, 128](0, x, y)
        assert torch.equal(y.view(64, 128), x.view(64, 128).flip(1))


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_raise_what_full_checks_find(seed: int) -> None:
    assert not random_wild.trial(seed)


@pytest.mark.parametrize("n", [512, 520])
def test_bounds_hold_in_loops_that_are_unrolled_in_part(n: int) -> None:
    x, y = torch.zeros(2 * n, dtype=torch.int32), torch.zeros(2 * n - 1, dtype=torch.int32)
    sums = torch.zeros(128, dtype=torch.int32)
    with pytest.raises(rawkern.OutOfBoundsError, match=rf"writes y\[{2 * n - 1}\]"):
        rawkern.RawKernel(UNROLLED, "rows")[2, 64](n, x, y, sums)
