"""A kernel in a string, and the three ways to launch it.

The kernel's own parameter types decide what an argument becomes: 2.0 arrives as a float because saxpy says float, and
a tensor of another dtype is rejected before anything runs.

    python examples/saxpy.py [--device cpu|cuda]
"""

import argparse

import torch

import rawkern

saxpy = rawkern.RawKernel(r"""
extern "C" __global__ void saxpy(int n, float a, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
""")


def main(device: str) -> None:
    n = 100_003
    x, y = torch.randn(n, device=device), torch.randn(n, device=device)
    expected = y.clone()
    print(f"{saxpy.signature}   on {device}")

    def compare(form: str) -> None:
        torch.testing.assert_close(y, expected.add_(x, alpha=2.0))
        print(f"{form:<60} agrees with torch")

    saxpy.forall(n)(n, 2.0, x, y)
    compare("saxpy.forall(n)(n, 2.0, x, y)")

    blocks = (n + 255) // 256
    saxpy[blocks, 256](n, 2.0, x, y)
    compare("saxpy[blocks, 256](n, 2.0, x, y)")

    saxpy((blocks,), (256,), (n, 2.0, x, y))
    compare("saxpy((blocks,), (256,), (n, 2.0, x, y))")

    saxpy[blocks, 256](n=n, a=2.0, x=x, y=y)
    compare("saxpy[blocks, 256](n=n, a=2.0, x=x, y=y)")

    try:
        saxpy.forall(n)(n, 2.0, x.double(), y)
    except TypeError as error:
        print(f"rejected: {error}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    main(parser.parse_args().device)
