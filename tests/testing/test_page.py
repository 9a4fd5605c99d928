"""The workflow on the page about testing: it parses, and what it runs is there."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "testing.md"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="the tests run apart from the source tree")


def steps(job: dict) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_workflow(pytestconfig: pytest.Config) -> None:
    (text,) = re.findall(r"^```yaml test.yml\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    workflow = yaml.safe_load(text)
    assert set(workflow) == {"name", True, "permissions", "jobs"}  # YAML 1.1 reads `on` as true
    jobs = workflow["jobs"]
    assert "gpu" not in jobs["cpu"]["runs-on"] and "gpu" in jobs["gpu"]["runs-on"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    calls = []
    for job in jobs.values():
        assert job["timeout-minutes"] > 0
        for run in steps(job):
            assert set(re.findall(r"rawkern\[(\w+)\]", run)) <= set(extras)
            if re.search(r'pytest"? -', run) and "pip" not in run:
                calls.append(shlex.split(re.sub(r'"\$RUNNER_TEMP/venv/bin/(\w+)"', r"\1", run)))
    asked = [{word for word in call if word.startswith("--rawkern")} for call in calls]
    assert asked == [{"--rawkern-device=cpu"}, {"--rawkern-device=cpu", "--rawkern-check"}, {"--rawkern-device=cuda"}]
    for name in ("rawkern_device", "rawkern_level"):
        assert name in vars(pytestconfig.option)
    assert calls[2][1:3] == ["-m", "gpu"]


def test_checks_are_listed() -> None:
    """The page's table of checks has every name."""
    from rawkern.testing import CHECKS

    table = PAGE.read_text().split("| check | requirement |")[1].split("\n\n")[0]
    named = re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `")))
    assert sorted(named) == sorted(CHECKS)


def test_markers_are_listed() -> None:
    from rawkern.testing.plugin import MARKERS

    for name in MARKERS:
        assert f"`{name.split('(')[0]}`" in PAGE.read_text()
