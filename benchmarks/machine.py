"""What was measured on, and what was measured: hardware, versions, the commit."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    *("torch", "numpy", "llvmlite", "cupy-cuda13x", "cupy-cuda12x", "triton", "numba", "numba-cuda"),
    *("cuda-core", "apache-tvm-ffi", "liger-kernel"),
)


def machine() -> dict[str, Any]:
    """Hardware and versions; neither the host's name nor any path."""
    import torch

    facts: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory GiB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "rawkern": commit() or version("rawkern"),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
        facts["cuda of torch"] = torch.version.cuda
    facts |= {name: found for name in PACKAGES if (found := version(name))}
    nvrtc = nvrtc_version()
    return facts | ({"nvrtc": nvrtc} if nvrtc else {})


def cpu_name() -> str:
    """The processor's name, with LLVM's name of the architecture where llvmlite is there."""
    name = platform.processor() or platform.machine()
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
        name = found[1] if found else name
        import llvmlite.binding as llvm

        name += f" ({llvm.get_host_cpu_name()})"
    except (OSError, ImportError):
        pass
    return name


def version(package: str) -> str:
    """Version of an installed distribution, or nothing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def nvrtc_version() -> str:
    try:
        from rawkern.compile.toolchain import nvrtc

        return ".".join(map(str, nvrtc().version))
    except Exception:
        return ""


def commit() -> str:
    """The commit that is measured; a plus says that files of the package differ from it.

    A copy of the tree without git is told by the variable BENCHMARK_COMMIT.
    """
    if told := os.environ.get("BENCHMARK_COMMIT"):
        return told
    root = Path(__file__).resolve().parents[1]
    try:
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True)
        state = subprocess.run(
            ["git", "status", "--porcelain", "rawkern", "cuda_src"], cwd=root, capture_output=True, text=True
        )
    except OSError:
        return ""
    return head.stdout.strip() + ("+" if state.stdout.strip() else "") if head.returncode == 0 else ""
