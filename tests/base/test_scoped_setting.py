"""Settings that several threads push and pop at the same time."""

from __future__ import annotations

import contextlib
import threading

import pytest

from rawkern.base.scoped_setting import ScopedSetting, SettingScope


def test_the_last_value_pushed_and_not_popped_holds() -> None:
    setting = ScopedSetting("first")
    told: list[str] = []
    setting.followers.append(told.append)
    for name in ("below", "mine", "above"):
        setting.push(name, name.upper())
    setting.pop("mine")
    assert setting.all == ("first", "BELOW", "ABOVE") and told[-1] == setting.current == "ABOVE"
    setting.pop("above")
    setting.pop("above")  # a second pop has no effect
    assert told[-1] == setting.current == "BELOW" and setting.depth == 2


def test_threads_push_while_followers_are_called() -> None:
    setting = ScopedSetting(0)
    other = threading.Thread(target=lambda: setting.pop("below"))
    told: list[int] = []

    def meanwhile(value: int) -> None:
        if other.ident is None:
            other.start()
            other.join(0.2)  # it has to wait
        told.append(value)

    setting.push("below", 1)
    setting.followers.append(meanwhile)
    setting.push("mine", 2)
    other.join()
    assert setting.all == (0, 2) and told == [2, 2]


def test_contexts_nest_and_are_decorators() -> None:
    one, other = ScopedSetting(0), ScopedSetting("a")
    context = SettingScope((one, 1), (other, "b"))

    @context
    def inside(depth: int) -> int:
        assert (one.current, other.current) == (1, "b")
        return inside(depth - 1) if depth else one.depth

    assert inside(3) == 5
    with context, contextlib.ExitStack() as stack:
        stack.enter_context(one.scoped(2))
        assert one.current == 2
        with pytest.raises(ZeroDivisionError), context:
            raise ZeroDivisionError
        assert one.current == 2 and one.depth == 3
    assert (one.current, other.current, one.depth) == (0, "a", 1)
    with pytest.raises(IndexError):
        context.__exit__(None, None, None)


def test_what_the_beginning_raises_leaves_nothing() -> None:
    one, other = ScopedSetting(0), ScopedSetting("a")

    def reject(value: str) -> None:
        if value == "b":
            raise ValueError(value)

    other.followers.append(reject)
    with pytest.raises(ValueError, match="b"), SettingScope((one, 1), (other, "b")):
        raise AssertionError
    assert (one.current, other.current, one.depth, other.depth) == (0, "a", 1, 1)
