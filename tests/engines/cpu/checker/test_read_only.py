"""Nothing writes memory that the kernel may only read, whichever way it gets the address and whatever writes."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest
import torch

import rawkern

#: Expressions of an address, from a const pointer if ``m``, else from ``w``.
WAYS = {
    "parameter": "(int*)(m ? c : w)",
    "member": "m ? (int*)s.p : s.q",
    "list": "m ? (int*)read[n - 1] : list[n - 1]",
    "number": "(int*)(m ? s.a : s.b)",
    "memory": "(int*)(box[t] = m ? (long long)c : (long long)w, box[t])",
    "shared": "(int*)(kept[t] = m ? (long long)s.p : (long long)w, kept[t])",
    "local": "(int*)(own[t % 2] = m ? (long long)c : (long long)w, own[t % 2])",
    "atomic": "(int*)(atomicExch((unsigned long long*)box + t, (unsigned long long)(m ? c : w)), "
    "atomicAdd((unsigned long long*)box + t, 0ull))",
    "lane": "(int*)__shfl_sync(~0u, m ? (long long)c : (long long)w, 7)",
    "parts": "(int*)(((m ? (long long)c : (long long)w) >> 32 << 32) | (unsigned)(m ? (long long)c : (long long)w))",
}
#: What writes the t-th element, or elements from there on.
WRITES = [
    "p[t] = 1", "((volatile char*)p)[4 * t] = 1", "((int4*)p)[t] = make_int4(1, 2, 3, 4)", "if (t == 5) p[0] = 1",
    "p[31 - t] = 1", "p[t * t % 7] = 1", "((double*)p)[t] = 1", "memcpy(p + 3 * t, &s, 12)", "memset(p, 1, 64 + t)",
    "atomicAdd(p + t, 1)", "atomicAdd((float*)p + t, 1.0f)", "atomicAdd((double*)p + t, 1.0)", "atomicCAS(p, 0, 1)",
    "atomicExch((unsigned long long*)p + t, 1ull)", "w[64] = atomicMax(p + 3, 1)", "atomicInc((unsigned*)p, 99u)",
    'asm volatile("st.release.gpu.u32 [%0], 1;" :: "l"(p + t))', 'asm volatile("red.add.u32 [%0], 1;" :: "l"(p + t))',
    'asm volatile("red.global.or.b32 [%0], 1;" :: "l"(p))', 'asm volatile("st.global.v2.u32 [%0], {1, 1};" :: "l"(p + 2 * t))',
    'asm volatile("st.global.cs.u16 [%0], 1;" :: "l"(p + t))', "tile(p)",
]  # fmt: skip
KERNELS = r"""
#include <mma.h>
struct S { const int* p; int* q; long long a, b; };
__device__ void tile(int* p) {
    using namespace nvcuda::wmma;
    fragment<accumulator, 16, 16, 16, float> f;
    fill_fragment(f, 1.0f);
    store_matrix_sync((float*)p, f, 16, mem_row_major);
}
extern "C" __global__ void any_way(int m, int way, int how, int n, S s, const int* c, int* w, const int* const* read,
                                   int** list, volatile long long* box) {
    __shared__ volatile long long kept[32];
    long long own[2];
    int t = threadIdx.x;
    int* p = 0;
    switch (way) {
WAYS
    }
    switch (how) {
WRITES
    }
}
extern "C" __global__ void known(int way, S s, const int* c, const int* const* read) {
    if (way == 0) ((int*)c)[threadIdx.x] = 1;
    if (way == 1) ((int*)s.p)[threadIdx.x] = 1;
    if (way == 2) ((int*)read[1])[threadIdx.x] = 1;
    if (way == 3) atomicAdd((int*)s.p + 7, 1);
    if (way == 4) tile((int*)s.p);
    if (way == 5) memset((void*)s.p, 1, 100);
}
""".replace("WAYS", "\n".join(f"case {k}: p = {way}; break;" for k, way in enumerate(WAYS.values()))).replace(
    "WRITES", "\n".join(f"case {k}: {write}; break;" for k, write in enumerate(WRITES))
)


@pytest.fixture(scope="module", autouse=True)
def _few_objects() -> None:
    """Let the search for tensors, which most launches here need, pass over half a million objects of other tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def module() -> rawkern.RawModule:
    return rawkern.RawModule(KERNELS)


@pytest.fixture(scope="module")
def mapped(tmp_path_factory) -> np.memmap:
    """Memory that the system has made read-only."""
    file = tmp_path_factory.mktemp("read_only") / "zeros"
    np.zeros(4096, np.int32).tofile(file)
    return np.memmap(file, np.int32, mode="r")


def _launch(module: rawkern.RawModule, way: str, how: int, reads: bool, c: np.ndarray) -> torch.Tensor:
    w, box = torch.zeros(4096, dtype=torch.int32), torch.zeros(32, dtype=torch.int64)
    s = {"p": c, "q": w, "a": c.ctypes.data, "b": w.data_ptr()}
    module.get_function("any_way")[1, 32](int(reads), list(WAYS).index(way), how, 2, s, c, w, [c, c], [w, w], box)
    return w


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_write(module, mapped, way: str) -> None:
    for how, write in enumerate(WRITES):
        with pytest.raises(rawkern.ReadOnlyError, match=r"the kernel may only read (c|s\.p|read\[1\])"):
            _launch(module, way, how, True, mapped)
            pytest.fail(f"{write} through {way}")
        assert _launch(module, way, how, False, mapped).any(), write
    assert not mapped.any()


