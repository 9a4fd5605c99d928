"""``rawkern.load``: a file's kernels and, of a PyTorch extension, its host functions."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rawkern.base.api_boundary import api_boundary
from rawkern.base.dynamo import untraced
from rawkern.launch.builds import PathLike, Unit
from rawkern.module import RawModule, find_source


class ExtensionModule(RawModule):
    """The kernels of an extension's file, with its host functions as attributes."""

    host: Any

    @classmethod
    def of_file(cls, module: RawModule, host: Any) -> ExtensionModule:
        """Return a module's kernels with host functions."""
        made = cls.of_unit(module.unit)
        assert isinstance(made, ExtensionModule)
        made.__dict__["host"] = host
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        sources, options, folders, name = self.host.sources, self.host.options, self.host.include_dirs, self.host.name
        return _again, (self.unit, sources, options, folders, name)

    @untraced
    @api_boundary
    def __getattr__(self, name: str) -> Any:
        host = self.__dict__.get("host")
        if host is not None and (not name.startswith("_") or name in host.exports):
            host.look()
            if name in host.exports and not host.is_function(name):
                return host.now(name)
            if name in host.exports:
                function = self.__dict__[name] = host.function(name)
                return function
        return super().__getattr__(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.host.exports]

    @property
    def source(self) -> str:
        """The Python of the host functions."""
        return self.host.translation.code


def _again(unit: Unit, sources: Any, options: Any, folders: Any, name: str) -> ExtensionModule:
    from rawkern.extensions.extension import Host  # a file without host functions does without

    host = Host(sources, options=options, include_dirs=folders, name=name)
    return ExtensionModule.of_file(RawModule.of_unit(unit), host)


@api_boundary
def load(
    path: PathLike,
    *,
    options: Sequence[str] = (),
    include_dirs: Sequence[PathLike] = (),
    name_expressions: Iterable[str] | None = None,
    enable_cooperative_groups: bool = False,
    strided: bool = False,
) -> RawModule:
    """Return the module of a ``.cu`` file; a bare name, such as ``"square"``, is one of rawkern's own files.

    Parameters
    ----------
    path : path
        The file. One that is not absolute is looked for in the current directory and then beside the file that calls
        this; a bare name without suffix among rawkern's own, too.
    options, include_dirs, name_expressions, enable_cooperative_groups, strided
        As for `RawModule`.

    Returns
    -------
    RawModule
        It is compiled at its first use, and again when the file or a local header it includes has changed. Of a file of
        a PyTorch extension, its attributes are the host functions, too, as `rawkern.cpp_extension.load` has them.

    Raises
    ------
    FileNotFoundError
        The file does not exist.
    """
    where = find_source(path, sys._getframe(2).f_globals.get("__file__"))  # the API boundary is between
    module = RawModule(
        path=where,
        options=options,
        include_dirs=include_dirs,
        name_expressions=name_expressions,
        enable_cooperative_groups=enable_cooperative_groups,
        strided=strided,
    )
    if not _has_host_functions(where):
        return module
    folders = [os.fspath(one) for one in include_dirs]
    name = os.path.splitext(os.path.basename(os.fspath(where)))[0]
    from rawkern.extensions.modules import Source

    return _again(module.unit, [Source(os.path.abspath(where))], tuple(options), folders, name)


def _has_host_functions(path: PathLike) -> bool:
    """Whether a file is one of a PyTorch extension, at a glance."""
    try:
        with open(path, errors="replace") as file:
            text = file.read()
    except OSError:
        return False
    return ("torch" in text or "ATen" in text or "at::" in text) and _INCLUDES.search(text) is not None


_INCLUDES = re.compile(r'^\s*#\s*include\s*[<"](?:torch|ATen|c10|THC|pybind11)/', re.M)
