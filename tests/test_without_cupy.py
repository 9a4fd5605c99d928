"""On tensors of the CPU everything works without CuPy; what needs it says how to install it."""

from __future__ import annotations

from pathlib import Path

from tests import without_compiler

EVERYTHING = r'''
from rawkern.cli import main
k = rawkern.RawKernel("""
#include <cuda_fp16.h>
#include <cooperative_groups.h>
extern "C" __global__ void twice(const __half* x, float* y, int n) {
    int i = cooperative_groups::this_grid().thread_rank();
    if (i < n) y[i] = 2 * __half2float(x[i]);
}""")
x, y = torch.arange(100.0).half(), torch.full((100,), float("nan"))
k.forall(100)(x, y, 100)
assert torch.equal(y, 2 * x.float())
k.forall(100)(x.numpy(), rawkern.from_torch(y.zero_()), 100)
assert torch.equal(rawkern.to_torch(y.numpy()), 2 * x.float())
with rawkern.check():
    k.forall(100)(x, y, 100)
    try:
        k.forall(101)(x, y, 101)
    except rawkern.OutOfBoundsError:
        print("found")
with rawkern.profile() as seen:
    k.forall(100)(x, y, 100)
assert "twice" in str(seen)
leaf = torch.randn(50, requires_grad=True)
rawkern.elementwise("T x", "T y", "y = x * x", "own_square")(leaf).sum().backward()
torch.testing.assert_close(leaf.grad, 2 * leaf.detach())
torch.testing.assert_close(rawkern.softmax(leaf, -1), torch.softmax(leaf, -1))
assert main(["doctor"]) == 0
try:
    rawkern.RawKernel("""#include <cuComplex.h>
    extern "C" __global__ void c(cuFloatComplex* z) { *z = cuConjf(*z); }""", translate_cucomplex=True).ptx()
except rawkern.CompileError as error:
    print(error)
assert not [name for name in sys.modules if name.startswith("cupy")]
'''


def test_everything_on_the_cpu(tmp_path: Path) -> None:
    printed = without_compiler.run(EVERYTHING, "cpu", tmp_path / "cache", compiler=True)
    assert printed.startswith("found\n")
    assert 'cupy/complex.cuh" was looked for in' in printed and "it comes with CuPy; run: pip install" in printed
