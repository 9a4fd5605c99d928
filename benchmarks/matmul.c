// The kernel `matmul` of kernels.cu as C for a CPU: blocks over threads, tiles copied, the innermost loop over
// neighbouring columns. Without `simd` gcc unrolls that loop whole where T is 16, and what it then makes takes three times
// as long. The tile's size is given by -DT=...
#include <stddef.h>

void matmul(int n, const float* restrict a, const float* restrict b, float* restrict c) {
#pragma omp parallel for collapse(2)
    for (int block_row = 0; block_row < n; block_row += T)
        for (int block_column = 0; block_column < n; block_column += T) {
            float sum[T][T] = {{0}};
            for (int t = 0; t < n; t += T) {
                float as[T][T], bs[T][T];
                for (int y = 0; y < T; y++)
                    for (int x = 0; x < T; x++) {
                        as[y][x] = a[(size_t)(block_row + y) * n + t + x];
                        bs[y][x] = b[(size_t)(t + y) * n + block_column + x];
                    }
                for (int y = 0; y < T; y++)
                    for (int k = 0; k < T; k++)
#pragma omp simd
                        for (int x = 0; x < T; x++) sum[y][x] += as[y][k] * bs[k][x];
            }
            for (int y = 0; y < T; y++)
                for (int x = 0; x < T; x++) c[(size_t)(block_row + y) * n + block_column + x] = sum[y][x];
        }
}
