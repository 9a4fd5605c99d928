"""The documentation site: ``python -m sphinx -W --keep-going -j auto docs build/docs``."""

from __future__ import annotations

import os
import re
import sys
import types
from pathlib import Path

import nbformat
import sphinx.util.logging
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import rawkern

sys.path.insert(0, str(Path(__file__).parent))
from highlighting import CudaInPython
from page_notebook import notebook

project = "rawkern"
author = "rawkern contributors"
release = version = rawkern.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx_copybutton"]
suppress_warnings = ["config.cache"]
myst_heading_anchors = 3

# A name in single backquotes in a docstring is a link, and has to lead somewhere. Pages of other projects are not
# linked: the build needs no network.
default_role = "py:obj"
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(torch|cupy|numpy)\..*"), ("py:class", r"(Exception|\w+Error)")]

autodoc_typehints = "none"  # the docstrings say what is taken, most often more exactly
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
# Docstring missing; parameters missing, unknown, without description; no section Returns, or no description in it.
numpydoc_validation_checks = {"GL08", "PR01", "PR02", "PR07", "RT01", "RT03"}
numpydoc_validation_exclude = {
    r"\.\w+Error$",  # raised, and not made, by users; modules have the parameters of torch's
    r"\.RawKernel\.__call__$",  # its parameters are named by hand
    r"\.(Report|Access|Elementwise|Reduction|TunedKernel|Tuning|Trial|KernelReport|Failure|Launches|Comparison|Change|Finding)$",
    r"\.(Verdict|Check|Tampering|Derived|Estimate)$",
    r"rawkern\.nn\.(ReLU|SiLU|GELU|Softmax|LogSoftmax|Dropout|Embedding|LayerNorm|RMSNorm|CrossEntropyLoss)$",
    r"rawkern\.nn\.GEGLU$",
}

html_theme = "furo"
html_title = f"rawkern {release}"
html_logo = html_favicon = "images/logo.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
if repository := os.environ.get("GITHUB_REPOSITORY"):  # set where GitHub builds the site
    html_theme_options = {
        "source_repository": f"https://github.com/{repository}/",
        "source_branch": "main",
        "source_directory": "docs/",
    }
html_show_copyright = False
html_show_sphinx = False
copybutton_selector = "div:not(.highlight-output):not(.highlight-text) > div.highlight > pre"


def prepare(app: Sphinx, page: str, source: list[str]) -> None:
    """Links to the results of benchmarks, which the tree has beside docs/, lead to their pages in the site.

    In tables of these ``kernel[grid, block](...)`` is not a link. Tutorials get a link to their notebooks.
    """
    source[0] = re.sub(
        r"\[([^]]+)\]\((?:\.\./)+benchmarks/results/([\w-]+)\.md\)", r"{doc}`\1 </results/\2>`", source[0]
    )
    if page.startswith("results/"):
        source[0] = source[0].replace("](...)", "\\](...)")
    if page in tutorials(app):
        link = f'<p><a href="../notebooks/{Path(page).name}.ipynb" download>This page as a notebook</a></p>'
        source[0] = source[0].replace("\n", f"\n\n{link}\n", 1)


def tutorials(app: Sphinx) -> list[str]:
    """The pages that are notebooks as well."""
    return [page for page in app.env.found_docs if page.startswith("tutorials/") and page != "tutorials/index"]


def write_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Put the notebooks of the tutorials beside the pages."""
    if error is None and app.builder.format == "html":
        folder = Path(app.outdir, "notebooks")
        folder.mkdir(exist_ok=True)
        for page in tutorials(app):
            nbformat.write(notebook(Path(app.srcdir, f"{page}.md").read_text()), folder / f"{Path(page).name}.ipynb")


def miss_no_name(app: Sphinx, env: BuildEnvironment) -> None:
    """Each public name has its entry in the reference."""
    entries = env.get_domain("py").objects
    modules = [name for name in rawkern._HOME if isinstance(getattr(rawkern, name), types.ModuleType)]
    names = [*rawkern._HOME, *(f"{module}.{name}" for module in modules for name in getattr(rawkern, module).__all__)]
    for name in names:
        if f"rawkern.{name}" not in entries:
            sphinx.util.logging.getLogger(__name__).warning("rawkern.%s has no entry in docs/api", name)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_lexer("python", CudaInPython)
    app.connect("source-read", prepare)
    app.connect("build-finished", write_notebooks)
    app.connect("env-check-consistency", miss_no_name)
    return {"parallel_read_safe": True}
