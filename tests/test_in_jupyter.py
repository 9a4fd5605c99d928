"""A notebook in Jupyter's own kernel: one kernel runs all cells, and the tests look at what they show."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient", reason="notebooks are run by nbclient")
pytest.importorskip("ipykernel", reason="notebooks are run by ipykernel")
pytest.importorskip("jupytext", reason="jupytext makes notebooks of the tutorials")

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs" / "tutorials" / "vector-add.md"
KERNELS = """%%cuda kernels
__global__ void halve(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] /= 2;
}
template <class T> __global__ void fill(T* x, T value) { x[threadIdx.x] = value; }
"""
CELLS = {
    "load": "%load_ext rawkern\nimport torch, rawkern",
    "kernels": KERNELS,
    "launch": "x = torch.ones(3, device='cpu'); halve.forall(3)(x, 3); x.tolist()",
    "kernel": "halve",
    "module": "kernels",
    "again": KERNELS.replace("/= 2", "*= 8"),
    "changed": "halve.forall(3)(x, 3); fill[1, 1](x, 7.0); x.tolist()",
    "error": KERNELS.replace("/= 2", "/= m"),
    "after": "halve.forall(2)(x, 2); x.tolist()",
    "finding": "halve.forall(4)(x, 4)",
    "untuned": "tuned = rawkern.autotune(halve, {'block': [32, 64, 2048]}, retune=True); tuned",
    "bar": "import rawkern.base.progress\nrawkern.base.progress.DELAY = 0\ntuned.forall(3)(x, 3)",
    "tuned": "tuned",
    "wrong": "rawkern.RawKernel('__global__ void k() { y = 1; }')",
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each cell of the notebook puts out."""
    import nbclient
    import nbformat

    from docs.page_notebook import notebook as made

    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS.values()]
    cells += [cell for cell in made(TUTORIAL.read_text()).cells if cell.cell_type == "code"]
    notebook = nbformat.v4.new_notebook(cells=cells)
    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(folder / name))
        client = nbclient.NotebookClient(
            notebook,
            timeout=240,
            kernel_name="python3",
            allow_errors=True,
            resources={"metadata": {"path": str(folder)}},
        )
        client.execute()
    outputs = [cell["outputs"] for cell in notebook.cells]
    return dict(zip(CELLS, outputs, strict=False)) | {"tutorial": outputs[len(CELLS) :]}


def value(outputs: Any, kind: str = "text/plain") -> str:
    (one,) = (each for each in outputs if each["output_type"] == "execute_result")
    return one["data"][kind]


def failure(outputs: Any) -> str:
    """The text of the error that a cell ended with, without colors."""
    (one,) = (each for each in outputs if each["output_type"] == "error")
    return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(one["traceback"]))


def test_kernels_of_a_cell_run_and_are_redefined(shown: dict[str, Any]) -> None:
    assert shown["load"] == shown["kernels"] == shown["again"] == []
    assert value(shown["launch"]) == "[0.5, 0.5, 0.5]"
    assert value(shown["changed"]) == "[7.0, 4.0, 4.0]"
    assert value(shown["after"]) == "[56.0, 32.0, 4.0]"  # a cell that does not compile changes nothing


def test_errors_name_the_line_of_the_cell(shown: dict[str, Any]) -> None:
    number = [*CELLS].index("error") + 1
    text = failure(shown["error"])
    assert text.startswith(f'CompileError: Cell In[{number}] (halve), line 4: identifier "m" is undefined\n  3 |')
    defined = [*CELLS].index("again") + 1
    assert f"OutOfBoundsError: halve: Cell In[{defined}], line 4: thread (3,0,0)" in failure(shown["finding"])


def test_kernels_and_modules_are_shown_as_tables(shown: dict[str, Any]) -> None:
    kernel, module = (value(shown[name], "text/html") for name in ("kernel", "module"))
    assert "void halve(float *x, int n)" in kernel
    assert "threads of a block, at most</td>" in kernel and ">1,024</td>" in kernel
    assert "RawModule from Cell In[2]</b>" in module and ">float*, int</td>" in module
    assert ">template &lt;class T&gt; fill</td>" in module and ">T* x, T value</td>" in module
    wrong = value(shown["wrong"], "text/html")
    assert "CompileError: Cell In[" in wrong and "identifier &quot;y&quot; is undefined" in wrong


def test_tunings_are_shown_as_tables(shown: dict[str, Any]) -> None:
    assert "its first launch times these configurations" in value(shown["untuned"], "text/html")
    table = value(shown["tuned"], "text/html")
    rows = re.findall(r"<tr>(.*)</tr>", table)
    assert len(rows) == 4 and "<th>block</th><th>a launch</th>" in rows[0]
    assert re.search(r"<b>(32|64)</b></td>.*<b>\d+\.\d us</b></td>", rows[1]) and "<b>" not in rows[2]
    assert ">2048</td>" in rows[3] and ">rejected: ValueError: " in rows[3]


def test_a_tutorial(shown: dict[str, Any]) -> None:
    """All its cells run but the one that is to fail, and the picture is drawn."""
    outputs = [each for cell in shown["tutorial"] for each in cell]
    assert [each["ename"] for each in outputs if each["output_type"] == "error"] == ["OutOfBoundsError"]
    assert any("image/png" in each.get("data", {}) for each in outputs)
    assert any(each.get("text", "").startswith("[0, 0, 0, 0, 1, 1, 1, 1, 2, 2]") for each in outputs)


def test_a_notebook_has_progress_bars(shown: dict[str, Any]) -> None:
    pytest.importorskip("tqdm", reason="bars are tqdm's")
    text = "".join(each.get("text", "") or str(each.get("data", "")) for each in shown["bar"])
    assert "autotune halve" in text and "TqdmWarning" not in text
