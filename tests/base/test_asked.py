"""Settings that several threads ask for and give up at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from rawkern.base.asked import Asked
from rawkern.launch import level


class Named:
    """A value; `compared` runs once, when it is first compared with another."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.compared = lambda: None

    def __eq__(self, other: object) -> bool:
        compared, self.compared = self.compared, lambda: None
        compared()
        return self is other

    __hash__ = None  # type: ignore[assignment]


def test_a_value_is_given_up_while_another_is() -> None:
    first, below, mine, above = (Named(name) for name in ("first", "below", "mine", "above"))
    asked = Asked(first)
    told: list[Named] = []
    asked.followers.append(told.append)
    for value in (below, mine, above):
        asked.ask(value)
    other = threading.Thread(target=lambda: asked.give_up(below))

    def meanwhile() -> None:
        other.start()
        other.join(0.2)  # it has to wait

    above.compared = meanwhile
    asked.give_up(mine)
    other.join()
    assert asked.depth == 2 and asked.current is above and told[-1] is above


def test_tensors_are_taken_back_while_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    below, mine = [torch.zeros(1)], [torch.ones(1)]
    other = threading.Thread(target=lambda: level.take_back(below))

    class Watched(list):
        def __iter__(self) -> Iterator:
            for one in super().__iter__():
                if one is mine and other.ident is None:  # it is found, and not removed yet
                    other.start()
                    other.join(0.2)
                yield one

    monkeypatch.setattr(level, "_lent", Watched())
    for tensors in (below, mine):
        level.lend(tensors)
    level.take_back(mine)
    other.join()
    assert level._lent == []
