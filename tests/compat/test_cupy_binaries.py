"""RawModule(path=) of code that is already compiled: PTX, cubins and fatbins."""

from __future__ import annotations

import pickle
import re
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rawkern
from rawkern import RawKernel, RawModule, UnsupportedError
from rawkern.cli import main
from rawkern.compile.source import Watch

SOURCE = """
struct Pair { int a; double b; };
__device__ int total;
__constant__ float factors[4];
extern "C" __global__ void divide(const float* x, const float* y, float* z, unsigned int n) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = x[i] / (y[i] + 1.0f);
}
extern "C" __global__ void pack(char c, short s, int i, float f, double d, long long l, Pair p, float3 v, double* out) {
    double all[] = {(double)c, (double)s, (double)i, f, d, (double)l, (double)p.a, p.b, v.x, v.y, v.z};
    for (int k = 0; k < 11; ++k) out[k] = all[k];
}
__global__ void scale(float* x, int n) {
    if (threadIdx.x < n) x[threadIdx.x] *= factors[threadIdx.x];
    atomicAdd(&total, 1);
}
template <typename T> __global__ void fill(T* x, T value) { x[threadIdx.x] = value; }
template __global__ void fill<float>(float*, float);
"""
FLOAT3 = np.dtype([(name, np.float32) for name in "xyz"])
PAIR = np.dtype([("a", np.int32), ("b", np.float64)], align=True)


def architecture() -> str:
    return "sm_{}{}".format(*torch.cuda.get_device_capability()) if torch.cuda.is_available() else "sm_90"


def fatbin(cubin: bytes) -> bytes:
    part = struct.pack("<HHIQ48x", 2, 0x101, 64, len(cubin)) + cubin
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(part)) + part


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, kernel = tmp_path_factory.mktemp("binaries"), RawKernel(SOURCE, "divide")
    cubin = kernel.cubin(architecture())
    contents = {"ptx": kernel.ptx().encode(), "cubin": cubin, "fatbin": fatbin(cubin)}
    for suffix, content in contents.items():
        (folder / f"k.{suffix}").write_bytes(content)
    return {suffix: folder / f"k.{suffix}" for suffix in contents}


def loaded(files: dict[str, Path], device: str) -> list[RawModule]:
    """PTX runs everywhere, a cubin on GPUs."""
    kinds = ("ptx",) if device == "cpu" else ("ptx", "cubin")
    return [RawModule(path=str(files[kind]), backend="nvcc") for kind in kinds]


def test_kernels(files: dict[str, Path], device: str) -> None:
    for module in loaded(files, device):
        x, y = torch.rand(2, 10, 10, device=device)
        z = torch.full_like(x, torch.nan)
        for kernel in (module.get_function("divide"), pickle.loads(pickle.dumps(module)).divide):
            kernel((10,), (10,), (x, y, z, 100))
            torch.testing.assert_close(z, x / (y + 1))
        assert set(module.kernels) == {"divide", "pack", "scale", "fill<float>"}
        assert module.file_path and module.code is None and module.get_function("divide").max_threads_per_block


def test_parameters_by_size(files: dict[str, Path], device: str) -> None:
    pair, vector = np.array([(7, 0.5)], PAIR), np.array([(1.5, 2.5, -3)], FLOAT3)
    for module in loaded(files, device):
        for values in (
            (-3, -300, 5, 0.25, 0.125, 1 << 40, pair, vector),
            (np.int8(-3), np.int16(-300), np.int32(5), np.float32(0.25), 0.125, np.int64(1 << 40), pair[0], vector[0]),
        ):
            out = torch.full((11,), torch.nan, dtype=torch.float64, device=device)
            module.get_function("pack")[1, 1](*values, out)
            assert out.tolist() == [-3, -300, 5, 0.25, 0.125, 1 << 40, 7, 0.5, 1.5, 2.5, -3]


def test_in_an_operator(files: dict[str, Path], device: str) -> None:
    divide = loaded(files, device)[0].get_function("divide")

    @rawkern.op(f"tests_compat::divide_{device}")
    def quotient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.empty_like(x)
        divide.forall(x.numel())(x, y, z, x.numel())
        return z

    compiled = torch.compile(lambda x, y: quotient(x, y) + 1, backend="aot_eager", fullgraph=True, dynamic=True)
    for n in (5, 8):
        x, y = torch.rand(2, n, device=device)
        torch.testing.assert_close(compiled(x, y), x / (y + 1) + 1)


