// Atomics, arithmetic and vector types of CUDA for g++.
#pragma once
#include "cuda_host.h"

#define RK_ATOMIC(name, result)                                      \
    template <class T> T name(T* p, T v) { T old = *p; *p = result; return old; }
RK_ATOMIC(atomicAdd, old + v)
RK_ATOMIC(atomicSub, old - v)
RK_ATOMIC(atomicMin, old < v ? old : v)
RK_ATOMIC(atomicMax, old > v ? old : v)
RK_ATOMIC(atomicAnd, old & v)
RK_ATOMIC(atomicOr, old | v)
RK_ATOMIC(atomicXor, old ^ v)
RK_ATOMIC(atomicExch, v)
RK_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
RK_ATOMIC(atomicDec, old == 0 || old > v ? v : old - 1)
inline int atomicAdd(int* p, int v) { int old = *p; *p = (unsigned)old + v; return old; }
inline int atomicSub(int* p, int v) { int old = *p; *p = (unsigned)old - v; return old; }
template <class T> T atomicCAS(T* p, T expected, T v) {
    T old = *p;
    if (old == expected) *p = v;
    else rk::yield();  // whoever spins waits for another
    return old;
}

#define atomicAdd_system atomicAdd
#define atomicDec_system atomicDec
template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcs(const T* p) { return *p; }

#define RK_VECTOR2(T, name)                                     \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; };          \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }
#define RK_VECTOR4(T, name)                                                        \
    struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; };  \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define RK_VECTORS(T, name) RK_VECTOR2(T, name) RK_VECTOR4(T, name)
RK_VECTORS(signed char, char) RK_VECTORS(unsigned char, uchar) RK_VECTORS(short, short) RK_VECTORS(unsigned short, ushort)
RK_VECTORS(int, int) RK_VECTORS(unsigned, uint) RK_VECTORS(long long, longlong) RK_VECTORS(unsigned long long, ulonglong)
RK_VECTORS(float, float) RK_VECTORS(double, double)

inline int __float_as_int(float x) { return rk::unpack<int>(rk::pack(x)); }
inline float __int_as_float(int x) { return rk::unpack<float>(rk::pack(x)); }
inline long long __double_as_longlong(double x) { return rk::unpack<long long>(rk::pack(x)); }
inline int __mulhi(int a, int b) { return (long long)a * b >> 32; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
inline long long __mul64hi(long long a, long long b) { return (__int128)a * b >> 64; }
inline unsigned long long __umul64hi(uint64_t a, uint64_t b) { return (unsigned __int128)a * b >> 64; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned long long __brevll(unsigned long long x) {
    uint64_t r = 0;
    for (int k = 0; k < 64; k++) r |= (x >> k & 1) << (63 - k);
    return r;
}
inline unsigned __brev(unsigned x) { return __brevll(x) >> 32; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    uint64_t all = (uint64_t)b << 32 | a, r = 0;
    for (int k = 0; k < 4; k++) r |= (all >> (s >> 4 * k & 7) * 8 & 255) << 8 * k;
    return r;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) { return ((uint64_t)hi << 32 | lo) << (n & 31) >> 32; }
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) { return ((uint64_t)hi << 32 | lo) >> (n & 31); }
inline unsigned __funnelshift_lc(unsigned lo, unsigned hi, unsigned n) { return n >= 32 ? lo : __funnelshift_l(lo, hi, n); }
inline unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned n) { return n >= 32 ? hi : __funnelshift_r(lo, hi, n); }
inline unsigned __sad(int a, int b, unsigned c) { return (a < b ? (unsigned)b - a : (unsigned)a - b) + c; }
inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a < b ? b - a : a - b) + c; }
inline int __hadd(int a, int b) { return ((long long)a + b) >> 1; }
inline int __rhadd(int a, int b) { return ((long long)a + b + 1) >> 1; }
inline unsigned __uhadd(unsigned a, unsigned b) { return ((uint64_t)a + b) >> 1; }
inline int __mul24(int a, int b) { return ((int)((unsigned)a << 8) >> 8) * ((int)((unsigned)b << 8) >> 8); }  // NVRTC takes it that it does not overflow
inline unsigned __umul24(unsigned a, unsigned b) { return (uint64_t)(a & 0xffffff) * (b & 0xffffff); }
inline int __dp4a(int a, int b, int c) {
    for (int k = 0; k < 4; k++) c = (unsigned)c + (signed char)(a >> 8 * k) * (signed char)(b >> 8 * k);
    return c;
}
template <class T> T min(T a, T b) { return b < a ? b : a; }
template <class T> T max(T a, T b) { return a < b ? b : a; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
