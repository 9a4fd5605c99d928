"""Loops along rows in blocks that run in rounds: a warp leaves such a loop for the turns of the others (`row_loops`).

It copies what it has to its memory and returns the loop's number, negative. With that number it is called again, copies
it back and goes on at the loop's header.
"""

from __future__ import annotations

from rawkern.engines.cpu.analysis.divergence import needed_elsewhere
from rawkern.engines.cpu.analysis.rounds import Rounds
from rawkern.engines.cpu.analysis.row_loops import TURN_EVERY
from rawkern.engines.cpu.analysis.storage import align_up
from rawkern.engines.cpu.emit.context import Context
from rawkern.engines.cpu.emit.values import Values
from rawkern.engines.cpu.ir import Val, size_of


class Turns:
    """Where in a warp's memory, from `start` on, its registers and masks lie while others have their turn.

    At `went` lies what the part returned, and the memory ends at `end`. Registers of `elsewhere` need no place.
    """

    def __init__(self, rounds: Rounds, f: Context, values: Values, elsewhere: set[str], start: int):
        self._rounds, self._f, self._values = rounds, f, values
        waiting = needed_elsewhere(f.flow, f.analysis)
        self._regs = {h: sorted((f.flow.live_in[h] | waiting[h]) - elsewhere) for h in rounds.rows}
        sizes = {reg: [*map(size_of, values.slot_types(reg))] for reg in set().union(*self._regs.values())}
        self._places: dict[str, list[int]] = {}
        for reg in sorted(sizes, key=lambda reg: (-sizes[reg][0], reg)):
            for size in sizes[reg]:
                start = align_up(start, size)
                self._places.setdefault(reg, []).append(start)
                start += size
        self._masks = {h: ["act", *(f"wait{w}" for w in self._where_lanes_wait(h))] for h in rounds.rows}
        self._first_mask = align_up(start, 4)
        self.went = self._first_mask + 4 * max(map(len, self._masks.values()))
        self.end = self.went + 4

    def _where_lanes_wait(self, header: int) -> list[int]:
        """Blocks at which lanes of the warp can wait when it leaves a loop."""
        return sorted({*self._f.analysis.concurrent[header], header} & self._f.analysis.waitable)

    def _copies(self, header: int) -> list[tuple[str, str, int]]:
        """What is copied: slots, their types, and where they are meanwhile; the mask of the lanes that run first."""
        found = [(f"%{name}", "i32", self._first_mask + 4 * k) for k, name in enumerate(self._masks[header])]
        for reg in self._regs[header]:
            found += zip(self._values.slot(reg), self._values.slot_types(reg), self._places[reg], strict=True)
        return found

    def leave(self, header: int) -> None:
        """The lanes in ``%act`` are about to go round a loop: the warp lets others run before."""
        e = self._f.e
        for slot, ty, at in self._copies(header):
            value = e.let(ty, 1, f"load {ty}, ptr {slot}")
            e.line(f"store {value}, {e.let('ptr', 1, f'getelementptr i8, ptr %kept, i64 {at}')}")
        e.line(f"ret i32 -{self._rounds.rows.index(header) + 1}")

    def enter(self) -> list[tuple[str, list[str], int, Val]]:
        """For each loop the label at which a warp enters it again, what is copied there, its header, and the lanes."""
        found = []
        for k, header in enumerate(self._rounds.rows, 1):
            lines = [f"store i32 {TURN_EVERY}, ptr %rounds"]
            for n, (slot, ty, at) in enumerate(self._copies(header)):
                name = f"%turn{k}.{n}"
                lines += [
                    f"{name}.at = getelementptr i8, ptr %kept, i64 {at}",
                    f"{name} = load {ty}, ptr {name}.at",
                    f"store {ty} {name}, ptr {slot}",
                ]
            found.append((f"turn{k}", lines, header, Val(f"%turn{k}.0", "i32")))
        return found
