"""What a function's registers hold while it is lowered.

Inside a block a register is held in whatever form it was computed (scalar, affine parts, vector); between blocks it
lives in stack slots of the form that `uniformity` found, which LLVM turns into SSA values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rawkern.base.forking import cached_property
from rawkern.engines.cpu import arith
from rawkern.engines.cpu.analysis.in_memory import registers_in_memory
from rawkern.engines.cpu.analysis.uniformity import ALIGNED, Kind, U, V
from rawkern.engines.cpu.emit.context import Context
from rawkern.engines.cpu.emit.forms import (
    LANES,
    Affine,
    Agreed,
    Form,
    Lazy,
    Wide,
    immediate,
    int_type,
    lazy_registers,
    register_bits,
    spread,
)
from rawkern.engines.cpu.emit.names import special, symbol
from rawkern.engines.cpu.emit.nans import is_number, number_registers, quiet_registers
from rawkern.engines.cpu.ir import Val
from rawkern.engines.cpu.ptx.data import Imm, Not, Reg, Special, Sym


class Values:
    """The registers of a function, and its operands in general."""

    def __init__(self, f: Context):
        self._f = f
        self.lazy = lazy_registers(f.flow)  # registers of floats whose NaNs are not canonical, with their types
        self.in_memory = registers_in_memory(f.flow, f.analysis)
        self._numbers = number_registers(f.flow, f.analysis.constants)
        self._slots: dict[str, list[str]] = {}
        self._forms: dict[str, Form] = {}
        self._fixed: dict[str, Form] = {}  # registers computed at the start
        self._dirty: dict[str, None] = {}
        #: Of registers that are contiguous in memory the tuple and the place in it.
        self._contiguous = {reg: (k, at) for k, names in enumerate(f.flow.tuples) for at, reg in enumerate(names)}

    @cached_property
    def _quiet(self) -> frozenset[str]:
        return quiet_registers(self._f.flow)

    def begin(self) -> None:
        """Forget what holds only inside a block."""
        self._forms = {}
        self._dirty.clear()

    def fix(self) -> None:
        """What registers hold now they hold in all blocks."""
        self._fixed = self._forms

    def is_fixed(self, reg: str) -> bool:
        return reg in self._fixed

    def is_quiet(self, a: object) -> bool:
        """Whether a float operand is never a signaling NaN."""
        return a.name in self._quiet if isinstance(a, Reg) else is_number(a)

    # -- registers ---------------------------------------------------------------------------------------------
    def bits_of(self, reg: str) -> int:
        return register_bits(self._f.flow.regs[reg])

    def slot(self, reg: str) -> list[str]:
        """Stack slots of a register that lives across blocks: one, or those of affine values' scalar parts."""
        names = self._slots.get(reg)
        if names is None and reg in self._contiguous:
            number, at = self._contiguous[reg]
            names = self._slots[reg] = [f"%s{len(self._slots)}.0"]
            place = f"getelementptr <32 x i32>, {self._tuple(number)}, i64 {at}"
            self._f.frame.lines.append(f"{names[0]} = {place}")
        elif names is None:
            types, places = self.slot_types(reg), self._f.places.get(reg)
            names = self._slots[reg] = [f"%s{len(self._slots)}.{k}" for k in range(len(types))]
            for k, (n, t) in enumerate(zip(names, types, strict=True)):
                if places is None:
                    self._f.frame.reserve(n, t, reg in self.in_memory)
                else:
                    self._f.frame.lines.append(f"{n} = getelementptr i8, ptr %kept, i64 {places[k]}")
        return names

    def slot_types(self, reg: str) -> list[str]:
        """The types of the slots of a register that is not among contiguous ones."""
        kind = self._f.analysis.kinds.get(reg, V)
        ty = int_type(self.bits_of(reg))
        if kind[0] == "w":
            return ["i64"] * kind[4] + ["i32"] * kind[4]
        if kind[0] == "a":
            return [ty] * kind[2]
        return [ty if kind == U else "i32" if ty == "i1" else f"<32 x {ty}>"]

    def known(self, reg: str) -> Form | None:
        """What the block has found a register to be, if it has looked."""
        return self._forms.get(reg)

    def form(self, reg: str) -> Form:
        """Current value of a register in whatever form it is held."""
        found = self._forms.get(reg) or self._fixed.get(reg)
        if found is None:
            found = self._forms[reg] = self._load_slot(reg)
        return found

    def _load_slot(self, reg: str) -> Form:
        kind, bits = self._f.analysis.kinds.get(reg, V), self.bits_of(reg)
        ty = int_type(bits)
        names = self.slot(reg)
        e = self._f.e
        if kind[0] == "w":
            offsets = tuple(e.let("i64", 1, f"load i64, ptr {name}") for name in names[: kind[4]])
            inners = tuple(e.let("i32", 1, f"load i32, ptr {name}") for name in names[kind[4] :])
            return Wide(offsets, inners, kind[1], kind[2], kind[3])
        if kind[0] == "a":
            return Affine(tuple(e.let(ty, 1, f"load {ty}, ptr {name}") for name in names), kind[1], kind == ALIGNED)
        n = 1 if kind == U else LANES
        if bits == 1 and n > 1:
            return self._f.lanes.vector(e.let("i32", 1, f"load i32, ptr {names[0]}"))
        val = e.let(ty, n, f"load {Val('', ty, n).t}, ptr {names[0]}")
        return Lazy(val, self.lazy[reg]) if reg in self.lazy else val

    def forget(self, reg: str) -> None:
        """Tell LLVM that the old value of a varying register is not needed."""
        if reg in self._f.places:  # where another one may lie meanwhile
            return
        bits = self.bits_of(reg)
        self._f.e.line(f"store {'i32' if bits == 1 else f'<32 x {int_type(bits)}>'} undef, ptr {self.slot(reg)[0]}")

    def put(self, reg: str, form: Form) -> None:
        """Write a register; integers of another width are fitted."""
        bits = self.bits_of(reg)
        if isinstance(form, Val) and form.bits != bits:
            form = self._f.e.resize(form, int_type(bits))
        if isinstance(form, Lazy) and reg in self._numbers:
            form = form.val
        self._forms[reg] = form
        self._dirty[reg] = None

    @contextmanager
    def instead(self, forms: dict[str, Form]) -> Iterator[None]:
        """Registers that are read meanwhile hold other values; none of them is written."""
        kept = {reg: self.form(reg) for reg in forms}
        self._forms |= forms
        yield
        self._forms |= kept

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is emitted meanwhile does not always run: it writes no register, and what it reads is read again."""
        forms, known = dict(self._forms), dict(self._f.cache)
        yield
        self._forms, self._f.cache = forms, known

    def flush(self) -> None:
        """Load what edges copy, and store what later blocks read, keeping the values of lanes that wait elsewhere."""
        block = self._f.flow.blocks[self._f.block]
        self._f.lanes.act()
        for copies in block.copies.values():
            for _, source in copies:
                self.operand(Reg(source), 0)
        live: set[str] = set()
        for t in block.targets:
            live |= self._f.flow.live_in[t]
        for reg in self._dirty:
            if reg in live and reg not in self._f.analysis.constants:
                self._store_slot(reg, self._forms[reg], self._f.lanes.act())
        self._dirty.clear()

    def _tuple(self, number: int) -> Val:
        return self._f.frame.array(f"%tuple{number}", len(self._f.flow.tuples[number]))

    def contiguous(self, regs: Sequence[Reg | None]) -> Val | None:
        """Memory where registers are contiguous, with the values that they have now; None where they are not.

        Only where the whole warp runs: the values of inactive lanes would be overwritten.
        """
        names = tuple(reg.name for reg in regs if reg is not None)
        if names not in self._f.flow.tuples:
            return None
        for reg in names:
            if reg in self._dirty:
                self._f.e.line(f"store {self.vector(Reg(reg), 32)}, ptr {self.slot(reg)[0]}")
                del self._dirty[reg]
        return self._tuple(self._contiguous[names[0]][0])

    def changed(self, regs: Sequence[Reg]) -> None:
        """The memory of contiguous registers has been written."""
        for reg in regs:
            self._forms.pop(reg.name, None)

    def copy(self, t: int, mask: Val) -> None:
        """Give registers the values that they have for the lanes `mask` on the edge to block `t`."""
        known = dict(self._f.cache)
        copies = self._f.flow.blocks[self._f.block].copies.get(t, ())
        values = [self.operand(Reg(source), 0) for _, source in copies]
        for (name, _), value in zip(copies, values, strict=True):
            self._store_slot(name, value, mask)
        self._f.watch.edge(t, copies, mask)
        self._f.cache = known  # what is made on one edge is not there on another

    def _store_slot(self, reg: str, form: Form, lanes: Val) -> None:
        kind, names, e = self._f.analysis.kinds.get(reg, V), self.slot(reg), self._f.e
        if kind[0] == "w":
            if not isinstance(form, Wide):
                raise AssertionError(f"{reg} is {form}, its slot is {kind}")
            form = form.split(e, kind[4])
            parts = (*form.offsets, *form.inners)
        elif kind[0] == "a":
            if isinstance(form, Val) and form.n == 1:
                form = Affine((form,), 0)
            if not isinstance(form, Affine) or form.stride != kind[1]:
                raise AssertionError(f"{reg} is {form}, its slot is {kind}")
            parts = form.split(e, kind[2]).bases
        else:
            parts = (self._merged(reg, form, kind, lanes),)
        for part, name in zip(parts, names, strict=True):
            e.line(f"store {part}, ptr {name}")

    def _merged(self, reg: str, form: Form, kind: Kind, lanes: Val) -> Val:
        """What a slot of one value holds from here on: `form` in `lanes`, and what it held where others need that."""
        e, slot = self._f.e, self.slot(reg)[0]
        val = form.val if isinstance(form, Lazy) and self.lazy.get(reg) == form.kind else self.plain(form)
        if kind == U:
            if val.n != 1:
                raise AssertionError(f"{reg} varies, its slot is uniform")
            return val
        blend = (self._f.block, reg) in self._f.analysis.blends
        if val.ty == "i1":
            mask = self._f.lanes.mask_of(val)
            if not blend:
                return mask
            old = e.let("i32", 1, f"load i32, ptr {slot}")
            keep = e.bin("and", old, e.invert(lanes))
            return e.bin("or", e.bin("and", mask, lanes), keep)
        val = e.splat(val, LANES)
        if not blend:
            return val
        old = e.let(val.ty, LANES, f"load {val.t}, ptr {slot}")
        if reg in self._f.places and "avx512f" not in e.module.features:
            # LLVM would make a masked store of this, the choice below and the store, which is slow on AMD's CPUs
            old = e.let(val.ty, LANES, f"freeze {old}")
        return e.select(self._f.lanes.vector(lanes), val, old)

    # -- forms -------------------------------------------------------------------------------------------------
    def plain(self, form: Form) -> Val:
        """A form as a scalar or vector of raw bits, NaNs canonical."""
        if isinstance(form, Val):
            return form
        if isinstance(form, Lazy):
            return self._f.in_block(("canonical", form.val.ref), lambda e: arith.canonical(e, form.val, form.kind))
        if isinstance(form, Agreed):
            return self._f.in_block(
                ("lanes", form), lambda e: arith.lower(e, form.op, [self.plain(x) for x in form.operands]).vals[0]
            )
        return self._f.in_block(("lanes", form), lambda e: spread(e, form))

    def operand(self, a, bits: int) -> Form:
        """The form of any operand; `bits` is the width of immediates."""
        if isinstance(a, Reg):
            known = self._f.analysis.constants.get(a.name)
            return immediate(known, self.bits_of(a.name)) if known is not None else self.form(a.name)
        if isinstance(a, Imm):
            return immediate(a, bits)
        if isinstance(a, Not):
            return self._f.e.invert(self.value(a.reg, 1))
        if isinstance(a, Special):
            return special(self._f, a.name)
        if isinstance(a, Sym):
            return symbol(self._f, a)
        raise self._f.unsupported(f"operand {a}")

    def value(self, a, bits: int) -> Val:
        """An operand as raw bits, scalar or vector."""
        return self.plain(self.operand(a, bits))

    def vector(self, a, bits: int) -> Val:
        return self._f.e.splat(self.value(a, bits), LANES)

    def number(self, a, bits: int, kind: str) -> Val:
        """An operand of a float instruction of type `kind`, whose NaNs may be any."""
        form = self.operand(a, bits)
        return form.val if isinstance(form, Lazy) and form.kind == kind else self.plain(form)
