"""rawkern.cpp_extension: torch's own signatures, bindings, edits."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import rawkern
from rawkern import cpp_extension
from rawkern.compile import compile
from rawkern.errors import OutOfBoundsError
from rawkern.extensions import extension as in_use
from tests.extensions.kit import HEAD, load

CUDA = """
__global__ void add_kernel(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
torch::Tensor add(torch::Tensor a, torch::Tensor b) {
  auto c = torch::empty_like(a);
  add_kernel<<<(a.numel() + 255) / 256, 256>>>(a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), a.numel());
  return c;
}
"""
CPP = "torch::Tensor add(torch::Tensor a, torch::Tensor b);\nint half_of(int n) { return n / 2; }"


def test_load_inline(device: torch.device, capsys: pytest.CaptureFixture[str]) -> None:
    functions = {"add": "The sum.", "half_of": "A half."}
    e = cpp_extension.load_inline("inline", CPP, CUDA, functions=functions, verbose=True)
    a, b = torch.randn(300, device=device), torch.randn(300, device=device)
    assert torch.equal(e.add(a, b), a + b)
    assert e.half_of(-7) == -3 and e.half_of.__doc__ == "A half."
    assert "rawkern translated the extension inline: add, half_of" in capsys.readouterr().out
    assert "def _add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:" in e.source
    with pytest.raises(AttributeError, match="has no function 'sub'; it has: add, half_of"):
        e.sub  # noqa: B018
    with pytest.raises(ValueError, match="no function 'nothing'"):
        cpp_extension.load_inline("inline", CPP, CUDA, functions=["nothing"])


def test_torchs_functions_are_those_here_within_patch() -> None:
    from torch.utils import cpp_extension as of_torch

    before = of_torch.load_inline
    with cpp_extension.patch():
        e = of_torch.load_inline(name="patched", cpp_sources=[CPP], cuda_sources=[CUDA], functions=["add"])
        assert torch.equal(e.add(torch.ones(3), torch.ones(3)), torch.full((3,), 2.0))
    assert of_torch.load_inline is before


def test_options_without_meaning_warn_once() -> None:
    with pytest.warns(UserWarning, match="extra_ldflags has no effect"):
        cpp_extension.load_inline("inline", CPP, functions=["half_of"], extra_ldflags=["-lcuda"])


def test_macros_of_options_hold_in_both_parts(tmp_path: Path) -> None:
    source = """
__global__ void k(int* x) { x[0] = VALUE; }
int f(torch::Tensor x) { k<<<1, 1>>>(x.data_ptr<int>()); return VALUE; }
"""
    e = load(tmp_path, source, extra_cuda_cflags=["-O3", "-DVALUE=42", "--expt-relaxed-constexpr"])
    x = torch.zeros(1, dtype=torch.int32)
    assert e.f(x) == 42 and x.item() == 42


def test_bindings_give_names_defaults_and_docstrings(tmp_path: Path) -> None:
    source = """
