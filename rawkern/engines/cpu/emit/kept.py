"""What warps hold at the barriers of a kernel that runs in rounds (`rounds`), and how they enter and leave parts."""

from __future__ import annotations

from dataclasses import dataclass, field

from rawkern.engines.cpu.analysis.divergence import Analysis, needed_elsewhere
from rawkern.engines.cpu.analysis.graph import Flow
from rawkern.engines.cpu.analysis.rounds import Rounds
from rawkern.engines.cpu.analysis.uniformity import U
from rawkern.engines.cpu.emit.context import Context
from rawkern.engines.cpu.emit.turns import Turns
from rawkern.engines.cpu.emit.values import Values
from rawkern.engines.cpu.ir import size_of

CELL = 8  # bytes for each register that is the same in the whole block
END = 0  # stands for the next part where a warp has come to the kernel's end


class Kept:
    """Registers that may be read in a later part of the kernel than they were written in.

    What each warp has for itself lies in its memory all the time, which LLVM would else copy to its stack and back in
    each part. What the block has, `shared`, goes from part to part as values. `turns`: what warps copy there in loops.
    """

    def __init__(self, rounds: Rounds, f: Context, values: Values):
        self.rounds, self._f, self._values = rounds, f, values
        begins = [rounds.begin(part) for part in range(1, len(rounds.barriers) + 1)]
        known = f.analysis.constants.keys() | f.analysis.fixed.keys()  # without slots
        kept = sorted(frozenset().union(*(f.flow.live_in[b] for b in begins)) - known)
        whole = [reg for reg in kept if reg in rounds.uniform and f.analysis.kinds.get(reg) == U]
        self.shared = {reg: k * CELL for k, reg in enumerate(whole)}
        self.warp_bytes = 0
        used, copied = _where_used(f.flow, f.analysis), _copied(f.flow)
        taken: dict[int, list[_Taken]] = {}  # by size
        sizes = [(size_of(ty), reg) for reg in kept if reg not in self.shared for ty in values.slot_types(reg)]
        for size, reg in sorted(sizes, key=lambda entry: -entry[0]):  # so that each is aligned
            free = [place for place in taken.get(size, ()) if not place.used & used[reg]]
            if not free:
                free = [_Taken(self.warp_bytes)]
                taken.setdefault(size, []).extend(free)
                self.warp_bytes += size
            place = max(free, key=lambda place: len(copied.get(reg, set()) & place.regs))  # nothing is then copied
            place.used |= used[reg]
            place.regs.add(reg)
            f.places.setdefault(reg, []).append(place.at)
        self.turns: Turns | None = None
        if rounds.rows:
            self.turns = Turns(rounds, f, values, known | f.places.keys(), self.warp_bytes)
            self.warp_bytes = self.turns.end

    def leave(self, follow: int) -> None:
        """All lanes have come to the barrier at the end of the block at hand, and go on to block `follow`."""
        f = self._f
        self._values.flush()
        self._values.copy(follow, f.lanes.act())
        for slot, ty, at in self._of_block(follow):
            value = f.e.let(ty, 1, f"load {ty}, ptr {slot}")
            f.e.line(f"store {value}, {f.e.let('ptr', 1, f'getelementptr i8, ptr %block.out, i64 {at}')}")
        f.e.line(f"ret i32 {END if f.flow.blocks[follow].exit_only else self.rounds.part(f.block)}")

    def enter(self, twice: bool) -> list[str]:
        """The lines that begin the part that is asked for, last the first; `twice`: there is code for whole warps."""
        parts = range(1, len(self.rounds.barriers) + 1)
        cases = " ".join(f"i32 {part}, label %part{part}" for part in parts)
        lines = [f"switch i32 %part, label %part0 [ {cases} ]"]

        def go_on(name: str, lanes: str, begin: int) -> list[str]:
            if not twice:
                return [f"br label %b{begin}"]
            whole = f"%{name}.whole"
            return [f"{whole} = icmp eq i32 {lanes}, -1", f"br i1 {whole}, label %w{begin}, label %b{begin}, !prof !2"]

        for label, copies, header, lanes in self.turns.enter() if self.turns is not None else ():
            lines += [f"{label}:", *copies, *go_on(label, lanes.ref, header)]
        for part in parts:
            begin = self.rounds.begin(part)
            lines += self._begin(part)
            for slot, ty, at in self._of_block(begin):
                name = f"%part{part}.{at}"
                lines += [
                    f"{name}.at = getelementptr i8, ptr %block.in, i64 {at}",
                    f"{name} = load {ty}, ptr {name}.at",
                    f"store {ty} {name}, ptr {slot}",
                ]
            exits = self._f.flow.blocks[begin].exit_only
            lines += ["unreachable"] if exits else go_on(f"part{part}", "%initial", begin)
        return [*lines, *self._begin(0)]

    def _begin(self, part: int) -> list[str]:
        """Where a part begins, and leads to the loop in which a warp goes on if it does."""
        turns = " ".join(f"i32 -{k}, label %turn{k}" for k in self.rounds.turns(part))
        loops = [f"switch i32 %turn, label %start{part} [ {turns} ]", f"start{part}:"] if turns else []
        return [f"part{part}:", *loops]

    def _of_block(self, begin: int) -> list[tuple[str, str, int]]:
        """The block's values that a part gets: slots, types, and where they are in between."""
        found = []
        for reg in sorted(self._f.flow.live_in[begin] & self.shared.keys()):
            found.append((self._values.slot(reg)[0], self._values.slot_types(reg)[0], self.shared[reg]))
        return found


@dataclass
class _Taken:
    """A place, when it is used, and the registers that lie there one after the other."""

    at: int
    used: int = 0
    regs: set[str] = field(default_factory=set)


def _where_used(flow: Flow, analysis: Analysis) -> dict[str, int]:
    """By register when it holds a value that some lane needs, as bits: two for each block, its start and its end.

    In a block all slots are read before any is written.
    """
    used: dict[str, int] = {}
    for i, (block, elsewhere) in enumerate(zip(flow.blocks, needed_elsewhere(flow, analysis), strict=True)):
        written = (name for copies in block.copies.values() for name, _ in copies)
        end = elsewhere.union(written, *(flow.live_in[t] for t in block.targets))
        for k, names in enumerate((flow.live_in[i] | elsewhere, end)):
            for name in names:
                used[name] = used.get(name, 0) | 1 << 2 * i + k
    return used


def _copied(flow: Flow) -> dict[str, set[str]]:
    """By register those that it is copied to or from on an edge."""
    found: dict[str, set[str]] = {}
    for block in flow.blocks:
        for copies in block.copies.values():
            for name, source in copies:
                found.setdefault(name, set()).add(source)
                found.setdefault(source, set()).add(name)
    return found
