"""The operator against torch, on every device; ``pytest --rawkern-check`` also checks the launches."""

import pytest
import torch
from snake_activation import snake


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.float16, 2e-3)])
def test_values_and_gradients(device: str, dtype: torch.dtype, tolerance: float) -> None:
    x = torch.randn(3, 101, device=device, dtype=dtype, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    expected = exact + (0.7 * exact).sin() ** 2 / 0.7
    result = snake(x, 0.7)
    torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=tolerance)
    result.sum().backward()
    expected.sum().backward()
    assert x.grad is not None and exact.grad is not None
    torch.testing.assert_close(x.grad.double(), exact.grad, atol=tolerance, rtol=tolerance)
