// A large kernel: each block sorts pairs of a 64-bit key and a value, and counts the runs of equal keys.
#include <cub/block/block_discontinuity.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_store.cuh>

struct Different {
    __device__ bool operator()(unsigned long long a, unsigned long long b) const { return a != b; }
};

extern "C" __global__ void large(int n, unsigned long long* keys, int* values, int* run) {
    using Load = cub::BlockLoad<unsigned long long, 256, 6, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
    using LoadValues = cub::BlockLoad<int, 256, 6, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
    using Store = cub::BlockStore<unsigned long long, 256, 6, cub::BLOCK_STORE_WARP_TRANSPOSE>;
    using StoreValues = cub::BlockStore<int, 256, 6, cub::BLOCK_STORE_WARP_TRANSPOSE>;
    using Sort = cub::BlockRadixSort<unsigned long long, 256, 6, int>;
    using Heads = cub::BlockDiscontinuity<unsigned long long, 256>;
    using Scan = cub::BlockScan<int, 256>;
    __shared__ union {
        typename Load::TempStorage load;
        typename LoadValues::TempStorage load_values;
        typename Store::TempStorage store;
        typename StoreValues::TempStorage store_values;
        typename Sort::TempStorage sort;
        typename Heads::TempStorage heads;
        typename Scan::TempStorage scan;
    } storage;
    unsigned long long key[6];
    int value[6], head[6], index[6];
    int first = blockIdx.x * 1536, left = n - first;
    Load(storage.load).Load(keys + first, key, left, ~0ull);
    __syncthreads();
    LoadValues(storage.load_values).Load(values + first, value, left, -1);
    __syncthreads();
    Sort(storage.sort).Sort(key, value);
    __syncthreads();
    Heads(storage.heads).FlagHeads(head, key, Different());
    __syncthreads();
    Scan(storage.scan).InclusiveSum(head, index);
    __syncthreads();
    Store(storage.store).Store(keys + first, key, left);
    __syncthreads();
    StoreValues(storage.store_values).Store(values + first, value, left);
    __syncthreads();
    StoreValues(storage.store_values).Store(run + first, index, left);
}
