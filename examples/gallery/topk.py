"""The k largest of each row, sorted: a radix select finds the k-th largest, and only k candidates are sorted.

Four passes over the row, each of which settles eight bits of the k-th largest key by a histogram in shared memory. Then
everything larger is taken, and as many equal ones as are missing; a bitonic sort in shared memory puts them in order.
"""

import torch
from torch import Tensor

import rawkern

kernels = rawkern.RawModule(r"""
__device__ unsigned key_of(float v) {  // in the order of floats, NaN last, as torch has it
    unsigned bits = v != v ? 0x7fffffff : __float_as_uint(v + 0.0f);
    return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

// values and indices: rows of k. A block of 256 threads for each row; dynamic shared memory: 8 bytes for each of `room`
// candidates, room is a power of two of at least k.
extern "C" __global__ void topk(const float* x, float* values, long long* indices, int n, int k, int room) {
    extern __shared__ unsigned long long found[];  // the key, then the index inverted, so that the first of equals wins
    __shared__ int counts[256], taken, equal_taken;
    __shared__ unsigned chosen_prefix;
    __shared__ int still;
    int t = threadIdx.x;
    x += (long long)blockIdx.x * n;
    unsigned prefix = 0;
    int missing = k;  // of the keys that begin as the k-th largest, so many belong to the k largest
    for (int shift = 24; shift >= 0; shift -= 8) {
        counts[t] = 0;
        __syncthreads();
        for (int i = t; i < n; i += 256) {
            unsigned key = key_of(x[i]);
            if (shift == 24 || key >> (shift + 8) == prefix) atomicAdd(&counts[key >> shift & 255], 1);
        }
        __syncthreads();
        if (t == 0) {
            int digit = 255;
            while (counts[digit] < missing) missing -= counts[digit--];
            chosen_prefix = prefix << 8 | digit, still = missing, taken = equal_taken = 0;
        }
        __syncthreads();
        prefix = chosen_prefix, missing = still;
        __syncthreads();
    }
    for (int i = k + t; i < room; i += 256) found[i] = 0;
    for (int first = 0; first < n; first += 256) {  // in the order of the row, so that the first of equals are taken
        int i = first + t;
        unsigned key = i < n ? key_of(x[i]) : 0;
        bool larger = i < n && key > prefix, equal = i < n && key == prefix;
        unsigned mask = __ballot_sync(0xffffffff, equal);
        counts[t / 32] = __popc(mask);
        __syncthreads();
        int rank = equal_taken + __popc(mask & ((1u << t % 32) - 1));
        for (int w = 0; w < t / 32; w++) rank += counts[w];
        if (larger || (equal && rank < missing))
            found[larger ? atomicAdd(&taken, 1) : k - missing + rank] = (unsigned long long)key << 32 | (unsigned)~i;
        __syncthreads();
        if (t == 0)
            for (int w = 0; w < 8; w++) equal_taken += counts[w];
        __syncthreads();
    }
    for (int size = 2; size <= room; size *= 2)
        for (int d = size / 2; d > 0; d /= 2) {
            for (int i = t; i < room; i += 256) {
                int j = i ^ d;
                if (j > i && (found[i] < found[j]) == !(i & size)) {
                    unsigned long long other = found[i];
                    found[i] = found[j], found[j] = other;
                }
            }
            __syncthreads();
        }
    for (int i = t; i < k; i += 256) {
        int at = ~(unsigned)found[i];
        values[(long long)blockIdx.x * k + i] = x[at];
        indices[(long long)blockIdx.x * k + i] = at;
    }
}""")


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """``x.topk(k)`` of the rows of a contiguous float32 matrix, k up to 4096; of equal numbers the first come first."""
    rows, n = x.shape
    if not 0 < k <= min(n, 4096):
        raise ValueError(f"k is {k}; it is 1 to {min(n, 4096)} for rows of {n}")
    values, indices = x.new_empty(rows, k), torch.empty(rows, k, dtype=torch.int64, device=x.device)
    room = 1 << (k - 1).bit_length()
    kernels.topk[rows, 256, 8 * room](x, values, indices, n, k, room)
    return values, indices


if __name__ == "__main__":
    x = torch.randn(20, 5003, device="cuda" if torch.cuda.is_available() else "cpu")
    values, indices = topk(x, 50)
    assert torch.equal(values, x.topk(50).values) and torch.equal(x.gather(1, indices), values)
    print(f"the 50 largest of 20 rows of 5003 on {x.device.type} are torch's")
