"""What a release needs: one version, its changes, licenses of what comes along, workflows for what is supported."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from rawkern._version import __version__

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").is_file(), reason="the tests run apart from the source tree"
)


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=!~ ]", requirement)[0]


def test_changes_of_this_version_are_told() -> None:
    headings = re.findall(r"^## (\S+) - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert __version__ in dict(headings)
    assert all(re.fullmatch(r"not released yet|\d{4}-\d\d-\d\d", date) for _, date in headings)
    assert "not released yet" not in [date for _, date in headings[1:]]  # only the newest may be in work


def test_every_package_that_comes_along_has_its_licence_named(project: dict) -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \|$", (ROOT / "THIRD_PARTY.md").read_text(), re.M)
    named = {name for row in rows for name in row.split(", ")} - {"package", "---"}
    extras = project["optional-dependencies"]
    asked = [
        *project["dependencies"],
        *(one for name in extras if name not in ("test", "docs") for one in extras[name]),
    ]
    assert named == {name_of(one) for one in asked} - {"rawkern"}


def test_supported_versions_are_tried(project: dict) -> None:
    classes = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "cpu.yml").read_text())
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == classes and project["requires-python"] == f">={classes[0]}"
    (oldest,) = (one.partition(">=")[2] for one in project["dependencies"] if name_of(one) == "torch")
    assert {"python": classes[0], "torch": f"{oldest}.0"} in matrix["include"]


@pytest.mark.parametrize("file", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda file: file.name)
def test_what_workflows_run_is_there(file: Path) -> None:
    workflow = yaml.safe_load(file.read_text())
    for job in workflow["jobs"].values():
        runs = " ".join(step.get("run", "") for step in job.get("steps", ()))
        for command in re.findall(r"(?<!\S)(\.ci/\w+)", runs):
            assert (ROOT / command).stat().st_mode & 0o111, command
        for script in re.findall(r"\bpython (\S+\.py)\b", runs):
            assert (ROOT / script).is_file(), script
        if local := job.get("uses", "").removeprefix("./"):
            called = yaml.safe_load((ROOT / local).read_text())
            assert "workflow_call" in called[True]  # YAML's word for the key `on`
        if job.get("environment") == "pypi":
            assert job["needs"] == ["test", "build"] and job["permissions"] == {"id-token": "write"}
