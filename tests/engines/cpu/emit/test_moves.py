"""Instructions that move values and tell addresses apart, and special registers that few kernels read."""

from __future__ import annotations

import torch

import rawkern

I32 = torch.int32


def test_spaces_of_addresses(device):
    """Constants and parameters have generic addresses, too; parameters are part of global memory."""
    code = r"""
__constant__ int table[3] = {1, 2, 3};
__device__ int variable[5];
#define TELL(P) { \
    const void* p = P; \
    IS("global") IS("shared") IS("local") IS("const") IS("param") \
}
#define IS(SPACE) asm("{.reg.pred p;isspacep." SPACE " p,%1;selp.s32 %0,1,0,p;}" : "=r"(*o) : "l"(p)); o++;
struct Many { int a[7]; };
extern "C" __global__ void k(int* o, char c, const __grid_constant__ Many many, int n) {
    __shared__ int s[4];
    int local[4] = {n, 2, 3, n};
    TELL(o) TELL(variable + 2) TELL(s + n) TELL(local + n) TELL(table + n) TELL(&many.a[6]) TELL(table + 2 + (n > 5))
}"""
    o = torch.full((35,), -1, dtype=I32, device=device)
    rawkern.RawKernel(code)[1, 1](o, 3, bytes(28), 0)
    names = ["global", "shared", "local", "const", "param"]
    found = [[name for name, held in zip(names, row, strict=True) if held] for row in o.view(7, 5).tolist()]
    assert found == [["global"], ["global"], ["shared"], ["local"], ["const"], ["global", "param"], ["const"]]


def test_special_registers_as_a_whole(device):
    code = r"""
extern "C" __global__ void k(int* o) {
    int t = threadIdx.x + blockDim.x * threadIdx.y, x, y, z, w;
    o += (t + blockIdx.x * blockDim.x * blockDim.y) * 10;
    asm("mov.v4.u32 {%0,%1,%2,%3},%%tid;" : "=r"(x), "=r"(y), "=r"(z), "=r"(w));
    o[0] = x; o[1] = y; o[2] = z; o[3] = w;
    asm("mov.v4.u32 {%0, %1, _, %2}, %%ctaid;" : "=r"(x), "=r"(y), "=r"(w));
    o[4] = x; o[5] = y; o[6] = w;
    asm("mov.u32 %0, %%ntid.w; mov.u32 %1, %%nctaid .w;" : "=r"(x), "=r"(y));
    o[7] = x; o[8] = y;
    long long graph;
    asm("mov.u64 %0, %%current_graph_exec;" : "=l"(graph));
    o[9] = graph;
}"""
    o = torch.full((3, 6, 7, 10), -1, dtype=I32, device=device)
    rawkern.RawKernel(code)[3, (7, 6)](o)
    for block, row in enumerate(o.tolist()):
        for y, line in enumerate(row):
            assert line == [[x, y, 0, 0, block, 0, 0, 0, 0, 0] for x in range(7)]


def test_forms_of_memory_instructions_that_few_use(device):
    """`cuda::ptx` and newer headers name parameters' spaces in full, and ask for orders and hints of all kinds."""
    code = r"""
extern "C" __global__ void k(float* o, const float* x, int n) {
    float a, b, c;
    int m;
    unsigned long long policy;
    asm volatile("ld.param::entry.u32 %0, [k_param_2];" : "=r"(m));
    asm volatile("ld.mmio.relaxed.sys.global.f32 %0, [%1];" : "=f"(a) : "l"(x));
    asm volatile("prefetch.global.L2::evict_last [%0]; prefetch.global.L1 [%0];" :: "l"(x));
    asm volatile("createpolicy.range.global.L2::evict_last.L2::evict_unchanged.b64 %0, [%1], 128, 256;" : "=l"(policy) : "l"(x));
    asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(b) : "l"(x + 1), "l"(policy));
    asm volatile("st.mmio.relaxed.sys.global.f32 [%0], %1;" :: "l"(o), "f"(a + b));
    asm volatile("fence.gpu; fence.cta; fence.sys; fence.proxy.alias; membar.proxy.alias;" ::: "memory");
    asm volatile("ld.weak.global.L1::no_allocate.f32 %0, [%1];" : "=f"(c) : "l"(x + m));
    o[1] = c;
}"""
    o, x = torch.full((2,), float("nan"), device=device), torch.tensor([0.5, -2.0, 7.0], device=device)
    rawkern.RawKernel(code)[1, 1](o, x, 2)
    assert o.tolist() == [-1.5, 7.0]
    if device == "cpu":
        with rawkern.check():
            rawkern.RawKernel(code)[1, 1](o, x, 2)
