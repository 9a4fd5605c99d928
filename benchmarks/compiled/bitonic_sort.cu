// Each block of 512 threads sorts 1,024 elements in shared memory.
extern "C" __global__ void bitonic_sort(int n, float* x) {
    __shared__ float s[1024];
    x += blockIdx.x * 1024;
    n -= blockIdx.x * 1024;
    for (int i = threadIdx.x; i < 1024; i += 512) s[i] = i < n ? x[i] : __int_as_float(0x7f800000);
    for (int size = 2; size <= 1024; size *= 2)
        for (int stride = size / 2; stride; stride /= 2) {
            __syncthreads();
            int low = 2 * threadIdx.x - (threadIdx.x & (stride - 1));
            bool up = (threadIdx.x & (size / 2)) == 0;
            float a = s[low], b = s[low + stride];
            if ((a > b) == up) {
                s[low] = b;
                s[low + stride] = a;
            }
        }
    __syncthreads();
    for (int i = threadIdx.x; i < 1024 && i < n; i += 512) x[i] = s[i];
}
