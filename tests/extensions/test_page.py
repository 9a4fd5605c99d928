"""docs/extensions.md: its table of what is translated is made of these."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.extensions.kit import load

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extensions.md"
SOURCE = """
#define CHECK_INPUT(x) TORCH_CHECK(x.is_cuda() && x.is_contiguous(), #x " must be a contiguous CUDA tensor")
struct Params { int n; float* out; };
struct Scaler {
  double by;
  int calls = 0;
  Scaler(double by) : by(by) {}
  torch::Tensor of(torch::Tensor x) { calls++; return x * by; }
};
struct Square : torch::autograd::Function<Square> {
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, torch::Tensor x) {
    ctx->save_for_backward({x});
    return x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list g) {
    return {2 * g[0] * ctx->get_saved_variables()[0]};
  }
};
void layout(int n, int* blocks, int* threads) { *threads = 32; *blocks = (n + 31) / 32; }
template <typename T> __global__ void k(const T* x, T* y, int n) {}
__global__ void by_params(Params p) {}
__global__ void by_accessor(torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits> a) {}
"""
PARAMETERS = "torch::Tensor x, torch::Tensor y, c10::optional<torch::Tensor> mask, int n, double p, std::vector<torch::Tensor> list"
ROWS = [
    "k<float><<<(n + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);",
    "dim3 grid(n, 4); k<float><<<grid, 32, n * sizeof(float)>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);",
    'AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "f", [&] { k<scalar_t><<<n, 32>>>(x.data_ptr<scalar_t>(), '
    "y.data_ptr<scalar_t>(), n); });",
    "by_accessor<<<1, n>>>(x.packed_accessor32<float, 2, torch::RestrictPtrTraits>());",
    "Params params; params.n = n; params.out = x.data_ptr<float>(); by_params<<<1, 32>>>(params);",
    "const float* row = x.data_ptr<float>() + n * x.size(1); k<float><<<1, 32>>>(row, y.data_ptr<float>(), 2);",
    "auto z = torch::empty({n, x.size(1)}, x.options().dtype(torch::kFloat));",
    "auto [values, indices] = at::max(x, 1);",
    "x.index_put_({torch::indexing::Slice(0, 2)}, 0);",
    "cudaMemsetAsync(x.data_ptr<float>(), 0, n * sizeof(float), at::cuda::getCurrentCUDAStream());",
    'TORCH_CHECK(x.dim() == 2, "x has ", x.dim(), " dimensions");',
    "CHECK_INPUT(x);",
    "const at::cuda::OptionalCUDAGuard guard(device_of(x));",
    "C10_CUDA_KERNEL_LAUNCH_CHECK();",
    "int half = (n + 1) / 2;",
    "unsigned next = (unsigned)n - 1;",
    "float scale = p / 3;",
    "if (mask.has_value()) y.mul_(mask.value());",
    "for (int i = 0; i < n; i++) list[i].add_(x, p);",
    'switch (n) { case 1: case 2: y.zero_(); break; default: AT_ERROR("n is ", n); }',
    "std::vector<int64_t> shape = x.sizes().vec(); shape.back() = n;",
    "std::vector<int64_t> sizes = {3, n}; auto& last = sizes.back(); last += 1; std::sort(sizes.begin(), sizes.end());",
    "auto kept = list; kept[0] = x; int m = n; auto times = [=](int by) { return m * by; }; m++; y.mul_(times(2));",
    "int* count; cudaMalloc(&count, sizeof(int)); cudaMemset(count, 0, sizeof(int)); cudaFree(count);",
    "std::vector<float> host(n); cudaMemcpy(host.data(), x.data_ptr<float>(), n * sizeof(float), cudaMemcpyDeviceToHost);",
    "auto scaled = [&](double by) { return x * by; }; y.copy_(scaled(p));",
    "Scaler s(p); Scaler other = s; y.copy_(other.of(x)); s = other;",
    "auto shared = std::make_shared<Scaler>(p); y.copy_(shared->of(x)); shared->calls += n;",
    "auto z = Square::apply(x);",
    "int blocks, threads; layout(n, &blocks, &threads); k<float><<<blocks, threads>>>(x.data_ptr<float>(), "
    "y.data_ptr<float>(), n);",
]


def shown(function: ast.FunctionDef) -> str:
    """A function's statements, each in a line."""
    statements = [one for one in function.body if not isinstance(one, ast.Pass)]
    lines = [re.sub(r"\s+", " ", ast.unparse(one)).strip() for one in statements]
    return "<br>".join(f"`{line}`" for line in lines) or "nothing: rawkern does this"


def test_the_table_of_what_is_translated(tmp_path: Path) -> None:
    functions = "".join(f"void f{k}({PARAMETERS}) {{ {row} }}\n" for k, row in enumerate(ROWS))
    extension = load(tmp_path, SOURCE + functions)
    assert not extension.untranslated
    made = {one.name: one for one in ast.parse(extension.source).body if isinstance(one, ast.FunctionDef)}
    rows = [f"| `{row}` | {shown(made[f'_f{k}'])} |" for k, row in enumerate(ROWS)]
    table = re.search(r"\| C\+\+ \| Python \|\n\| --- \| --- \|\n((?:\|.*\n)+)", PAGE.read_text())
    expected = "\n".join(rows).replace("||", "\\|\\|") + "\n"
    assert table and table[1] == expected, f"the table is to be:\n{expected}"
