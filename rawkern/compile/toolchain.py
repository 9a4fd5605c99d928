"""Which NVRTC there is, and where CUDA's own headers are.

Loading NVRTC and reading headers takes time that a program found in the disk cache need not pay. So what was found
once is kept in the cache: the library's path, size and time stamp, and the header directories with the stamps of one
file each. The record's key holds everything the search depends on (environment variables, ``sys.path`` and the time
stamps of its package folders), and its stamps are checked before it is believed: a compiler or header package that was
replaced, added or removed is seen.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rawkern.base import cache, pip
from rawkern.base.forking import Lock
from rawkern.compile.libnvrtc import Nvrtc
from rawkern.errors import MissingDependencyError


@dataclass(frozen=True)
class Toolchain:
    """The compiler and the headers that belong to it."""

    version: tuple[int, int]  # NVRTC's release, such as (13, 0)
    library: str  # path of libnvrtc, "" if unknown
    include_dirs: tuple[str, ...]
    stamps: tuple[tuple[str, int, int], ...]  # path, mtime in ns, size of the library and a file of each directory

    @property
    def identity(self) -> str:
        """A text that changes whenever the compiler or its headers do."""
        return json.dumps([self.version, self.include_dirs, self.stamps])


_MAJORS = (13, 12)  # of CUDA, the best first
_VARIABLES = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CONDA_PREFIX")  # where a toolkit is
_RECORD = 4  # raised when what is searched for changes
_lock = Lock()
_known: Toolchain | None = None


@functools.cache
def nvrtc() -> Nvrtc:
    """Load NVRTC; needs no GPU. MissingDependencyError if it is not installed or cannot be loaded."""
    reasons = []
    for path in _libraries():
        try:
            return Nvrtc(path)
        except (OSError, AttributeError) as error:
            if os.path.isabs(path):
                reasons.append(str(error))
    why = f"cannot be loaded [{'; '.join(reasons)}]" if reasons else "is not installed"
    raise MissingDependencyError(f"compiling CUDA needs NVIDIA's NVRTC, which {why}; run: {pip.command()}")


def _libraries() -> Iterator[str]:
    """Paths where NVRTC is, then names that the system's loader may know; best first."""
    majors = sorted(_MAJORS, key=lambda major: major != _cupy_major())  # machine code for a GPU has to fit its driver
    for major in majors:
        name = f"libnvrtc.so.{major}"
        folders = [os.path.join(p, "nvidia", wheel, "lib") for p in sys.path for wheel in (f"cu{major}", "cuda_nvrtc")]
        folders += [os.path.join(root, lib) for root in _variables() for lib in ("lib64", "lib")]
        yield from (path for folder in folders if os.path.isfile(path := os.path.abspath(os.path.join(folder, name))))
        yield name
        yield from sorted(glob.glob(f"/usr/local/cuda*/lib64/{name}"), reverse=True)


def _cupy_major() -> int:
    """The CUDA major version that CuPy's wheel was built for, 0 without one; CuPy is not imported."""
    try:
        with open(os.path.join(_cupy_folder(), ".data", "_wheel.json"), encoding="utf-8") as file:
            return int(json.load(file)["cuda"].split(".")[0])
    except (OSError, ValueError, KeyError):
        return 0


def toolchain() -> Toolchain:
    """Return the toolchain, from the cache's record where that still holds."""
    global _known
    if _known is None:
        with _lock:
            if _known is None:
                key = "toolchain-" + _surroundings()
                _known = _recorded(key) or _search(key)
    return _known


def _surroundings() -> str:
    """Hash what the search for NVRTC and the headers depends on."""
    parts: list[object] = [
        _RECORD,
        sys.prefix,
        sys.version,
        [os.environ.get(name) for name in (*_VARIABLES, "LD_LIBRARY_PATH")],
        _linked("/usr/local/cuda"),
    ]
    for folder in sys.path:
        for packages in (("nvidia", "nvidia/cu13", "nvidia/cu13/lib"), ("cupy",), ("cuda",), ("cutlass_library",)):
            for path in (f"{folder or '.'}/{package}" for package in packages):
                if not os.access(path, os.F_OK):  # an error of `stat` takes three times as long
                    break  # what lies in a folder that is not there is not there either
                parts.append(_stamp(path))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _linked(path: str) -> str:
    """Where the links at a path lead."""
    for _ in range(40):
        try:
            path = os.path.join(os.path.dirname(path), os.readlink(path))
        except OSError:
            break
    return path