int f(int a, double b, c10::optional<int64_t> c) { return a + (int)b + (c.has_value() ? c.value() : 100); }
template <typename T> T g(T x) { return x / 2; }
int64_t total(std::vector<int64_t> v) { return std::accumulate(v.begin(), v.end(), 1); }
int quotient(int a) { return a / 2; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "numbers";
  m.def("combine", &f, "Adds.", py::arg("first"), py::arg("second") = 2.5, py::arg("third") = py::none());
  m.def("half_int", &g<int>).def("half_double", &g<double>);
  m.def("minus", [](int a, int b) { return a - b; });
  m.def("div", &total);
  m.def("print", &quotient, py::arg("a") = UNKNOWN_NUMBER);
}
"""
    e = load(tmp_path, source)
    assert e.combine(1) == 103 and e.combine(1, third=4) == 7 and e.combine(first=1, second=0.0, third=0) == 1
    assert e.combine.__doc__ == "Adds."
    assert e.half_int(7) == 3 and e.half_double(7.0) == 3.5 and e.minus(2, 5) == -3
    assert e.div([2, 3]) == 6 and e.print(-7) == -3  # names that mean something else in the module
    with pytest.raises(TypeError, match="is missing its argument 'a'"):
        e.print()
    for arguments, text in [
        (("x",), r"combine\(\): the argument 'first' is str 'x', C\+\+ takes an integer"),
        ((1.5,), "the argument 'first' is float 1.5"),
        ((2**40,), "an integer from -2147483648 to 2147483647"),
        ((), "is missing its argument 'first'"),
    ]:
        with pytest.raises(TypeError, match=text):
            e.combine(*arguments)


def test_several_files_with_own_headers(tmp_path: Path, device: torch.device) -> None:
    (tmp_path / "common.h").write_text(
        '#pragma once\n#define BLOCK 64\n#define CHECK(x) TORCH_CHECK(x.is_contiguous(), #x " is strided")\n'
        "inline int blocks(int n) { return (n + BLOCK - 1) / BLOCK; }\nvoid twice(torch::Tensor x, int by = 2);\n"
    )
    (tmp_path / "a.cu").write_text(
        HEAD + '#include "common.h"\n__global__ void k(float* x, int n, int by) '
        "{ int i = blockIdx.x * BLOCK + threadIdx.x; if (i < n) x[i] *= by; }\nstatic int one() { return 1; }\n"
        "void twice(torch::Tensor x, int by) { CHECK(x); int n = x.numel() * one();"
        " k<<<blocks(n), BLOCK>>>(x.data_ptr<float>(), n, by); }\n"
    )
    (tmp_path / "b.cu").write_text(
        HEAD + '#include "common.h"\n__global__ void k(float* x, int n) '
        "{ int i = blockIdx.x * BLOCK + threadIdx.x; if (i < n) x[i] += 1; }\nstatic int one() { return 0; }\n"
        "void inc(torch::Tensor x) { int n = x.numel() + one(); k<<<blocks(n), BLOCK>>>(x.data_ptr<float>(), n); twice(x); }\n"
    )
    (tmp_path / "bind.cpp").write_text(
        HEAD + '#include "common.h"\nvoid inc(torch::Tensor x);\n'
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("inc", &inc); m.def("twice", &twice); }\n'
    )
    e = cpp_extension.load("several", [tmp_path / name for name in ("a.cu", "b.cu", "bind.cpp")])
    x = torch.arange(100.0, device=device)
    e.inc(x)
    assert torch.equal(x, (torch.arange(100.0, device=device) + 1) * 2)
    with pytest.raises(RuntimeError, match="x is strided"):
        e.twice(x[::2], 2)


def test_an_edit_is_seen_at_the_next_call(tmp_path: Path) -> None:
    source = "__global__ void k(float* x) { x[0] = 1; }\nint f(torch::Tensor x) { k<<<1, 1>>>(x.data_ptr<float>()); return 5; }"
    e = load(tmp_path, source)
    f, x = e.f, torch.zeros(1)
    assert f(x) == 5 and x.item() == 1
    (tmp_path / "ext.cu").write_text(HEAD + source.replace("= 1;", "= 2;").replace("return 5", "return 6"))
    os.utime(tmp_path / "ext.cu", (time.time() + 5, time.time() + 5))
    time.sleep(0.15)
    assert f(x) == 6 and x.item() == 2


def test_a_cpu_tensor_passes_for_one_of_a_gpu_until_told_otherwise(tmp_path: Path) -> None:
    source = """
bool f(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda() && x.device().is_cuda() && x.type().is_cuda(), "x must be a CUDA tensor");
  return x.device().type() == torch::kCUDA;
}
"""
    e = load(tmp_path, source)
    assert e.f(torch.ones(1))
    cpp_extension.take_cpu_tensors(False)
    try:
        with pytest.raises(RuntimeError, match="x must be a CUDA tensor"):
            e.f(torch.ones(1))
    finally:
        cpp_extension.take_cpu_tensors()


def test_a_loaded_file_has_its_host_functions_and_its_kernels(tmp_path: Path, device: torch.device) -> None:
    file = tmp_path / "both.cu"
    file.write_text(HEAD + CUDA)
    module = rawkern.load(file)
    a = torch.randn(100, device=device)
    assert torch.equal(module.add(a, a), a + a)
    out = torch.empty_like(a)
    module.add_kernel[1, 128](a, a, out, 100)
    assert torch.equal(out, a + a) and {"add", "add_kernel"} <= set(dir(module))
    assert torch.equal(pickle.loads(pickle.dumps(module)).add(a, a), a + a)


def test_tools_see_the_launches(tmp_path: Path) -> None:
    source = """
