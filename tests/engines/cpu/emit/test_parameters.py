"""Parameters in inline assembly: what leaves them, writes a kernel's, or passes others than a function takes."""

from __future__ import annotations

import pytest
import torch

import rawkern

UNSUPPORTED, READ_ONLY, BOUNDS = rawkern.UnsupportedError, rawkern.ReadOnlyError, rawkern.OutOfBoundsError
AT = "{.reg .b64 t; mov.b64 t, KERNEL_param_0; "
#: Instructions for a kernel ``(int* x, int n)`` with n = 5 whose result is %0, 32 bits, and what they raise or give.
ROWS: list[tuple[str, object]] = [
    ("ld.param.u32 %0, [KERNEL_param_1];", 5),
    ("ld.param.u16 %0, [KERNEL_param_1];", 5),
    (AT + "ld.param.u32 %0, [t+8];}", 5),
    (AT + "cvta.param.u64 t, t; ld.u32 %0, [t+8];}", 5),
    ("ld.param.u32 %0, [KERNEL_param_0+8];", UNSUPPORTED),
    ("ld.param.u32 %0, [KERNEL_param_0+1073741824];", UNSUPPORTED),
    ("ld.param.u32 %0, [KERNEL_param_1-4];", UNSUPPORTED),
    ("ld.param.u32 %0, [KERNEL_param_1+1];", UNSUPPORTED),
    ("{.reg .b64 t; ld.param.u64 t, [KERNEL_param_1]; cvt.u32.u64 %0, t;}", UNSUPPORTED),
    ("{.reg .b32 t; ld.param.v2.u32 {%0, t}, [KERNEL_param_1];}", UNSUPPORTED),
    ("ld.param.u32 %0, [4096];", BOUNDS),
    (AT + "ld.param.u32 %0, [t+1073741824];}", BOUNDS),
    (AT + "ld.param.u32 %0, [t+16];}", BOUNDS),
    ("st.param.u32 [KERNEL_param_1], %0;", UNSUPPORTED),
    ("st.u32 [KERNEL_param_1], %0;", READ_ONLY),
    (AT + "st.param.u32 [t+8], %0;}", READ_ONLY),
    (AT + "st.u32 [t], %0;}", READ_ONLY),
    (AT + "st.global.u32 [t], %0;}", READ_ONLY),
    (AT + "st.v2.u32 [t], {%0, %0};}", READ_ONLY),
    (AT + "cvta.param.u64 t, t; st.u32 [t+4], %0;}", READ_ONLY),
    (AT + "cvta.param.u64 t, t; atom.add.u32 %0, [t+4], 1;}", READ_ONLY),
    (AT + "red.add.u32 [t+4], 1;}", READ_ONLY),
    ("{.param .b32 q; st.param.u32 [q], 7; ld.param.u32 %0, [q];}", 7),
    ("{.param .b32 q; st.param.u32 [q+4], %0;}", UNSUPPORTED),
    ("{.param .b32 q; st.param.u32 [q+400000], %0;}", UNSUPPORTED),
    ("{.param .b64 q; st.param.u32 [q+2], %0;}", UNSUPPORTED),
    ("{.param .b64 q; st.param.v2.u32 [q+4], {%0, %0};}", UNSUPPORTED),
    ("{.param .b32 a; .param .b32 r; st.param.b32 [a], 4; call (r), sum, (a, a); ld.param.b32 %0, [r];}", 8),
    ("{.param .b32 a; .param .b32 r; call (r), sum, (a);}", UNSUPPORTED),
    ("{.param .b32 a; .param .b32 r; call (r), sum, (a, a, a);}", UNSUPPORTED),
    ("{.param .b32 a; call sum, (a, a);}", UNSUPPORTED),
    ("{call sum;}", UNSUPPORTED),
    ("{.param .b32 a; .param .b64 r; call (r), sum, (a, a);}", UNSUPPORTED),
    ("{.param .b16 a; .param .b32 r; call (r), sum, (a, a);}", UNSUPPORTED),
    ("{.param .b8 a[4]; .param .b32 r; call (r), sum, (a, a);}", UNSUPPORTED),
    ("{.param .b64 a; call KERNEL, (a);}", UNSUPPORTED),
    ("{call put, (KERNEL_param_0);}", UNSUPPORTED),
    ("{call put, (kept);}", UNSUPPORTED),
    ("{.shared .b64 s; call put, (s);}", UNSUPPORTED),
    ("{.param .b64 a; call (a), vprintf, (a);}", UNSUPPORTED),
    ("{.param .b64 a; call (a), vprintf, (a, a);}", UNSUPPORTED),
    ("{.param .b64 a; call (a), malloc, ();}", UNSUPPORTED),
    ("{.param .b32 a; call free, (a);}", UNSUPPORTED),
    ("{.param .b64 a; call __assertfail, (a, a, a, a, a);}", UNSUPPORTED),
    ("call (%0), sum, (4, %0);", 4),
    ("call (%0), sum, (%0);", UNSUPPORTED),
    (
        "{.reg .b64 t; .param .b32 a; .param .b32 r; st.param.b32 [a], 4; mov.b64 t, sum; "
        "p: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _); call (r), t, (a, a), p; ld.param.b32 %0, [r];}",
        8,
    ),
    (
        "{.reg .b64 t; .param .b64 a; .param .b32 r; mov.b64 t, sum; "
        "p: .callprototype (.param .b32 _) _ (.param .b64 _); call (r), t, (a), p;}",
        rawkern.LaunchError,
    ),
]
HEAD = r"""
__device__ void* kept[2];
extern "C" __device__ __noinline__ int sum(int a, int b) { return a + b; }
extern "C" __device__ __noinline__ void put(int* p) { *p = 3; }
"""
ONE = r"""
extern "C" __global__ void KERNEL(int* x, int n) {
    unsigned v = 0;
    if (n > 100) { x[0] = sum(n, n); put(x); printf("%d", n); assert(n > 7); kept[0] = malloc(n); free(kept[0]); }
    if (n > 200) { kept[0] = (void*)sum; kept[1] = (void*)put; }
    asm volatile("CODE" : "+r"(v));
    x[1] = v;
}"""


