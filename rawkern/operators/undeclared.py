"""Writes to arguments that an operator does not declare: eager code would see them, and compiled code not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from rawkern.arguments.slow_path import arrange
from rawkern.base import operator_state
from rawkern.base import torch_private as private
from rawkern.base.ctype import CType
from rawkern.errors import LaunchError
from rawkern.launch import intercept
from rawkern.operators.declaration import Declaration


class Declared:
    """The function of an operator, which may change what `mutates_args` names.

    Launches count a change of each tensor passed to a pointer that is not const. If that tensor is an argument that is
    not to be changed, the function runs under a hook from then on, which asks the kernel's code before each launch.
    """

    def __init__(self, declaration: Declaration, function: Callable[..., Any], always: bool = False) -> None:
        self.declaration, self.function, self._always = declaration, function, always
        self._kept = [k for k, p in enumerate(declaration.params) if p.is_tensor and not p.mutated]
        self._lists = any(declaration.params[k].kind == "list" for k in self._kept)
        self._looks = True  # at the first call, and where that has found a pointer that is not const

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it."""
        if self._looks:
            with self.looked_through(args) as look:
                result = self.function(*args, **kwargs)
            self._looks = look.finished() or self._always
            return result
        given = self._given(args)
        before = _versions(given)
        result = self.function(*args, **kwargs)
        now = _versions(given)
        if now != before:
            changed = [t for t, a, b in zip(given, before, now, strict=True) if a != b]
            if any(t is c for _, t in self._named(args) for c in changed):
                self._find(args, kwargs)
        return result

    def _find(self, args: Sequence[Any], kwargs: Any) -> None:
        """Reject a function that changed arguments, unless it only read them through pointers that are not const."""
        self._looks = True
        with self.looked_through(args, launching=False) as look, operator_state.inside_op():
            self.function(*args, **kwargs)
        look.finished()

    def _given(self, args: Sequence[Any]) -> list[Any]:
        if self._lists:
            return [t for k in self._kept for t in (args[k] if isinstance(args[k], (list, tuple)) else (args[k],))]
        return [args[k] for k in self._kept]

    def _named(self, args: Sequence[Any]) -> list[tuple[str, torch.Tensor]]:
        """The tensors that are not to be changed, with what messages call them."""
        kept: list[tuple[str, torch.Tensor]] = []
        changed: list[torch.Tensor] = []
        for p, value in zip(self.declaration.params, args, strict=False):
            if p.is_tensor:
                each = value if p.kind == "list" else [value]
                named = [(p.name if p.kind != "list" else f"{p.name}[{i}]", t) for i, t in enumerate(each)]
                kept += [(n, t) for n, t in named if t is not None and not p.mutated]
                changed += [t for _, t in named if t is not None and p.mutated]
        return [(n, t) for n, t in kept if not any(private.same_memory(t, c) for c in changed)]

    @contextmanager
    def looked_through(self, args: Sequence[Any], launching: bool = True) -> Iterator[_Look]:
        """Reject launches in the block that may write to arguments that are not declared in `mutates_args`."""
        look = _Look(self.declaration.qualified, self._named(args), launching)
        with intercept.intercepted(look, own_thread=True):
            yield look


def _versions(tensors: Sequence[Any]) -> list[int]:
    """How often each tensor has been changed."""
    try:
        return [0 if t is None else t._version for t in tensors]
    except RuntimeError:  # those of inference mode don't count
        return [0 if t is None or t.is_inference() else t._version for t in tensors]


def _within(ctype: CType, value: Any) -> Iterator[torch.Tensor]:
    """The tensors that a kernel may write to through a list of pointers or a struct."""
    if isinstance(value, (list, tuple)) and ctype.target is not None and ctype.target.target is not None:
        if not ctype.target.const:
            yield from (t for t in value if isinstance(t, torch.Tensor))
    elif isinstance(value, Mapping) and ctype.layout is not None:
        const = {m.name for m in ctype.layout.members if re.match(r"const\b[^*]*\*$", m.type.strip())}
        yield from (t for name, t in value.items() if isinstance(t, torch.Tensor) and name not in const)


class _Look:
    """A hook that sees an operator's launches."""

    def __init__(self, name: str, kept: Sequence[tuple[str, torch.Tensor]], launching: bool) -> None:
        self.name, self.kept, self.launching = name, kept, launching
        self.only_read: set[str] = set()  # arguments passed to pointers that are not const
        self.before = _versions([t for _, t in kept])

    def __call__(self, launch: intercept.Launch) -> None:
        kernel = launch.launcher.plan.kernel
        state = kernel.current(launch.args, launch.kwargs)
        given = arrange(state.signature, launch.args, launch.kwargs)
        for param, value in zip(state.signature.params, given, strict=True):
            takes = param.takes_address or param.takes_tensor
            plain = takes and isinstance(value, torch.Tensor)  # others are read, as numbers
            found = [value] if plain and not param.const else list(_within(param.ctype, value))
            names = [n for n, t in self.kept if any(private.same_memory(t, each) for each in found)]
            writes = (state.may_write(param) if plain else None) if names else False
            if writes is None and plain and state.build.source.kind in ("cubin", "fatbin"):
                writes = False  # machine code says nothing of its parameters: the declaration is trusted
            if writes is not False:
                does = "writes to" if writes else "may write to"
                const = "" if writes else f", or declare {param.name} const in the kernel"
                raise self._rejection(
                    f"{kernel.name} {does} {param.name}, which is the operator's argument", names[0], const
                )
            self.only_read.update(names)
        if self.launching:
            launch.proceed()
        return None

    def finished(self) -> bool:
        """Whether pointers that are not const were only read; raises if anything else has changed an argument."""
        after = _versions([t for _, t in self.kept])
        for (name, _), was, now in zip(self.kept, self.before, after, strict=True):
            if was != now and name not in self.only_read:
                rest = ", or reach it through pointers to const"
                raise self._rejection(
                    "its function, or what it launches, may change the operator's argument", name, rest
                )
        return bool(self.only_read)

    def _rejection(self, what: str, argument: str, rest: str) -> LaunchError:
        plain = argument.partition("[")[0]
        return LaunchError(f"{self.name}: {what} {argument}; name it, mutates_args=({plain!r},){rest}")
