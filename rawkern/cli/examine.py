"""The examinations of `rawkern doctor`: each returns findings, even if what it examines is broken."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rawkern.base import environment, pip
from rawkern.base.nearest import did_you_mean
from rawkern.cli.driver import Driver
from rawkern.cli.probe import probe
from rawkern.cli.text import amount, duration, plural

OK, NOTE, FAULT = "ok", "note", "fault"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report: working, an optional part that is missing, or a fault."""

    part: str
    state: str
    text: str
    fix: str = ""  # what to do, such as a pip line
    details: dict[str, Any] = field(default_factory=dict)  # for JSON


#: (module, requirement as pyproject.toml has it, what it is needed for)
LIBRARIES = (
    ("torch", "torch>=2.10", "tensors"),
    ("numpy", "numpy>=2", "arrays"),
    ("ml_dtypes", "ml_dtypes>=0.5", "bfloat16 and float8 outside torch"),
    ("llvmlite", "llvmlite>=0.50,<0.51", "kernels on the CPU"),
    ("platformdirs", "platformdirs>=4", "the cache's location"),
    ("tree_sitter", "tree-sitter>=0.25", "derivatives of kernels and elementwise expressions"),
    ("tree_sitter_cuda", "tree-sitter-cuda>=0.21", "derivatives of kernels and elementwise expressions"),
)
_PYTHON = (3, 11)


def extra(driver: Driver) -> str:
    """The extra of rawkern that fits: for torch's CUDA version if it has one, else for the driver's."""
    return pip.fitting(pip.torch_cuda() or _dotted(driver.cuda)) if driver.gpus else "cpu"


# Python and libraries -------------------------------------------------------------------------------------------


def libraries(driver: Driver) -> list[Finding]:
    """Python, and the libraries of rawkern. Each is imported: one that does not load counts as missing."""
    version = platform.python_version()
    details = {"version": version, "executable": sys.executable}
    if sys.version_info < _PYTHON:
        found = [Finding("python", FAULT, f"{version}, too old", "install Python 3.11 or later", details)]
    else:
        found = [Finding("python", OK, f"{version}, {sys.executable}", details=details)]
    found += [_library(*row) for row in LIBRARIES]
    fitting = extra(driver) if driver.gpus else "cuda13"
    cupy = _library("cupy", f"cupy-{fitting}x>=14", "kernels on a GPU", pip.command(fitting))
    needed = driver.gpus or cupy.state != FAULT
    return [*found, cupy if needed else replace(cupy, state=NOTE)]


def _library(module: str, requirement: str, purpose: str, fix: str = "") -> Finding:
    fix = fix or f'pip install "{requirement}"'
    try:
        imported = importlib.import_module(module)
        version = str(getattr(imported, "__version__", "") or _installed(module).rpartition(" ")[2])
    except Exception as error:  # a wheel for another Python, CUDA or C library can raise anything while it loads
        known = _installed(module)
        what = f"{known} is installed but cannot be imported" if known else "not installed"
        return Finding(module, FAULT, f"{what}; needed for {purpose} [{_first_line(error)}]", fix)
    details: dict[str, Any] = {"version": version}
    if not _fits(version, requirement):
        return Finding(module, FAULT, f"{version}, rawkern needs {requirement}", fix, details)
    if module == "torch":
        details["cuda"] = built = pip.torch_cuda()
        return Finding(module, OK, f"{version}, {f'with CUDA {built}' if built else 'without CUDA'}", details=details)
    return Finding(module, OK, version, details=details)


def _installed(module: str) -> str:
    """The installed distribution of a module with its version, "" if there is none."""
    for name in importlib.metadata.packages_distributions().get(module, ()):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{name} {importlib.metadata.version(name)}"
    return ""


