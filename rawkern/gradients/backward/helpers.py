"""Device functions that a derived backward may call, as text."""

from __future__ import annotations

import math
from collections.abc import Set

from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code.printing import expression

HEADERS = {
    "cuda_fp16.h": "__half",
    "cuda_bf16.h": "bfloat16",
    "curand_kernel.h": "curand",
}  # by what their names have in them
HELPERS = {  # words in capitals stand for what depends on the block, see `_for_blocks`
    "lane": """\
// The lane of a thread in its warp.
__device__ __forceinline__ int lane() {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31;
}
""",
    "warp_sum": """\
// The sum over the lanes of a warp, in each of them.
template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}
""",
    "warp_given": """\
// What the lanes of a warp give to each: the sum of the values of those that name it.
template <typename T>
__device__ T warp_given(T value, int to) {
    T sum = T();
    for (int k = 0; k < 32; ++k) {
        const T given = __shfl_sync(0xffffffff, value, k);
        if (__shfl_sync(0xffffffff, to, k) == lane()) sum += given;
    }
    return sum;
}
""",
    **{
        f"warp_{name}": f"""\
// The {name}imum over the lanes of a warp, in each of them.
template <typename T>
__device__ __forceinline__ T warp_{name}(T value) {{
    for (int offset = 16; offset > 0; offset /= 2)
        value = f{name}(value, __shfl_xor_sync(0xffffffff, value, offset));
    return value;
}}
"""
        for name in ("max", "min")
    },
    **{
        f"block_{name}": f"""\
// The {what} over the threads of a block, in each of them; all of them call it.
template <typename T>
__device__ T block_{name}(T value) {{
    __shared__ T parts[WARPS];
    const int thread = THREAD;
    value = warp_{name}(value);
    __syncthreads();
    if (thread % 32 == 0) parts[thread / 32] = value;
    __syncthreads();
    OF_PARTS({name})
}}
"""
        for name, what in (("sum", "sum"), ("max", "maximum"), ("min", "minimum"))
    },
    "warp_add": """\
// Adds to *place; once for a warp whose lanes all mean the same place.
template <typename T>
__device__ __forceinline__ void warp_add(T* place, T value) {
    int same = 0;
    if (__activemask() == 0xffffffff) __match_all_sync(0xffffffff, (unsigned long long)place, &same);
    if (!same) {
        atomicAdd(place, value);
        return;
    }
    value = warp_sum(value);
    if (lane() == 0) atomicAdd(place, value);
}
""",
    "row_barrier": """\
// Where in shared memory an mbarrier is, which tells whether a row has arrived.
__device__ unsigned int row_barrier() {
    __shared__ unsigned long long barrier;
    return (unsigned int)__cvta_generic_to_shared(&barrier);
}
""",
    "copy_row": """\
// Starts to copy a row to the shared memory of a block, which has it after row_arrived(); all threads call both.
template <typename T>
__device__ void copy_row(T* to, const T* row, int n) {
#if __CUDA_ARCH__ >= 900
    const unsigned int bytes = n * sizeof(T);
    const bool bulk = n > 0 && bytes % 16 == 0 && (unsigned long long)row % 16 == 0;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(row_barrier()) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(row_barrier()),
            "r"(bulk ? bytes : 0) : "memory");
        if (bulk)
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
                "r"((unsigned int)__cvta_generic_to_shared(to)), "l"(row), "r"(bytes), "r"(row_barrier()) : "memory");
    }
    if (bulk) return;
#endif
    for (int k = threadIdx.x; k < n; k += blockDim.x) to[k] = row[k];
}
""",
    "row_arrived": """\
// Waits for the row of `copy_row`.
__device__ __forceinline__ void row_arrived() {
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    for (int arrived = 0; !arrived;)
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.s32 %0, 1, 0, p; }"
            : "=r"(arrived) : "r"(row_barrier()) : "memory");
#endif
}
""",
    "take": """\
// What is in *place, which is 0 afterwards: one of the threads that set an element gets its gradient.
__device__ __forceinline__ float take(float* place) { return atomicExch(place, 0.0f); }
__device__ __forceinline__ double take(double* place) {
    return __longlong_as_double(atomicExch((unsigned long long*)place, 0ULL));
}
""",
    "to_half": """\
__device__ __forceinline__ float to_half(float value) { return __half2float(__float2half_rn(value)); }
""",
    "to_bfloat16": """\
__device__ __forceinline__ float to_bfloat16(float value) { return __bfloat162float(__float2bfloat16_rn(value)); }
""",
    "saturated": """\
__device__ __forceinline__ double saturated(double value) { return value > 0.0 ? (value < 1.0 ? value : 1.0) : 0.0; }
""",
    "philox_uniform": """\
// What curand_uniform draws at a position of a sequence.
__device__ float philox_uniform(unsigned long long seed, unsigned long long sequence, unsigned long long at) {
    curandStatePhilox4_32_10_t state;
    curand_init(seed, sequence, at, &state);
    return curand_uniform(&state);
}
""",
    "philox_uniform4": """\
// What curand_uniform4 draws at a position of a sequence: one of the four.
__device__ __forceinline__ float philox_uniform4(
    unsigned long long seed, unsigned long long sequence, unsigned long long at, int which) {
    curandStatePhilox4_32_10_t state;
    curand_init(seed, sequence, at, &state);
    const float4 four = curand_uniform4(&state);
    return which == 0 ? four.x : which == 1 ? four.y : which == 2 ? four.z : four.w;
}
""",
    "philox_bits": """\
__device__ unsigned int philox_bits(unsigned long long seed, unsigned long long sequence, unsigned long long at) {
    curandStatePhilox4_32_10_t state;
    curand_init(seed, sequence, at, &state);
    return curand(&state);
}
""",
    "philox_normal": """\
// What curand_normal draws of the pair of numbers at a position of a sequence: the first or second.
__device__ float philox_normal(
    unsigned long long seed, unsigned long long sequence, unsigned long long at, bool second) {
    curandStatePhilox4_32_10_t state;
    curand_init(seed, sequence, at, &state);
    const float2 pair = curand_normal2(&state);
    return second ? pair.y : pair.x;
}
""",
    "digamma": """\
// The derivative of lgamma.
__device__ double digamma(double x) {
    double sum = 0.0;
    if (x <= 0.0) {
        sum = -3.14159265358979323846 * cospi(x) / sinpi(x);
        x = 1.0 - x;
    }
    for (; x < 10.0; x += 1.0) sum -= 1.0 / x;
    const double s = 1.0 / (x * x);
    const double series = s * (1.0 / 12 - s * (1.0 / 120 - s * (1.0 / 252 - s * (1.0 / 240 - s * (1.0 / 132
        - s * (691.0 / 32760 - s / 12))))));
    return sum + log(x) - 0.5 / x - series;
}
""",
    "divided": """\
__device__ __forceinline__ double divided(double a, double b) { return a / b; }
""",
}
NEEDS = {
    "warp_add": ("lane", "warp_sum"),
    "warp_given": ("lane",),
    "copy_row": ("row_barrier",),
    "row_arrived": ("row_barrier",),
    **{f"block_{name}": (f"warp_{name}",) for name in ("sum", "max", "min")},
}


