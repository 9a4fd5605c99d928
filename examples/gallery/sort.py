"""A radix sort: eight passes over four bits of the key each, every pass stable.

A pass counts the digits of each block of 256 keys, sums the counts up to where each block's keys of each digit begin,
and moves the keys there. Equal digits of a block keep their order: lanes with the same digit find each other by
__match_any_sync, and warps count in turn.
"""

import torch
from torch import Tensor

import rawkern

kernels = rawkern.RawModule(r"""
// An unsigned number in the order of the floats: -0 is 0, and every NaN comes last.
extern "C" __global__ void to_keys(const float* x, unsigned* keys, int* indices, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i] != x[i] ? NAN : x[i] + 0.0f;
    unsigned bits = __float_as_uint(v) & (v != v ? 0x7fffffff : 0xffffffff);
    keys[i] = bits & 0x80000000 ? ~bits : bits | 0x80000000;
    indices[i] = i;
}

// counts[digit][block]: how many keys of a block have it. Blocks of 256 threads.
extern "C" __global__ void count(const unsigned* keys, int* counts, int n, int shift) {
    __shared__ int own[16];
    int t = threadIdx.x, i = blockIdx.x * 256 + t;
    if (t < 16) own[t] = 0;
    __syncthreads();
    if (i < n) atomicAdd(&own[keys[i] >> shift & 15], 1);
    __syncthreads();
    if (t < 16) counts[t * gridDim.x + blockIdx.x] = own[t];
}

// ends[digit][block]: where the keys of the block with the digit end, the prefix sums of counts. Blocks of 256 threads.
extern "C" __global__ void move(const unsigned* keys, const int* indices, const int* counts, const int* ends,
                                unsigned* moved_keys, int* moved_indices, int n, int shift) {
    __shared__ int begin[8][16];  // of each warp's keys with a digit
    int t = threadIdx.x, lane = t % 32, warp = t / 32, i = blockIdx.x * 256 + t;
    for (int j = t; j < 8 * 16; j += 256) begin[j / 16][j % 16] = 0;
    __syncthreads();
    int digit = i < n ? keys[i] >> shift & 15 : 16;
    unsigned same = __match_any_sync(0xffffffff, digit), before = same & ((1u << lane) - 1);
    if (i < n && !before) begin[warp][digit] = __popc(same);
    __syncthreads();
    if (t < 16) {
        int at = ends[t * gridDim.x + blockIdx.x] - counts[t * gridDim.x + blockIdx.x];
        for (int w = 0; w < 8; w++) {
            int number = begin[w][t];
            begin[w][t] = at;
            at += number;
        }
    }
    __syncthreads();
    if (i < n) {
        int to = begin[warp][digit] + __popc(before);
        moved_keys[to] = keys[i];
        moved_indices[to] = indices[i];
    }
}""")


def argsort(x: Tensor) -> Tensor:
    """The order of a contiguous float32 vector, as int32; ``x[argsort(x)]`` is ``x.sort(stable=True).values``."""
    n, blocks = x.numel(), -(-x.numel() // 256)
    keys, indices = (torch.empty(n, dtype=d, device=x.device) for d in (torch.uint32, torch.int32))
    to = torch.empty_like(keys), torch.empty_like(indices)
    counts = torch.empty(16, blocks, dtype=torch.int32, device=x.device)
    kernels.to_keys.forall(n)(x, keys, indices, n)
    for shift in range(0, 32 if n else 0, 4):
        kernels.count[blocks, 256](keys, counts, n, shift)
        ends = counts.flatten().cumsum(0, dtype=torch.int32)  # or the scan of this gallery
        kernels.move[blocks, 256](keys, indices, counts, ends, *to, n, shift)
        (keys, indices), to = to, (keys, indices)
    return indices


if __name__ == "__main__":
    x = torch.randn(100_003, device="cuda" if torch.cuda.is_available() else "cpu")
    assert torch.equal(argsort(x).long(), x.sort(stable=True).indices)
    print(f"the order of 100,003 floats on {x.device.type} is torch's")
