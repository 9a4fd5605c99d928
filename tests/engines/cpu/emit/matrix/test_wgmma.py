"""Sums of a warp group's products between the products: where they lie, and what lanes make of them one by one."""

from __future__ import annotations

import pytest
import torch

import rawkern
from rawkern.base.llvm import host
from rawkern.compile.programs import compile_program
from rawkern.compile.source import HOPPER_ARCH, from_text
from rawkern.engines.cpu.analysis import products
from rawkern.engines.cpu.analysis.plan import make_plan
from rawkern.engines.cpu.emit.matrix import groups
from rawkern.engines.cpu.runtime import jit

CODE = r"""
#include <cuda_fp16.h>
__device__ unsigned long long descriptor(const void* p) {  // cores of 128 bytes: 2 along K, then 8 rows on
    unsigned at = (unsigned)__cvta_generic_to_shared(p);
    return (at & 0x3FFFF) >> 4 | (unsigned long long)(128 >> 4) << 16 | (unsigned long long)(256 >> 4) << 32;
}
__device__ void multiply(float& p, float& q, float& r, float& s, unsigned long long a, unsigned long long b, int add) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %6, 0;"
        " wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 0; }"
        : "+f"(p), "+f"(q), "+f"(r), "+f"(s) : "l"(a), "l"(b), "r"(add));
    asm volatile("wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;"
        : "+f"(p), "+f"(q), "+f"(r), "+f"(s) :: "memory");
}
extern "C" __global__ void __launch_bounds__(128)
sums(const __half* x, const __half* y, float* d, volatile int* flags, int rounds) {
    __shared__ __align__(128) __half sa[64 * 16], sb[8 * 16];
    for (int i = threadIdx.x; i < 64 * 16; i += 128) sa[i / 128 * 128 + i % 16 / 8 * 64 + i / 16 % 8 * 8 + i % 8] = x[i];
    for (int i = threadIdx.x; i < 8 * 16; i += 128) sb[i % 16 / 8 * 64 + i / 16 * 8 + i % 8] = y[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const int t = threadIdx.x, lane = t % 32;
    const unsigned long long a = descriptor(sa), b = descriptor(sb);
    float c[4], e[4] = {};
    for (int i = 0; i < rounds; i++) {
        CHANGE
    }
    for (int i = 0; i < 4; i++) d[t * 4 + i] = c[i] + e[i];
}"""
FIRST = "multiply(c[0], c[1], c[2], c[3], a, b, i > 0);"
CHANGES = {
    "branch": FIRST + " if (lane % 3 == 0) c[0] += 1; else { c[3] -= 2; flags[t] = i; }",
    "loop": FIRST + " for (int k = 0; k < lane % 5; k++) { c[1] += k; c[2] -= c[1]; }",
    "lanes that wait": FIRST
    + " if (lane % 2) { while (flags[t] <= i); c[0] += 3; } else { c[1] *= 2; flags[t + 1] = i + 1; } __syncwarp();",
    "two tiles": FIRST + " multiply(e[0], e[1], e[2], e[3], a, b, 1);",
    "another order": FIRST + " multiply(c[1], c[0], c[3], c[2], a, b, 1);",
}


def expected(change: str, product: torch.Tensor, rounds: int) -> torch.Tensor:
    """What each thread has in its four registers."""
    lane = torch.arange(128) % 32
    c, e = torch.zeros(128, 4), torch.zeros(128, 4)
    for _ in range(rounds):
        c += product
        if change == "branch":
            c[lane % 3 == 0, 0] += 1
            c[lane % 3 != 0, 3] -= 2
        elif change == "loop":
            for k in range(5):
                c[lane % 5 > k, 1] += k
                c[lane % 5 > k, 2] -= c[lane % 5 > k, 1]
        elif change == "lanes that wait":
            c[lane % 2 == 1, 0] += 3
            c[lane % 2 == 0, 1] *= 2
        elif change == "two tiles":
            e += product
        else:
            c += product[:, [1, 0, 3, 2]]
    return c + e


@pytest.mark.parametrize("change", CHANGES)
def test_what_lanes_make_of_sums(change: str) -> None:
    """Lanes that branch, leave loops one by one or wait elsewhere keep their values, and other lanes theirs."""
    source = CODE.replace("CHANGE", CHANGES[change])
    translation = jit.Translation(compile_program(from_text(source), HOPPER_ARCH).ptx)
    flow = make_plan(translation.parsed(), "sums", translation.globals(), "line").flows["sums"]
    assert len(flow.tuples) == {"another order": 0, "two tiles": 2}.get(change, 1)
    torch.manual_seed(0)
    a, b = (torch.randint(-4, 5, (n, 16)).half() for n in (64, 8))
    whole = (a.float() @ b.float().T).view(4, 2, 8, 4, 2)  # warps, halves, rows, pairs of columns
    product = whole.permute(0, 2, 3, 1, 4).reshape(128, 4)
    kernel = rawkern.RawKernel(source)
    for rounds in (1, 3):
        d, flags = torch.full((128, 4), float("nan")), torch.zeros(128, dtype=torch.int32)
        kernel[1, 128](a, b, d, flags, rounds)
        torch.testing.assert_close(d, expected(change, product, rounds), rtol=0, atol=0)


def lines(products: int) -> int:
    """Lines of LLVM IR of a kernel with some products of 256 columns in a loop."""
    names = ", ".join(f"%{k}" for k in range(128))
    sums = ", ".join(f'"+f"(c[{k}])' for k in range(128))
    op = "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16"
    product = f'asm volatile("{op} {{{names}}}, %128, %128, 1, 1, 1, 0, 0;" : {sums} : "l"(at));'
    code = f"""
    extern "C" __global__ void k(float* x, unsigned long long at, int rounds) {{
        float c[128] = {{}};
        #pragma unroll 1
        for (int i = 0; i < rounds; i++) {{ {product * products} if (x[i] > 0) {{ {product * products} }} }}
        for (int i = 0; i < 128; i++) x[i * 128 + threadIdx.x] = c[i];
    }}"""
    translation = jit.Translation(compile_program(from_text(code), HOPPER_ARCH).ptx)
    return translation.lower("k", translation.globals(), "line", host()).text.count("\n")


def test_nothing_is_moved_around_products() -> None:
    assert (lines(3) - lines(1)) / 4 < 50


START = r"""
__device__ void start(float& p, float& q, float& r, float& s, unsigned long long a, unsigned long long b) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
        : "+f"(p), "+f"(q), "+f"(r), "+f"(s) : "l"(a), "l"(b));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
"""


def test_code_does_not_depend_on_where_instructions_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read early may be of either of two products, which are known by their addresses."""
    either = "if (i % 2) start(c[0], c[1], c[2], c[3], a, b); else start(c[0], c[1], c[2], c[3], a, b + 1);"
    code = CODE.replace("extern", START + "extern", 1).replace("CHANGE", f"{either} flags[t] = (int)c[0];")
    ptx = compile_program(from_text(code), HOPPER_ARCH).ptx

    def lowered(sign: int) -> str:
        for module in (products, groups):
            monkeypatch.setattr(module, "id", lambda value: sign * id(value), raising=False)
        translation = jit.Translation(ptx)
        return translation.lower("sums", translation.globals(), "line", host()).text

    assert "%product1" in lowered(1)
    assert lowered(-1) == lowered(1)
