"""Arguments in lists, tuples and dicts."""

from __future__ import annotations

from typing import NamedTuple

import torch

from rawkern.base.nested import mapped, tensors_in


class Pair(NamedTuple):
    a: object
    b: object


def test_leaves_are_replaced_under_their_names() -> None:
    value = {"x": [1, (2, Pair(3, torch.Size([4])))], "y": "text"}
    seen: dict[str, object] = {}

    def double(name: str, leaf: object) -> object:
        seen[name] = leaf
        return leaf * 2 if isinstance(leaf, int) else leaf

    made = mapped(double, value, "v")
    assert made == {"x": [2, (4, Pair(6, torch.Size([8])))], "y": "text"}
    assert isinstance(made["x"][1][1], Pair) and isinstance(made["x"][1][1].b, torch.Size)
    assert seen == {"v.x[0]": 1, "v.x[1][0]": 2, "v.x[1][1][0]": 3, "v.x[1][1][1][0]": 4, "v.y": "text"}
    assert mapped(lambda name, leaf: (name, leaf), 5, "n") == ("n", 5)


def test_tensors_are_found_in_order() -> None:
    a, b, c = (torch.zeros(n) for n in (1, 2, 3))
    found = tensors_in((a, {"x": [b, None, torch.Size([1])], "y": Pair(c, "text")}, a))
    assert [t.numel() for t in found] == [1, 2, 3, 1]
