"""How a derived backward is launched: as the forward was; or, where its blocks have sums of their own, by fewer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rawkern.base import gpus
from rawkern.gradients.text import Text
from rawkern.launch.occupancy import occupancy

ROOM = 32 << 10  # bytes for the sums of a block, as far as other shared memory leaves them


@dataclass(frozen=True)
class Launch:
    """What a launch needs beyond the forward's arguments and the gradients."""

    grid: tuple[int, int, int]
    shared_mem: int
    numbers: Mapping[tuple[str, str], int]  # by kind and name of a parameter


def launch(text: Text, kernel: Any, named: Mapping[str, Any], grid: tuple[int, int, int]) -> Launch:
    """What to launch `kernel`, of that text, with, for a forward with these arguments and grid."""
    numbers = {(k, n): named[n].numel() for k, n in text.parameters if k == "size"}
    numbers |= {(k, n): grid["xyz".index(n)] for k, n in text.parameters if k == "blocks"}
    if not text.sums:
        return Launch(grid, text.shared_mem, numbers)
    total, left = math.prod(grid), ROOM
    device = next(t.device for t in named.values() if isinstance(t, torch.Tensor))
    attributes = kernel.attributes
    left = min(ROOM, gpus.STATIC_SHARED - attributes["shared_size_bytes"] - text.shared_mem)
    rooms: dict[str, int] = {}
    for name, fields, size in text.sums:
        value = named[name]
        count = value.numel() // fields if isinstance(value, torch.Tensor) else 1
        rooms[name] = max(min(count, left // size), 0)
        left -= rooms[name] * size
    taken = text.shared_mem + sum(rooms[name] * size for name, _, size in text.sums)
    most = _at_a_time(device, math.prod(text.block), attributes, taken)
    if total < 2 * most:  # each block would give what it has summed up of one alone
        rooms, taken, most = dict.fromkeys(rooms, 0), text.shared_mem, total
    return Launch((most, 1, 1), taken, numbers | {("room", name): room for name, room in rooms.items()})


def _at_a_time(device: torch.device, threads: int, attributes: Mapping[str, int], shared: int) -> int:
    """How many blocks a device runs at a time."""
    if device.type != "cuda":
        return torch.get_num_threads()
    major, minor = torch.cuda.get_device_capability(device)
    spec = gpus.specification(f"sm_{major}{minor}") or gpus.DEFAULT
    found = occupancy(spec, threads, registers=attributes["num_regs"], shared=attributes["shared_size_bytes"] + shared)
    return max(found.blocks, 1) * torch.cuda.get_device_properties(device).multi_processor_count