def _recorded(key: str) -> Toolchain | None:
    stored = cache.get_record(key)
    if stored is None:
        return None
    record = stored[0]
    try:
        (major, minor), stamps = record["version"], tuple(map(tuple, record["stamps"]))
        found = Toolchain((major, minor), record["library"], tuple(record["include_dirs"]), stamps)
        return found if all(_stamp(stamp[0]) == stamp for stamp in stamps) else None
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def _search(key: str) -> Toolchain:
    loaded = nvrtc()
    version = loaded.version
    library = loaded.library if os.path.isabs(loaded.library) else _loaded_library(version[0])
    include_dirs, markers = _headers(version, library)
    if cupy := _cupy_headers():  # <cupy/complex.cuh> and its kin, last: they shadow none of CUDA's
        include_dirs, markers = (*include_dirs, cupy), [*markers, os.path.join(cupy, "cupy", "complex.cuh")]
    if cutlass := _cutlass_headers():
        include_dirs, markers = (*include_dirs, cutlass), [*markers, os.path.join(cutlass, _CUTLASS)]
    stamps = tuple(stamp for path in ((library, *markers) if library else markers) if (stamp := _stamp(path)))
    found = Toolchain(version, library, include_dirs, stamps)
    if library:  # without its stamp, a replaced library would go unnoticed
        cache.put_record(key, asdict(found))
    return found


