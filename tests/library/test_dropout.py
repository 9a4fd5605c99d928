"""dropout: how much is dropped, that backward drops the same, seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

import rawkern


def words(seed: int, n: int, bits: int) -> np.ndarray:
    """The first n words of Philox 4x32-7, from its definition (Salmon et al. 2011), whole or in halves."""
    low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
    counter = np.arange(-(-n // 4), dtype=np.uint64)
    c = [counter & low, counter >> high, np.zeros_like(counter), np.zeros_like(counter)]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(7):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> high) ^ c[1] ^ np.uint64(k0), p1 & low, (p0 >> high) ^ c[3] ^ np.uint64(k1), p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    flat = np.stack(c, 1).astype("<u4").reshape(-1)
    return flat.view("<u2" if bits == 16 else "<u4")[:n]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_drops_what_the_generator_says(device, dtype):
    p = 0.3
    x = torch.randn(37, 29, device=device).to(dtype)
    torch.manual_seed(5)
    seed = torch.randint(2**62, (), device=device).item()
    torch.manual_seed(5)
    y = rawkern.dropout(x, p)
    bits = 16 if dtype.itemsize == 2 else 32
    keep = words(int(seed), 37 * 29, bits).reshape(37, 29) >= round(p * 2**bits)
    want = torch.where(torch.from_numpy(keep).to(device), x.double() / (1 - p), 0.0).to(dtype)
    torch.testing.assert_close(y, want)
    torch.manual_seed(5)
    assert torch.equal(rawkern.dropout(x.t().contiguous().t(), p), y)  # by place, not by memory


def test_share_and_independence(device):
    x = torch.ones(1 << 18, device=device)
    for p in (0.1, 0.5, 0.9):
        one, two = rawkern.dropout(x, p), rawkern.dropout(x, p)
        spread = 5 * (p * (1 - p) / x.numel()) ** 0.5
        assert abs((one == 0).float().mean().item() - p) < spread
        assert abs(((one == 0) & (two == 0)).float().mean().item() - p * p) < spread
        torch.testing.assert_close(one[one != 0], torch.full_like(one[one != 0], 1 / (1 - p)))


def test_backward_drops_the_same(device):
    x = torch.randn(500, device=device, requires_grad=True)
    y = rawkern.dropout(x, 0.4)
    assert [t.numel() for t in y.grad_fn.saved_tensors] == [1]  # the seed
    y.backward(torch.full_like(y, 3.0))
    want = torch.where(y == 0, 0.0, 3.0 / 0.6)
    torch.testing.assert_close(x.grad, want)


def test_gradcheck(device):
    def seeded(x):
        torch.manual_seed(1)
        return rawkern.dropout(x, 0.5)

    x = torch.randn(20, dtype=torch.float64, device=device, requires_grad=True)
    assert gradcheck(seeded, (x,), check_forward_ad=True)


def test_checkpoint_replays(device):
    from torch.utils.checkpoint import checkpoint

    x = torch.randn(100, device=device, requires_grad=True)
    y = checkpoint(lambda t: rawkern.dropout(t, 0.5) * t, x, use_reentrant=False)
    y.sum().backward()
    kept = y.detach() != 0
    torch.testing.assert_close(x.grad, torch.where(kept, 4 * x.detach(), 0.0))


def test_trivial_cases(device):
    x = torch.randn(10, device=device)
    assert rawkern.dropout(x, 0.5, training=False) is x
    assert rawkern.dropout(x, 0.0) is x
    assert rawkern.dropout(x, 1.0).abs().sum() == 0
    y = x.clone()
    assert rawkern.dropout(y, 1.0, inplace=True) is y and y.abs().sum() == 0


def test_rejections(device):
    with pytest.raises(ValueError, match=r"dropout: p is 1\.5; a probability is between 0 and 1"):
        rawkern.dropout(torch.ones(3, device=device), 1.5)
    with pytest.raises(TypeError, match="dropout: the argument is int64"):
        rawkern.dropout(torch.arange(3, device=device))