def _fits(version: str, requirement: str) -> bool:
    have = _numbers(version)
    return all(
        have >= _numbers(limit) if sign == ">=" else have < _numbers(limit)
        for sign, limit in re.findall(r"(>=|<)([\d.]+)", requirement)
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


# The compiler ---------------------------------------------------------------------------------------------------

#: (header, what it is for, fault if missing; else a note)
_HEADERS = (
    ("cuda_fp16.h", "half types, rawkern's built-in operators", FAULT, ""),
    ("crt/mma.h", "tensor cores: <mma.h>", NOTE, ""),
    ("cooperative_groups.h", "groups of threads", NOTE, ""),
    ("cub/cub.cuh", "CUB", NOTE, ""),
    ("cuda/std/version", "libcu++: <cuda/std/...>, <cuda/atomic>", NOTE, ""),
    ("curand_kernel.h", "cuRAND's device functions (optional)", NOTE, "curand"),
)


def toolchain(driver: Driver) -> list[Finding]:
    """NVRTC and CUDA's headers."""
    from rawkern.compile import toolchain

    fix = pip.command(extra(driver))
    try:
        supported = toolchain.nvrtc().architectures
        found = toolchain.toolchain()
    except Exception as error:
        return [Finding("nvrtc", FAULT, _first_line(error), fix)]
    version = ".".join(map(str, found.version))
    details = {"version": version, "library": found.library, "architectures": list(supported)}
    where = f", {found.library}" if found.library else ""
    text = f"{version}, sm_{min(supported)} to sm_{max(supported)}{where}"
    findings = [Finding("nvrtc", OK, text, details=details)]
    if driver.gpus and found.version[0] > driver.cuda[0]:
        text += f"; this driver supports CUDA only up to {_dotted(driver.cuda)} and cannot load its machine code"
        findings = [Finding("nvrtc", FAULT, text, f"install a newer driver, or: {fix}", details)]
    for header, purpose, state, its_extra in _HEADERS:
        path = next((p for d in found.include_dirs if os.path.isfile(p := os.path.join(d, header))), None)
        if path is not None:
            findings.append(Finding("headers", OK, f"{header}: {path}", details={"header": header, "path": path}))
        else:
            its_fix = pip.command(its_extra) if its_extra else fix
            findings.append(Finding("headers", state, f"no {header}; for {purpose}", its_fix, {"header": header}))
    return findings


# GPUs -----------------------------------------------------------------------------------------------------------


def driver_and_gpus(driver: Driver) -> list[Finding]:
    """The driver, the GPUs, and whether CUDA's libraries fit the driver; a machine without a GPU is not a fault."""
    details = {"release": driver.release, "cuda": _dotted(driver.cuda)}
    if driver.problem:
        why = "kernels run on the CPU"
        state = NOTE if "does not start" not in driver.problem else FAULT
        fix = "restart the machine after a driver update, or reinstall the driver" if state == FAULT else ""
        return [Finding("driver", state, f"{driver.problem}; {why}", fix, details)]
    text = f"{driver.release or 'unknown release'}, supports CUDA up to {details['cuda']}"
    findings = [Finding("driver", OK, text, details=details)]
    findings += _too_old(driver)
    for index, gpu in enumerate(driver.gpus):
        capability = _dotted(gpu.capability)
        findings.append(Finding(
            f"cuda:{index}", OK,
            f"{gpu.name}, compute capability {capability}, {amount(gpu.memory)}, {gpu.multiprocessors} multiprocessors",
            details={"name": gpu.name, "capability": capability, "bytes": gpu.memory,
                     "multiprocessors": gpu.multiprocessors},
        ))  # fmt: skip
    return findings


def _too_old(driver: Driver) -> list[Finding]:
    """Faults of libraries that were built for a CUDA version newer than the driver's, or without CUDA."""
    faults = []
    built, has = pip.torch_cuda(), _dotted(driver.cuda)
    if "torch" in sys.modules and built is None:
        fix = "pip install torch from the index for your CUDA: https://pytorch.org/get-started/locally"
        faults.append(Finding("torch", FAULT, "built without CUDA, though there is a GPU", fix))
    elif built is not None and int(built.split(".")[0]) > driver.cuda[0]:
        fix = f"install a driver for CUDA {built}, or torch for CUDA {driver.cuda[0]}"
        faults.append(
            Finding("torch", FAULT, f"built for CUDA {built}; the driver supports CUDA only up to {has}", fix)
        )
    runtime = _cupy_runtime(sys.modules.get("cupy"))
    if runtime and runtime > driver.cuda[0]:
        other = f"pip uninstall cupy-cuda{runtime}x; {pip.command(f'cuda{driver.cuda[0]}')}"
        fix = f"install a newer driver, or: {other}"
        faults.append(
            Finding("cupy", FAULT, f"built for CUDA {runtime}; the driver supports CUDA only up to {has}", fix)
        )
    return faults


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _cupy_runtime(cupy: Any) -> int:
    """The CUDA major version that CuPy was built for; 0 if CuPy is not installed."""
    with contextlib.suppress(Exception):
        return int(cupy.cuda.get_local_runtime_version()) // 1000
    return 0


# Cache, CPU, engines --------------------------------------------------------------------------------------------


def cache() -> list[Finding]:
    """The directory of compiled code: whether rawkern can write there, and whether other users cannot."""
    from rawkern.base import cache
    from rawkern.errors import RawkernError

    try:
        folder = cache.directory()
    except RawkernError as error:
        what, _, fix = str(error).rpartition("; ")
        return [Finding("cache", FAULT, what, fix, {"directory": str(cache.configured()), "safe": False})]
    except ImportError as error:
        fix = 'pip install "platformdirs>=4", or set RAWKERN_CACHE_DIR'
        return [Finding("cache", FAULT, f"its location is not known [{_first_line(error)}]", fix)]
    found = cache.info()
    writable = folder.is_dir() and _takes_files()
    details = {
        "directory": str(folder),
        "entries": found.entries,
        "bytes": found.nbytes,
        "safe": True,
        "writable": writable,
    }
    if not writable:
        fix = "set RAWKERN_CACHE_DIR to a directory that only you can write to, or make room on the disk"
        text = f"{folder} is not writable: each process compiles again"
        return [Finding("cache", NOTE, text, fix, details)]
    text = f"{folder}, {plural(found.entries, 'entry')}, {amount(found.nbytes)}"
    return [Finding("cache", OK, text, details=details)]


def _takes_files() -> bool:
    from rawkern.base import cache

    key = f"doctor-{os.getpid()}"
    cache.put(key, b"doctor")
    kept = cache.get(key) == b"doctor"
    for entry in cache.entries():
        if entry.key == key:
            entry.path.unlink()
    return kept


_SHOWN_FEATURES = ("sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512dq", "avx512bw", "neon", "fullfp16", "sve")


def cpu() -> list[Finding]:
    """The CPU as LLVM names it, and the threads that launches use."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):
        threads = torch.get_num_threads()  # type: ignore[union-attr]
    details: dict[str, Any] = {"machine": platform.machine(), "threads": threads}
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        text = f"{sys.platform} on {platform.machine()}: the CPU engine runs on Linux on x86-64 and AArch64"
        return [Finding("cpu", FAULT, text, "use one of those, or a container", details)]
    try:
        from rawkern.base.llvm import host

        known = host()
    except Exception as error:
        text = f"{plural(threads, 'thread')}; features unknown [{_first_line(error)}]"
        return [Finding("cpu", NOTE, text, details=details)]
    have = [name for name in _SHOWN_FEATURES if f"+{name}" in known.features.split(",")]
    details |= {"name": known.name, "features": have}
    return [Finding("cpu", OK, f"{known.name}, {plural(threads, 'thread')}, {' '.join(have)}", details=details)]


_VARIABLE = re.compile(rf"\b{environment.PREFIX}[A-Z_]+")
_ABOVE = "fix the faults above first"


def variables() -> list[Finding]:
    """Environment variables with rawkern's prefix that rawkern does not read."""
    known = (*environment.VARIABLES, "RAWKERN_RANDOM_EFFORT")  # of rawkern's own tests
    wrong = [name for name in os.environ if name.startswith(environment.PREFIX) and name not in known]
    said = {name: did_you_mean(name, environment.VARIABLES) for name in sorted(wrong)}
    return [
        Finding("environment", NOTE, f"{name} is set, which rawkern does not read{meant}", f"unset {name}")
        for name, meant in said.items()
    ]


def engine(device: str) -> Finding:
    """The result of running an engine."""
    answer = probe(device)
    part = f"{device} engine"
    if "error" in answer:
        said = answer["error"].splitlines()[0]
        found = _VARIABLE.search(said)
        way = f"remove {found[0]} from the environment, or set it to a valid value" if found else _ABOVE
        return Finding(part, FAULT, said, way, answer)
    text = f"first launch of a kernel {duration(answer['first'])}, later ones {duration(answer['launch'])}"
    return Finding(part, OK, text, details=answer)


@contextlib.contextmanager
def usable_cache(findings: list[Finding]) -> Iterator[None]:
    """Give the examinations that follow a temporary cache if the user's cannot be used."""
    if all(finding.state != FAULT for finding in findings):
        yield
        return
    import tempfile

    before = os.environ.get("RAWKERN_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="rawkern-doctor-") as folder:
        os.environ["RAWKERN_CACHE_DIR"] = folder
        try:
            yield
        finally:
            del os.environ["RAWKERN_CACHE_DIR"]
            if before is not None:
                os.environ["RAWKERN_CACHE_DIR"] = before
