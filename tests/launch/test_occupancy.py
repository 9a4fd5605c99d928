"""The occupancy rules against NVIDIA's own: its header, its compiler's limits, its driver."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from rawkern.base.gpus import SPECIFICATIONS, specification
from rawkern.compile import cubin, nvrtc, source, toolchain
from rawkern.launch.occupancy import occupancy

# Reads "major minor warps shared opt-in reserved threads registers static dynamic barriers" a line, answers with blocks.
HEADER_PROGRAM = r"""
#include <climits>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include "cuda_occupancy.h"
int main() {
    cudaOccDeviceProp p; cudaOccFuncAttributes a; cudaOccDeviceState s; cudaOccResult r;
    int warps, threads, registers, barriers; size_t shared, optin, reserved, fixed, dynamic;
    while (scanf("%d %d %d %zu %zu %zu %d %d %zu %zu %d", &p.computeMajor, &p.computeMinor, &warps, &shared, &optin,
                 &reserved, &threads, &registers, &fixed, &dynamic, &barriers) == 11) {
        p.maxThreadsPerBlock = 1024; p.maxThreadsPerMultiprocessor = warps * 32; p.warpSize = 32; p.numSms = 1;
        p.regsPerBlock = p.regsPerMultiprocessor = 65536;
        p.sharedMemPerBlock = 49152; p.sharedMemPerBlockOptin = optin;
        p.sharedMemPerMultiprocessor = shared; p.reservedSharedMemPerBlock = reserved;
        a.maxThreadsPerBlock = 1024; a.numRegs = registers; a.sharedSizeBytes = fixed;
        a.partitionedGCConfig = PARTITIONED_GC_OFF; a.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        a.maxDynamicSharedSizeBytes = optin - fixed; a.numBlockBarriers = barriers;
        int status = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &a, &s, threads, dynamic);
        printf("%d %d\n", status, r.activeBlocksPerMultiprocessor);
    }
}
"""


@pytest.fixture(scope="module")
def header_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a host C++ compiler for cuda_occupancy.h")
    folders = [d for d in toolchain.toolchain().include_dirs if os.path.isfile(os.path.join(d, "cuda_occupancy.h"))]
    if not folders:
        pytest.skip("needs cuda_occupancy.h, of CUDA's runtime headers")
    folder = tmp_path_factory.mktemp("header")
    (folder / "program.cpp").write_text(HEADER_PROGRAM)
    subprocess.run([compiler, "-O1", "-w", f"-I{folders[0]}", "program.cpp", "-o", "program"], cwd=folder, check=True)
    return folder / "program"


def test_nvidias_header_agrees(header_program: Path) -> None:
    random.seed(5)
    cases = []
    for capability, spec in SPECIFICATIONS.items():
        for _ in range(400):
            threads = random.choice((32, 64, 96, 128, 160, 256, 384, 512, 768, 1000, 1024, random.randint(1, 1024)))
            registers = random.choice((0, 8, 24, 32, 33, 40, 64, 72, 128, 168, 255, random.randint(1, 255)))
            fixed = random.choice((0, 0, 1, 4000, 49152, random.randint(0, 49152)))
            room = spec.shared_per_block - fixed
            dynamic = random.choice((0, 0, room, room // 2, random.randint(0, room)))
            barriers = random.choice((0, 1, 1, 2, 3, 10, 16))
            if capability == (10, 3):  # the headers before CUDA 13.5 have twice the barriers that the later ones have
                barriers = 0
            cases.append((capability, spec, threads, registers, fixed, dynamic, barriers))
    lines = [
        f"{c[0]} {c[1]} {s.warps} {s.shared} {s.shared_per_block} {s.reserved} {t} {r} {f} {d} {b}"
        for c, s, t, r, f, d, b in cases
    ]
    done = subprocess.run([header_program], input="\n".join(lines), capture_output=True, text=True, check=True)
    answers = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(answers) == len(cases) and {status for status, _ in answers} == {0}
    ours = [occupancy(s, t, registers=r, shared=f + d, barriers=b).blocks for _, s, t, r, f, d, b in cases]
    wrong = [
        (case, blocks, theirs)
        for case, blocks, (_, theirs) in zip(cases, ours, answers, strict=True)
        if blocks != theirs
    ]
    assert not wrong
    assert {0, 1, 2, 3, 16, 24, 32} <= set(ours)


def test_the_compiler_knows_the_same_warps_and_blocks() -> None:
    known = toolchain.nvrtc().architectures
    tested = 0
    for (major, minor), spec in SPECIFICATIONS.items():
        if major * 10 + minor not in known:
            continue
        # __launch_bounds__(threads, blocks) that do not fit a multiprocessor are warned of and ignored.
        bounds = {(256, spec.warps // 8): True, (256, spec.warps // 8 + 1): False,
                  (32, spec.blocks): True, (32, spec.blocks + 1): False}  # fmt: skip
        code = "".join(
            f'extern "C" __global__ void __launch_bounds__({t}, {n}) k{t}_{n}_end(float* x) {{ x[0] = 1; }}\n'
            for t, n in bounds
        )
        result = nvrtc.run_nvrtc(source.from_text(code), f"sm_{major}{minor}", extra=(cubin.REPORT,))
        assert result.ok
        warnings = [line for line in result.log.splitlines() if "warning" in line]
        assert {(t, n): not any(f"k{t}_{n}_end" in line for line in warnings) for t, n in bounds} == bounds
        tested += 1
    assert tested >= 7


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "share", "limits"),
    [
        ("sm_80", 256, 32, 0, 8, 1.0, ("warps", "registers")),
        ("sm_80", 256, 40, 0, 6, 0.75, ("registers",)),
        ("sm_86", 256, 40, 0, 6, 1.0, ("warps", "registers")),
        ("sm_90a", 1024, 64, 0, 1, 0.5, ("registers",)),
        ("sm_90", 1024, 65, 0, 0, 0.0, ("registers",)),
        ("sm_90", 32, 16, 0, 32, 0.5, ("blocks",)),
        ("sm_90", 128, 32, 100 * 1024, 2, 0.125, ("shared",)),
        ("sm_90", 128, 32, 228 * 1024, 0, 0.0, ("shared",)),
        ("sm_75", 33, 16, 0, 16, 1.0, ("warps", "blocks")),
        ("sm_120", 96, 40, 0, 16, 1.0, ("warps", "registers")),
    ],
)
def test_known_occupancies(
    arch: str, threads: int, registers: int, shared: int, blocks: int, share: float, limits: tuple[str, ...]
) -> None:
    spec = specification(arch)
    assert spec is not None
    found = occupancy(spec, threads, registers=registers, shared=shared)
    assert (found.blocks, found.share, found.limits) == (blocks, share, limits)


def test_launch_bounds_and_barriers_limit_too() -> None:
    spec = SPECIFICATIONS[9, 0]
    assert occupancy(spec, 512, registers=16, shared=0, max_threads=256).limits == ("threads",)
    assert occupancy(spec, 1025, registers=16, shared=0).limits == ("threads",)
    found = occupancy(spec, 64, registers=16, shared=0, barriers=16)
    assert (found.blocks, found.limits) == (4, ("barriers",))
    assert occupancy(SPECIFICATIONS[8, 0], 64, registers=16, shared=0, barriers=16).blocks == 32  # not counted there


def test_an_architecture_that_is_not_listed() -> None:
    assert specification("sm_61") is None and specification("compute_80") is None and specification("sm_88") is None


@pytest.mark.gpu
def test_driver_agrees() -> None:
    import cupy
    import torch

    import rawkern
    from rawkern.engines.devices import default_device

    major, minor = torch.cuda.get_device_capability()
    spec = SPECIFICATIONS[major, minor]
    file = Path(__file__).parents[1] / "cli" / "kernels.cu"
    module = rawkern.load(file)
    used = cubin.resources(module.get_function("plain").cubin(f"sm_{major}{minor}"), f"sm_{major}{minor}")
    wrong, seen = [], set()
    for name, resources in used.items():
        kernel = module.get_function(name)._engine_kernel(default_device())
        for threads in (32, 33, 64, 96, 128, 160, 256, 352, 512, 768, 1000, 1024):
            for dynamic in (0, 1, 1000, 16384, 40000, 100000, 200000, spec.shared_per_block):
                if threads > resources.max_threads or resources.shared + dynamic > spec.shared_per_block:
                    continue
                kernel.set_attribute("max_dynamic_shared_size_bytes", dynamic)
                with kernel.module.current():
                    theirs = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
                        kernel.function, threads, dynamic
                    )
                ours = occupancy(spec, threads, registers=resources.registers, shared=resources.shared + dynamic,
                                 barriers=resources.barriers, max_threads=resources.max_threads)  # fmt: skip
                seen.add(theirs)
                if ours.blocks != theirs:
                    wrong.append((name, threads, dynamic, ours, theirs))
    assert not wrong
    assert {0, 1, 2, 4, 8, 16, 32} <= seen
    properties = torch.cuda.get_device_properties(0)
    assert properties.max_threads_per_multi_processor == 32 * spec.warps
    assert properties.shared_memory_per_multiprocessor == spec.shared
    assert properties.shared_memory_per_block_optin == spec.shared_per_block
