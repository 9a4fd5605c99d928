"""Kernels compiled by `rawkern build --package` and loaded by `rawkern.load_package`."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch

import rawkern
from rawkern.cli import main
from rawkern.compile import packages, toolchain
from rawkern.compile.source import from_path
from rawkern.errors import RawkernError, UnsupportedError
from tests import without_compiler

HEADER = "#define UNIT 2.0f\n"
KERNELS = """
#include <cuda_fp16.h>
#include "unit.cuh"
#define TILE 32
namespace ns {
struct Inner { int n; short k[3]; };
struct P { float scale; Inner inner; };
}
__constant__ float table[2][3];
__device__ int calls;
extern "C" __global__ void look_up(const int* index, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) calls++;
    if (i < n) out[i] = UNIT * table[index[i] / 3][index[i] % 3];
}
template <typename T> __global__ void add(const T* x, T* y, T by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) calls++;
    if (i < n) y[i] = x[i] + by;
}
__global__ void scaled(ns::P p, float* x) {
    if (threadIdx.x < p.inner.n) x[threadIdx.x] *= p.scale * p.inner.k[1];
}
__global__ void fill(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 1; }
__global__ void fill(int* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = 2; }
"""
OTHER = '__device__ int seen[4]; extern "C" __global__ void see(int i) { seen[i] = i + 1; }\n'
ASKED = ("--arch", "sm_75", "--arch", "sm_80", "--arch", "sm_90a", "--kernel", "add<float>", "--kernel", "add<__half>",
         "--constant", "TILE", "--constant", "sizeof(ns::P)", "--constant", "UNIT")  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two modules, and their sources gone."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "include").mkdir()
    (folder / "include" / "unit.cuh").write_text(HEADER)
    (folder / "kernels.cu").write_text(KERNELS)
    (folder / "other.cu").write_text(OTHER)
    first = ["build", str(folder / "kernels.cu"), "-I", str(folder / "include"), "--package", str(folder / "made")]
    assert main([*first, *ASKED]) == 0
    assert main(["build", str(folder / "other.cu"), "--package", str(folder / "made"), "--arch", "sm_75"]) == 0
    shutil.rmtree(folder / "include")
    for name in ("kernels.cu", "other.cu"):
        (folder / name).unlink()
    return folder / "made"


def test_without_a_compiler(built: Path, tmp_path: Path, device: str) -> None:
    """In a process that has none: kernels, instances, structs, variables, constants, and the words for wrong arguments."""
    script = f"""
module = rawkern.load_package({str(built)!r}, "kernels")
assert module.kernels == ("look_up", "scaled", "fill", "add<__half>", "add<float>", "add"), module.kernels
table = module.get_global("table", DEVICE)
assert table.shape == (2, 3) and table.dtype == torch.float32
table.copy_(torch.arange(6.0).view(2, 3) / 4)
index = torch.tensor([5, 0, 3], dtype=torch.int32, device=DEVICE)
out = torch.full((3,), float("nan"), device=DEVICE)
module.look_up.forall(3)(n=3, index=index, out=out)
assert out.tolist() == [2.5, 0.0, 1.5]
for dtype in (torch.float32, torch.float16):
    x = torch.tensor([1.5, -2.0], dtype=dtype, device=DEVICE)
    y = torch.full_like(x, float("nan"))
    module.add.forall(2)(x, y, 0.25, 2)
    assert y.tolist() == [1.75, -1.75]
module.get_function("add", torch.float32).forall(2)(x.float(), y.float(), 0.25, 2)
assert module.get_global("calls", DEVICE).item() == 4  # all instances are one module
x = torch.ones(4, device=DEVICE)
module.scaled[1, 32]({{"scale": 0.5, "inner": {{"n": 3, "k": [0, 3, 0]}}}}, x)
assert x.tolist() == [1.5, 1.5, 1.5, 1.0]
twos = torch.zeros(3, dtype=torch.int32, device=DEVICE)
module.get_function("fill(int*, int)")[1, 32](twos, 3)
assert twos.tolist() == [2, 2, 2]
assert module.constant("TILE") == 32 and module.constant("sizeof(ns::P)", DEVICE) == 16
assert module.constant("UNIT") == 2.0 and type(module.constant("UNIT")) is float
other = rawkern.load_package({str(built)!r}, "other")
other.see[1, 1](2)
assert other.get_global("seen").tolist() == [0, 0, 3, 0]
print(module.look_up.signature)
try:
    module.look_up.forall(3)(index, x.double(), 3)
except TypeError as error:
    print(error)
