"""The tutorials as notebooks, and how their code is shown; tests/test_docs.py runs what is in them, tests/test_in_jupyter.py one as a notebook."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("jupytext", reason="jupytext makes notebooks of the pages")
nbformat = pytest.importorskip("nbformat", reason="notebooks are nbformat's")

ROOT = Path(__file__).parents[1]
PAGES = [page for page in sorted((ROOT / "docs" / "tutorials").glob("*.md")) if page.stem != "index"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_notebook(page: Path) -> None:
    """All code of the page, in its order, with what it prints; no text that only a page can show."""
    from docs.page_notebook import notebook

    text = page.read_text()
    made = notebook(text)
    nbformat.validate(made)
    code = [cell.source for cell in made.cells if cell.cell_type == "code"]
    blocks = re.findall(r"^```(python|cuda)( \S+)?\n(.*?)^```$", text, re.M | re.S)
    assert len(code) == len(blocks) > 2
    for cell, (_, file, block) in zip(code, blocks, strict=True):
        first = f"%%writefile{file}\n" if file else ""
        assert cell == first + block.rstrip("\n")
    shown = [cell.outputs[0].text for cell in made.cells if cell.cell_type == "code" and cell.outputs]
    assert shown == re.findall(r"^```output\n(.*?)^```$", text, re.M | re.S)
    words = "\n".join(cell.source for cell in made.cells if cell.cell_type == "markdown")
    words = re.sub(r"(?ms)^```text\n.*?^```$", "", words)  # a drawing, which Jupyter shows as well
    assert not re.search(r"```|<!--|\.md\b|!\[", words)


def test_pages_have_what_tutorials_have() -> None:
    """A picture, a line in the list."""
    from benchmarks.tutorials import TUTORIALS

    index = (ROOT / "docs" / "tutorials" / "index.md").read_text()
    # The times of hopper are those of its program, benchmarks/hopper_gemm.
    assert sorted([*TUTORIALS, "hopper"]) == [page.stem for page in PAGES]
    for page in PAGES:
        text = page.read_text()
        assert f"(../images/tutorials/{page.stem}.svg)" in text
        assert f"({page.name})" in index and re.search(rf"^{page.stem}$", index, re.M)


def test_cuda_in_strings_is_shown_as_cuda() -> None:
    from pygments.token import Keyword, String, Token

    from docs.highlighting import CudaInPython

    code = 'k = f(r"""\n__global__ void k(int n) { }\n""", \'\'\'no kernel\'\'\')\nx = 1  # """\n'
    tokens = [*CudaInPython().get_tokens(code)]
    assert "".join(text for _, text in tokens) == code
    kinds = dict((text, kind) for kind, text in tokens)
    assert kinds["__global__"] in Keyword and kinds["void"] in Keyword
    assert kinds["no kernel"] in String and kinds["k"] in Token.Name