def test_mangled_names_tell_types(files: dict[str, Path], device: str) -> None:
    for module in loaded(files, device):
        x = torch.full((4,), torch.nan, device=device)
        fill = module.get_function("fill<float>")
        fill[1, 4](x, 3)
        assert x.tolist() == [3] * 4 and fill.signature == "void fill<float>(float *arg0, float arg1)"
        with pytest.raises(TypeError, match=re.escape("argument 1 'arg0' is float64, the kernel writes float*")):
            fill[1, 4](x.double(), 3)


def test_variables(files: dict[str, Path], device: str) -> None:
    for module in loaded(files, device):
        module.get_global("factors", device).view(torch.float32).copy_(torch.arange(4.0))
        x = torch.ones(4, device=device)
        module.scale[1, 4](x, 4)
        assert x.tolist() == [0, 1, 2, 3] and module.get_global("total", device).view(torch.int32).item() == 4
        with pytest.raises(ValueError, match="has no variable 'none'"):
            module.get_global("none", device)


def test_checks(files: dict[str, Path]) -> None:
    x, y, z = torch.rand(3, 8)
    with rawkern.check(), pytest.raises(rawkern.OutOfBoundsError, match=r"reads arg\d\[8\]"):
        RawModule(path=files["ptx"]).divide[1, 9](x, y, z, 9)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, 300, "argument 1 'arg0' is 300, out of range for 1 bytes (-128 to 255)"),
        (2, np.float64(1), "which has 8 bytes, the kernel takes 4 bytes by value; pass what has as many"),
        (6, np.zeros(1, FLOAT3), "which has 12 bytes, the kernel takes 16 bytes, aligned to 8 by value"),
        (8, np.zeros(11), "is a ndarray, the kernel takes 8 bytes by value; pass what has as many: a NumPy scalar, a"),
        (8, torch.zeros(11, 2, dtype=torch.float64).t(), "argument 9 'arg8' is not contiguous"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit(files: dict[str, Path], at: int, value: Any, message: str) -> None:
    values: list[Any] = [1, 2, 3, 0.5, 0.5, 4, np.zeros(1, PAIR), np.zeros(1, FLOAT3), torch.zeros(11).double()]
    values[at] = value
    with pytest.raises((TypeError, ValueError, OverflowError), match=re.escape(message)):
        RawModule(path=files["ptx"]).get_function("pack")[1, 1](*values)


@pytest.mark.parametrize("kind", ["cubin", "fatbin"])
def test_machine_code_on_the_cpu(kind: str, files: dict[str, Path]) -> None:
    module = RawModule(path=files[kind])
    assert set(module.kernels) == {"divide", "pack", "scale", "fill<float>"}
    assert module.get_function("divide").signature == (
        "void divide(8 bytes arg0, 8 bytes arg1, 8 bytes arg2, 4 bytes arg3)"
    )
    x = torch.rand(4)
    with pytest.raises(UnsupportedError, match=r"k\.\w+ is machine code for GPUs, which the CPU engine and its tools"):
        module.divide[1, 4](x, x, x.clone(), 4)


def test_what_is_not_there(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RawModule(path=tmp_path / "gone.cubin")
    (tmp_path / "text.cubin").write_text("no code")
    with pytest.raises(ValueError, match=r"text\.cubin is not a cubin: its first bytes are b'no c'"):
        RawModule(path=tmp_path / "text.cubin")
    (tmp_path / "compressed.fatbin").write_bytes(fatbin(b"(LZ4)" * 40))
    with pytest.raises(UnsupportedError, match="has no readable cubin: its code is compressed"):
        RawModule(path=tmp_path / "compressed.fatbin").get_function("divide")
    for named in ({"options": ("-DN=1",)}, {"include_dirs": [tmp_path]}, {"name_expressions": ["f<int>"]}):
        with pytest.raises(ValueError, match="already compiled"):
            RawModule(path=files["ptx"], **named)
    module = RawModule(path=files["ptx"])
    with pytest.raises(ValueError, match="there is no kernel 'none'; the source has divide"):
        module.get_function("none")
    for call in (lambda: module.constant("sizeof(int)"), lambda: module.divide.cubin("sm_90")):
        with pytest.raises(UnsupportedError):
            call()


def test_building_needs_the_source(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("ptx", "cubin"):
        assert main(["build", str(files[kind])]) == 1
        name = {"ptx": "PTX"}.get(kind, kind)
        assert f"k.{kind} is a {name} file, which is already compiled; pass the CUDA source" in capsys.readouterr().err


def test_a_file_that_changes(files: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "put.ptx"
    x = torch.zeros(1)
    module = None
    for value in (1, 2):
        kernel = RawKernel(f'extern "C" __global__ void put(float* x) {{ *x = {value}; }}')
        file.write_text(kernel.ptx())
        module = module or RawModule(path=file)
        time.sleep(2 * Watch.INTERVAL)
        module.put[1, 1](x)
        assert x.item() == value
