"""Rotary position embedding (RoPE) of queries and keys, in place and in one launch.

Pairs of features turn by an angle that grows with the position and falls with the feature. The pairs are the two halves
of a head (as in GPT-NeoX and Llama's checkpoints on Hugging Face) or neighbors (as in the paper, Su and others, 2021).
"""

import torch
from torch import Tensor

import rawkern

kernels = rawkern.RawModule(r"""
// A thread for each pair of a head of q, then of k; both are tokens x heads x D, and heads may differ.
extern "C" __global__ void rope(float* q, float* k, const int* positions, long long pairs_q, long long pairs_k,
                                int heads_q, int heads_k, int D, float base, bool neighbors) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    float* x = q;
    int heads = heads_q;
    if (i >= pairs_q) i -= pairs_q, x = k, heads = heads_k;
    if (x == k && i >= pairs_k) return;
    int half = D / 2, pair = i % half;
    long long head = i / half;
    float angle = positions[head / heads] * powf(base, -2.0f * pair / D), sine, cosine;
    sincosf(angle, &sine, &cosine);
    float* a = x + head * D + (neighbors ? 2 * pair : pair);
    float* b = a + (neighbors ? 1 : half);
    float u = *a, v = *b;
    *a = u * cosine - v * sine;
    *b = u * sine + v * cosine;
}""")


def rope_(q: Tensor, k: Tensor, positions: Tensor, base: float = 10000.0, neighbors: bool = False) -> None:
    """Turn q and k, contiguous float32 of tokens x heads x D; positions are int32, one for each token."""
    if q.shape[2] != k.shape[2] or q.shape[2] % 2 or not len(q) == len(k) == len(positions):
        raise ValueError(f"q is {tuple(q.shape)}, k {tuple(k.shape)}: tokens and D are the same, and D is even")
    pairs = q.numel() // 2 + k.numel() // 2
    sizes = q.numel() // 2, k.numel() // 2, q.shape[1], k.shape[1], q.shape[2]
    kernels.rope.forall(pairs)(q, k, positions, *sizes, base, neighbors)


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k = torch.randn(100, 8, 64, device=device), torch.randn(100, 2, 64, device=device)
    before = (q[:90, 0] * k[:90, 0]).sum(-1)
    rope_(q, k, torch.arange(100, dtype=torch.int32, device=device))
    torch.testing.assert_close((q[:90, 0] * k[:90, 0]).sum(-1), before, rtol=1e-3, atol=1e-3)
    print(f"queries and keys of one position keep their products on {device}")
