"""A page of docs/ as a Jupyter notebook: its text, its code, and what it says that the code prints."""

from __future__ import annotations

import re

import jupytext
import nbformat

RULES = (
    (r"^```(?:cuda|python) (\S+\.\w+)\n", r"```python\n%%writefile \1\n"),  # a block that is written to a file
    (r"^<!--.*?-->\n", ""),
    (r"^!\[[^]]*\]\(.*\)\n", ""),  # the cell above it draws it
    (r"\[([^]]*)\]\([^)]*\.md[^)]*\)", r"\1"),  # other pages
)


def notebook(page: str) -> nbformat.NotebookNode:
    """The notebook of a page's text, which `jupytext` could also open as it is."""
    for pattern, replacement in RULES:
        page = re.sub(pattern, replacement, page, flags=re.M)
    cells = []
    for cell in jupytext.reads(page, fmt="md").cells:
        shown = re.match(r"```output\n(.*?)```\s*", cell.source, re.S) if cell.cell_type == "markdown" else None
        if shown:
            cells[-1].outputs = [nbformat.v4.new_output("stream", text=shown[1])]
            if re.match(r"[\w.]+Error: ", shown[1]):
                cells[-1].metadata["tags"] = ["raises-exception"]  # "run all" continues after it
            cell.source = cell.source[shown.end() :]
        if cell.source:
            cells.append(cell)
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"  # the same each time
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