def _stamp(path: str) -> tuple[str, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return path, status.st_mtime_ns, status.st_size


def _loaded_library(major: int) -> str:
    """Return the path of the NVRTC library in this process, "" if it is not clear."""
    try:
        with open("/proc/self/maps") as file:
            paths = {line.split(maxsplit=5)[5].strip() for line in file if f"/libnvrtc.so.{major}" in line}
    except (OSError, IndexError):
        return ""
    return paths.pop() if len(paths) == 1 else ""


# --- Headers ---------------------------------------------------------------------------------------------

# One file of each part that a header directory may hold.
_RUNTIME, _CRT, _CCCL, _CURAND = "cuda_runtime_api.h", "crt/mma.h", "cuda/std/version", "curand_kernel.h"
_CUTLASS = "cute/tensor.hpp"
_OWN = 3  # the best grade of a release
# CUDA 12 has a folder for each of its wheels.
_WHEELS_12 = ("cuda_runtime", "cuda_nvcc", "cuda_cccl", "cuda_crt", "curand")


def _headers(version: tuple[int, ...], library: str) -> tuple[tuple[str, ...], list[str]]:
    """Choose header directories, and a file in each: of NVRTC's own release where there is one."""
    beside = _beside(library)
    chosen, markers, whole = _chosen(version, beside)
    if not whole:  # NVIDIA's own finder takes longer than all the rest of the search
        chosen, markers, _ = _chosen(version, [*beside, *_pathfinder_roots(), *_installed()])
    return tuple(dict.fromkeys(chosen)), list(dict.fromkeys(markers))


def _chosen(version: tuple[int, ...], paths: list[str]) -> tuple[list[str], list[str], bool]:
    """The best of these directories, a file in each, and whether all parts are there, of NVRTC's own release."""
    roots = [root for root in dict.fromkeys(map(os.path.realpath, paths)) if os.path.isdir(root)]
    chosen: list[str] = []
    markers: list[str] = []
    own: list[bool] = []

    def choose(marker: str, folders: list[str]) -> None:
        having = [folder for folder in folders if os.path.isfile(os.path.join(folder, marker))]
        if having:
            best = max(having, key=lambda folder: (_closeness(folder, version), -having.index(folder)))
            chosen.append(best)
            markers.append(os.path.join(best, marker))
            own.append(_closeness(best, version) == _OWN)

    choose(_RUNTIME, roots)
    choose(_CRT, chosen + roots)
    with_cccl = [folder for root in [*chosen, *roots] for folder in (os.path.join(root, "cccl"), root)]
    bundled = _cupy_bundle()
    if bundled and not any(
        _closeness(folder, version) and os.path.isfile(os.path.join(folder, _CCCL)) for folder in with_cccl
    ):
        chosen += bundled
        markers.append(os.path.join(bundled[0], _CCCL))
    else:
        choose(_CCCL, with_cccl)
    choose(_CURAND, chosen + roots)
    return chosen, markers, len(own) == 4 and all(own)


def _beside(library: str) -> list[str]:
    """List include directories of wheels, best first."""
    roots: list[str] = []
    if library:
        lib = os.path.dirname(os.path.realpath(library))
        roots.append(os.path.join(lib, "..", "include"))
        roots += glob.glob(os.path.join(lib, "..", "targets", "*-linux", "include"))
        roots += [os.path.join(lib, "..", "..", name, "include") for name in _WHEELS_12]  # lib is nvidia/cuda_nvrtc/lib
    for folder in sys.path:
        nvidia = os.path.join(folder, "nvidia")
        roots += sorted(glob.glob(os.path.join(nvidia, "cu[0-9]*", "include")), reverse=True)
        roots += [os.path.join(nvidia, name, "include") for name in _WHEELS_12]
    return roots


def _installed() -> list[str]:
    """List include directories of toolkits, best first."""
    roots: list[str] = []
    for root in _variables():
        roots += [os.path.join(root, "include"), *glob.glob(os.path.join(root, "targets", "*-linux", "include"))]
    toolkits = sorted(glob.glob("/usr/local/cuda-*/include"), reverse=True)
    return [*roots, "/usr/local/cuda/include", *toolkits, "/usr/include"]


def _variables() -> list[str]:
    """The toolkits that environment variables name."""
    return [os.environ[name] for name in _VARIABLES if os.environ.get(name)]


def _pathfinder_roots() -> list[str]:
    """Ask NVIDIA's own finder, which comes with CuPy; it knows layouts that this list does not."""
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError:
        return []
    roots = []
    for name in ("cudart", "nvcc", "cccl"):
        try:
            found = find_nvidia_header_directory(name)
        except Exception:  # an unknown name, or headers that its checks reject: others may have them
            continue
        if found:
            roots.append(found)
    return roots


def _cupy_folder() -> str:
    """Return where CuPy is installed, "" if it is not; it is not imported."""
    found = (os.path.join(folder, "cupy") for folder in sys.path)
    return next((path for path in found if os.path.isdir(os.path.join(path, "_core"))), "")


def _cupy_headers() -> str:
    """Return the directory of CuPy's own headers, "" if there is none."""
    folder = os.path.join(_cupy_folder(), "_core", "include")
    return folder if os.path.isfile(os.path.join(folder, "cupy", "complex.cuh")) else ""


def _cutlass_headers() -> str:
    """Return the directory of the headers in CUTLASS's package, "" if it is not installed."""
    folders = (os.path.join(folder, "cutlass_library", "source", "include") for folder in sys.path)
    return next((path for path in folders if os.path.isfile(os.path.join(path, _CUTLASS))), "")


def _cupy_bundle() -> list[str]:
    """Return the directories of the CCCL that CuPy ships."""
    base = os.path.join(_cupy_headers(), "cupy", "_cccl")
    return [folder for name in ("libcudacxx", "cub", "thrust") if os.path.isdir(folder := os.path.join(base, name))]


def _closeness(folder: str, version: tuple[int, ...]) -> int:
    """Grade a header directory's release: 3 for NVRTC's own, 2 for its major one, 1 if unknown, 0 for another."""
    wheels = os.path.dirname(os.path.dirname(folder))
    for parent in (folder, os.path.dirname(folder), os.path.join(wheels, "cuda_runtime", "include")):
        release = _release(os.path.join(parent, _RUNTIME))
        if release:
            return _OWN if release == version else 2 if release[0] == version[0] else 0
    return 1


def _release(path: str) -> tuple[int, int] | None:
    """The release that a runtime's header is of."""
    stamp = _stamp(path)
    return _read_release(stamp) if stamp else None


@functools.cache
def _read_release(stamp: tuple[str, int, int]) -> tuple[int, int] | None:
    with open(stamp[0], encoding="utf-8", errors="replace") as file:
        match = re.search(r"^#define\s+CUDART_VERSION\s+(\d+)", file.read(), re.M)
    return (int(match[1]) // 1000, int(match[1]) % 1000 // 10) if match else None
