"""What a derived backward knows of its forward: the trace that autograd's node keeps, or else what the function does
when it is asked again, if that is certainly the same."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from rawkern.base.forking import Lock
from rawkern.errors import LaunchError
from rawkern.operators.declaration import Declaration
from rawkern.operators.recording import Trace, trace

MOST_KNOWN = 4096  # forwards of other arguments, after which one is forgotten


class Traced:
    """The function of an operator, run so that its launches are known.

    A graph that is compiled, and a transform of functorch, call the backward as an operator of its own, which has the
    arguments alone. There the function is asked again, and has to launch what it has launched for such arguments every
    time before.
    """

    def __init__(self, declaration: Declaration, function: Callable[..., Any]) -> None:
        self.declaration, self.function = declaration, function
        self._known: OrderedDict[Any, tuple[Any, ...]] = OrderedDict()
        self._lock = Lock()
        self._changes = False  # whether two runs with such arguments have differed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward."""
        full = args if not kwargs else self.declaration.arrange(*args, **kwargs)
        result, found = trace(self.declaration, self.function, full, launching=True)
        key, same = self._key(full), found.same()
        with self._lock:
            self._changes |= self._known.setdefault(key, same) != same
            self._known.move_to_end(key)
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        if _runs.found is not None:
            _runs.found.append(found)
        return result

    def again(self, args: Sequence[Any]) -> Trace:
        """What the forward with these arguments did, where only the function can tell."""
        name, before = self.declaration.qualified, self._known.get(self._key(args))
        _, found = trace(self.declaration, self.function, args, launching=False)
        if found.rejection:
            return found
        what_to_do = "draw or read it outside, and pass it as an argument of the operator"
        if self._changes or (before is not None and before != found.same()):
            raise LaunchError(
                f"{name}: its function does not launch the same each time for the same arguments (it draws a seed, or "
                "reads what changes), and in a compiled graph, or under a transform, its backward has the arguments "
                f"alone; {what_to_do}"
            )
        if before is None:
            raise LaunchError(
                f"{name}: no forward has run with arguments of these shapes and values, so what it launched is not "
                "known; call it with tensors as the backward gets them"
            )
        return found

    @staticmethod
    def _key(args: Sequence[Any]) -> Any:
        return tuple((a.shape, a.dtype, a.device) if isinstance(a, torch.Tensor) else repr(a) for a in args)


class _Runs(threading.local):
    found: list[Trace] | None = None  # of the forward that runs


_runs = _Runs()


@contextmanager
def runs() -> Iterator[list[Trace]]:
    """Collect the traces of what runs in the block."""
    before, _runs.found = _runs.found, []
    try:
        yield _runs.found
    finally:
        _runs.found = before


class _Carried(threading.local):
    """The trace of the node whose backward runs, where that goes through torch's dispatcher."""

    trace: Trace | None = None

    @contextmanager
    def by(self, found: Trace | None) -> Iterator[None]:
        """Carry a trace in the block."""
        before, self.trace = self.trace, found
        try:
            yield
        finally:
            self.trace = before

    def fitting(self, args: Sequence[Any]) -> Trace | None:
        """The trace, if it may be that of these arguments."""
        return self.trace if self.trace is not None and self.trace.fits(args) else None


carried = _Carried()
