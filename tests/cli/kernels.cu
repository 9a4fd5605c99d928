// Kernels that use registers, memory and barriers in many ways.
#include <cstdio>

__constant__ float weights[64];

extern "C" __global__ void plain(int n, float *x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= weights[i % 64];
}

__device__ __noinline__ float deep(float a, int n) { return n <= 0 ? a : deep(a * 1.5f, n - 1) + a; }

extern "C" __global__ void recursive(int n, float *x) { x[threadIdx.x] = deep(x[threadIdx.x], n); }

__device__ __noinline__ float table(float a, int n) {
    float t[32];
    for (int i = 0; i < 32; i++) t[i] = a * i;
    for (int i = 0; i < n; i++) t[(i * 7) & 31] += t[(i * 5) & 31];
    return t[n & 31];
}

extern "C" __global__ void calls(int n, float *x) { x[threadIdx.x] += table(x[threadIdx.x], n) + table(x[n], n); }

template <int N> __device__ void many(const float *x, float *y, int n) {
    float a[N];
    #pragma unroll
    for (int i = 0; i < N; i++) a[i] = x[i * n + threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < 4; k++)
        #pragma unroll
        for (int i = 0; i < N; i++) a[i] = a[i] * a[(i * 7 + k) % N] + 1;
    #pragma unroll
    for (int i = 0; i < N; i++) y[i * n + threadIdx.x] = a[i];
}

extern "C" __global__ void __launch_bounds__(256, 4) spilling(const float *x, float *y, int n) { many<100>(x, y, n); }
extern "C" __global__ void __launch_bounds__(512) bounded(const float *x, float *y, int n) { many<40>(x, y, n); }
extern "C" __global__ void wide(const float *x, float *y, int n) { many<50>(x, y, n); }
extern "C" __global__ void __launch_bounds__(128) widest(const float *x, float *y, int n) { many<150>(x, y, n); }

extern "C" __global__ void shared(float *x) {
    __shared__ float s[1000];
    extern __shared__ float dynamic[];
    s[threadIdx.x % 1000] = x[threadIdx.x];
    dynamic[threadIdx.x % 16] = s[(threadIdx.x * 3) % 1000];
    __syncthreads();
    x[threadIdx.x] = s[(threadIdx.x ^ 1) % 1000] + dynamic[(threadIdx.x ^ 3) % 16];
}

extern "C" __global__ void all_static(float *x) {
    __shared__ float s[12288];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[(threadIdx.x * 5) % 12288];
}

extern "C" __global__ void local(float *x, int i) {
    float a[64];
    for (int k = 0; k < 64; k++) a[(k * i) & 63] = x[k];
    x[threadIdx.x] = a[i & 63];
}

extern "C" __global__ void prints(double *x) { printf("%f\n", x[0]); }

extern "C" __global__ void barriers(float *x) {
    asm volatile("bar.sync 3, 64;");
    x[threadIdx.x] += 1;
    asm volatile("bar.sync 9, 64;");
}

extern "C" __global__ void any_barrier(float *x, int i) {
    asm volatile("bar.sync %0, 64;" :: "r"(i));
    x[threadIdx.x] += 1;
}

template <class T, int N> __global__ void axpy(T a, const T *x, T *y) {
    for (int i = 0; i < N; i++) y[threadIdx.x * N + i] += a * x[threadIdx.x * N + i];
}
