// The kernel `binomial` of kernels.cu as C for a CPU: options over threads, each level of a tree in a loop over neighbors,
// which a compiler turns into vectors. The tree's steps are given by -DSTEPS=...
#include <math.h>
#include <stddef.h>

void binomial(int n, const float* restrict options, float* restrict value) {
#pragma omp parallel for
    for (int k = 0; k < n; k++) {
        const float* option = options + 5 * (size_t)k;
        float level[STEPS + 1], up = option[3], down = option[4];
        for (int i = 0; i <= STEPS; i++)
            level[i] = fmaxf(option[0] * expf(option[2] * (2 * i - STEPS)) - option[1], 0.0f);
        for (int left = STEPS; left > 0; left--)
            for (int i = 0; i < left; i++) level[i] = up * level[i + 1] + down * level[i];
        value[k] = level[0];
    }
}
