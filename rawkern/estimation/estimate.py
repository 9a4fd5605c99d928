"""Estimates: how long a launch takes on a GPU that need not be there, with its error and what it is limited by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from rawkern.arguments import slow_path
from rawkern.base.nested import tensors_in
from rawkern.engines.cpu.profiler.launch import Traced
from rawkern.estimation.cards import Card, card_named
from rawkern.estimation.evidence import gathered
from rawkern.estimation.machine import cost
from rawkern.estimation.model import Needs, Times, needs_of, time_of
from rawkern.launch import reachable
from rawkern.profiling import text
from rawkern.profiling.runs import counting_kernel, variables_of

if TYPE_CHECKING:
    from rawkern.arguments.slow_path import Bound
    from rawkern.launch.config import LaunchConfig
    from rawkern.launch.launcher import Launcher
    from rawkern.launch.unit import State

#: `low` and `high` are so many times less and more: nine of ten recorded rows, left out of the fit, lie between them;
#: for cards of which none was measured a guess.
SPREAD, SPREAD_UNMEASURED = 1.35, 1.7
_TAIL = 1.25  # times the average work that the busiest multiprocessor has, from which on the last wave limits


@dataclass(frozen=True)
class Estimate:
    """How long a launch would take on a GPU.

    Attributes
    ----------
    kernel, device : str
        The kernel's name and the GPU's.
    us : float
        Microseconds, of the launch alone: no host time, and no launch before it that it waits for.
    low, high : float
        Nine of ten of the recorded launches are between these, each estimated without its family; of other kernels
        fewer may be.
    limited_by : str
        What takes longest: ``"memory"``, ``"L2"``, ``"L1"``, ``"shared memory"``, ``"instruction issue"``, a pipe
        (``"xu pipe"``), ``"latency (occupancy 50%)"``, ``"atomics at one address"``, ``"launch of blocks"``,
        ``"tail of the last wave"``.
    by_line : dict
        Microseconds by the line of the source: ``us``, shared out by what lines use of what takes long.
    parts : dict
        Microseconds that each resource alone would take.
    measured : bool
        Whether times of this GPU are among those that the model was fitted on, or it was calibrated.
    waves : float
        How often the GPU is filled with blocks.
    """

    kernel: str
    device: str
    us: float
    low: float
    high: float
    limited_by: str
    by_line: dict[int | str, float] = field(repr=False)
    parts: dict[str, float] = field(repr=False)
    measured: bool
    waves: float

    def __str__(self) -> str:
        return f"{self.kernel} on {text.estimate(self.as_dict())}"

    def as_dict(self) -> dict[str, Any]:
        """The estimate as plain data.

        Returns
        -------
        dict
            The attributes by name, without the kernel's.
        """
        names = ("device", "us", "low", "high", "limited_by", "by_line", "parts", "measured", "waves")
        return {name: getattr(self, name) for name in names}


def estimated(
    launcher: Launcher, args: Sequence[Any], kwargs: dict[str, Any], device: str, cold: bool = False
) -> Estimate:
    """Estimate a launch; its arguments are left as they are."""
    card = card_named(device)
    needs = needs_of_launch(launcher, args, kwargs, card)
    return made(launcher.plan.kernel.name, needs, card, time_of(needs, card, cold))


def needs_of_launch(launcher: Launcher, args: Sequence[Any], kwargs: dict[str, Any], card: Card) -> Needs:
    """What a launch needs, by running some of its blocks on the CPU engine."""
    plan = launcher.plan
    if launcher.n == 0:
        raise ValueError(f"{plan.kernel.name}: a launch of 0 elements launches nothing, and takes no time to estimate")
    state = plan.kernel.current(args, kwargs)
    signature = state.signature
    given = slow_path.arrange(signature, args, kwargs)
    bound = slow_path.bind(signature, given, None, state.strided)
    config = plan.settled(launcher, counting_kernel(state, Traced).kernel)
    if bound.device is not None and bound.device.type == "cuda":
        torch.cuda.synchronize(bound.device)
        copies = reachable.Copies(given)
        copied = slow_path.bind(signature, tuple(map(copies.of, given)), None, state.strided)
        with variables_of(state, bound.device):
            return needs_of(gathered(state, config, copied, copies.behind, card.gpu.arch), card)
    behind = reachable.reached([*tensors_in(given), *bound.tensors], signature.numbers(bound.values), "cpu")
    return needs_of(gathered(state, config, bound, behind, card.gpu.arch), card)


def of_launch(
    state: State, config: LaunchConfig, bound: Bound, behind: Sequence[torch.Tensor], card: Card, cold: bool = False
) -> Estimate:
    """Estimate a launch whose arguments are bound, in memory of the host."""
    needs = needs_of(gathered(state, config, bound, behind, card.gpu.arch), card)
    return made(state.entry.name, needs, card, time_of(needs, card, cold))


def made(kernel: str, n: Needs, card: Card, times: Times) -> Estimate:
    """What users get of the model's figures."""
    us = times.seconds * 1e6
    spread = SPREAD if card.measured or card.calibrated else SPREAD_UNMEASURED
    parts = {name: seconds * 1e6 for name, seconds in times.parts.items()}
    waves = n.e.count / (n.resident * card.gpu.multiprocessors)
    return Estimate(
        kernel, card.name, us, us / spread, us * spread, _limit(n, parts, times.tail), _by_line(n, card, times, us),
        parts, card.measured or card.calibrated, waves,
    )  # fmt: skip