__global__ void k(float* x, int n) { x[threadIdx.x] = 1; }
void f(torch::Tensor x) { k<<<1, 32>>>(x.data_ptr<float>(), x.numel()); }
"""
    e = load(tmp_path, source)
    with pytest.raises(rawkern.OutOfBoundsError), rawkern.check():
        e.f(torch.zeros(20))
    with rawkern.profile() as report:
        e.f(torch.zeros(32))
    assert "k: grid 1, block 32" in str(report)

    @rawkern.op("rawkern_tests::extension_f", mutates_args=("x",))
    def operator(x: torch.Tensor) -> None:
        e.f(x)

    x = torch.zeros(32)
    operator(x)
    assert (x == 1).all()


def test_kernels_in_namespaces_and_launches_in_headers(tmp_path: Path, device: torch.device) -> None:
    (tmp_path / "apply.cuh").write_text(
        "#pragma once\n"
        "template <typename T> __device__ __forceinline__ T WARP_SHFL_XOR(T value, int lanes, int width = warpSize,"
        " unsigned int mask = 0xffffffff) { return __shfl_xor_sync(mask, value, lanes, width); }\n"
        "namespace deep {\nstruct Size { int n; };\n"
        "template <typename F> __global__ void apply_kernel(float* x, Size size, F f)"
        " { if (threadIdx.x < size.n) x[threadIdx.x] = f(WARP_SHFL_XOR(x[threadIdx.x], 1)); }\n"
        "template <typename F> void apply(torch::Tensor x, F f) { Size size; size.n = x.numel();"
        " apply_kernel<F><<<1, 32>>>(x.data_ptr<float>(), size, f); }\n}\n"
    )
    for name, by in (("first", 2), ("second", 3)):
        (tmp_path / f"{name}.cu").write_text(
            HEAD + '#include "apply.cuh"\n'
            f"namespace deep {{ struct By{by} {{ __device__ float operator()(float v) const {{ return {by} * v; }} }};\n"
            f"void {name}(torch::Tensor x) {{ apply(x, By{by}()); }} }}\n"
        )
    e = cpp_extension.load("deep", [tmp_path / "first.cu", tmp_path / "second.cu"])
    x = torch.arange(32.0, device=device)
    swapped = x.view(16, 2).flip(1).flatten()
    e.first(x)
    assert torch.equal(x, 2 * swapped)
    e.second(x)
    assert torch.equal(x, 6 * torch.arange(32.0, device=device))


def test_an_edit_of_a_kernel_leaves_the_translation_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
#include "scale.cuh"
__global__ void k(float* x) {
  const int more = 1;
  x[0] = SCALE * (1 + more);
}
__device__ float unused(float x) { return x; }
void f(torch::Tensor x) { k<<<1, 1>>>(x.data_ptr<float>()); x.add_(10); }
"""
    (tmp_path / "scale.cuh").write_text("#define SCALE 3\n")
    e, x = load(tmp_path, source), torch.zeros(1)
    file = tmp_path / "ext.cu"
    done: list[int] = []
    real = in_use.translated
    monkeypatch.setattr(in_use, "translated", lambda *a, **k: done.append(1) or real(*a, **k))

    def edited(old: str, new: str, path: Path = file) -> float:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        time.sleep(0.15)
        e.f(x)
        return x.item()

    e.f(x)
    assert x.item() == 16 and not done
    assert edited("(1 + more)", "(2 + more)") == 19 and not done
    assert edited("return x;", "return 2 * x;") == 19 and not done
    assert edited("add_(10)", "add_(20)") == 29 and len(done) == 1
    assert edited("#define SCALE 3", "#define SCALE 5", tmp_path / "scale.cuh") == 35 and len(done) == 2
    assert edited("more = 1", "more = 2") == 40 and len(done) == 2
    assert edited("(float* x) {", "(float* x) {\n") == 40 and len(done) == 3  # lines of host code are others


