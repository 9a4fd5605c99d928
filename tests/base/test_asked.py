"""Settings that several threads ask for and give up at the same time."""

from __future__ import annotations

import contextlib
import threading

import pytest

from rawkern.base.asked import Asked, Asking


def test_the_last_one_that_asks_and_has_not_ended_is_heard() -> None:
    asked = Asked("first")
    told: list[str] = []
    asked.followers.append(told.append)
    for name in ("below", "mine", "above"):
        asked.ask(name, name.upper())
    asked.give_up("mine")
    assert asked.all == ("first", "BELOW", "ABOVE") and told[-1] == asked.current == "ABOVE"
    asked.give_up("above")
    asked.give_up("above")  # once is enough, and twice is no mistake
    assert told[-1] == asked.current == "BELOW" and asked.depth == 2


def test_threads_ask_while_others_are_told() -> None:
    asked = Asked(0)
    other = threading.Thread(target=lambda: asked.give_up("below"))
    told: list[int] = []

    def meanwhile(value: int) -> None:
        if other.ident is None:
            other.start()
            other.join(0.2)  # it has to wait
        told.append(value)

    asked.ask("below", 1)
    asked.followers.append(meanwhile)
    asked.ask("mine", 2)
    other.join()
    assert asked.all == (0, 2) and told == [2, 2]


def test_contexts_nest_and_are_decorators() -> None:
    one, other = Asked(0), Asked("a")
    context = Asking((one, 1), (other, "b"))

    @context
    def inside(depth: int) -> int:
        assert (one.current, other.current) == (1, "b")
        return inside(depth - 1) if depth else one.depth

    assert inside(3) == 5
    with context, contextlib.ExitStack() as stack:
        stack.enter_context(one.asked(2))
        assert one.current == 2
        with pytest.raises(ZeroDivisionError), context:
            raise ZeroDivisionError
        assert one.current == 2 and one.depth == 3
    assert (one.current, other.current, one.depth) == (0, "a", 1)
    with pytest.raises(IndexError):
        context.__exit__(None, None, None)


def test_what_the_beginning_raises_leaves_nothing() -> None:
    one, other = Asked(0), Asked("a")

    def refuse(value: str) -> None:
        if value == "b":
            raise ValueError(value)

    other.followers.append(refuse)
    with pytest.raises(ValueError, match="b"), Asking((one, 1), (other, "b")):
        raise AssertionError
    assert (one.current, other.current, one.depth, other.depth) == (0, "a", 1, 1)
