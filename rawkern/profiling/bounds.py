"""Bounds of what a launch can reach on a GPU: the least time by each resource, and occupancy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rawkern.compile import cubin
from rawkern.launch import occupancy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rawkern.launch.unit import State
    from rawkern.profiling.devices import Gpu

SECTOR = 32


def bounds_of(gpu: Gpu, counters: Mapping[str, int | float], distinct: int) -> dict[str, float]:
    """Seconds that a launch takes at least, by what it needs most of.

    ``memory``: each sector that is touched moves once; ``float32``, ``float64``: operations at the peak, a fused
    multiply-add in the time of one; ``shared``: a wavefront per cycle and multiprocessor.
    """

    def done(letter: str) -> float:
        return sum(
            counters[f"smsp__sass_thread_inst_executed_op_{letter}{k}_pred_on.sum"] for k in ("add", "mul", "fma")
        )

    return {
        "memory": distinct * SECTOR / gpu.memory,
        "float32": 2 * done("f") / gpu.float32,
        "float64": 2 * done("d") / gpu.float64,
        "shared": counters["memory_l1_wavefronts_shared"] / gpu.shared,
    }


def occupancy_of(state: State, arch: str, block: tuple[int, int, int], shared_mem: int) -> dict[str, Any]:
    """How many blocks and warps a multiprocessor holds at a time, from the machine code, and what limits them."""
    program = state.build.program(arch, state.asked)
    used = cubin.resources(program.code, arch)[state.entry_in(program).symbol]
    spec = occupancy.specification(arch)
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
