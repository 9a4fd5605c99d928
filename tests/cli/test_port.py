"""``rawkern port``."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from rawkern.cli import main, setups
from tests import forked

SOURCE = """#include <torch/extension.h>
__global__ void k(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= 2; }
void twice(torch::Tensor x) { k<<<1, 64>>>(x.data_ptr<float>(), x.numel()); }
void sorted(torch::Tensor x) { thrust::sort(x.data_ptr<float>(), x.data_ptr<float>() + x.numel()); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice", &twice); m.def("sorted", &sorted); }
"""


def test_a_module_to_keep(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "ops.cu").write_text(SOURCE)
    monkeypatch.chdir(tmp_path / "src")
    assert main(["port", "ops.cu", "-o", str(tmp_path / "ops.py")]) == 0
    monkeypatch.chdir(tmp_path.parent)  # it finds its source beside itself
    said = capsys.readouterr().err
    assert "1 of 2 functions translated" in said and "call torch.sort" in said and "ops.cu:4" in said
    module, x = runpy.run_path(str(tmp_path / "ops.py")), torch.ones(5)
    module["twice"](x)
    assert x.tolist() == [2.0, 2.0, 2.0, 2.0, 2.0]


def test_what_is_printed_is_what_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rawkern import cpp_extension

    path = tmp_path / "ops.cu"
    path.write_text(SOURCE)
    main(["port", str(path), "--name", "ops"])
    e = cpp_extension.load("ops", [path])
    assert capsys.readouterr().out == e.source
    x = torch.ones(3)
    e.twice(x)
    assert x.tolist() == [2, 2, 2]


def test_the_extension_of_a_setup_py(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "ops.cu").write_text(SOURCE)
    (tmp_path / "setup.py").write_text(
        "from setuptools import setup\nfrom torch.utils.cpp_extension import BuildExtension, CUDAExtension\n"
        "import os\nfolder = 'src'\nsetup(name='p', ext_modules=[CUDAExtension(name='p._C', "
        "sources=[os.path.join(folder, 'ops.cu')])])\n"
    )
    assert main(["port", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "def _twice(x: torch.Tensor) -> None:" in out
    assert main(["port", str(tmp_path / "src")]) == 1
    assert "has no setup.py" in capsys.readouterr().err


def test_the_extensions_of_a_setup_py_that_computes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "ops.cu").write_text(SOURCE.replace("2", "FACTOR"))
    (tmp_path / "src" / "more.cu").write_text(SOURCE.replace("twice", "thrice").replace("2", "3"))
    (tmp_path / "setup.py").write_text(
        "import glob, os, torch\nfrom setuptools import setup\n"
        "from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CUDAExtension\n"
        "here = os.path.dirname(os.path.abspath(__file__))\n"
        "def made(name, macros):\n"
        "    files = glob.glob(os.path.join(here, 'src', name + '.cu'))\n"
        "    return CUDAExtension('p.' + name, files, define_macros=macros, extra_compile_args={'nvcc': ['-O2']})\n"
        "modules = [made('ops', [('FACTOR', '2')])]\n"
        "if torch.cuda.is_available() and CUDA_HOME is not None:\n    modules.append(made('more', []))\n"
        "setup(name='p', ext_modules=modules, cmdclass={'build_ext': BuildExtension})\n"
    )
    assert main(["port", str(tmp_path)]) == 1
    assert "setup.py builds several extensions: p.ops, p.more; choose one with --name" in capsys.readouterr().err
    monkeypatch.setattr(setups, "PYTHON", forked.python())
    assert main(["port", str(tmp_path), "--name", "ops"]) == 0
    out = capsys.readouterr().out
    assert "def _twice(x: torch.Tensor) -> None:" in out and "-DFACTOR=2" in out and "thrice" not in out
    assert not (tmp_path / "build").exists()


def test_a_setup_py_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setups, "PYTHON", forked.python())
    (tmp_path / "setup.py").write_text("import there_is_no_such_module\n")
    assert main(["port", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "does not come to call setup (ModuleNotFoundError: No module named 'there_is_no_such_module')" in error
    assert "name the .cu and .cpp files" in error
