"""Kernels of compute capability 9.0, compared with what an H200 gave for them, bit for bit."""

from __future__ import annotations

import contextlib
import re

import pytest
import torch

import rawkern
from rawkern.errors import CompileError, LaunchError, OutOfBoundsError, RaceError, UnsupportedError
from tests.engines.cpu import sm90

#: Of each group those whose kernels compile in little time; `python -m tests.engines.cpu.sm90` compares all.
SAMPLE = {
    "mbarriers": r"mbar/",
    "packed integers, vectors of atomics, fences": r"misc/(?!cooperative_cluster|accepted\d|\w+\.bf16)",
    "conversions": r"cvt/(cvt\.rna\.tf32\.f32|cvt\.f64\.bf16|cvt\.rn\.satfinite\.e5m2x2\.f16x2)",
    "bulk copies": r"bulk/(g2s_cluster|g2s_hint|s2g_copy|s2g_(add_f32|add_f64|add_f16|min_bf16|inc_u32)|groups|prefetch)",
    "tensor copies": r"tmaload/(U8_r2_sw1|U16_r2_sw[03]|TF32_r2_sw[01]|F64_r2_sw3)|tmastore/store_(U8|F16)_r2",
    "sums of mma": r"mmasum/k(16_f32_f16_f16|8_f32_tf32_tf32|32_f32_e4m3_e5m2|32_f16_e4m3_e4m3)",
    "wgmma": r"wgmma/(f16_n8_tn11|f16_e4m3_e5m2_n8_rs|s32_s8_s8_n16_ss)",
    "sums of wgmma": r"wsum/f16_e5m2_e5m2_s",
}


@pytest.mark.parametrize("group", SAMPLE)
def test_recorded(group: str) -> None:
    names = [name for name in sm90.load() if re.match(SAMPLE[group], name)]
    assert len(names) >= 4
    assert {name: wrong for name in names if (wrong := sm90.run(sm90.load()[name]))} == {}


COPIES = r"""
extern "C" __global__ void copies(const int* x, int* early, int* late, int* back, int size, int waits) {
    __shared__ __align__(16) int s[64];
    __shared__ unsigned long long bar;
    unsigned at = (unsigned)__cvta_generic_to_shared(&bar), to = (unsigned)__cvta_generic_to_shared(s);
    s[threadIdx.x] = -1;
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at) : "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(at), "r"(size) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
            :: "r"(to), "l"(x), "r"(size), "r"(at) : "memory");
    }
    __syncthreads();
    if (!waits) early[threadIdx.x] = s[threadIdx.x];
    asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra L; }" :: "r"(at) : "memory");
    late[threadIdx.x] = s[threadIdx.x];
    __syncthreads();
    s[threadIdx.x] += 1;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;" :: "l"(back), "r"(to) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        if (waits) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
    __syncthreads();
    s[threadIdx.x] = -7;
}"""


def test_bulk_copies_happen_where_they_are_waited_for(device: str) -> None:
    """What does not wait sees what was there before: of a copy to shared memory, and of one from it."""
    if device == "cuda" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this GPU has no bulk copies")
    kernel, x = rawkern.RawKernel(COPIES), torch.arange(64, dtype=torch.int32, device=device)
    early, late, back = (torch.zeros_like(x) for _ in range(3))
    kernel[1, 64](x, early, late, back, 256, 1)
    assert late.equal(x) and back.equal(x + 1)
    if device == "cuda":
        return
    with rawkern.check():
        kernel[1, 64](x, early, late, back, 256, 1)
        assert late.equal(x) and back.equal(x + 1)
        early_and_overwritten = r"(?s)line 16: .* reads s\[0\].* line 13; .*line 29: .* writes s\[32\].* line 24"
        with pytest.raises(RaceError, match=early_and_overwritten):
            kernel[1, 64](x, early, late, back, 256, 0)
    kernel[1, 64](x, early, late, back, 256, 0)
    assert (early[:32] == -1).all() and late.equal(x) and (back[:32] == -7).all()  # of the warp that runs first
    with rawkern.order(0):  # at once
        kernel[1, 64](x, early, late, back, 256, 0)
    assert early.equal(x) and late.equal(x) and back.equal(x + 1)
    with pytest.raises(OutOfBoundsError, match=r"line 13: .* copies s\[64\.\.67\]; s has 64 elements"):
        kernel[1, 64](x, early, late, back, 272, 1)
    with pytest.raises(LaunchError, match=r"copies 40 bytes with cp\.async\.bulk, which are not a multiple of 16"):
        kernel[1, 64](x, early, late, back, 40, 1)
    kernel[1, 64](x, early, late, back, 256, 1)  # nothing is left of launches that failed
    assert late.equal(x) and back.equal(x + 1)


