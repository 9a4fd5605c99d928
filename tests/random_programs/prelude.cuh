// Helpers of the random programs, in words that CUDA and the reference share.
static __device__ inline int f2i(float x) { return x > -1e6f && x < 1e6f ? (int)x : 0; }
static __device__ inline int d2i(double x) { return x > -1e6 && x < 1e6 ? (int)x : 0; }
static __device__ inline long long fbits(float x) { return x != x ? 0x7fc00000 : __float_as_int(x); }
static __device__ inline long long dbits(double x) { return x != x ? 0x7ff8000000000000ll : __double_as_longlong(x); }
// a lane of the mask m
static __device__ inline int pick(unsigned m, unsigned k) { return (m >> (k & 31)) & 1 ? (int)(k & 31) : __ffs(m) - 1; }
