"""Where NVRTC and CUDA's headers are found, and when a record of that is believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rawkern.compile import nvrtc, toolchain
from rawkern.compile.source import CPU_ARCH, from_text

KERNEL = 'extern "C" __global__ void k(float* x, double* d) { %s }'


def only(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Let the search see these directories beside NVRTC and nothing elsewhere."""
    monkeypatch.setattr(toolchain, "_beside", lambda library: list(map(str, folders)))
    monkeypatch.setattr(toolchain, "_pathfinder_roots", list)
    monkeypatch.setattr(toolchain, "_installed", list)


def test_headers_without_nvidias_cccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some images have the runtime's headers only; CuPy brings CCCL along."""
    pytest.importorskip("cupy")
    real = next(
        folder for folder in toolchain.toolchain().include_dirs if (Path(folder) / "cuda_runtime_api.h").exists()
    )
    for item in Path(real).iterdir():
        if item.name != "cccl":
            (tmp_path / item.name).symlink_to(item)
    only(monkeypatch, tmp_path)
    toolchain.nvrtc()
    folders, markers = toolchain._headers((13, 0), "")
    assert folders[0] == str(tmp_path) and all("cupy" in folder for folder in folders[1:]) and len(folders) == 4
    assert all(os.path.isfile(marker) for marker in markers)
    monkeypatch.setattr(nvrtc, "toolchain", lambda: toolchain.Toolchain((13, 0), "", folders, ()))
    code = "#include <cooperative_groups.h>\n#include <cub/block/block_reduce.cuh>\n" + KERNEL % ""
    result = nvrtc.run_nvrtc(from_text(code), CPU_ARCH)
    assert result.ok, result.log


def test_headers_of_nvrtcs_own_release_are_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, version in (("old", 12090), ("near", 13020), ("own", 13000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\n")
    only(monkeypatch, *(tmp_path / name for name in ("old", "near", "own")))
    assert toolchain._headers((13, 0), "")[0][0] == str(tmp_path / "own")
    only(monkeypatch, *(tmp_path / name for name in ("old", "near")))
    assert toolchain._headers((13, 0), "")[0][0] == str(tmp_path / "near")


def test_places_elsewhere_are_searched_when_something_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def release(folder: Path, version: int, *parts: str) -> Path:
        for part in ("cuda_runtime_api.h", *parts):
            (folder / part).parent.mkdir(parents=True, exist_ok=True)
            (folder / part).write_text(f"#define CUDART_VERSION {version}\n")
        return folder

    parts = "crt/mma.h", "cuda/std/version", "curand_kernel.h"
    asked: list[bool] = []
    whole = release(tmp_path / "whole", 13000, *parts)
    only(monkeypatch, whole)
    monkeypatch.setattr(toolchain, "_pathfinder_roots", lambda: asked.append(True) or [str(whole)])
    assert toolchain._headers((13, 0), "")[0] == (str(whole),) and not asked
    for beside in (release(tmp_path / "bare", 13000), release(tmp_path / "older", 12090, *parts)):
        asked.clear()
        monkeypatch.setattr(toolchain, "_beside", lambda library, beside=beside: [str(beside)])
        assert str(whole) in toolchain._headers((13, 0), "")[0] and asked


def test_nvrtc_is_found_in_wheels_then_toolkits_then_by_the_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def library(folder: str, major: int) -> str:
        path = tmp_path / folder / f"libnvrtc.so.{major}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        return str(path)

    for name in toolchain._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    monkeypatch.setattr("sys.path", [str(tmp_path / "empty"), str(tmp_path / "site")])
    monkeypatch.setattr(toolchain.glob, "glob", lambda pattern: [])
    assert list(toolchain._libraries()) == ["libnvrtc.so.13", "libnvrtc.so.12"]
    twelve = [library("site/nvidia/cuda_nvrtc/lib", 12), library("toolkit/lib64", 12), "libnvrtc.so.12"]
    thirteen = [library("site/nvidia/cu13/lib", 13), library("toolkit/lib64", 13), "libnvrtc.so.13"]
    assert list(toolchain._libraries()) == thirteen + twelve
    # Machine code has to fit CuPy's CUDA, which is the driver's.
    (tmp_path / "site" / "cupy" / "_core").mkdir(parents=True)
    (tmp_path / "site" / "cupy" / ".data").mkdir()
    (tmp_path / "site" / "cupy" / ".data" / "_wheel.json").write_text('{"cuda": "12.x"}')
    assert list(toolchain._libraries()) == twelve + thirteen


def test_cupy_is_of_the_version_that_it_says() -> None:
    cupy = pytest.importorskip("cupy")
    assert toolchain._cupy_major() == cupy.cuda.get_local_runtime_version() // 1000
    assert toolchain._cupy_folder() == str(Path(cupy.__file__).parent)


def test_toolchain_record_is_not_believed_when_something_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAWKERN_CACHE_DIR", str(tmp_path / "cache"))
    found = toolchain._search("toolchain-test")
    assert toolchain._recorded("toolchain-test") == found
    path, mtime, size = found.stamps[0]
    assert "libnvrtc" in path
    monkeypatch.setattr(toolchain, "_stamp", lambda path: (path, mtime + 1, size))
    assert toolchain._recorded("toolchain-test") is None