WAITS = r"""
extern "C" __global__ void waits(int* out, int bytes) {
    __shared__ unsigned long long bar;
    unsigned at = (unsigned)__cvta_generic_to_shared(&bar), done;
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at));
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 16;" :: "r"(at));
    asm volatile("mbarrier.complete_tx.shared::cluster.relaxed.cluster.b64 [%0], %1;" :: "r"(at), "r"(bytes));
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0; selp.b32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(at));
    out[0] = done;
}"""


def test_a_phase_ends_when_all_bytes_have_come() -> None:
    kernel, out = rawkern.RawKernel(WAITS), torch.zeros(1, dtype=torch.int32)
    for given, ends in ((16, 1), (8, 0), (24, 0)):
        kernel[1, 1](out, given)
        assert out.item() == ends


def test_which_architecture_code_is_for() -> None:
    """Hopper's where the source names what only that has, with its limits; a GPU that is named has the say."""
    hopper, plain = rawkern.RawKernel(WAITS), rawkern.RawKernel(WAITS.replace("expect_tx", "noComplete"))
    out, arguments = torch.zeros(1, dtype=torch.int32), (16,)
    assert ".target sm_90a" in hopper.ptx() and ".target sm_80" in hopper.ptx("compute_80")
    assert ".target sm_80" in rawkern.RawKernel('extern "C" __global__ void k(int* x) { x[0] = __CUDA_ARCH__; }').ptx()
    hopper[1, 1, 200 << 10](out, *arguments)
    with rawkern.architecture("sm_100"):
        hopper[1, 1, 200 << 10](out, *arguments)
    with rawkern.architecture("sm_80"), pytest.raises(UnsupportedError, match=r"needs compute capability 9\.0.* sm_80"):
        hopper[1, 1](out, *arguments)
    assert plain.unit.current().source.cpu_arch == "compute_90a"  # for complete_tx
    for words, fits in ((58112, True), (58113, False)):  # of static shared memory, more than other code may have
        declared = f"__shared__ int s[{words}]; s[threadIdx.x] = out[1]; __syncthreads(); out[1] = s[bytes];"
        code = WAITS.replace(
            "__shared__ unsigned long long bar;", f"{declared} extern __shared__ unsigned long long dyn[];"
        )
        code = code.replace("&bar", "dyn")
        large = rawkern.RawKernel(code)
        if fits:
            assert large.attributes["shared_size_bytes"] == 4 * words
        else:
            with pytest.raises(CompileError, match=r"0x38c04 bytes, 0x38c00 max"):
                large.attributes  # noqa: B018


GEMM = r"""
#include <cuda_fp16.h>
__device__ unsigned long long descriptor(const void* p) {  // cores of 128 bytes: 2 along K, then 8 rows on
    unsigned at = (unsigned)__cvta_generic_to_shared(p);
    return (at & 0x3FFFF) >> 4 | (unsigned long long)(128 >> 4) << 16 | (unsigned long long)(256 >> 4) << 32;
}
extern "C" __global__ void __launch_bounds__(128) product(const __half* a, const __half* b, float* d, int far) {
    __shared__ __align__(128) __half sa[64 * 16], sb[8 * 16];
    for (int i = threadIdx.x; i < 64 * 16; i += 128) sa[i / 128 * 128 + i % 16 / 8 * 64 + i / 16 % 8 * 8 + i % 8] = a[i];
    for (int i = threadIdx.x; i < 8 * 16; i += 128) sb[i % 16 / 8 * 64 + i / 16 * 8 + i % 8] = b[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float c[4] = {};
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "l"(descriptor(sa) + far), "l"(descriptor(sb)));
    asm volatile("wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) :: "memory");
    int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    for (int i = 0; i < 4; i++) d[(row + i / 2 * 8) * 8 + column + i % 2] = c[i];
}"""