def test_checked_and_profiled(module, mapped) -> None:
    for way, how in (*itertools.product(["memory"], range(len(WRITES))), ("member", 0), ("list", 2)):
        with rawkern.check(), pytest.raises(rawkern.ReadOnlyError):
            _launch(module, way, how, True, mapped)
        with rawkern.profile(), pytest.raises(rawkern.ReadOnlyError):
            _launch(module, way, how, True, mapped)
    assert not mapped.any()


@pytest.mark.parametrize("level", ["bounds", "full"])
def test_addresses_of_known_origin(module, mapped, level: str) -> None:
    for way in range(6):
        with rawkern.check(level=level), pytest.raises(rawkern.ReadOnlyError):
            module.get_function("known")[1, 32](way, {"p": mapped, "q": None, "a": 0, "b": 0}, mapped, [mapped, mapped])
    assert not mapped.any()


def test_one_that_is_also_given_to_be_written() -> None:
    """A tensor that two parameters lead to, const and not: an address of no known origin may write it."""
    kernel = rawkern.RawKernel(
        'struct S { const int* p; int* q; }; extern "C" __global__ void k(const int* c, int* w, S s, long long* box, '
        "int which) { volatile long long* v = box + threadIdx.x; v[0] = (long long)c; int* p = which == 0 ? (int*)v[0] : s.q; "
        "p[threadIdx.x] = which + 1; if (which == 2) s.q[threadIdx.x] = 7; }"
    )
    x, box = torch.zeros(32, dtype=torch.int32), torch.zeros(32, dtype=torch.int64)
    for level, (which, value) in itertools.product(("bounds", "full"), ((0, 1), (1, 2), (2, 7))):
        with rawkern.check(level=level):
            kernel[1, 32](x, x, {"p": x, "q": x}, box, which)
        assert (x == value).all()


class _Locked:
    """A read-only array, as JAX's are."""

    def __init__(self, x: np.ndarray) -> None:
        x.flags.writeable = False
        self.x = x

    def __dlpack__(self, **how):
        return self.x.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


def test_an_address_of_what_its_owner_locks() -> None:
    kernel = rawkern.RawKernel(
        'extern "C" __global__ void k(const int* c, long long a) { ((int*)a)[threadIdx.x] = 1; }'
    )
    x = np.zeros(64, np.int32)
    for level in ("bounds", "full"):
        with rawkern.check(level=level), pytest.raises(rawkern.CheckError):
            kernel[1, 32](_Locked(x), x.ctypes.data)
        assert not x.any()
    y = torch.zeros(32, dtype=torch.int32)
    kernel[1, 32](y, y.data_ptr())
    assert y.all()


PARAMETERS = r"""
struct Big { int v[8]; };
__device__ __noinline__ int local_copy(Big b, int k) { b.v[k % 8] = 5; return b.v[(k + 1) % 8] + b.v[k % 8]; }
extern "C" __global__ void victim(int* const __grid_constant__ p, long long* z, long long target, int i) {
    z[0] = (long long)&p;
    volatile long long* v = z;
    *(volatile long long*)v[0] = target;
    (*(int* volatile*)v[0])[i] = 77;
}
extern "C" __global__ void member(const __grid_constant__ Big b, int* x, int i) {
    volatile long long at = (long long)&b;
    ((int*)at)[i] = 3;
    x[0] = b.v[0];
}
extern "C" __global__ void added(const __grid_constant__ Big b, int* x, int i) {
    x[0] = atomicAdd((int*)&b + i, 3);
}
extern "C" __global__ void copies(Big b, int* x, int i) {
    b.v[(i + threadIdx.x) % 8] = 9;  // a parameter's own copy may be written
    x[threadIdx.x] = local_copy(b, threadIdx.x) + b.v[i % 8];
}
"""


def test_parameters_are_read_only() -> None:
    module = rawkern.RawModule(PARAMETERS)
    b = np.arange(8, dtype=np.int32).tobytes()
    for level in ("bounds", "bounds", "full"):
        with rawkern.check(level=level):
            x, z, victim = torch.zeros(32, dtype=torch.int32), torch.zeros(4, dtype=torch.int64), np.zeros(64, np.int32)
            with pytest.raises(rawkern.ReadOnlyError, match="may only read the parameters"):
                module.get_function("victim")[1, 1](x, z, victim.ctypes.data, 3)
            for name in ("member", "added"):
                with pytest.raises(rawkern.ReadOnlyError, match="may only read the parameters"):
                    module.get_function(name)[1, 1](b, x, 2)
            assert not victim.any() and (level == "full" or not x.any())  # which continues after what it found
            module.get_function("copies")[1, 32](b, x, 2)
            for t in range(32):
                v = list(range(8))
                v[(2 + t) % 8] = 9
                own = [*v]
                own[t % 8] = 5
                assert x[t] == own[(t + 1) % 8] + own[t % 8] + v[2]
