"""rawkern.op in graphs: torch.compile, torch.export, make_fx, opcheck."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import rawkern
from tests import forked

from .cases import CASES, cases, leaves, numbers, outputs, unit_reference
from .kernels import affine, descend, mul, relu_, scale, smooth_mul, square_and_cube, tracked, unit, weighted_sum


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield


@cases
def test_aot_eager(case: str, device: str) -> None:
    ours, theirs, shapes = CASES[case]
    inputs = leaves(device, *shapes)

    def loss(f: Any, *inputs: Tensor) -> Tensor:
        return sum(t.sin().sum() for t in outputs(f(*(t * 1.25 for t in inputs))))

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found, expected = compiled(ours, *inputs), loss(theirs, *inputs)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs))
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(ours, fullgraph=True, backend="aot_eager")(*inputs), theirs(*inputs))


def chain(x: Tensor, w: Tensor, product: Any, unit: Any, relu_: Any, affine: Any) -> Tensor:
    y = relu_(product(x * 0.5, x))
    return affine(unit(y + 1), w).sin().sum()


def test_inductor(device: str) -> None:
    x, w = leaves(device, (5, 7), (7,))
    compiled = torch.compile(chain, fullgraph=True)
    found = compiled(x, w, mul, unit, relu_, affine)
    expected = chain(x, w, torch.mul, unit_reference, torch.relu, torch.mul)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, (x, w)), torch.autograd.grad(expected, (x, w)))


def test_one_compilation_for_all_sizes(device: str) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    f = torch.compile(lambda x: unit(mul(x, x)).cos().sum(), fullgraph=True, dynamic=True, backend=counter)
    for shape in ((5, 7), (6, 9), (100, 3), (33, 64)):
        (x,) = leaves(device, shape)
        found, expected = f(x), unit_reference(x * x).cos().sum()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, x), torch.autograd.grad(expected, x))
    assert counter.frame_count == 1


def test_symbolic_values(device: str) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    f = torch.compile(lambda x: scale(x, 2.0, shift=x.shape[0]), fullgraph=True, dynamic=True, backend=counter)
    for n in (5, 9, 12):
        x = numbers(n, 3, device=device).requires_grad_()
        torch.testing.assert_close(f(x), x * 2 + n)
        f(x).sum().backward()
        assert torch.equal(x.grad, torch.full_like(x, 2))
    assert counter.frame_count == 1


def test_symbolic_grids(device: str) -> None:
    """A launch's grid may depend on a size that torch.compile keeps symbolic, in each form."""
    fill = rawkern.RawKernel(
        'extern "C" __global__ void fill(float* x, int n) { x[blockIdx.x * n + threadIdx.x] = 1; }'
    )

    @rawkern.op("rawkern_test::filled")
    def filled(x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        rows, n = x.shape
        fill[rows, n](out, n)
        fill[(rows, 1), (n,), 4 * n](out, n)
        fill((rows,), (n,), (out, n), shared_mem=4 * n)
        return out

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(filled, fullgraph=True, dynamic=True, backend=counter)
    for rows, n in ((3, 5), (6, 7), (9, 4)):
        assert torch.equal(compiled(torch.zeros(rows, n, device=device)), torch.ones(rows, n, device=device))
    assert counter.frame_count == 1
    torch.library.opcheck(filled.overload, (torch.zeros(3, 5, device=device),))


def test_changes_in_place(device: str) -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x: Tensor, total: Tensor, params: list[Tensor]) -> tuple[Tensor, Tensor]:
        before = x.clone()
        returned = relu_(x)
        descend(params, [x, x], 0.5)
        return returned + 1, tracked(before, total)

    x, total = numbers(3, 7, device=device), numbers(3, 7, device=device, seed=1)
    params = [numbers(3, 7, device=device, seed=2), numbers(3, 7, device=device, seed=3)]
    was, total_was, params_were = x.clone(), total.clone(), [p.clone() for p in params]
    found = step(x, total, params)
    torch.testing.assert_close(found, (was.relu() + 1, 2 * was))
    torch.testing.assert_close((x, total), (was.relu(), total_was + was))
    torch.testing.assert_close(params, [p - 0.5 * was.relu() for p in params_were])


