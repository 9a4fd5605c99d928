"""What is read from cubins is what compiler and driver say."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from rawkern.compile import cubin, elf, nvrtc, programs, source, toolchain
from rawkern.errors import RawkernError

FILE = Path(__file__).parents[1] / "cli" / "kernels.cu"
INSTANCE = "axpy<double, 4>"


def _compiled(arch: str) -> programs.Program:
    read = source.from_path(FILE)
    return programs.compile_program(dataclasses.replace(read, options=(*read.options, cubin.REPORT)), arch, (INSTANCE,))


def _reported(log: str, symbol: str) -> dict[str, int]:
    part = log[log.index(f"Compiling entry function '{symbol}'") :]
    used = re.search(r"Used .*", part)
    assert used is not None

    def number(pattern: str) -> int:
        match = re.search(pattern, used[0])
        return int(match[1]) if match else 0

    barriers = {"barriers": number(r"used (\d+) barriers")} if "barriers" in used[0] else {}  # not told before CUDA 13
    return barriers | {
        "registers": number(r"Used (\d+) registers"),
        "shared": number(r"(\d+) bytes smem"),
        "local": number(r"(\d+) bytes cumulative stack size"),
    }


def test_every_generation_agrees_with_the_compilers_report() -> None:
    oldest, *_, newest = archs = sorted(toolchain.nvrtc().architectures)
    for arch in sorted({oldest, newest, *(arch for arch in archs if arch in (80, 90, 100))}):
        program = _compiled(f"sm_{arch}")
        found = cubin.resources(program.code, f"sm_{arch}")
        assert set(found) == {entry.symbol for entry in program.entries}
        for symbol, used in found.items():
            expected = _reported(program.log, symbol)
            assert {name: getattr(used, name) for name in expected} == expected, (arch, symbol)
        assert {used.constant for used in found.values()} == {256}
        assert found["shared"].shared == 4000 and found["all_static"].shared == 49152
        assert (found["barriers"].barriers, found["any_barrier"].barriers, found["plain"].barriers) == (10, 16, 0)
        assert [found[name].max_threads for name in ("plain", "spilling", "bounded")] == [1024, 256, 512]
        assert found["local"].local == 256 and found["widest"].registers > 150
        left = cubin.without_report(program.log)
        assert left == "" or (left.startswith("ptxas warning") and "cannot be statically determined" in left)


def test_spills_of_a_kernel_and_of_the_functions_it_calls() -> None:
    program = _compiled("sm_90")
    spills = cubin.spills(program.log)
    assert set(spills) == {entry.symbol for entry in program.entries}
    stores, loads = spills["spilling"]
    assert stores > 100 and loads > 100
    (line,) = re.findall(r"for spilling\n.* (\d+) bytes spill stores, (\d+) bytes spill loads", program.log)
    assert (str(stores), str(loads)) == line
    assert spills["recursive"] == (16, 16)  # the registers that deep() saves around its call of itself
    assert {spills[name] for name in ("plain", "shared", "local", "bounded")} == {(0, 0)}


def test_warnings_stay_in_the_log() -> None:
    code = 'extern "C" __global__ void k(float* x) { int unused; x[0] = 1; }'
    read = source.from_text(code, (cubin.REPORT,))
    log = programs.compile_program(read, "sm_90").log
    assert "Used " in log and "ptxas info" in log
    left = cubin.without_report(log)
    assert "ptxas" not in left and 'variable "unused" was declared but never referenced' in left


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"//\n.version 9.0\n", b"\x7fELF\x01\x01" + bytes(100)])
def test_other_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(RawkernError, match="this is not a cubin"):
        cubin.resources(data, "sm_90")


@pytest.mark.gpu
def test_driver_agrees() -> None:
    import torch

    import rawkern

    major, minor = torch.cuda.get_device_capability()
    module = rawkern.load(FILE)
    found = cubin.resources(_compiled(f"sm_{major}{minor}").code, f"sm_{major}{minor}")
    different = {}
    for symbol, used in found.items():
        theirs = module.get_function(INSTANCE if symbol.startswith("_Z") else symbol).attributes
        pairs = {
            "registers": (used.registers, theirs["num_regs"]),
            "shared": (used.shared, theirs["shared_size_bytes"]),
            "constant": (used.constant, theirs["const_size_bytes"]),
            "local": (used.local, theirs["local_size_bytes"]),
        }
        different |= {(symbol, name): pair for name, pair in pairs.items() if pair[0] != pair[1]}
        # As many warps as there are registers for.
        most = min(used.max_threads, 65536 // max(32, -(-used.registers * 32 // 256) * 8) // 32 * 32)
        if theirs["max_threads_per_block"] != most:
            different[symbol, "max_threads"] = most, theirs["max_threads_per_block"]
    assert not different


LINES = """
__device__ float table[32];
extern "C" __global__ void k(const float* x, float* y, int n) {
  __shared__ float s[256];
  float v = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    v += x[i] * table[i % 32];
  s[threadIdx.x] = v;
  __syncthreads();
  if (threadIdx.x < 32) atomicAdd(y, s[threadIdx.x] + s[threadIdx.x + 32]);
}"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_lines_for_profilers_leave_the_machine_code_as_it_is(arch: str) -> None:
    binding = toolchain.nvrtc()
    options = ("-std=c++17", "--device-int128", "-no-cache") if toolchain.toolchain().version >= (12, 9) else ()
    with binding.program(LINES, "kernel.cu", {}) as program:
        program.compile((f"-arch={arch}", *(options or ("-std=c++17", "--device-int128"))))
        plain = program.cubin
    ours = nvrtc.run_nvrtc(source.from_text(LINES), arch).cubin
    assert _code(plain) == _code(ours)
    assert ".debug_line" in {section.name for section in elf.sections(ours)}


def _code(data: bytes) -> dict[str, bytes]:
    """The instructions and constants of a cubin."""
    kept = [s for s in elf.sections(data) if s.name.startswith((".text", ".nv.constant"))]
    assert any(s.name.startswith(".text") for s in kept)
    return {s.name: data[s.offset : s.offset + s.size] for s in kept}
