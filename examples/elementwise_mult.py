"""Your own kernels as a differentiable function: the elementwise product, forward and backward.

This is the way of PyTorch's custom-kernel tutorials: a torch.autograd.Function around two launches, with each gradient
computed only if it is needed. The gradients are compared with numerical ones in float64.

    python examples/elementwise_mult.py [--device cpu|cuda]
"""

import argparse

import torch

import rawkern

module = rawkern.RawModule(r"""
template <typename T> __global__ void mult(const T* a, const T* b, T* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] * b[i];
}

// grad_a or grad_b is null where that gradient is not needed.
template <typename T>
__global__ void mult_backward(const T* grad, const T* a, const T* b, T* grad_a, T* grad_b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    if (grad_a) grad_a[i] = grad[i] * b[i];
    if (grad_b) grad_b[i] = grad[i] * a[i];
}
""")
NAMES = {torch.float32: "float", torch.float64: "double"}


class Mult(torch.autograd.Function):
    """out = a * b for two tensors of one shape and dtype."""

    @staticmethod
    def forward(ctx, a, b):
        a, b = a.contiguous(), b.contiguous()
        out = torch.empty_like(a)
        kernel = module.get_function(f"mult<{NAMES[a.dtype]}>")
        kernel.forall(a.numel())(a, b, out, a.numel())
        ctx.save_for_backward(a, b)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        need_a, need_b = ctx.needs_input_grad
        grad_a = torch.empty_like(a) if need_a else None
        grad_b = torch.empty_like(b) if need_b else None
        kernel = module.get_function(f"mult_backward<{NAMES[a.dtype]}>")
        kernel.forall(a.numel())(grad.contiguous(), a, b, grad_a, grad_b, a.numel())
        return grad_a, grad_b


def main(device: str) -> None:
    a = torch.randn(3, 1000, device=device, requires_grad=True)
    b = torch.randn(3, 1000, device=device, requires_grad=True)
    out = Mult.apply(a, b)
    torch.testing.assert_close(out, a * b)
    out.sum().backward()
    torch.testing.assert_close(a.grad, b.detach())
    torch.testing.assert_close(b.grad, a.detach())
    print(f"product and both gradients of 3 x 1000 floats agree with torch on {device}")

    x = torch.randn(4, 5, device=device, dtype=torch.float64, requires_grad=True)
    y = torch.randn(4, 5, device=device, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Mult.apply, (x, y))
    assert torch.autograd.gradcheck(Mult.apply, (x, y.detach()))
    assert torch.autograd.gradcheck(Mult.apply, (x.detach(), y))
    print("gradcheck in float64: both gradients, and each of them alone, agree with numerical differences")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    main(parser.parse_args().device)