def _limit(n: Needs, parts: dict[str, float], tail: float) -> str:
    first = max(parts, key=lambda name: parts[name])
    if first == "latency":
        return f"latency (occupancy {n.share:.0%})"
    if tail > _TAIL and first != "atomics at one address":
        return "tail of the last wave"
    return first


def _by_line(n: Needs, card: Card, times: Times, us: float) -> dict[int | str, float]:
    """The time shared out: each resource's part in proportion to its power, a line's part of it by its use."""
    power = card.constants.power
    parts = times.parts
    groups = {
        "compute": max(v for k, v in parts.items() if k.endswith("pipe") or k == "instruction issue"),
        "L1": parts["L1"] + parts["shared memory"],
        "sectors": max(parts["L2"], parts["memory"], parts["atomics at one address"]),
        "latency": parts["latency"],
    }
    most = max(groups.values())
    shares = {name: (part / most) ** power for name, part in groups.items()}
    waits = _waits(n, times)
    uses = {
        name: {k: w[column] for k, w in n.weights.items()} for column, name in enumerate(("compute", "L1", "sectors"))
    }
    uses["latency"] = waits
    found: dict[int | str, float] = {}
    whole = sum(share for name, share in shares.items() if sum(uses[name].values()))
    for name, share in shares.items():
        total = sum(uses[name].values())
        for k, use in uses[name].items():
            if total and use:
                line = n.e.lines[k]
                found[line] = found.get(line, 0.0) + us * share / whole * use / total
    return dict(sorted(found.items(), key=lambda row: (isinstance(row[0], str), row[0])))


def _waits(n: Needs, times: Times) -> dict[int, float]:
    """A block of code's share of the chain, by instruction: what each issues, and a long wait for what loads."""
    found: dict[int, float] = {}
    at = 0
    for number, block in enumerate(n.e.blocks):
        rows = n.e.instructions[at : at + len(block["instructions"])]
        weights = []
        for one in rows:
            loads = any(access["requests"] for access in one["accesses"]) and not one["ptx"].startswith(("st", "red"))
            weights.append(cost(one["ptx"]).issues + 50.0 * loads)
        total = sum(weights)
        if total:
            found |= {at + k: times.chain[number] * weight / total for k, weight in enumerate(weights)}
        at += len(rows)
    return found