"""
    printed = without_compiler.run(script, device, tmp_path / "cache")
    assert printed.splitlines() == [
        "void look_up(const int *index, float *out, int n)",
        "look_up: argument 2 'out' is float64, the kernel writes float*; make it with dtype=torch.float32",
    ]


def test_what_is_written(built: Path) -> None:
    names = {path.name for path in built.iterdir()}
    assert names == {
        "kernels.json", "kernels.sm_75.cubin", "kernels.sm_80.cubin", "kernels.sm_90a.cubin", "kernels.compute_80.ptx",
        "other.json", "other.sm_75.cubin", "other.compute_75.ptx", "other.compute_80.ptx",
    }  # fmt: skip
    package = packages.package(from_path(built / "kernels.json"))
    assert package.sources == ("kernels.cu", "include/unit.cuh") and package.options == ()
    assert package.toolkit.startswith("NVRTC 1") and package.rawkern == rawkern.__version__
    folders = (built.parent, Path(sys.prefix), *toolchain.toolchain().include_dirs)
    for name in names:
        data = (built / name).read_bytes()
        assert not [folder for folder in folders if os.fsencode(folder) in data], name
    assert b"kernels.cu" in (built / "kernels.sm_80.cubin").read_bytes()


def test_what_fits(built: Path) -> None:
    source = from_path(built / "kernels.json")
    found = {arch: packages.chosen(source, arch).arch for arch in
             ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "compute_80", "compute_90")}  # fmt: skip
    assert found == {
        "sm_75": "sm_75", "sm_80": "sm_80", "sm_86": "sm_80", "sm_89": "sm_80", "sm_90": "sm_90a",
        "sm_100": "compute_80", "compute_80": "compute_80", "compute_90": "compute_80",
    }  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"no code for sm_70 here: rebuild with --arch sm_70 \(it has sm_75, "):
        packages.chosen(source, "sm_70")
    with pytest.raises(UnsupportedError, match=r"no PTX for compute_75 here: rebuild with --arch sm_75 "):
        packages.chosen(source, "compute_75")
    assert packages._runs("sm_100f", 103) and not packages._runs("sm_100f", 110) and not packages._runs("sm_90a", 91)


def test_what_is_not_there(built: Path) -> None:
    module = rawkern.load_package(built, "kernels")
    for ask, message in (
        (lambda: module.constant("TILE * 2"), r"rebuild with --constant 'TILE \* 2' \(it has TILE, "),
        (lambda: module.get_function("add<double>"), "rebuild with --kernel 'add<double>'"),
        (lambda: module.get_function("missing"), "there is no kernel 'missing'"),
        (lambda: module.get_global("tables"), "has these variables: table, calls"),
        (lambda: rawkern.load_package(built), "has several modules; name one: kernels, other"),
        (lambda: rawkern.load_package(built, "third"), "has no module 'third'; it has kernels, other"),
        (lambda: rawkern.load_package(built.parent), "has no module that rawkern build --package wrote"),
        (lambda: rawkern.load_package("json.decoder"), "is a module, not a package"),
    ):
        with pytest.raises(ValueError, match=message):
            ask()
    with pytest.raises(ModuleNotFoundError, match="there is no package 'no_such_kernels' to import"):
        rawkern.load_package("no_such_kernels")
    with pytest.raises(FileNotFoundError, match=r"there is no folder '\./nowhere'"):
        rawkern.load_package("./nowhere")


def test_files_that_were_changed(built: Path, tmp_path: Path) -> None:
    shutil.copytree(built, tmp_path / "made")
    ptx, manifest = tmp_path / "made" / "other.compute_80.ptx", tmp_path / "made" / "other.json"
    ptx.write_text(ptx.read_text().replace("+", "-") + "// more\n")
    with pytest.raises(RawkernError, match=r"is not the file that .*other\.json lists"):
        rawkern.load_package(tmp_path / "made", "other").see.ptx()
    ptx.unlink()
    with pytest.raises(RawkernError, match=r"cannot read .*other\.compute_80\.ptx"):
        rawkern.load_package(tmp_path / "made", "other").see.ptx()
    found = json.loads(manifest.read_text())
    for changed, message in (
        (found | {"rawkern_manifest": 2, "rawkern": "9.1"}, "format 2, written by rawkern 9.1; rawkern .* reads format 1"),
        ({**found, "codes": [{**found["codes"][0], "file": "../other.cubin"}]}, "not a valid manifest"),
        ({key: value for key, value in found.items() if key != "structs"}, "not a valid manifest"),
    ):  # fmt: skip
        manifest.write_text(json.dumps(changed))
        with pytest.raises(RawkernError, match=message):
            rawkern.load_package(tmp_path / "made", "other")


def test_it_is_a_module_like_others(built: Path) -> None:
    module = pickle.loads(pickle.dumps(rawkern.load_package(built, "kernels")))
    x = torch.zeros(4)
    with pytest.raises(rawkern.OutOfBoundsError, match=r"kernels.cu:19: .* writes y\[4\]") as raised:
        module.add.forall(8)(torch.zeros(8), x, 1.0, 8)
    assert raised.value.reports[0].access.excerpt == ""  # a file of that name here is another one
    with rawkern.check(), pytest.raises(rawkern.OutOfBoundsError, match=r"kernels.cu:19"):
        module.add.forall(8)(torch.zeros(8), x, 1.0, 8)
    assert rawkern.load(built / "kernels.json").constant("TILE") == 32


def test_a_manifest_says_all_there_is(built: Path) -> None:
    source = from_path(built / "kernels.json")
    package = packages.package(source)
    again = dataclasses.replace(source, binary=packages.text(package).encode())
    assert packages.package(again) == package
    assert package.structs.keys() == {"ns::P", "ns::Inner"}
