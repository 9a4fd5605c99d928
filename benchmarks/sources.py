"""CUDA sources that several benchmarks use."""

SQUARE = r"""
extern "C" __global__ void square(int n, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * x[i];
}
"""

# Four floats a thread; n is a multiple of four.
SQUARE4 = r"""
extern "C" __global__ void square4(int n, const float4* x, float4* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n / 4) {
        float4 v = x[i];
        y[i] = make_float4(v.x * v.x, v.y * v.y, v.z * v.z, v.w * v.w);
    }
}
"""

# Three tensors and an int: what a launch is measured with.
MULTIPLY = r"""
extern "C" __global__ void multiply(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] * b[i];
}
"""

_SUM = r"""
extern "C" __global__ void NAME(int n, const float* x, float* out) {
    __shared__ float part[32];
    float s = 0.0f;
LOOP
    for (int d = 16; d; d >>= 1) s += __shfl_down_sync(0xffffffffu, s, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x < 32) {
        s = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.0f;
        for (int d = 16; d; d >>= 1) s += __shfl_down_sync(0xffffffffu, s, d);
        if (threadIdx.x == 0) out[blockIdx.x] = s;
    }
}
"""

# Each block sums a stretch of x; launched again with one block, it sums the blocks' results.
SUM = _SUM.replace("NAME", "sum").replace(
    "LOOP",
    """    int stretch = (n + gridDim.x - 1) / gridDim.x;
    int first = blockIdx.x * stretch, last = min(n, first + stretch);
    for (int i = first + threadIdx.x; i < last; i += blockDim.x) s += x[i];""",
)

# All blocks step through x together, as reductions on GPUs usually do.
SUM_STRIDED = _SUM.replace("NAME", "sum_strided").replace(
    "LOOP",
    "    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += x[i];",
)

# The same, four floats at a time; n is a multiple of four.
SUM4 = _SUM.replace("NAME", "sum4").replace(
    "LOOP",
    """    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n / 4; i += gridDim.x * blockDim.x) {
        float4 v = reinterpret_cast<const float4*>(x)[i];
        s += (v.x + v.y) + (v.z + v.w);
    }""",
)

SUM4_STRETCH = _SUM.replace("NAME", "sum4_stretch").replace(
    "LOOP",
    """    int stretch = (n / 4 + gridDim.x - 1) / gridDim.x;
    int first = blockIdx.x * stretch, last = min(n / 4, first + stretch);
    for (int i = first + threadIdx.x; i < last; i += blockDim.x) {
        float4 v = reinterpret_cast<const float4*>(x)[i];
        s += (v.x + v.y) + (v.z + v.w);
    }""",
)

# One element a thread: a block for every 256.
SUM_BLOCKS = _SUM.replace("NAME", "sum_blocks").replace(
    "LOOP",
    """    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) s = x[i];""",
)

#: The same sum with pointers as parameters, in a struct, and in a table of addresses.
ADDRESSES = r"""
struct P { const float* a; const float* b; const float* c; float* y; int n; };
extern "C" __global__ void plain(const float* a, const float* b, const float* c, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a[i] + b[i] * c[i];
}
extern "C" __global__ void packed(P p) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n) p.y[i] = p.a[i] + p.b[i] * p.c[i];
}
extern "C" __global__ void table(const unsigned long long* at, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) ((float*)at[3])[i] = ((const float*)at[0])[i] + ((const float*)at[1])[i] * ((const float*)at[2])[i];
}
extern "C" __global__ void list(float** at, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) at[3][i] = at[0][i] + at[1][i] * at[2][i];
}
"""
