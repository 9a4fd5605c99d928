"""The magic %%cuda, run by IPython's shell in this process; test_in_jupyter.py has a notebook's kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rawkern
from tests.shell import make_shell

HALVE = """%%cuda OPTIONS
__global__ void halve(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] /= BY;
}
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Any]:
    """An IPython shell that knows the magic."""
    shell = make_shell(tmp_path)
    shell.user_ns.update(torch=torch, rawkern=rawkern)
    run(shell, "%load_ext rawkern")
    yield shell
    shell.clear_instance()


def run(shell: Any, cell: str) -> Any:
    """The value of a cell's last line."""
    done = shell.run_cell(cell, store_history=True)
    done.raise_error()
    return done.result


def rejection(shell: Any, cell: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a reader sees of a cell that raises."""
    capsys.readouterr()
    assert not shell.run_cell(cell, store_history=True).success
    return capsys.readouterr().out


def test_kernels_are_names_of_the_notebook(shell: Any, device: str) -> None:
    run(shell, f"by = 4; x = torch.ones(5, device={device!r})")
    run(shell, HALVE.replace("OPTIONS", "-DBY={by}"))
    assert run(shell, "halve.forall(4)(x, 4)\nx.tolist()") == [0.25, 0.25, 0.25, 0.25, 1]
    first = shell.user_ns["halve"]
    run(shell, HALVE.replace("OPTIONS", "-DBY=2"))
    assert run(shell, "halve.forall(5)(x, 5)\nx.tolist()") == [0.125, 0.125, 0.125, 0.125, 0.5]
    assert shell.user_ns["halve"] is not first and "BY" not in shell.user_ns


def test_a_name_gets_the_module(shell: Any) -> None:
    code = "namespace ns { __global__ void reload(int* x) { *x = 7; } }\n__device__ int table[3];\n__global__ void _own() {}\n"
    run(shell, f"%%cuda made --strided --cooperative\n{code}")
    made = shell.user_ns["made"]
    assert isinstance(made, rawkern.RawModule) and made.enable_cooperative_groups and made.unit.settings.strided
    assert made.get_global("table").shape == (3,) and callable(made.reload)
    x = torch.zeros(4, dtype=torch.int32)
    shell.user_ns["reload"][1, 1](x[::2])  # the kernel of that name, and no method of the module
    assert x[0] == 7 and isinstance(shell.user_ns["_own"], rawkern.RawKernel)


def test_templates_alone(shell: Any) -> None:
    run(shell, "%%cuda\ntemplate <class T> __global__ void fill(T* x) { x[threadIdx.x] = 3; }")
    assert run(shell, "x = torch.zeros(2, dtype=torch.float64)\nfill[1, 2](x)\nx.tolist()") == [3, 3]


def test_compile_errors_name_the_line_of_the_cell(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shown = rejection(shell, HALVE.replace("OPTIONS", ""), capsys)
    count = shell.execution_count - 1
    assert shown.startswith(f'CompileError: Cell In[{count}] (halve), line 4: identifier "BY" is undefined\n  3 |')
    assert "4 |     if (i < n) x[i] /= BY;\n    |                        ^\n" in shown
    assert "Traceback" not in shown and "halve" not in shell.user_ns
    # Code in a Python string has both lines: that of the statement, and that in the string.
    shown = rejection(shell, '\nrawkern.RawKernel("__global__ void k() {\\n y = 1; }").compile()', capsys)
    assert f"CompileError: Cell In[{count + 1}]:1 (k), line 2: " in shown


def test_findings_name_the_line_of_the_cell(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(shell, HALVE.replace("OPTIONS", "-DBY=2"))
    count = shell.execution_count - 1
    shown = rejection(shell, "halve.forall(8)(torch.ones(7), 8)", capsys)
    assert f"OutOfBoundsError: halve: Cell In[{count}], line 4: thread (7,0,0) of block (0,0,0) reads x[7]" in shown


@pytest.mark.parametrize(
    "cell, message",
    [
        (
            "%%cuda\n__global__ void f(int* a) {}\n__global__ void f(char* a) {}",
            "more than one kernel 'f': f(int*), f(char*)",
        ),
        (
            "%%cuda\nnamespace a { __global__ void f() {} }\nnamespace b { __global__ void f() {} }",
            "NAME.get_function(",
        ),
        ("%%cuda\n__global__ void lambda() {}", "lambda cannot be one name in Python"),
        ("%%cuda halve\n__global__ void halve() {}", "the cell has a kernel 'halve'; give its module another name"),
        ("%%cuda a.b\n__global__ void halve() {}", "'a.b' is not a name for the cell's module"),
        ("%%cuda --no-such-option\n__global__ void halve() {}", "--no-such-option"),
        ("%%cuda -arch=sm_90\n__global__ void halve() {}", "the tensors' device decides the architecture"),
        ("%%cuda\n__device__ int x;", "no kernel"),
        ("%%cuda 'half\n__global__ void halve() {}", "No closing quotation"),
    ],
)
def test_rejections(shell: Any, cell: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(shell.user_ns)
    shown = rejection(shell, cell, capsys)
    assert message in shown
    assert {name for name in set(shell.user_ns) - before if not name.startswith("_")} == set()
