"""The page of what is derived and what is not supported, from the tests: ``python -m tests.gradients.page --write``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import rawkern
from rawkern.gradients.rules import ALIASES, BOTH, PAIRS, RULES, TESTS
from tests.gradients.all_cases import CASES
from tests.gradients.test_refused import REFUSED

PAGE = Path(__file__).parents[2] / "docs" / "gradients-support.md"
COMMAND = "python -m tests.gradients.page --write"
HEAD = f"""# What is derived, and what is not supported

Generated from the tests by `{COMMAND}`; do not edit. See [Gradients of kernels](gradients.md).

## Kernels

The derived backward of each agrees with torch's autograd in double, in checked launches.

"""
FILES = {
    "tests.gradients.cases": "by feature", "tests.gradients.cases_models": "of models",
    "tests.gradients.cases_public": "as published", "tests.gradients.cases_control": "as published, with more of C++",
    "tests.gradients.cases_objects": "with structs, methods, namespaces", "tests.gradients.cases_flow": "with returns in loops, parts of warps",
    "tests.gradients.cases_groups": "groups and cub", "tests.gradients.cases_half": "half precision", "tests.gradients.cases_inplace": "overwritten in place",
    "tests.gradients.cases_rows": "rows in shared memory, rows of warps",
    "tests.gradients.cases_corners": "corners of the language",
    "tests.gradients.cases_science": "of physics, graphics, signals",
    "tests.gradients.cases_accessors": "with PyTorch's accessors",
    "tests.gradients.cases_attention": "attention with online softmax",
}  # fmt: skip


def kernels() -> list[str]:
    """The kernels of the tests, by the file that they are in."""
    rows = ["| kernels | names |", "| --- | --- |"]
    for module, kind in FILES.items():
        names = [f"`{case.name}`" for case in CASES.values() if case.reference.__module__ == module]
        rows.append(f"| {kind} | {', '.join(names)} |")
    return rows


def functions() -> list[str]:
    """The names of functions, by what they do to a gradient."""
    smooth = sorted(n for n, rule in RULES.items() if any(rule.derivatives) and not n.startswith("__"))
    steps = sorted(n for n, rule in RULES.items() if not any(rule.derivatives))
    fast = sorted(n for n in {*RULES, *ALIASES} if n.startswith("__") and not n.endswith(("_rz", "_ru", "_rd")))
    whole = sorted(n for n in {*TESTS, *PAIRS} if not n.endswith(("_rz", "_ru", "_rd")))
    lists = {
        "With a derivative, for double and, with the suffix f, for float": [*smooth, *sorted(BOTH)],
        "For only float or double (each `_rn` also as `_rz`, `_ru`, `_rd`)": fast,
        "Constant almost everywhere": steps,
        "Without a gradient": whole,
    }
    return [line for head, names in lists.items() for line in (f"{head}: {', '.join(f'`{n}`' for n in names)}.", "")]


def refusals() -> list[str]:
    """A row for each kernel of the tests that is not supported: what the error says."""
    rows = ["| what | what it says |", "| --- | --- |"]
    for what, (source, _) in REFUSED.items():
        try:
            rawkern.RawKernel(source, "k").derive(block=64)
        except (rawkern.NotDifferentiable, ValueError) as error:
            said = str(error).partition("has no derived backward: ")[2] or str(error)
            rows.append(
                f"| {what} | {said.replace('|', '&#124;').replace('<', '&lt;').replace('__', chr(92) + '__')} |"
            )
    return rows


def page() -> str:
    rest = [
        "",
        "## Functions",
        "",
        *functions(),
        "## Not supported",
        "",
        "The error also has the line.",
        "",
        *refusals(),
    ]
    return HEAD + "\n".join([*kernels(), *rest]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        PAGE.write_text(page())
    return int(PAGE.read_text() != page())


if __name__ == "__main__":
    sys.exit(main())
