"""An extension in use: its translation run as a module, and run again when a source has changed."""

from __future__ import annotations

import functools
import linecache
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rawkern.base.dynamo import untraced
from rawkern.compile.files import read_text
from rawkern.extensions.cpp import Kernels
from rawkern.extensions.exports import OTHER
from rawkern.extensions.modules import Source, translated
from rawkern.extensions.program import Translation
from rawkern.extensions.units import read_of

_EVERY = 0.1  # seconds between looks at the files


class Host:
    """The host functions of sources, by name; they are those of the files as they are now."""

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        options: Sequence[str] = (),
        include_dirs: Sequence[str] = (),
        name: str = "extension",
        functions: Sequence[str] | None = None,
    ) -> None:
        self.sources, self.options, self.include_dirs = tuple(sources), tuple(options), tuple(include_dirs)
        self.name, self.functions = name, functions
        self.lock = threading.RLock()
        self.translation = Translation()
        self.namespace: dict[str, Any] = {}
        self.reads: dict[str, Any] = {}  # what the translation took of each file, once an edit has asked for it
        self.stamps: dict[str, tuple[int, int] | None] = {}
        self.next = 0.0
        self.read()

    def read(self) -> None:
        """Translate the sources and run the module."""
        with self.lock:
            found = self._again() or translated(
                self.sources,
                options=self.options,
                include_dirs=self.include_dirs,
                name=self.name,
                functions=self.functions,
            )
            files = [*(one.path for one in self.sources if one.path), *found.files]
            self.stamps = {file: _stamp(file) for file in files}
            for file, text in found.texts.items():  # an edit since then is seen at the next look
                if read_text(file) != text:
                    self.stamps[file] = None
            shown = f"<rawkern extension {self.name}>"
            linecache.cache[shown] = (len(found.code), None, found.code.splitlines(keepends=True), shown)
            namespace: dict[str, Any] = {"__name__": self.name, "__file__": shown}
            exec(compile(found.code, shown, "exec"), namespace)
            self.translation, self.namespace = found, namespace
            self.next = time.monotonic() + _EVERY

    def _again(self) -> Translation | None:
        """The translation of before, where an edit has left what it is made of alone."""
        texts = {file: read_text(file) for file in self.translation.texts}
        before = self.reads or self._reads(self.translation.texts)
        self.reads = self._reads(texts)
        if texts and self.reads == before:
            return replace(self.translation, texts=texts)
        self.reads = {}
        return None

    def _reads(self, texts: dict[str, str]) -> dict[str, Any]:
        return {file: read_of(file, text, self.include_dirs) for file, text in texts.items()}

    def look(self) -> None:
        """Read the sources again if one has changed."""
        with self.lock:
            if any(_stamp(file) != stamp for file, stamp in self.stamps.items()):
                self.read()
            self.next = time.monotonic() + _EVERY

    @property
    def exports(self) -> list[str]:
        return list(dict.fromkeys(self.translation.exports))

    def is_function(self, name: str) -> bool:
        """Whether a name is that of a function, not of a class or of an enumerator."""
        found = self.now(name)
        return callable(found) and not isinstance(found, type)

    def now(self, name: str) -> Any:
        """What a name means in the sources as they were read last."""
        other = self.namespace.get(OTHER)
        return other[name] if other is not None and name in other else self.namespace[name]

    def function(self, name: str) -> Callable[..., Any]:
        """A function that is that of the sources as they are at each call."""
        first = self.now(name)
        clock = time.monotonic

        @untraced
        def call(*arguments: Any, **keywords: Any) -> Any:
            if clock() >= self.next:
                self.look()
            return self.now(name)(*arguments, **keywords)

        functools.update_wrapper(call, first)
        call.__module__ = self.name
        return call


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


class Extension:
    """An extension: its functions are attributes, under the names that it binds them to.

    Parameters
    ----------
    host : object
        The translated host functions; `rawkern.cpp_extension.load` makes it.
    doc : str
        Its docstring.
    """

    def __init__(self, host: Host, doc: str = "") -> None:
        self._host = host
        self.__name__ = host.name
        self.__doc__ = doc or f"The extension {host.name}."
        for name in host.exports:
            if host.is_function(name):
                self.__dict__[name] = host.function(name)

    def __getattr__(self, name: str) -> Any:
        host = self.__dict__.get("_host")
        if host is None or (name.startswith("__") and name not in host.exports):
            raise AttributeError(name)
        host.look()
        if name in host.exports and not host.is_function(name):
            return host.now(name)
        if name in host.exports:
            function = self.__dict__[name] = host.function(name)
            return function
        why = host.translation.untranslated.get(name)
        there = ", ".join(host.exports) or "none"
        raise AttributeError(why or f"the extension {host.name} has no function {name!r}; it has: {there}")

    def __dir__(self) -> list[str]:
        return [*self._host.exports, "source", "untranslated", "kernels"]

    def __repr__(self) -> str:
        return f"<extension {self._host.name}: {', '.join(self._host.exports)}>"

    @property
    def source(self) -> str:
        """The Python that runs, as ``rawkern port`` prints it."""
        return self._host.translation.code

    @property
    def untranslated(self) -> dict[str, str]:
        """The functions that are not translated, with the reason."""
        return dict(self._host.translation.untranslated)

    @property
    def kernels(self) -> Any:
        """The `rawkern.RawModule` of the kernels; of several sources, the first with kernels."""
        for value in self._host.namespace.values():
            if isinstance(value, Kernels):
                return value.module
        raise AttributeError(f"no function of the extension {self._host.name} launches a kernel")


def summary(extension: Extension) -> str:
    """What has been translated, and what not."""
    host = extension.__dict__["_host"]
    reasons = "".join(f"\n  {reason}" for reason in host.translation.untranslated.values())
    return f"rawkern translated the extension {host.name}: {', '.join(host.exports)}{reasons}"
