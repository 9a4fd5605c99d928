"""Bounds for a launch on a GPU: a lower bound of its time for each resource, and occupancy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rawkern.base import gpus
from rawkern.compile import cubin
from rawkern.launch import occupancy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rawkern.launch.unit import State
    from rawkern.profiling.devices import Gpu

SECTOR = 32


def operations(counters: Mapping[str, int | float], letter: str) -> float:
    """Floating-point operations of a kind, "f" or "d"; a fused multiply-add is two."""
    kinds = {"add": 1, "mul": 1, "fma": 2}
    return sum(
        n * counters[f"smsp__sass_thread_inst_executed_op_{letter}{kind}_pred_on.sum"] for kind, n in kinds.items()
    )


def bounds_of(gpu: Gpu, counters: Mapping[str, int | float], distinct: int) -> dict[str, float]:
    """Lower bounds of a launch's time in seconds, by resource.

    ``memory``: each sector that is touched moves once; ``float32``, ``float64``: operations at the peak, whether or not
    ptxas fuses them; ``shared``: wavefronts at one per cycle and multiprocessor, half of those
    counted, as merged loads take half as many at best.
    """
    return {
        "memory": distinct * SECTOR / gpu.memory,
        "float32": operations(counters, "f") / gpu.float32,
        "float64": operations(counters, "d") / gpu.float64,
        "shared": counters["memory_l1_wavefronts_shared"] / 2 / gpu.shared,
    }


def occupancy_of(state: State, arch: str, block: tuple[int, int, int], shared_mem: int) -> dict[str, Any]:
    """How many blocks and warps a multiprocessor holds at once, from the machine code, and what limits them."""
    program = state.build.program(arch, state.asked)
    used = cubin.resources(program.code, arch)[state.entry_in(program).symbol]
    spec = gpus.specification(arch)
    assert spec is not None
    threads = block[0] * block[1] * block[2]
    found = occupancy.occupancy(
        spec, threads, registers=used.registers, shared=used.shared + shared_mem, barriers=used.barriers,
        max_threads=used.max_threads,
    )  # fmt: skip
    return {
        "blocks": found.blocks, "share": found.share, "limits": list(found.limits), "registers": used.registers,
        "shared": used.shared + shared_mem, "local": used.local,
    }  # fmt: skip
