"""How long a warp that has a multiprocessor for itself takes for each block of code: what it issues and waits for.

A warp issues in order and waits where an operand is not there yet. ptxas moves what can begin early to the front, as
far as order in memory lets it; a list schedule by the longest path does about the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rawkern.estimation.machine import Cost

Latency = Callable[[int, int, str], float]  # of an access: number of the block, of the instruction, its text
_FENCES = ("bar", "barrier", "membar", "fence")
_SPACES = ("global", "shared", "local", "const")


#: Cycles for which ptxas keeps instructions between a load and its use, about; it does not know what caches hold.
_EXPECTED = {"global": 300.0, "generic": 300.0, "shared": 29.0, "local": 33.0, "const": 33.0}


def schedules(blocks: Sequence[dict[str, Any]], known: Sequence[Sequence[Cost]]) -> list[list[int]]:
    """The order of each block's instructions in machine code; `known`: what they cost."""
    return [_schedule(_named(b, costs), b["registers"]) for b, costs in zip(blocks, known, strict=True)]


def _named(block: dict[str, Any], costs: Sequence[Cost]) -> list[tuple[str, Cost]]:
    return [(text, one) for (text, _, _), one in zip(block["instructions"], costs, strict=True)]


def lone_times(
    blocks: Sequence[dict[str, Any]], known: Sequence[Sequence[Cost]], orders: Sequence[Sequence[int]], latency: Latency
) -> list[float]:
    """Cycles for one run through each block, in the steady state where it loops."""
    ready: dict[str, float] = {}  # when each register can be read
    now, found = 0.0, []
    for number, block in enumerate(blocks):
        every = _named(block, known[number])
        ahead = [latency(number, k, text) if not every[k][1].free else 0.0 for k, (text, _) in enumerate(every)]
        order = orders[number]
        loops = number in block["targets"]
        before = now
        now = _issue(order, every, ahead, block["registers"], ready, now)
        if loops:
            for to, source in block["carried"]:
                ready[to] = ready.get(source, now)
            before = now
            now = _issue(order, every, ahead, block["registers"], ready, now)
        found.append(now - before)
    return found


def _issue(
    order: Sequence[int], every: Sequence[tuple[str, Cost]], ahead: Sequence[float], registers: Sequence[Any],
    ready: dict[str, float], now: float,
) -> float:  # fmt: skip
    """The time after the last instruction was issued; `ready` is kept."""
    for k in order:
        made, read = registers[k]
        when = max((ready[name] for name in read if name in ready), default=0.0)
        _, one = every[k]
        if one.free:
            for name in made:
                ready[name] = when
            continue
        now = max(now, when) + (max(one.issues, one.latency) if one.stalls else one.issues)
        for name in made:
            ready[name] = now - 1 + max(1.0, ahead[k])
    return now


def _expected(text: str, known: Cost) -> float:
    words = text.split(".")
    if words[0] not in ("ld", "ldu", "atom", "tex") or known.free:
        return known.latency
    return _EXPECTED.get(next((word for word in words[1:] if word in _EXPECTED), "generic"), 0.0)


def _may_alias(one: str, other: str) -> bool:
    """Whether accesses of two state spaces may be to the same memory."""
    return one == other or not {"all", "generic"}.isdisjoint((one, other))


def _schedule(every: Sequence[tuple[str, Cost]], registers: Sequence[Any]) -> list[int]:
    """The order of a block's instructions in which those on the longest path come first."""
    count, ahead = len(every), [_expected(*one) for one in every]
    after: list[list[tuple[int, bool]]] = [[] for _ in range(count)]  # and whether for what the first one makes
    waits = [0] * count
    maker: dict[str, int] = {}
    writes: dict[str, int] = {}  # the last one by the state space
    loads: list[tuple[int, str]] = []

    def follow(first: int, then: int, waiting: bool = False) -> None:
        after[first].append((then, waiting))
        waits[then] += 1

    for k, (text, _) in enumerate(every):
        made, read = registers[k]
        for name in {*read}:
            if name in maker:
                follow(maker[name], k, True)
        words = text.split(".")
        fence, write = words[0] in _FENCES, words[0] in ("st", "atom", "red", "cp")
        if "param" not in words and (fence or write or words[0] in ("ld", "ldu")):
            space = "all" if fence else next((word for word in words[1:] if word in _SPACES), "generic")
            for other, at in writes.items():
                if _may_alias(space, other):
                    follow(at, k)
            if fence or write:
                for at, other in loads:
                    if _may_alias(space, other):
                        follow(at, k)
                loads = [(at, other) for at, other in loads if not _may_alias(space, other)]
                writes[space] = k
            else:
                loads.append((k, space))
        for name in made:
            maker[name] = k
    if count and every[-1][0].split(".")[0] in ("bra", "ret", "exit", "brx"):
        for k in range(count - 1):
            follow(k, count - 1)
    path = [0.0] * count
    for k in range(count - 1, -1, -1):
        own = max(every[k][1].issues, ahead[k])
        path[k] = max((path[then] + (own if waiting else 1.0) for then, waiting in after[k]), default=own)
    free, order, left = [k for k in range(count) if not waits[k]], [], waits[:]
    ready = [0.0] * count
    now = 0.0
    while free:
        # of those whose operands are there the one on the longest path, else the one that is ready first
        k = min(free, key=lambda k: (max(ready[k] - now, 0.0), -path[k], k))
        free.remove(k)
        order.append(k)
        now = max(now, ready[k]) + every[k][1].issues
        for then, waiting in after[k]:
            left[then] -= 1
            if waiting:
                ready[then] = max(ready[then], now - 1 + max(1.0, ahead[k]))
            if not left[then]:
                free.append(then)
    return order
