"""torch to CuPy to torch on one and the same memory, never through the host.

A kernel, CuPy and torch take turns on a tensor; the data pointer stays what it was. On the CPU, where there are no CuPy
arrays, NumPy takes CuPy's place.

    python examples/cupy_interop.py [--device cpu|cuda]
"""

import argparse

import torch

import rawkern

square = rawkern.RawKernel(r"""
extern "C" __global__ void square(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * x[i];
}
""")


def pointer(array) -> int:
    """The address of a CuPy or NumPy array's first element."""
    return array.data.ptr if hasattr(array.data, "ptr") else array.ctypes.data


def main(device: str) -> None:
    library = "CuPy" if device.startswith("cuda") else "NumPy (no GPU is used here; on one it is CuPy)"
    print(f"torch to {library} and back, on {device}")

    x = torch.arange(1, 7, dtype=torch.float32, device=device).view(2, 3)
    array = rawkern.from_torch(x)
    print(f"from_torch: {type(array).__module__.split('.')[0]}.ndarray {array.shape}")
    assert pointer(array) == x.data_ptr()

    array *= 10  # computed by CuPy or NumPy, in torch's memory
    back = rawkern.to_torch(array)
    assert back.data_ptr() == x.data_ptr() and back.device == x.device
    print(f"torch sees what the other wrote: {x.tolist()}")

    # A kernel takes any of the two; here it reads the array and writes a tensor.
    y = torch.empty_like(x)
    square.forall(x.numel())(array, y, x.numel())
    torch.testing.assert_close(y, x * x)
    print(f"a kernel on both kinds of array: {y.tolist()}")

    transposed = rawkern.from_torch(x.t())
    assert pointer(transposed) == x.data_ptr() and transposed.shape == (3, 2)
    print("views stay views: a transposed tensor is a transposed array on the same memory")
    print("data pointers unchanged throughout: nothing was copied")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    main(parser.parse_args().device)
