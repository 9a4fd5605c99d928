"""Whether a thread is inside an operator, whose launches autograd and tracing know of already."""

from __future__ import annotations

import threading
from typing import Any

import torch

from rawkern.base.scopes import Scope
from rawkern.base.table import attend
from rawkern.errors import LaunchError


class _State(threading.local):
    """Per thread: 0 outside operators, IMPLEMENTATION or FAKE inside one, COMPOSED in one whose steps are recorded."""

    level = 0


IMPLEMENTATION, FAKE, COMPOSED = 1, 2, 3
state = _State()


class inside_op(Scope):
    """Context in which launches belong to an operator, so that autograd and tracing know of them already.

    Writing to tensors that require grad is then allowed, and active dispatch modes do not matter. With `fake=True`
    a launch checks its arguments for kind only and runs nothing: that is for an operator's fake implementation. With
    `composed=True` a launch raises `LaunchError`: what runs is to be differentiated, step by step. The state is the
    thread's own; contexts nest.
    """

    __slots__ = ("_level",)

    def __init__(self, *, fake: bool = False, composed: bool = False) -> None:
        super().__init__()
        self._level = COMPOSED if composed else FAKE if fake else IMPLEMENTATION

    def _begin(self, token: list[Any]) -> None:
        token.append(state.level)
        state.level = self._level
        if self._level != IMPLEMENTATION:  # which native launches do not look at
            attend(token, True)

    def _end(self, token: list[Any]) -> None:
        for before in token:
            state.level = before
        if self._level != IMPLEMENTATION:
            attend(token, False)


def in_fake_op() -> bool:
    """Whether this thread is inside `inside_op(fake=True)`."""
    return state.level == FAKE


def composing() -> bool:
    """Whether this thread is inside `inside_op(composed=True)`, where operators are called and not kernels."""
    return state.level == COMPOSED


def unseen_by_autograd(tensor: torch.Tensor) -> bool:
    """Whether autograd would have to know of a launch that writes to a tensor, and would not."""
    return tensor.requires_grad and torch.is_grad_enabled() and state.level == 0


def not_inside_op(what: str) -> LaunchError:
    """The error for a write that autograd would not see."""
    return LaunchError(f"{what}; use torch.no_grad() or rawkern.op")