def wanted(words: Set[str]) -> set[str]:
    """The helpers among what a text calls, and those that they call."""
    names = {name for name in HELPERS if name in words}
    return names | {inner for name in names for inner in NEEDS.get(name, ())}


def texts(words: Set[str], block: tuple[int, int, int]) -> list[str]:
    """What a text with these types and calls needs before it, for such blocks: headers and helpers."""
    names = wanted(words)
    found = [_for_blocks(text, block) for name, text in HELPERS.items() if name in names]
    headers = [h for h, mark in HEADERS.items() if any(mark in each for each in (*words, *found))]
    return [*(f"#include <{h}>" for h in headers), *found]


def _for_blocks(text: str, block: tuple[int, int, int]) -> str:
    """A helper for blocks of this shape."""
    warps = math.prod(block) // 32
    for name in ("sum", "max", "min"):
        text = text.replace(f"OF_PARTS({name})", "\n    ".join(_of_parts(name, warps)))
    return text.replace("WARPS", str(warps)).replace("THREAD", expression(expr.thread_number(block)))


def _of_parts(name: str, warps: int) -> list[str]:
    """Lines that return the sum or such of what the warps have: by all lanes of each warp if they are many."""
    if warps <= 8:
        next_one = "value += parts[k]" if name == "sum" else f"value = f{name}(value, parts[k])"
        return ["value = parts[0];", f"for (int k = 1; k < {warps}; ++k) {next_one};", "return value;"]
    lane, there = "thread % 32", f"thread % 32 < {warps}"
    part = f"parts[{lane}]" if warps == 32 else f"{there} ? parts[{lane}] : T()"
    part = part if name == "sum" or warps == 32 else f"parts[{there} ? {lane} : 0]"
    return [f"return warp_{name}({part});"]