def test_a_changed_input_of_a_graph_keeps_its_gradient(device: str) -> None:
    """The graph writes to a tensor that requires grad, or to a view of one: both it and the result go on from there."""

    def change(x: Tensor) -> Tensor:
        return relu_(x) * 2

    compiled = torch.compile(change, fullgraph=True, backend="aot_eager")
    leaf = numbers(5, 7, device=device).requires_grad_()
    assert 0 < (leaf > 0).sum() < leaf.numel()
    for part in (slice(None), slice(1, 4)):
        gradients = []
        for run in (change, compiled):
            x = leaf.clone()
            y = run(x[part])
            gradients.append(torch.autograd.grad(y.sum() + (3 * x).sum(), leaf)[0])
        torch.testing.assert_close(gradients[1], gradients[0])
        torch.testing.assert_close(gradients[1][part], 5 * (leaf[part] > 0).to(leaf.dtype))


def test_transforms_within_compile(device: str) -> None:
    a, b = numbers(4, 7, device=device), numbers(7, device=device, seed=1)
    for product in (mul, smooth_mul):
        per_item = vmap(grad(lambda a, b, p=product: p(a, p(a, b)).sum()), (0, None))
        compiled = torch.compile(per_item, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(a, b), 2 * a * b)


def test_autocast_within_compile(device: str) -> None:
    @rawkern.op("rawkern_test::cast_in_graph", autocast=torch.float32)
    def twice(x: Tensor) -> Tensor:
        return torch.add(x, x)

    x = numbers(5, device=device, dtype=torch.bfloat16)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.compile(twice, fullgraph=True, backend="aot_eager")(x).dtype is torch.float32


