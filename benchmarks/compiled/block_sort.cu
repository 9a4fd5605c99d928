#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_store.cuh>

extern "C" __global__ void block_sort(int n, unsigned* keys) {
    using Load = cub::BlockLoad<unsigned, 128, 4, cub::BLOCK_LOAD_TRANSPOSE>;
    using Store = cub::BlockStore<unsigned, 128, 4, cub::BLOCK_STORE_TRANSPOSE>;
    using Sort = cub::BlockRadixSort<unsigned, 128, 4>;
    __shared__ union {
        typename Load::TempStorage load;
        typename Store::TempStorage store;
        typename Sort::TempStorage sort;
    } storage;
    unsigned mine[4];
    int first = blockIdx.x * 512;
    Load(storage.load).Load(keys + first, mine, n - first, 0xffffffffu);
    __syncthreads();
    Sort(storage.sort).Sort(mine);
    __syncthreads();
    Store(storage.store).Store(keys + first, mine, n - first);
}
