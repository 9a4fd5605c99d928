"""Counting runs of a kernel, and the memory that they touch: its pieces, their names, and restoring it."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from rawkern.arguments.addresses import storage
from rawkern.engines.devices import CPU
from rawkern.errors import LaunchError
from rawkern.launch import modes, reachable, variables

if TYPE_CHECKING:
    from rawkern.arguments.slow_path import Bound
    from rawkern.engines.cpu.profiler.launch import Profiled
    from rawkern.launch.unit import State

K = TypeVar("K", bound="Profiled")


def profiled_kernel(state: State) -> Profiled:
    """The kernel in a build that counts all of its work."""
    from rawkern.engines.cpu.profiler.launch import Profiled

    return counting_kernel(state, Profiled)


def counting_kernel(state: State, kind: type[K]) -> K:
    """The kernel in a counting build of a class of `Profiled`, next to the kernel's other builds."""
    build, mode = state.build, replace(modes.current(), guarded=True)
    with build.lock:
        found = state.engine_kernels.get((kind.instrument.name, mode))
        if found is None:
            module = build.engine_module(CPU, state.asked)
            symbol = state.entry_in(build.program(build.architecture(CPU), state.asked)).symbol
            found = kind(module, symbol, state.signature, host=state, mode=mode)
            state.engine_kernels[kind.instrument.name, mode] = found
        return found


def memory_of(bound: Bound, behind: Sequence[torch.Tensor], module: Any) -> list[tuple[int, int, str]]:
    """The disjoint pieces of memory that a launch may touch: start, bytes and name of each."""
    names = {piece.address: piece.name for piece in bound.pieces}
    found = [(*storage(t), "") for t in (*bound.tensors, *behind) if t.device.type == "cpu"]
    found += [(piece.address, piece.size, piece.name) for piece in bound.pieces]
    found.append((module.globals_address, module.layout.size, "variables"))
    result: list[list[Any]] = []
    for start, size, name in sorted(found, key=lambda row: (row[0], -row[1])):
        if not size or not start:
            continue
        name = name or names.get(start, "")
        if result and start < sum(result[-1][:2]):
            last = result[-1]
            last[1] = max(last[1], start + size - last[0])
            if name and name not in last[2].split(", "):
                last[2] = f"{last[2]}, {name}".removeprefix(", ")
        else:
            result.append([start, size, name])
    return [(start, size, name or "memory reached through pointers") for start, size, name in result]


@contextlib.contextmanager
def variables_of(state: State, device: torch.device) -> Iterator[None]:
    """Give the CPU build's variables the GPU's values for the duration of the block."""
    ours = profiled_kernel(state).kernel.module
    names = [name for name in ours.layout.offsets if not name.startswith(("$", "__unnamed"))]
    with state.build.lock:
        usual: Any = state.build.engine_module(device, state.asked) if names else None
    with reachable.as_before([(ours.globals_address, ours.layout.size)]):
        for name in names:
            with contextlib.suppress(KeyError, LaunchError):  # no kernel uses it
                (theirs, size), (address, same) = usual.global_view(name), ours.global_view(name)
                if size == same:
                    values = variables.on_gpu(theirs, size, device, usual).cpu()
                    ctypes.memmove(address, values.data_ptr(), size)
        yield
