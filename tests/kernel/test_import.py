"""What importing and packaging bring, and what they do without."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rawkern
from rawkern import module
from tests.kernel.kit import SAXPY


def run(code: str, *, cwd: Path | None = None, path: str | None = None) -> str:
    """Run Python in a process of its own and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(Path(rawkern.__file__).parents[1]) if path is None else path}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_light() -> None:
    code = (
        "import gc, sys, time, torch; t = time.perf_counter(); import rawkern; t = time.perf_counter() - t;"
        "print(t < 0.1, [m for m in ('cupy', 'llvmlite', 'ml_dtypes', 'platformdirs') if m in sys.modules]);"
        "gc.collect(); collections = []; gc.callbacks.append(lambda phase, info: collections.append(info));"
        "rawkern.square; print([c for c in collections if c['generation']], gc.isenabled())"
    )
    assert run(code) == "True []\n[] True"


@pytest.mark.parametrize("name", ["nn", "optim", "testing"])
def test_completion_offers_public_names_alone(name: str) -> None:
    module = getattr(rawkern, name)
    assert dir(module) == sorted(module.__all__) and all(hasattr(module, each) for each in dir(module))
    assert name in dir(rawkern) and not [
        each for each in dir(rawkern) if each.startswith("_") and each != "__version__"
    ]


def test_code_from_the_disk_cache_needs_no_compiler() -> None:
    code = (
        "import sys, torch, rawkern\n"
        "NOT_NEEDED = ('rawkern.engines.cpu.ptx', 'rawkern.engines.cpu.analysis', 'rawkern.gradients.reading')\n"
        f"k = rawkern.RawKernel({SAXPY!r})\n"
        "x = torch.ones(3)\n"
        "k.forall(3)(3, 2.0, x, x.clone())\n"
        "rawkern.square(x)\n"
        "print([m for m in sys.modules if m.startswith(NOT_NEEDED)])\n"
        "add = rawkern.elementwise('T x, T y', 'T z', 'z = x + y', 'import_add')\n"
        "total = rawkern.reduction('T x', 'T y', 'x', 'a + b', 'y = a', '0', 'import_total')\n"
        "x = torch.ones(2, 3, requires_grad=True)\n"
        "total(add(x.t(), x[0, :, None]), dim=0).sum().backward()\n"
        "print([m for m in ('sympy', 'torch._dynamo') if m in sys.modules])"
    )
    x = torch.ones(3)
    rawkern.RawKernel(SAXPY).forall(3)(3, 2.0, x, x.clone())
    rawkern.square(x)
    assert run(code) == "[]\n[]"


def test_public_names() -> None:
    assert set(rawkern.__all__) <= set(dir(rawkern))
    with pytest.raises(AttributeError, match="module 'rawkern' has no attribute 'nope'"):
        rawkern.nope  # noqa: B018
    for where in (rawkern, rawkern.testing):  # Python looks there for the name that is meant
        with pytest.raises(AttributeError) as caught:
            where.sofmax  # noqa: B018
        assert caught.value.name == "sofmax" and caught.value.obj is where


def test_own_sources_are_found_by_bare_name(tmp_path: Path) -> None:
    names = sorted(path.stem for path in module.own_sources().glob("*.cu"))
    with pytest.raises(FileNotFoundError, match=r"there is no file 'nonesuch' in .*, nor one of rawkern's own sources"):
        rawkern.load("nonesuch")
    for name in names:
        assert rawkern.load(name).unit.settings.path == str(module.own_sources() / f"{name}.cu")


def test_files_are_found_here_and_beside_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (there / "kernels").mkdir(parents=True)
    here.mkdir()
    (there / "caller.py").write_text("import rawkern\nload = lambda name: rawkern.load(name).file_path\n")
    (there / "kernels" / "k.cu").write_text(SAXPY)
    caller = runpy.run_path(str(there / "caller.py"))
    monkeypatch.chdir(here)
    for name in ("kernels/k.cu", Path("kernels/k.cu"), there / "kernels/k.cu"):
        assert caller["load"](name) == str(there / "kernels" / "k.cu")
    message = f"there is no file 'gone.cu' in {here}, or in {there}, the folder of the calling file"
    with pytest.raises(FileNotFoundError, match=f"{re.escape(message)}$"):
        caller["load"]("gone.cu")
    (here / "kernels").mkdir()
    (here / "kernels" / "k.cu").write_text(SAXPY)
    assert caller["load"]("kernels/k.cu") == str(here / "kernels" / "k.cu")
