"""Counters of a launch's instructions under Nsight Compute's names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_FLOATS = tuple(f"{letter}{kind}" for letter in "fdh" for kind in ("add", "mul", "fma"))
_GLOBAL = {"reads": "ld", "writes": "st", "updates": "atom", "reduces": "red"}
_SHARED = {"reads": "ld", "writes": "st", "updates": "atom", "reduces": "atom"}

_SPACES = ("global", "shared", "local")
_WIDTHS = {size: f"_{8 * size}b" for size in (1, 2, 4, 8, 16)}

#: Counted in PTX instructions; Nsight Compute counts machine instructions.
OF_PTX = (
    "smsp__inst_executed.sum",
    "smsp__thread_inst_executed.sum",
    "smsp__thread_inst_executed_per_inst_executed.ratio",
)


def _requests(space: str, op: str) -> str:
    return f"l1tex__t_requests_pipe_lsu_mem_{space}_op_{op}.sum"


def _sectors(space: str, op: str) -> str:
    return f"l1tex__t_sectors_pipe_lsu_mem_{space}_op_{op}.sum"


def _wavefronts(op: str) -> str:
    return f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum"


def _conflicts(op: str) -> str:
    return f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum"


def _floats(kind: str) -> str:
    return f"smsp__sass_thread_inst_executed_op_{kind}_pred_on.sum"


def _executed(what: str) -> str:
    return f"smsp__sass_inst_executed_op_{what}.sum"


_BRANCHES = "smsp__sass_branch_targets"
NAMES = (
    *OF_PTX[:2],
    *(_requests("global", op) for op in ("ld", "st", "red", "atom", "ldgsts")),
    *(_sectors("global", op) for op in ("ld", "st", "red", "atom", "ldgsts")),
    *(_requests("local", op) for op in ("ld", "st")),
    *(_sectors("local", op) for op in ("ld", "st")),
    *(_wavefronts(op) for op in ("ld", "st", "atom")),
    *(_conflicts(op) for op in ("ld", "st", "atom")),
    *(_executed(f"global_{op}") for op in ("ld", "st")),
    *(_executed(f"shared_{op}") for op in ("ld", "st", "atom")),
    _executed("branch"),
    f"{_BRANCHES}.sum",
    f"{_BRANCHES}_threads_uniform.sum",
    f"{_BRANCHES}_threads_divergent.sum",
    *(_floats(kind) for kind in _FLOATS),
    "memory_l1_tag_requests_global",
    "memory_l2_theoretical_sectors_global",
    "memory_l2_theoretical_sectors_global_ideal",
    "memory_l1_wavefronts_shared",
    "memory_l1_wavefronts_shared_ideal",
)


def counters(instructions: Iterable[dict[str, Any]]) -> dict[str, int | float]:
    """The sums over some instructions: all of `NAMES`, and counters that have no name there.

    ``global_bytes``, ``shared_bytes``, ``local_bytes``: bytes that lanes requested, and ``global_bytes_32b``, ... by
    bits per lane and request; ``atomic_conflicts``: for each atomic of a warp, the largest number of lanes
    with the same address; ``barrier_waits``: warps that arrived at a barrier of the block.
    """
    found: dict[str, int | float] = dict.fromkeys(NAMES, 0)
    found |= dict.fromkeys((*(f"{space}_bytes{width}" for space in _SPACES for width in ("", *_WIDTHS.values())),
                            "atomic_conflicts", "barrier_waits"), 0)  # fmt: skip
    for one in instructions:
        found[OF_PTX[0]] += one["warps"]
        found[OF_PTX[1]] += one["lanes"]
        if one["float"]:
            found[_floats(one["float"])] += one["lanes"]
        if one["ptx"].startswith(("bar.sync", "bar.red", "barrier.sync", "barrier.red")):
            found["barrier_waits"] += one["warps"]
        if one["branch"] and not one["leaves"]:  # lanes that exit need no branch in machine code
            for name in (_executed("branch"), f"{_BRANCHES}.sum"):
                found[name] += one["warps"]
            found[f"{_BRANCHES}_threads_divergent.sum"] += one["diverged"]
            found[f"{_BRANCHES}_threads_uniform.sum"] += one["warps"] - one["diverged"]
        for access in one["accesses"]:
            _add_access(found, access, one)
    executed = found[OF_PTX[0]]
    found[OF_PTX[2]] = found[OF_PTX[1]] / executed if executed else 0.0
    return found


def _add_access(found: dict[str, int | float], access: dict[str, Any], one: dict[str, Any]) -> None:
    space = access["space"]
    if space == "local":
        op = "ld" if access["what"] == "reads" else "st"
        found[_requests("local", op)] += access["requests"]
        found[_sectors("local", op)] += access["sectors"]
        _add_bytes(found, "local", one["lanes"], access["size"])
        return
    found["atomic_conflicts"] += access["collisions"]
    if access["requests"]:
        op = "ldgsts" if one["ptx"].startswith("cp.async") else _GLOBAL[access["what"]]
        found[_requests("global", op)] += access["requests"]
        found[_sectors("global", op)] += access["sectors"]
        if op in ("ld", "st"):
            found[_executed(f"global_{op}")] += access["requests"]
        found["memory_l1_tag_requests_global"] += access["lines"]
        found["memory_l2_theoretical_sectors_global"] += access["sectors"]
        found["memory_l2_theoretical_sectors_global_ideal"] += access["ideal"]
    if access["shared"]:
        if access["what"] != "copies":  # asynchronous copies are only in the sums
            op = _SHARED[access["what"]]
            found[_wavefronts(op)] += access["wavefronts"]
            found[_conflicts(op)] += access["wavefronts"] - access["wavefronts_ideal"]
            found[_executed(f"shared_{op}")] += access["shared"]
        found["memory_l1_wavefronts_shared"] += access["wavefronts"]
        found["memory_l1_wavefronts_shared_ideal"] += access["wavefronts_ideal"]
    shared = space == "shared" or not access["requests"]
    _add_bytes(found, "shared" if shared else "global", one["lanes"], access["size"])


def _add_bytes(found: dict[str, int | float], space: str, lanes: int, size: int) -> None:
    found[f"{space}_bytes"] += lanes * size
    if size in _WIDTHS:
        found[f"{space}_bytes{_WIDTHS[size]}"] += lanes * size
