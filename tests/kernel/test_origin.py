"""Sources that are strings: named by their Python file and line in all messages."""

from __future__ import annotations

import pickle
import re
import sys

import pytest
import torch

import rawkern

BROKEN = r"""
__device__ float twice(float x) { return 2 * y; }
extern "C" __global__ void saxpy(int n, float* y) {
    int i = threadIdx.x;
    if (i < n) y[i] = a * y[i];
}"""
FIXED = r"""
template <class T> __device__ __noinline__ T at(const T* x, int i) {
    if (i == 5) asm("trap;");
    return x[i];
}
extern "C" __global__ void copy(const float* x, float* y) { y[threadIdx.x] = at(x, threadIdx.x); }"""


def _here() -> str:
    """The line of the caller, as messages name it."""
    frame = sys._getframe(1)
    return f"test_origin.py:{frame.f_lineno}"


def test_compile_errors_name_place_and_kernel() -> None:
    kernel, here = rawkern.RawKernel(BROKEN, "saxpy"), _here()
    with pytest.raises(rawkern.CompileError) as caught:
        kernel.ptx()
    error = caught.value
    assert re.match(rf'\S*{here} \(saxpy\), line 2: identifier "y" is undefined\n  2 \|', str(error))
    assert re.search(rf'\nalso \S*{here}, line 5: identifier "a" is undefined', str(error))
    assert str(error.file).endswith(here) and (error.line, error.column) == (2, 46)


def test_kernels_of_a_source_are_told_apart() -> None:
    code = BROKEN + "\n__global__ void\nother(float* x)\n{\n  if (x) { x[0] = b; }\n}\n__device__ int z = c;"
    for wrong, within in (("y", ""), ("a", r" \(saxpy\)"), ("b", r" \(other\)"), ("c", "")):
        defined = "".join(f"__device__ float {name};" for name in "yabc" if name != wrong)
        module, here = rawkern.RawModule(defined + code), _here()
        with pytest.raises(rawkern.CompileError, match=rf'^\S*{here}{within}, line \d+: identifier "{wrong}" is un'):
            module.compile()


def test_findings_and_errors_of_launches(device: str) -> None:
    kernel, here = rawkern.RawKernel(FIXED), _here()
    x, y = torch.zeros(4, device=device), torch.zeros(32, device=device)
    with rawkern.check(), pytest.raises(rawkern.OutOfBoundsError) as caught:
        kernel[1, 5](x, y)
    access = caught.value.reports[0].access
    assert access.where == f"{access.file}, line 4" and str(access.file).endswith(here)
    assert str(caught.value).startswith(f"copy: {access.where}: thread (4,0,0) of block (0,0,0) reads ")
    if device == "cpu":
        with pytest.raises(rawkern.LaunchError, match=rf"^copy: \S*{here}, line 3: thread \(5,0,0\) .* trap"):
            kernel[1, 32](torch.zeros(32), y)


def test_what_the_engine_rejects_has_readable_names() -> None:
    code = FIXED.replace("trap;", "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;").replace(
        'extern "C"', ""
    )
    kernel, here = rawkern.RawKernel(code), _here()
    with pytest.raises(rawkern.UnsupportedError) as caught:
        kernel[1, 5](torch.zeros(5), torch.zeros(5))
    assert re.search(rf"tcgen05.*; it comes from \S*{here}, line 3", str(caught.value))
    assert "_Z" not in str(caught.value) and str(caught.value).startswith("copy(float const*, float*): ")


def test_other_messages_name_it() -> None:
    module, here = rawkern.RawModule("template <class T> __global__ void t(T* x) {}"), _here()
    assert re.fullmatch(rf"<RawModule from \S*{here}>", repr(module))
    with pytest.raises(rawkern.CompileError, match=rf"^\S*{here} has no kernel that is not a template"):
        module.compile()
    with pytest.raises(ValueError, match=rf"is not a constant expression of \S*{here}; the compiler says"):
        module.constant("nope")
    with pytest.raises(ValueError, match=r"test_origin.py:\d+ has a NUL character in line 2; remove it"):
        rawkern.RawKernel("\n\0")


def test_formulas_are_named_by_their_definition() -> None:
    formula, here = rawkern.elementwise("T x", "T y", "y = origin_foo(x)", "origin_formula"), _here()
    with pytest.raises(
        rawkern.CompileError, match=rf'^\S*{here}: origin_formula: the operation does not compile: identifier "ori'
    ):
        formula(torch.ones(3))
    formula, here = rawkern.reduction("T x", "T y", "origin_foo(x)", "a + b", "y = a", "0", "origin_sum"), _here()
    with pytest.raises(
        rawkern.CompileError, match=rf'^\S*{here}: origin_sum: map_expr does not compile: identifier "origin_foo"'
    ):
        formula(torch.ones(3))


def test_the_same_text_elsewhere_is_the_same_program() -> None:
    """It is compiled once, and each kernel's messages name its own place."""
    first, second = rawkern.RawKernel(FIXED), rawkern.RawKernel(FIXED)
    here = _here()
    for kernel in (first, second):
        kernel[1, 4](torch.zeros(4), torch.zeros(4))  # compiles
    one, two = first.state().build.program(), second.state().build.program()
    assert one.key == two.key and one.code is two.code
    again = rawkern.RawKernel(FIXED)
    line = int(here.rpartition(":")[2])
    for kernel, at in ((second, line - 1), (pickle.loads(pickle.dumps(again)), line + 5)):
        with pytest.raises(rawkern.LaunchError, match=rf"test_origin.py:{at}, line 3"):
            kernel[1, 32](torch.zeros(32), torch.zeros(32))
