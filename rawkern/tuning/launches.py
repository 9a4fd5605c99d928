"""Launches of a tuned kernel: the short way where the choice is known, and all others."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Self

import torch

from rawkern.base import operator_state, streams
from rawkern.base import torch_private as private
from rawkern.base.api_boundary import api_boundary
from rawkern.base.dynamo import untraced
from rawkern.tuning.choices import KEPT, Choice, Choices
from rawkern.tuning.configs import Config
from rawkern.tuning.keys import device_index
from rawkern.tuning.session import Settle

# Configurations that are given for the launches of a thread.
forced: ContextVar[dict[Choices, Config] | None] = ContextVar("rawkern_forced_configurations", default=None)


class TunedLauncher:
    """A tuned kernel with its grid and block settled: call it with the kernel's arguments."""

    __slots__ = ("__weakref__", "_choices", "_form", "_gos", "_settle")

    def __init__(self, choices: Choices, settle: Settle, form: tuple[Any, ...], *, keeps: bool) -> None:
        self._choices = choices
        self._form = form  # what makes it again, and from what
        self._settle = settle
        self._gos: dict[Any, Any] | None = {} if keeps else None  # what launches, by key
        if keeps:
            choices.launchers.add(self)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return self._form[0], (self._choices.settings, self._form[1])

    def forget(self) -> None:
        """Make the choice again."""
        if self._gos is not None:
            self._gos.clear()

    @untraced
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch in the fastest configuration; the first launch for a key finds out which that is."""
        choices = self._choices
        if not kwargs and forced.get() is None and ((changed := choices.changed) is None or not changed()):
            try:
                if (gos := self._gos) is not None:
                    go = gos.get(choices.hot(args))
                elif (
                    operator_state.state.level > operator_state.IMPLEMENTATION or (found := choices.known(args)) is None
                ):
                    go = None
                else:
                    go = self._settle(*found)
            except TypeError:  # a list where a number was
                go = None
            if go is not None:
                go(*args)
                return
        self._any(args, kwargs)

    @api_boundary
    def _any(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        choices = self._choices
        level = operator_state.state.level
        if level > operator_state.IMPLEMENTATION or (not level and (private.dispatch_modes() or private.jit_tracing())):
            choices.kernel(choices.working()).forall(0)(*args, **kwargs)  # checks, or says what is wrong
            return
        hot, found = self._find(args, kwargs)
        go: Any = self._settle(*found)
        go(*args, **kwargs)
        if self._gos is not None and hot is not None:
            if len(self._gos) >= KEPT:
                self._gos.clear()
            self._gos[hot] = go

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Choice]:
        """Return key and choice, as `Choices.choose` does."""
        choices, given = self._choices, forced.get()
        if given is not None and choices in given:
            return None, (choices.kernel(given[choices]), given[choices])
        return choices.choose(self._settle, args, kwargs)

    @api_boundary
    def launch(self, args: tuple[Any, ...], stream: Any) -> None:
        """Launch on a stream that is not torch's current one; the tuning, if there is one, runs there, too."""
        device = device_index(args)
        if device < 0:  # on the CPU streams have no meaning
            self(*args)
            return
        with torch.cuda.stream(torch.cuda.ExternalStream(streams.stream_handle(stream), device=device)):
            _, found = self._find(args, {})
        go: Any = self._settle(*found)
        go.launch(args, {}, stream)

    def __repr__(self) -> str:
        return f"<launch of {self._choices.name}, tuned>"
