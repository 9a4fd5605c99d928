"""load_package: kernels that `rawkern build --package` compiled, as a module."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from rawkern.base.api_boundary import api_boundary
from rawkern.base.nearest import did_you_mean
from rawkern.compile import packages, source
from rawkern.module import PathLike, RawModule


@api_boundary
def load_package(
    place: PathLike, name: str | None = None, *, enable_cooperative_groups: bool = False, strided: bool = False
) -> RawModule:
    """Return a module of kernels that ``rawkern build --package`` compiled; needs no compiler, headers or CuPy's NVRTC.

    Parameters
    ----------
    place : str or path
        The folder, or the importable package that it is, by its dotted name: ``"mykernels"``, or ``__name__`` in that
        package's own ``__init__.py``. A string with a separator, and every ``pathlib.Path``, is a folder; one that is
        not absolute is looked for in the current directory and then beside the file that calls this.
    name : str, optional
        The module, named like its source, without ``.cu``; optional if the folder has only one.
    enable_cooperative_groups, strided
        As for `RawModule`.

    Returns
    -------
    RawModule
        Like the result of `load` for the source: kernels by name, and the template instances, variables and constants
        that it was built with. Each file is compared with the manifest's SHA-256 when it is loaded.

    Raises
    ------
    FileNotFoundError, ModuleNotFoundError, ValueError
        There is no such folder or package, or no such module in it.
    RawkernError
        A manifest of another format, or one that cannot be read.
    """
    folder = _folder(place, sys._getframe(2).f_globals.get("__file__"))  # the API boundary is between
    manifest = _manifest(folder, name)
    packages.package(source.from_path(manifest))
    return RawModule(path=manifest, enable_cooperative_groups=enable_cooperative_groups, strided=strided)


def _folder(place: PathLike, caller: str | None) -> Path:
    text = os.fspath(place)
    if isinstance(place, str) and all(part.isidentifier() for part in text.split(".")):
        return _package(text)
    beside = Path(caller).resolve().parent if caller else None
    for base in (Path.cwd(), beside):
        if base is not None and (base / text).is_dir():
            return base / text
    places = f"{os.getcwd()}{f', or in {beside}, the folder of the calling file' if beside else ''}"
    raise FileNotFoundError(f"there is no folder {text!r} in {places}")


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    hint = f"; for a folder pass './{name}' or a pathlib.Path" if os.path.isdir(name) else ""
    if spec is None:
        raise ModuleNotFoundError(f"there is no package {name!r} to import{hint}", name=name)
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not folders:
        raise ValueError(f"{name!r} is a module, not a package; only a package has a folder for kernels{hint}")
    found = next((folder for folder in folders if folder.is_dir()), None)
    if found is None:
        raise ValueError(f"the package {name!r} is in {folders[0]}, which is not a folder on disk; install it unzipped")
    return found


def _manifest(folder: Path, name: str | None) -> Path:
    there = sorted(file for file in folder.glob("*.json") if source.from_path(file).kind == "manifest")
    names = ", ".join(file.stem for file in there) or "none"
    if name is None and len(there) != 1:
        what = "has several modules; name one" if there else "has no module that rawkern build --package wrote"
        raise ValueError(f"{folder} {what}{f': {names}' if there else ''}")
    found = there if name is None else [file for file in there if file.stem == name]
    if not found:
        raise ValueError(
            f"{folder} has no module {name!r}; it has {names}{did_you_mean(name, [file.stem for file in there])}"
        )
    return found[0]