@pytest.fixture(scope="module")
def module() -> rawkern.RawModule:
    kernels = (ONE.replace("CODE", code).replace("KERNEL", f"k{k}") for k, (code, _) in enumerate(ROWS))
    return rawkern.RawModule("#include <cassert>\n" + HEAD + "\n".join(kernels))


@pytest.mark.parametrize("level", ["bounds", "full"])
def test_parameters_and_calls(module, level: str) -> None:
    for k, (code, expected) in enumerate(ROWS):
        if level == "full" and expected is UNSUPPORTED:
            continue  # when the code is made, as in the other build
        kernel, x = module.get_function(f"k{k}"), torch.zeros(4, dtype=torch.int32)
        with rawkern.check(level=level):
            if isinstance(expected, int):
                kernel[1, 32](x, 5)
                assert x.tolist() == [0, expected, 0, 0], code
                continue
            with pytest.raises(expected, match=f"k{k}: ") as caught:
                kernel[1, 32](x, 5)
                pytest.fail(code)
        assert expected is not UNSUPPORTED or ", line " in str(caught.value)


def test_parameters_are_aligned_as_their_types_are(device: str) -> None:
    """Read through their addresses, 16 bytes at a time."""
    kernel = rawkern.RawKernel(r"""
struct P { const float* x; int4 a, b; };
__device__ __noinline__ int4 read(const int4* v, int i) { return v[i]; }
extern "C" __global__ void k(const __grid_constant__ P p, int* y, int i) {
    int4 v = read(&p.a, i);
    y[0] = v.x * 1000 + v.y * 100 + v.z * 10 + v.w;
}""")
    y = torch.zeros(1, dtype=torch.int32, device=device)
    four = {name: k for k, name in enumerate("xyzw", 5)}
    kernel[1, 1]({"x": None, "a": dict.fromkeys("xyzw", 1), "b": four}, y, 1)
    assert y.item() == 5678


def test_pointers_that_are_loaded_together(device: str) -> None:
    """Members of a struct that is aligned for 16 bytes: each has the bounds of its own tensor."""
    kernel = rawkern.RawKernel(r"""
struct P { const float* x; const float* y; float* z; int n; int4 size; };
extern "C" __global__ void k(const P p) {
    const float *x, *y;
    asm("ld.param.v2.u64 {%0, %1}, [k_param_0];" : "=l"(x), "=l"(y));
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.size.x) p.z[i] = x[i % 4] + y[i + p.n];
}""")
    x, y, z = torch.arange(4.0, device=device), torch.arange(100.0, device=device), torch.zeros(64, device=device)
    size = dict.fromkeys("yzw", 1) | {"x": 64}
    kernel[2, 32]({"x": x, "y": y, "z": z, "n": 30, "size": size})
    assert torch.equal(z, x.repeat(16) + y[30:94])
    if device == "cpu":
        with pytest.raises(BOUNDS, match=r"reads p\.y\[100\]; p\.y has 100 elements"):
            kernel[2, 32]({"x": x, "y": y, "z": z, "n": 37, "size": size})
