"""examples/package: built by its README's commands, its wheel runs where nothing compiles."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import yaml

from rawkern.cli import main
from tests import forked, without_compiler

EXAMPLE = without_compiler.ROOT / "examples" / "package"
USE = """
from snake_activation import snake
x, expected, folder = torch.load(DATA)
x = x.to(DEVICE)
for dtype, tolerance in ((torch.float32, 1e-6), (torch.float16, 2e-3)):
    given = x.detach().to(dtype, copy=True).requires_grad_()
    exact = given.detach().double().requires_grad_()
    reference = exact + (0.7 * exact).sin() ** 2 / 0.7
    result = snake(given, 0.7)
    result.backward(torch.ones_like(result))
    reference.backward(torch.ones_like(reference))
    torch.testing.assert_close(result.double(), reference, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(given.grad.double(), exact.grad, atol=tolerance, rtol=tolerance)
program = torch.export.load(folder + "/program.pt2").module()
torch.testing.assert_close(program(x), expected.to(DEVICE))
"""
SAVE = """
from snake_activation import snake
class Twice(torch.nn.Module):
    def forward(self, x):
        return snake(snake(x, 0.5), 2.0)
x = torch.randn(7, 31, generator=torch.Generator().manual_seed(0))
torch.save((x, Twice()(x), FOLDER), FOLDER + "/data.pt")
torch.export.save(torch.export.export(Twice(), (x.to(DEVICE),)), FOLDER + "/program.pt2")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel installs."""
    pytest.importorskip("setuptools", minversion="77")
    pytest.importorskip("pip")
    here = tmp_path_factory.mktemp("example")
    ignored = shutil.ignore_patterns("kernels", "build", "*.egg-info", "__pycache__")
    shutil.copytree(EXAMPLE, here / "package", ignore=ignored)
    lines = re.search(r"```sh\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.S)
    assert lines is not None
    build, wheel = lines[1].replace("\\\n", " ").strip().splitlines()
    words = shlex.split(build)
    assert words[:2] == ["rawkern", "build"] and shlex.split(wheel)[:2] == ["pip", "wheel"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here / "package")
        assert main(words[1:]) == 0
    command = [sys.executable, "-m", *shlex.split(wheel), "--no-build-isolation", "-w", str(here)]
    done = subprocess.run(command, cwd=here / "package", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = here.glob("*.whl")
    assert file.name == "snake_activation-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(file) as archive:
        archive.extractall(here / "site")
    return here / "site"


def test_the_wheel_has_what_runs(installed: Path) -> None:
    there = {path.name for path in (installed / "snake_activation" / "kernels").iterdir()}
    assert there == {"snake.json", "snake.sm_80.cubin", "snake.sm_90.cubin", "snake.compute_80.ptx", "snake.compute_90.ptx"}  # fmt: skip
    assert not list(installed.rglob("*.cu"))


def test_operator_and_saved_program(installed: Path, tmp_path: Path, device: str) -> None:
    """In processes without a compiler: values, gradients, and a program that torch.export saved in another one."""
    without_compiler.run(f"FOLDER = {str(tmp_path)!r}\n{SAVE}", device, tmp_path / "cache", installed)
    used = USE.replace("DATA", repr(str(tmp_path / "data.pt")))
    without_compiler.run(used, device, tmp_path / "cache", installed)


def test_a_saved_program_needs_the_import(installed: Path, tmp_path: Path) -> None:
    assert torch.ops.snake_activation is not None  # a namespace is there for every name, an operator is not
    assert not hasattr(torch.ops.snake_activation, "snake")
    without_compiler.run(
        "import snake_activation\nassert hasattr(torch.ops.snake_activation, 'snake')",
        "cpu", tmp_path / "cache", installed,
    )  # fmt: skip


def test_the_layout_of_the_hub(installed: Path, tmp_path: Path, device: str) -> None:
    """Its README's folder for Hugging Face's `kernels` is a package that runs under any name, from outside of sys.path."""
    variant = tmp_path / "build" / "torch-universal"
    shutil.copytree(installed / "snake_activation", variant)
    load = f"""
import importlib.util
file = {str(variant / "__init__.py")!r}
spec = importlib.util.spec_from_file_location("snake_1a2b3c", file)
module = importlib.util.module_from_spec(spec)
sys.modules["snake_1a2b3c"] = module
spec.loader.exec_module(module)
x = torch.linspace(-3, 3, 1000, device=DEVICE)
torch.testing.assert_close(module.snake(x, 0.7), x + (0.7 * x).sin() ** 2 / 0.7)
"""
    without_compiler.run(load, device, tmp_path / "cache")


def test_its_workflow(installed: Path, tmp_path: Path) -> None:
    """It builds as the README does, with inputs that rawkern's action has; and what that runs as tests passes."""
    workflow = yaml.safe_load((EXAMPLE / ".github" / "workflows" / "test.yml").read_text())
    action = yaml.safe_load((without_compiler.ROOT / ".github" / "actions" / "test-kernels" / "action.yml").read_text())
    (step,) = (
        step for step in workflow["jobs"]["cpu"]["steps"] if "/rawkern/.github/actions/test-kernels@" in step["uses"]
    )
    assert step["with"].keys() <= action["inputs"].keys()
    assert shlex.join(shlex.split(step["with"]["build"])) in shlex.join(
        shlex.split(
            (EXAMPLE / "README.md").read_text().partition("```sh\n")[2].partition("\npip")[0].replace("\\\n", "")
        )
    )
    (test,) = (step for step in action["runs"]["steps"] if step.get("name") == "Test")
    settings = {
        "PATH": forked.programs(tmp_path / "programs")["PATH"],
        "PYTHONPATH": os.pathsep.join([str(installed), str(without_compiler.ROOT), os.environ.get("PYTHONPATH", "")]),
        "ARGUMENTS": "-n 0", "CHECK": "true",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", test["run"]], cwd=EXAMPLE, env={**os.environ, **settings},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.count("2 passed") == 2, done.stdout + done.stderr
