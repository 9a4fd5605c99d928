"""Times on a GPU that pages show, and what they say of other results, are those that are kept."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from benchmarks import times


def results(name: str) -> dict:
    return json.loads((times.RESULTS / f"{name}.json").read_text())["results"]


@pytest.mark.parametrize("page", times.marked())
def test_pages_show_the_kept_times(page: str) -> None:
    assert times.rendered(page) == (times.DOCS / f"{page}.md").read_text(), "run python -m benchmarks.page"


def test_every_tutorial_has_a_place() -> None:
    from benchmarks.tutorials import TUTORIALS

    assert times.marked() == sorted(["profiling", *(f"tutorials/{name}" for name in TUTORIALS)])


def test_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "RESULTS", tmp_path)
    (module,) = re.findall(r"python -m ([\w.]+)", times.times("tutorials/matmul"))
    assert importlib.util.find_spec(module)
    kept = {"naive": {"median": 1.5e-3}, "torch": {"error": "not installed"}}
    for name, titles in {"tutorials": ["matmul", "softmax"], "steps": ["Transpose", "Sum"]}.items():
        text = json.dumps({"machine": {"gpu": "a GPU"}, "results": dict.fromkeys(titles, kept)})
        (tmp_path / f"{name}-gpu.json").write_text(text)
    rows = "| GPU time |\n| --- | --- |\n| naive | 1.5 ms |\n| torch | not installed |"
    assert times.times("tutorials/matmul") == f"| a GPU {rows}"
    assert times.times("profiling") == f"| Transpose, a GPU {rows}\n\n| Sum, a GPU {rows}"
    assert rows in times.rendered("tutorials/matmul")
    with pytest.raises(ValueError, match=r"faq.md has no place for times, <!-- times -->"):
        times.rendered("faq")


def test_all_results_are_listed() -> None:
    page = (times.DOCS / "measured.md").read_text()
    listed = re.findall(r"/results/([\w-]+)\.md\).*`python -m ([\w.]+)`", page)
    assert sorted(name for name, _ in listed) == sorted(file.stem for file in times.RESULTS.glob("*.md"))
    assert all(importlib.util.find_spec(module) for _, module in listed)


def test_costs_of_profiles() -> None:
    """The launch of 32 elements is left out: what it costs is Python."""
    kernels = results("profiled")["CPU engine"].values()
    ratios = [kernel["profiled"] / kernel["usual"] for kernel in kernels if kernel["usual"] > 1e-6]
    said = f"take {min(ratios):.1f} to {max(ratios):.0f} times as long"
    assert said in (times.DOCS / "profiling.md").read_text()
