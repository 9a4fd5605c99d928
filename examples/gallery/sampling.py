"""Draw a token for each row of logits: the largest of logit / temperature plus Gumbel noise has softmax's odds.

No softmax and no sum is needed, and one pass over the logits (Gumbel-max trick). The noise is made where it is used, by
Philox: a number for each seed, row and column, the same on every device and for every grid.
"""

import torch
from torch import Tensor

import rawkern

kernels = rawkern.RawModule(r"""
// A random number between 0 and 1, both excluded: Philox4x32-10 (Salmon and others, 2011) of a counter and a key.
__device__ float uniform(unsigned a, unsigned b, unsigned key0, unsigned key1) {
    unsigned c = 0, d = 0;
    for (int i = 0; i < 10; i++) {
        unsigned high0 = __umulhi(0xd2511f53, a), low0 = 0xd2511f53 * a;
        unsigned high1 = __umulhi(0xcd9e8d57, c), low1 = 0xcd9e8d57 * c;
        a = high1 ^ b ^ key0, b = low1, c = high0 ^ d ^ key1, d = low0;
        key0 += 0x9e3779b9, key1 += 0xbb67ae85;
    }
    return ((a >> 9) + 0.5f) / 8388608.0f;
}

// tokens[row] = a column, drawn with the odds of softmax(logits / temperature); the largest where temperature is 0.
// A block of 256 threads for each row.
extern "C" __global__ void sample(const float* logits, long long* tokens, int columns, float temperature,
                                  unsigned long long seed) {
    __shared__ float best[256];
    __shared__ int where[256];
    int t = threadIdx.x, row = blockIdx.x, found = 0;
    logits += (long long)row * columns;
    float most = -INFINITY;
    for (int i = t; i < columns; i += 256) {
        float v = logits[i];
        if (temperature > 0) v = v / temperature - logf(-logf(uniform(i, row, (unsigned)seed, (unsigned)(seed >> 32))));
        if (v > most || i == t) most = v, found = i;
    }
    best[t] = t < columns ? most : -INFINITY, where[t] = t < columns ? found : columns;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (t < half) {
            float v = best[t + half];
            if (v > best[t] || (v == best[t] && where[t + half] < where[t])) best[t] = v, where[t] = where[t + half];
        }
        __syncthreads();
    }
    if (t == 0) tokens[row] = where[0];
}""")


def sample(logits: Tensor, temperature: float, seed: int) -> Tensor:
    """A column for each row of a contiguous float32 matrix, as int64; the same for the same seed."""
    tokens = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    kernels.sample[logits.shape[0], 256](logits, tokens, logits.shape[1], temperature, seed)
    return tokens


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0], device=device)
    tokens = sample(logits.repeat(20_000, 1), 0.8, seed=1)
    odds = torch.bincount(tokens, minlength=4) / 20_000
    torch.testing.assert_close(odds, torch.softmax(logits / 0.8, 0), atol=0.02, rtol=0)
    print(f"20,000 draws on {device}: {[round(o, 3) for o in odds.tolist()]}, the odds of softmax but for 0.02")
