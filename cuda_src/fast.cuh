// Cheaper functions under the usual names, for elements of half types: their errors (below 4e-7, relative to the
// largest term) are far below a half's rounding, and 16-bit elements arrive too fast for the exact ones.
#pragma once

// The hardware's own approximations; subnormals, which no half needs, are flushed.
__device__ __forceinline__ float fast_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float fast_exp(float x) { return fast_exp2(x * 1.44269504f); }

__device__ __forceinline__ float fast_tanh(float x) { return 1.0f - 2.0f * fast_reciprocal(1.0f + fast_exp(2.0f * x)); }

// Abramowitz and Stegun 7.1.26, absolute error 1.5e-7.
__device__ __forceinline__ float fast_erf(float x) {
    const float z = fabsf(x), t = fast_reciprocal(1.0f + 0.3275911f * z);
    const float poly = 0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f)));
    return copysignf(1.0f - t * poly * fast_exp(-z * z), x);
}

// x * (1 + erf(x / sqrt(2))) / 2, with the constants of fast_erf times those of the argument and the half.
__device__ __forceinline__ float fast_gelu(float x) {
    const float t = fast_reciprocal(1.0f + 0.231641888f * fabsf(x));
    const float poly = 0.127414796f + t * (-0.142248368f + t * (0.7107068705f + t * (-0.7265760135f + t * 0.5307027145f)));
    const float tail = t * poly * fast_exp2(-0.721347520f * x * x);
    return x * (x > 0.0f ? 1.0f - tail : tail);
}

// x * (1 + tanh(u)) / 2 = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
__device__ __forceinline__ float fast_gelu_tanh(float x) {
    return x * fast_reciprocal(1.0f + fast_exp2(x * (-2.30220819f - 0.102943240f * x * x)));
}

// The argument comes within half a turn of 0 first, since halves reach 65504; beyond 1e5 (bfloat16) the exact functions.
template <bool COSINE> __device__ __noinline__ float slow_circle(float x) { return COSINE ? cosf(x) : sinf(x); }
template <bool COSINE> __device__ __forceinline__ float fast_circle(float x) {
    if (!(fabsf(x) <= 1e5f)) return slow_circle<COSINE>(x);
    const float turns = rintf(x * 0.159154943f);
    const float r = fmaf(turns, 1.74845553e-7f, fmaf(turns, -6.28318548f, x));
    return COSINE ? __cosf(r) : __sinf(r);
}

#define exp(x) fast_exp(x)
#define tanh(x) fast_tanh(x)
#define erf(x) fast_erf(x)
#define sin(x) fast_circle<false>(x)
#define cos(x) fast_circle<true>(x)