# --- other tracers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool, device: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return relu_(unit(mul(x, x)) - 0.25)

    x = numbers(5, 7, device=device)
    dynamic = {"x": {0: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(Model(), (x,), strict=strict, dynamic_shapes=dynamic)
    called = [str(node.target) for node in program.graph.nodes if "rawkern_test" in str(node.target)]
    assert called == ["rawkern_test.mul.default", "rawkern_test.unit.default", "rawkern_test.relu_.default"]
    other = numbers(9, 7, device=device, seed=1)
    torch.testing.assert_close(program.module()(other), (unit_reference(other * other) - 0.25).relu())
    decomposed = program.run_decompositions()
    torch.testing.assert_close(decomposed.module()(other), (unit_reference(other * other) - 0.25).relu())


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mode: str, device: str) -> None:
    x = numbers(5, 7, device=device)
    graph = make_fx(grad(lambda x: unit(mul(x, x)).sin().sum()), tracing_mode=mode)(x)
    called = [str(node.target) for node in graph.graph.nodes if "rawkern_test" in str(node.target)]
    assert called[:2] == ["rawkern_test.mul.default", "rawkern_test.unit.default"]
    assert called[2].startswith("rawkern_test.unit_backward.") and called[3].startswith("rawkern_test.mul_backward.")
    other = numbers(5, 7, device=device, seed=1)
    torch.testing.assert_close(graph(other), grad(lambda x: unit_reference(x * x).sin().sum())(other))


OPCHECKS: dict[str, Any] = {
    "mul": (mul, lambda device: leaves(device, (3, 7), (3, 7)), {}),
    "smooth_mul": (smooth_mul, lambda device: leaves(device, (3, 7), (3, 7)), {}),
    "scale": (scale, lambda device: [*leaves(device, (3, 7)), 0.5], {"shift": 2}),
    "square_and_cube": (square_and_cube, lambda device: leaves(device, (3, 7)), {}),
    "unit": (unit, lambda device: leaves(device, (3, 7)), {}),
    "relu_": (relu_, lambda device: [numbers(3, 7, device=device)], {}),
    "relu_ of what requires grad": (relu_, lambda device: [leaves(device, (3, 7))[0].sin()], {}),
    "affine": (affine, lambda device: [*leaves(device, (2, 3, 7)), None, *leaves(device, (7,))], {}),
    "weighted_sum": (weighted_sum, lambda device: [leaves(device, (3, 7), (3, 7)), *leaves(device, (2,)), 0.5], {}),
    "tracked": (tracked, lambda device: [*leaves(device, (3, 7)), numbers(3, 7, device=device)], {}),
    "descend": (descend, lambda device: [[numbers(3, device=device)], [numbers(3, device=device)], 0.5], {}),
}


@pytest.mark.parametrize("name", OPCHECKS)
def test_opcheck(name: str, device: str) -> None:
    function, inputs, keyword = OPCHECKS[name]
    found = torch.library.opcheck(function.overload, inputs(device), keyword)
    assert set(found.values()) == {"SUCCESS"} and len(found) == 4


def test_opcheck_of_a_backward(device: str) -> None:
    (y,) = (unit_reference(t) for t in leaves(device, (3, 7)))
    overload = unit.operator.reverse.overload
    arguments = (numbers(3, 7, device=device), y.detach(), torch.ones(3, device=device, dtype=y.dtype))
    found = torch.library.opcheck(overload, (*arguments, [True], [3, 7], [2], []))
    assert set(found.values()) == {"SUCCESS"}


# --- what stays on disk ---------------------------------------------------------------------------------------------

SCRIPT = """
    import torch
    from torch import Tensor
    import rawkern

    @rawkern.op("rawkern_test_disk::triple", save={save})
    def triple(x: Tensor) -> Tensor:
        return x * 3

    @triple.backward
    def _(ctx, grad):
        ({saved},) = ctx.saved_tensors
        return {gradient}

    x = torch.arange(4.0, requires_grad=True)
    # nothing but the operator, so that Inductor caches its graphs and runs no C++ compiler, which takes 15 s
    compiled = torch.compile(lambda x: triple(x), fullgraph=True)
    compiled(x).backward(torch.ones(4))
    print(x.grad.tolist(), flush=True)
"""
# Each script in a process of its own, which has imported what takes long.
RUN = """
    import os, runpy, shutil, sys
    import torch, rawkern
    import torch._inductor.compile_fx
    torch._inductor.config.fx_graph_cache = torch._functorch.config.enable_autograd_cache = True
    torch._inductor.config.compile_threads = 1  # no pool of workers that the processes would share
    for file in sys.argv[1:]:
        shutil.copyfile(file, "script.py")  # the same name for all
        child = os.fork()
        if not child:
            runpy.run_path("script.py")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, file
"""


def run_scripts(tmp_path: Path, *scripts: dict[str, Any]) -> list[list[float]]:
    files = [tmp_path / f"{k}.py" for k in range(len(scripts))]
    for file, parts in zip(files, scripts, strict=True):
        file.write_text(textwrap.dedent(SCRIPT.format(**parts)))
    root = Path(__file__).parents[2]
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(root)}
    command = [*forked.python(), "-c", textwrap.dedent(RUN), *files]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return list(map(eval, done.stdout.splitlines()))


def test_an_edited_backward_in_a_new_process(tmp_path: Path) -> None:
    """AOTAutograd keeps compiled graphs on disk; neither another body nor another save may find an old one."""
    found = run_scripts(
        tmp_path,
        {"save": ("x",), "saved": "x", "gradient": "grad * 3"},
        {"save": ("x",), "saved": "x", "gradient": "grad * 5"},
        {"save": ("out",), "saved": "y", "gradient": "grad * y"},
    )
    assert found == [[3, 3, 3, 3], [5, 5, 5, 5], [0, 3, 6, 9]]
    assert list((tmp_path / "cache" / "aotautograd").iterdir()), "the graphs were kept"