def test_wgmma(device: str) -> None:
    """A product, also in a checked launch; a descriptor that leads out of shared memory ends the launch."""
    if device == "cuda" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("this GPU has no wgmma")
    kernel = rawkern.RawKernel(GEMM)
    a, b = torch.randn(64, 16, device=device).half(), torch.randn(8, 16, device=device).half()
    d = torch.full((64, 8), float("nan"), device=device)
    kernel[1, 128](a, b, d, 0)
    torch.testing.assert_close(d, a.float() @ b.float().T, rtol=1e-5, atol=1e-4)
    if device == "cuda":
        return
    with rawkern.check():
        kernel[1, 128](a, b, again := torch.full_like(d, float("nan")), 0)
    assert torch.equal(d, again)
    for seed in (0, 1):  # whichever warp runs first, it has the same rows
        with rawkern.order(seed):
            kernel[1, 128](a, b, again := torch.full_like(d, float("nan")), 0)
        assert torch.equal(d, again)
    alone = rawkern.RawKernel(
        GEMM.replace("    float c[4] = {};", "    float c[4] = {};\n    if (threadIdx.x >= 96) return;")
    )
    with pytest.raises(
        LaunchError, match=r"line 19: .*a product of its warp group \(wgmma\), but another warp .* without"
    ):
        alone[1, 128](a, b, d, 0)
    with pytest.raises(LaunchError, match=r"wgmma.*points outside of the block's shared memory"):
        kernel[1, 128](a, b, d, 0x3000)


def test_what_a_wgmma_reads_is_checked() -> None:
    """Operands are written before it and overwritten after a wait for its group, by any warp of the group."""
    a, b = torch.randn(64, 16).half(), torch.randn(8, 16).half()
    wait, overwritten = (
        "wgmma.wait_group.sync.aligned 0;",
        "    __syncthreads();\n    sa[threadIdx.x] = __half(0.0f);\n    int row",
    )
    early = GEMM.replace(wait, "").replace("    int row", overwritten)
    late = GEMM.replace("    int row", overwritten)
    unordered = GEMM.replace("    __syncthreads();\n", "")
    for source, found in (
        (GEMM, None), (late, None),
        (early, r"line 20: .* writes sa\[\d+\], which .* reads at .*line 16"),
        (unordered, r"line 15: .* reads the same memory, which .* writes at .*line [89]"),
    ):  # fmt: skip
        kernel = rawkern.RawKernel(source)
        with rawkern.check():
            if found is None:
                kernel[1, 128](a, b, torch.empty(64, 8), 0)
            else:
                with pytest.raises(RaceError, match=found):
                    kernel[1, 128](a, b, torch.empty(64, 8), 0)


