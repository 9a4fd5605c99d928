"""Answers that are kept while nothing changes the kernel that is asked about."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_KEPT: ContextVar[dict[Any, Any] | None] = ContextVar("kept", default=None)


@contextmanager
def unchanged() -> Iterator[None]:
    """What is asked about stays as it is meanwhile, so each question needs one answer."""
    known = _KEPT.get()
    token = _KEPT.set({} if known is None else known)
    try:
        yield
    finally:
        _KEPT.reset(token)


@contextmanager
def changing() -> Iterator[None]:
    """Copies of a kernel that is `unchanged` are changed meanwhile: no answer is kept."""
    token = _KEPT.set(None)
    try:
        yield
    finally:
        _KEPT.reset(token)


def kept(question: F) -> F:
    """A question whose answer is kept while what it is about is `unchanged`; callers may not change the answer."""

    @functools.wraps(question)
    def asked(*about: Any) -> Any:
        answers = _KEPT.get()
        if answers is None:
            return question(*about)
        found = answers.get((question, about), answers)
        if found is answers:
            found = answers[question, about] = question(*about)
        return found

    return asked  # type: ignore[return-value]