def test_an_edit_of_a_host_function_leaves_the_kernels_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
        __global__ void add_kernel(float* x, float by) { x[threadIdx.x] += by; }
        void add_(torch::Tensor x) {
            add_kernel<<<1, x.numel()>>>(x.data_ptr<float>(), 2);
        }
    """
    module = load(tmp_path, source)
    module.add_(torch.zeros(4))
    runs: list[object] = []
    build = compile.build
    monkeypatch.setattr(compile, "build", lambda *given: runs.append(given) or build(*given))
    for old, new, expected in (("(), 2);", "(), 3);", 3.0), ("x.numel()", "x.numel() - 1", 0.0)):
        source = source.replace(old, new, 1)
        (tmp_path / "ext.cu").write_text(HEAD + source)
        module.__dict__["_host"].next = 0
        x = torch.zeros(4)
        module.add_(x)
        assert x[-1] == expected
    assert not runs
    (tmp_path / "ext.cu").write_text(HEAD + source.replace("+= by", "-= by"))
    module.__dict__["_host"].next = 0
    x = torch.zeros(4)
    module.add_(x)
    assert x[0] == -3 and len(runs) == 1
    with pytest.raises(OutOfBoundsError, match=r"ext\.cu:5: thread \(2,0,0\) of block \(0,0,0\) reads x\[2\]"):
        module.kernels.get_function("add_kernel")[1, 4](x[:2].clone(), 1.0)
    (tmp_path / "ext.cu").write_text("\n" + HEAD + source)  # lines of messages are those of the source as it is
    with pytest.raises(OutOfBoundsError, match=r"ext\.cu:6: "):
        module.kernels.get_function("add_kernel")[1, 4](x[:2].clone(), 1.0)


SCALED = """
#include <torch/extension.h>
struct Params { float* x; float* y; int n; };
__global__ void by_pointer(float* x, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] * 2; }
__global__ void by_accessor(const torch::PackedTensorAccessor32<float, 1> x, torch::PackedTensorAccessor32<float, 1> y) {
  if (threadIdx.x < x.size(0)) y[threadIdx.x] = x[threadIdx.x] * 2;
}
__global__ void by_struct(Params p) { if (threadIdx.x < p.n) p.y[threadIdx.x] = p.x[threadIdx.x] * 2; }
torch::Tensor pointer(torch::Tensor x) {
  auto y = torch::empty_like(x, x.options().requires_grad(true));
  by_pointer<<<1, 32>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
torch::Tensor accessor(torch::Tensor x) {
  auto y = torch::empty_like(x);
  by_accessor<<<1, 32>>>(x.packed_accessor32<float, 1>(), y.packed_accessor32<float, 1>());
  return y;
}
torch::Tensor structure(torch::Tensor x) {
  auto y = torch::empty_like(x);
  Params p;
  p.x = x.data_ptr<float>();
  p.y = y.data_ptr<float>();
  p.n = x.numel();
  by_struct<<<1, 32>>>(p);
  return y;
}
"""


@pytest.mark.parametrize("name", ["pointer", "accessor", "structure"])
def test_a_saved_tensor_is_an_argument_again(tmp_path: Path, device: str, name: str) -> None:
    """As in C++, a pointer without const does not count as a change of a tensor that autograd has saved."""
    twice = getattr(load(tmp_path, SCALED), name)

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return twice(x)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            twice(x)
            return twice(grad.contiguous())

    x = torch.rand(8, device=device, requires_grad=True)
    for _ in range(3):  # by the path for the first launch, and by that for the others
        version = x._version
        (Twice.apply(x) + Twice.apply(x)).sum().backward()
        assert torch.equal(x.grad, torch.full_like(x, 4)) and x._version == version
        assert torch.equal(twice(x).detach(), 2 * x.detach())
        x.grad = None


def test_a_check_for_tensors_of_the_cpu(tmp_path: Path, device: str) -> None:
    e = load(
        tmp_path,
        """
__global__ void scale(float* x, float by) { x[threadIdx.x] *= by; }
#define CHECK_CPU(x) TORCH_CHECK(!x.is_cuda(), #x " must be a CPU tensor")
void f(torch::Tensor x, torch::Tensor sizes) {
  TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
  CHECK_CPU(sizes);
  TORCH_CHECK(!sizes.is_cuda() && sizes.dim() == 1, "sizes must be a list");
  AT_ASSERTM(!sizes.device().is_cuda(), "sizes must be on the CPU");
  scale<<<1, sizes[0].item<int>()>>>(x.data_ptr<float>(), 2);
}
int where(torch::Tensor x) { return !x.is_cuda() ? 1 : 2; }
""",
    )
    x = torch.ones(4, device=device)
    e.f(x, torch.tensor([3]))
    assert x.tolist() == [2, 2, 2, 1] and e.where(x) == 2
    with pytest.raises(RuntimeError, match="sizes must be a list"):
        e.f(x, torch.zeros(1, 1))
    if torch.device(device).type == "cuda":
        with pytest.raises(RuntimeError, match="sizes must be a CPU tensor"):
            e.f(x, torch.tensor([3], device=device))