def test_products_take_effect_where_they_are_waited_for() -> None:
    """A sum that is read before is a NaN, an operand that is overwritten before ends the launch; early, both are fine."""
    a, b = torch.randn(64, 16).half(), torch.randn(8, 16).half()
    right = torch.empty(64, 8)
    rawkern.RawKernel(GEMM)[1, 128](a, b, right, 0)
    commit = 'asm volatile("wgmma.commit_group.sync.aligned;\\n'
    assert commit in GEMM
    unread = rawkern.RawKernel(GEMM.replace(" wgmma.wait_group.sync.aligned 0;", ""))
    changed = rawkern.RawKernel(
        GEMM.replace(commit, f'{commit}" ::: "memory");\n    sb[threadIdx.x] = __half(3.0f);\n    asm volatile("')
    )
    unread[1, 128](a, b, d := torch.zeros(64, 8), 0)
    assert d.isnan().all()
    with pytest.raises(LaunchError, match=r"line 20: .*started at .*line 16; shared memory that .* was overwritten"):
        changed[1, 128](a, b, d, 0)
    with rawkern.order(0):  # where they are issued; warps that run later still read what the first has written
        unread[1, 128](a, b, d.zero_(), 0)
        assert torch.equal(d, right)
        changed[1, 128](a, b, d.zero_(), 0)
    assert [torch.equal(*rows) for rows in zip(d.split(16), right.split(16), strict=True)].count(True) == 1
    late = [torch.zeros(64, 8) for _ in range(6)]
    for seed, each in enumerate(late, 1):
        with rawkern.order(seed):
            unread[1, 128](a, b, each, 0)
    assert len({bool(each.isnan().any()) for each in late}) == 2


def test_a_phase_that_never_ends_is_a_deadlock() -> None:
    """Barriers that no thread can complete are reported with what they lack; loops that look at a clock are let alone."""
    expects = '%1;" :: "r"(at), "r"(size) : "memory");'
    assert expects in COPIES
    x = torch.arange(64, dtype=torch.int32)
    rest = [torch.zeros_like(x) for _ in range(3)]
    for change, found in (
        ((expects, expects.replace("(size)", "(size + 16)")), "needs 0 more arrivals and 16 more bytes"),
        ((expects, expects.replace("(size)", "(size - 16)")), "got 16 more bytes than were expected"),
        (("[%0], 1;", "[%0], 2;"), "needs 1 more arrival: "),
    ):  # fmt: skip
        kernel = rawkern.RawKernel(COPIES.replace(*change))
        with pytest.raises(
            LaunchError, match=rf"(?s)deadlock: .* 2 warps at the mbarrier at byte 256 .*{found}.*line 17"
        ):
            kernel[2, 64](x, *rest, 256, 1)
        with rawkern.check(), pytest.raises(LaunchError, match=found):
            kernel[2, 64](x, *rest, 256, 1)


TURNS = r"""
extern "C" __global__ void turns(int* out, int rounds, int last) {  // warps hand a number on, each by its own barrier
    __shared__ unsigned long long bars[8];
    __shared__ int number;
    int w = threadIdx.x / 32, n = blockDim.x / 32;
    unsigned at = (unsigned)__cvta_generic_to_shared(bars);
    if (threadIdx.x == 0) {
        number = 0;
        for (int i = 0; i < n; i++) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at + 8 * i) : "memory");
    }
    __syncthreads();
    for (int k = 0; k < rounds; k++) {
        if (w || k) asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra L; }"
            :: "r"(at + 8 * w), "r"((w ? k : k - 1) & 1) : "memory");
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            number += w + 1;
            if (k < last || w + 1 < n)
                asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(at + 8 * ((w + 1) % n)) : "memory");
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = number;
}"""


def test_warps_that_wait_for_each_other_are_no_deadlock() -> None:
    kernel, out = rawkern.RawKernel(TURNS), torch.zeros(5, dtype=torch.int32)
    for seed in (None, 0, 1, 2):
        with rawkern.order(seed) if seed is not None else contextlib.nullcontext():
            kernel[5, 256](out.zero_(), 20, 20)
            assert out.tolist() == [20 * 36] * 5
    with pytest.raises(LaunchError, match=r"(?s)deadlock: .* at the mbarrier at byte 0 of .* needs 1 more arrival: "):
        kernel[5, 256](out, 20, 7)


def test_atomic_additions_of_float_vectors() -> None:
    code = 'extern "C" __global__ void k(float* x) { atomicAdd(reinterpret_cast<float2*>(x), make_float2(1, threadIdx.x)); }'
    x = torch.zeros(2)
    rawkern.RawKernel(code)[1, 32](x)
    assert x.tolist() == [32, 496]
