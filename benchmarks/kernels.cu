// Kernels of benchmarks/cpu.py, written as for a GPU.
#include <cmath>

// (a + b) + sin(a) * cos(b); a thread per element.
extern "C" __global__ void fused(int n, const float* a, const float* b, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = (a[i] + b[i]) + sinf(a[i]) * cosf(b[i]);
}

struct Max {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
    __device__ float operator()(float a, float b) const { return a + b; }
};

// One value of every thread combined; all threads of the block get the result. Blocks are whole warps.
template <class F>
__device__ float block_reduce(float v, F f, float neutral) {
    __shared__ float part[32];
    for (int d = 16; d; d >>= 1) v = f(v, __shfl_xor_sync(0xffffffffu, v, d));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < blockDim.x / 32 ? part[threadIdx.x % 32] : neutral;
    for (int d = 16; d; d >>= 1) v = f(v, __shfl_xor_sync(0xffffffffu, v, d));
    __syncthreads();  // part is used again
    return v;
}

// Softmax of rows, a block per row: maximum, exponentials and their sum, quotients.
extern "C" __global__ void softmax(int columns, const float* x, float* y) {
    x += (size_t)blockIdx.x * columns;
    y += (size_t)blockIdx.x * columns;
    float most = -INFINITY;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) most = fmaxf(most, x[i]);
    most = block_reduce(most, Max(), -INFINITY);
    float total = 0.0f;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) {
        float e = expf(x[i] - most);
        total += e;
        y[i] = e;
    }
    float scale = 1.0f / block_reduce(total, Sum(), 0.0f);
    for (int i = threadIdx.x; i < columns; i += blockDim.x) y[i] *= scale;
}

// The same for rows of N * blockDim.x columns, each thread's in registers.
template <int N>
__global__ void softmax_registers(const float* x, float* y) {
    size_t first = (size_t)blockIdx.x * N * blockDim.x + threadIdx.x;
    float v[N], most = -INFINITY, total = 0.0f;
    for (int i = 0; i < N; i++) most = fmaxf(most, v[i] = x[first + i * blockDim.x]);
    most = block_reduce(most, Max(), -INFINITY);
    for (int i = 0; i < N; i++) total += v[i] = expf(v[i] - most);
    float scale = 1.0f / block_reduce(total, Sum(), 0.0f);
    for (int i = 0; i < N; i++) y[first + i * blockDim.x] = v[i] * scale;
}

// c = a b for n x n matrices in T x T tiles of shared memory; n is a multiple of T, blocks are T x T.
template <int T>
__global__ void matmul(int n, const float* a, const float* b, float* c) {
    __shared__ float as[T][T], bs[T][T];
    int row = blockIdx.y * T + threadIdx.y, column = blockIdx.x * T + threadIdx.x;
    float sum = 0.0f;
    for (int t = 0; t < n; t += T) {
        as[threadIdx.y][threadIdx.x] = a[row * n + t + threadIdx.x];
        bs[threadIdx.y][threadIdx.x] = b[(t + threadIdx.y) * n + column];
        __syncthreads();
        for (int k = 0; k < T; k++) sum += as[threadIdx.y][k] * bs[k][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

// Accelerations of n bodies (x, y, z, mass) with softening; n is a multiple of the block, which holds a tile of them.
extern "C" __global__ void bodies(int n, const float4* body, float softening, float3* acceleration) {
    extern __shared__ float4 tile[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 me = body[i];
    float3 sum = make_float3(0.0f, 0.0f, 0.0f);
    for (int t = 0; t < n; t += blockDim.x) {
        tile[threadIdx.x] = body[t + threadIdx.x];
        __syncthreads();
        for (int k = 0; k < blockDim.x; k++) {
            float4 other = tile[k];
            float x = other.x - me.x, y = other.y - me.y, z = other.z - me.z;
            float inverse = rsqrtf(x * x + y * y + z * z + softening);
            float weight = other.w * inverse * inverse * inverse;
            sum.x += weight * x;
            sum.y += weight * y;
            sum.z += weight * z;
        }
        __syncthreads();
    }
    acceleration[i] = sum;
}

// Steps until z = z^2 + c leaves the circle of radius 2, at most `limit`; a thread per pixel.
extern "C" __global__ void mandelbrot(int width, int height, int limit, int* steps) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (column >= width || row >= height) return;
    float real = -2.0f + 3.0f * column / width, imaginary = -1.2f + 2.4f * row / height;
    float x = 0.0f, y = 0.0f;
    int step = 0;
    while (step < limit && x * x + y * y <= 4.0f) {
        float next = x * x - y * y + real;
        y = 2.0f * x * y + imaginary;
        x = next;
        step++;
    }
    steps[row * width + column] = step;
}

// Counts of the values 0 to 255: of each block in shared memory, then added to `count`, which starts at 0.
extern "C" __global__ void histogram(int n, const int* x, int* count) {
    __shared__ int local[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[x[i]], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&count[i], local[i]);
}

// Value of a node `rise` steps above the middle of a binomial tree of call options, where it ends.
__device__ float payoff(const float* option, int rise) {
    return fmaxf(option[0] * expf(option[2] * rise) - option[1], 0.0f);
}

// Call options by binomial trees, a block for each: `option` has its price, strike, volatility of a step and the discounted
// probabilities of a rise and a fall. The level of the tree is in shared memory, where each step replaces it.
template <int STEPS, int THREADS>
__global__ void binomial(const float* option, float* value) {
    constexpr int EACH = STEPS / THREADS;
    __shared__ float level[STEPS + 1];
    option += 5 * blockIdx.x;
    float up = option[3], down = option[4];
    for (int i = threadIdx.x; i <= STEPS; i += THREADS) level[i] = payoff(option, 2 * i - STEPS);
    __syncthreads();
    for (int left = STEPS; left > 0; left--) {
        float next[EACH];
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            int i = threadIdx.x + k * THREADS;
            if (i < left) next[k] = up * level[i + 1] + down * level[i];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            int i = threadIdx.x + k * THREADS;
            if (i < left) level[i] = next[k];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) value[blockIdx.x] = level[0];
}

// The same as NVIDIA's samples do it: each thread keeps neighboring values in registers, and gets the next from its neighbor.
template <int STEPS, int THREADS>
__global__ void binomial_registers(const float* option, float* value) {
    constexpr int EACH = STEPS / THREADS;
    __shared__ float first[THREADS + 1];
    int thread = threadIdx.x, last = max(0, thread * EACH - 1);
    option += 5 * blockIdx.x;
    float up = option[3], down = option[4], call[EACH + 1];
#pragma unroll
    for (int k = 0; k < EACH; k++) call[k] = payoff(option, 2 * (thread * EACH + k) - STEPS);
    if (thread == 0) first[THREADS] = payoff(option, STEPS);
#pragma unroll 16
    for (int left = STEPS; left > 0; left--) {
        first[thread] = call[0];
        __syncthreads();
        call[EACH] = first[thread + 1];
        __syncthreads();
        if (left > last) {
#pragma unroll
            for (int k = 0; k < EACH; k++) call[k] = up * call[k + 1] + down * call[k];
        }
    }
    if (thread == 0) value[blockIdx.x] = call[0];
}
