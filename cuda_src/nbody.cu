// Newton's gravitation between all pairs of bodies, and its gradients. Positions and forces are (D, n), masses (n).
//
// A thread has PER bodies i and goes over `chunk` bodies j, which the block brings through shared memory, THREADS at a
// time. What it has summed up goes to `partial`, one slice for each blockIdx.y; nbody_finish adds the slices, always in
// the same order. Grid: x covers n with THREADS * PER bodies a block, y covers n with `chunk` bodies.
#include "pack.cuh"

template <typename R> __device__ __forceinline__ R inverse_root(R x);
template <> __device__ __forceinline__ float inverse_root(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));  // rsqrtf() is four instructions more, for subnormals
    return y;
}
template <> __device__ __forceinline__ double inverse_root(double x) { return rsqrt(x); }

// One over the distance whose square is given; 0 for coincident bodies (where the square is subnormal or 0), which then
// contribute nothing. With a softening the square is never 0.
template <bool SOFT, typename R> __device__ __forceinline__ R inverse(R square) {
    if constexpr (SOFT) return inverse_root(square);
    return square >= R(sizeof(R) == 4 ? 1.17549435e-38 : 2.2250738585072014e-308) ? inverse_root(square) : R(0);
}

template <typename R, int SIZE> struct alignas(16) Body { R at[SIZE]; };

// partial[y][d][i] = sum over j of m_j (p_j - p_i)_d / |p_j - p_i|^3.
template <typename T, int D, int THREADS, int PER, bool SOFT>
__global__ void __launch_bounds__(THREADS) nbody_forces(const T* positions, const T* masses, compute_t<T>* partial,
    int n, int chunk, compute_t<T> softening) {
    using R = compute_t<T>;
    __shared__ Body<R, 4> tile[THREADS];
    const int first = blockIdx.x * THREADS * PER + threadIdx.x;
    R here[PER][D], sum[PER][D];
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        const int i = min(first + k * THREADS, n - 1);
#pragma unroll
        for (int d = 0; d < D; ++d) { here[k][d] = R(positions[(long long)d * n + i]); sum[k][d] = 0; }
    }
    const R soft = softening * softening;
    const int begin = blockIdx.y * chunk, end = min(begin + chunk, n);
    for (int start = begin; start < end; start += THREADS) {
        const int mine = start + threadIdx.x;
        Body<R, 4> body{};  // bodies beyond the end have no mass
        if (mine < end) {
#pragma unroll
            for (int d = 0; d < D; ++d) body.at[d] = R(positions[(long long)d * n + mine]);
            body.at[3] = R(masses[mine]);
        }
        __syncthreads();
        tile[threadIdx.x] = body;
        __syncthreads();
#pragma unroll 8
        for (int j = 0; j < THREADS; ++j) {
            const Body<R, 4> other = tile[j];
#pragma unroll
            for (int k = 0; k < PER; ++k) {
                R away[D], square = soft;
#pragma unroll
                for (int d = 0; d < D; ++d) { away[d] = other.at[d] - here[k][d]; square += away[d] * away[d]; }
                const R inv = inverse<SOFT>(square), pull = other.at[3] * inv * (inv * inv);
#pragma unroll
                for (int d = 0; d < D; ++d) sum[k][d] += pull * away[d];
            }
        }
    }
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        const int i = first + k * THREADS;
        if (i >= n) break;
#pragma unroll
        for (int d = 0; d < D; ++d) partial[((long long)blockIdx.y * D + d) * n + i] = sum[k][d];
    }
}

// With h = g_i - g_j for the gradients g of the forces and d = p_j - p_i:
// partial[y][:D][i] = sum over j of m_j (3 (h d) d / |d|^5 - h / |d|^3), partial[y][D][i] = sum over j of m_j h d / |d|^3.
template <typename T, int D, int THREADS, int PER, bool SOFT>
__global__ void __launch_bounds__(THREADS) nbody_backward(const T* grad, const T* positions, const T* masses,
    compute_t<T>* partial, int n, int chunk, compute_t<T> softening) {
    using R = compute_t<T>;
    __shared__ Body<R, 8> tile[THREADS];
    const int first = blockIdx.x * THREADS * PER + threadIdx.x;
    R here[PER][D], wish[PER][D], sum[PER][D + 1];
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        const int i = min(first + k * THREADS, n - 1);
#pragma unroll
        for (int d = 0; d < D; ++d) {
            here[k][d] = R(positions[(long long)d * n + i]);
            wish[k][d] = R(grad[(long long)d * n + i]);
            sum[k][d] = 0;
        }
        sum[k][D] = 0;
    }
    const R soft = softening * softening;
    const int begin = blockIdx.y * chunk, end = min(begin + chunk, n);
    for (int start = begin; start < end; start += THREADS) {
        const int mine = start + threadIdx.x;
        Body<R, 8> body{};
        if (mine < end) {
#pragma unroll
            for (int d = 0; d < D; ++d) {
                body.at[d] = R(positions[(long long)d * n + mine]);
                body.at[4 + d] = R(grad[(long long)d * n + mine]);
            }
            body.at[3] = R(masses[mine]);
        }
        __syncthreads();
        tile[threadIdx.x] = body;
        __syncthreads();
#pragma unroll 4
        for (int j = 0; j < THREADS; ++j) {
            const Body<R, 8> other = tile[j];
#pragma unroll
            for (int k = 0; k < PER; ++k) {
                R away[D], apart[D], square = soft, dot = 0;
#pragma unroll
                for (int d = 0; d < D; ++d) {
                    away[d] = other.at[d] - here[k][d];
                    apart[d] = wish[k][d] - other.at[4 + d];
                    square += away[d] * away[d];
                    dot += apart[d] * away[d];
                }
                const R inv = inverse<SOFT>(square), pull = other.at[3] * inv * (inv * inv);
                const R along = R(3) * dot * (inv * inv);
#pragma unroll
                for (int d = 0; d < D; ++d) sum[k][d] += pull * (along * away[d] - apart[d]);
                sum[k][D] += pull * dot;
            }
        }
    }
#pragma unroll
    for (int k = 0; k < PER; ++k) {
        const int i = first + k * THREADS;
        if (i >= n) break;
#pragma unroll
        for (int d = 0; d <= D; ++d) partial[((long long)blockIdx.y * (D + 1) + d) * n + i] = sum[k][d];
    }
}

// out[d][i] = G m_i times the sum over y of partial[y][d][i], for the rows d below `plain`; the others go to `rest`, without
// m_i. Grid: 1-D over rows * n.
template <typename T>
__global__ void nbody_finish(const compute_t<T>* partial, const T* masses, T* out, T* rest, int n, int rows, int parts,
    int plain, compute_t<T> G) {
    using R = compute_t<T>;
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x, size = (long long)rows * n;
    if (index >= size) return;
    R sum = 0;
#pragma unroll 8
    for (int y = 0; y < parts; ++y) sum += partial[y * size + index];
    const int row = index / n;
    const long long i = index - (long long)row * n;
    if (row < plain) out[index] = T(G * R(masses[i]) * sum);
    else rest[index - (long long)plain * n] = T(G * sum);
}
