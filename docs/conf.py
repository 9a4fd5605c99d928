"""The documentation site: ``python -m sphinx -W --keep-going -j auto docs build/docs``."""

from __future__ import annotations

import re
import types

import sphinx.util.logging
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import rawkern

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
    r"\.(Verdict|Check|Tampering|Derived)$",
    r"rawkern\.nn\.(ReLU|SiLU|GELU|Softmax|LogSoftmax|Dropout|Embedding|LayerNorm|RMSNorm|CrossEntropyLoss)$",
    r"rawkern\.nn\.GEGLU$",
}

html_theme = "furo"
html_title = "rawkern"
html_show_copyright = False
html_show_sphinx = False
copybutton_selector = "div:not(.highlight-output):not(.highlight-text) > div.highlight > pre"


def link_results(app: Sphinx, page: str, source: list[str]) -> None:
    """Links to the results of benchmarks, which the tree has beside docs/, lead to their pages in the site.

    In tables of these ``kernel[grid, block](...)`` is no link.
    """
    source[0] = re.sub(r"\[([^]]+)\]\(\.\./benchmarks/results/([\w-]+)\.md\)", r"{doc}`\1 </results/\2>`", source[0])
    if page.startswith("results/"):
        source[0] = source[0].replace("](...)", "\\](...)")


def miss_no_name(app: Sphinx, env: BuildEnvironment) -> None:
    """Each public name has its entry in the reference."""
    entries = env.get_domain("py").objects
    modules = [name for name in rawkern._HOME if isinstance(getattr(rawkern, name), types.ModuleType)]
    names = [*rawkern._HOME, *(f"{module}.{name}" for module in modules for name in getattr(rawkern, module).__all__)]
    for name in names:
        if f"rawkern.{name}" not in entries:
            sphinx.util.logging.getLogger(__name__).warning("rawkern.%s has no entry in docs/api", name)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", link_results)
    app.connect("env-check-consistency", miss_no_name)
    return {"parallel_read_safe": True}
