"""What instructions are lowered with: a function's registers in whatever form they are held, masks, errors.

Inside a block a register is held in whatever form it was computed (scalar, affine parts, vector); between blocks it
lives in stack slots of the form that `kinds` found, which LLVM turns into SSA values.
"""

from __future__ import annotations

from functools import cached_property

from rawkern.engines.cpu import arith
from rawkern.engines.cpu.analysis.plan import Plan
from rawkern.engines.cpu.analysis.polling import polling_loops
from rawkern.engines.cpu.analysis.provenance import Root, find_roots
from rawkern.engines.cpu.analysis.row_loops import row_loops
from rawkern.engines.cpu.analysis.uniformity import ALIGNED, U, V
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
from rawkern.engines.cpu.emit.instrument import Instrument
from rawkern.engines.cpu.emit.nans import number_registers
from rawkern.engines.cpu.emit.slots import registers_in_memory
from rawkern.engines.cpu.emit.special import special
from rawkern.engines.cpu.emit.symbols import symbol
from rawkern.engines.cpu.ir import Module, Val
from rawkern.engines.cpu.ptx.data import Function, Imm, Not, Reg, Special, Sym


class FunctionLowering(Context):
    """Holds what the handlers of instructions work on."""

    def __init__(self, plan: Plan, module: Module, function: Function, instrument: Instrument):
        super().__init__(plan, module, function)
        self.flow, self.analysis = plan.flows[function.name], plan.analyses[function.name]
        self.buffers: dict[str, str] = {}  # memory of device functions' parameters and of calls' arguments
        self.slots: dict[str, list[str]] = {}
        self.forms: dict[str, Form] = {}
        self.fixed: dict[str, Form] = {}  # registers computed at the start
        self.dirty: dict[str, None] = {}
        self.cache: dict[object, Val] = {}  # per block: masks and address checks
        self.carry: Val | None = None
        self.block = 0
        self.whole = False  # what is emitted runs with all lanes
        self.lazy = lazy_registers(self.flow)
        self.numbers = number_registers(self.flow, self.analysis.constants)
        self.quiet: frozenset[str] | None = None  # registers whose NaNs never signal, found when first asked for
        self.rows = row_loops(self.flow)
        self.polling = polling_loops(self.flow, self.analysis.spin_headers)
        # blocks at which the code looks for waiting lanes, with the blocks at which lanes can wait then
        self.looked: dict[int, set[int]] = {}
        if self.analysis.free_running and self.analysis.checks:
            self.looked[self.analysis.checks[0]] = set(self.analysis.checks)
        self.barriers: list[int] = []  # blocks whose barrier not all lanes may reach together
        self.meetings: list[int] = []  # blocks at which lanes of the warp wait for each other
        self.masks: dict[str, None] = {}  # words of memory, lane masks above all, that are zero when the call starts
        self.kept: dict[str, str] = {}  # slots that stay memory, with their types
        self.in_memory = registers_in_memory(self.flow, self.analysis)
        self.watch = instrument.watch(self)

    @cached_property
    def roots(self) -> dict[str, Root]:
        """What addresses are made of."""
        return find_roots(self.plan, self.function)

    def begin(self, block: int) -> None:
        """Forget what holds only inside a block."""
        self.block = block
        self.forms, self.cache, self.carry = {}, {}, None
        self.dirty.clear()

    def reserve(self, ref: str, ty: str, in_memory: bool) -> None:
        """Have memory at `ref` for the call, which LLVM may take for a register unless it shall stay memory."""
        if in_memory:
            self.kept[ref] = ty
        else:
            self.entry.append(f"{ref} = alloca {ty}")

    def mask(self, name: str) -> str:
        """A word that is zero at first, as ``%name``; it may be used before this is called."""
        self.masks[name] = None
        return f"%{name}"

    # -- registers ---------------------------------------------------------------------------------------------
    def bits_of(self, reg: str) -> int:
        return register_bits(self.flow.regs[reg])

    def slot(self, reg: str) -> list[str]:
        """Stack slots of a register that lives across blocks: one, or those of affine values' scalar parts."""
        names = self.slots.get(reg)
        if names is None:
            kind = self.analysis.kinds.get(reg, V)
            ty = int_type(self.bits_of(reg))
            if kind[0] == "w":
                types = ["i64"] * kind[4] + ["i32"] * kind[4]
            elif kind[0] == "a":
                types = [ty] * kind[2]
            else:
                types = [ty if kind == U else "i32" if ty == "i1" else f"<32 x {ty}>"]
            names = self.slots[reg] = [f"%s{len(self.slots)}.{k}" for k in range(len(types))]
            for n, t in zip(names, types, strict=True):
                self.reserve(n, t, reg in self.in_memory)
        return names

    def form(self, reg: str) -> Form:
        """Current value of a register in whatever form it is held."""
        found = self.forms.get(reg) or self.fixed.get(reg)
        if found is None:
            found = self.forms[reg] = self._load_slot(reg)
        return found

    def _load_slot(self, reg: str) -> Form:
        kind, bits = self.analysis.kinds.get(reg, V), self.bits_of(reg)
        ty = int_type(bits)
        names = self.slot(reg)
        e = self.e
        if kind[0] == "w":
            offsets = tuple(e.let("i64", 1, f"load i64, ptr {name}") for name in names[: kind[4]])
            inners = tuple(e.let("i32", 1, f"load i32, ptr {name}") for name in names[kind[4] :])
            return Wide(offsets, inners, kind[1], kind[2], kind[3])
        if kind[0] == "a":
            return Affine(tuple(e.let(ty, 1, f"load {ty}, ptr {name}") for name in names), kind[1], kind == ALIGNED)
        n = 1 if kind == U else LANES
        if bits == 1 and n > 1:
            return self.lanes(e.let("i32", 1, f"load i32, ptr {names[0]}"))
        val = e.let(ty, n, f"load {Val('', ty, n).t}, ptr {names[0]}")
        return Lazy(val, self.lazy[reg]) if reg in self.lazy else val

    def forget(self, reg: str) -> None:
        """Tell LLVM that nobody needs what a register of any values has held."""
        bits = self.bits_of(reg)
        self.e.line(f"store {'i32' if bits == 1 else f'<32 x {int_type(bits)}>'} undef, ptr {self.slot(reg)[0]}")

    def put(self, reg: str, form: Form) -> None:
        """Write a register; integers of another width are fitted."""
        bits = self.bits_of(reg)
        if isinstance(form, Val) and form.bits != bits:
            form = self.e.resize(form, int_type(bits))
        if isinstance(form, Lazy) and reg in self.numbers:
            form = form.val
        self.forms[reg] = form
        self.dirty[reg] = None

    def flush(self) -> None:
        """Store what later blocks read, keeping the values of lanes that wait elsewhere; load what edges copy."""
        block = self.flow.blocks[self.block]
        live: set[str] = set()
        for t in block.targets:
            live |= self.flow.live_in[t]
        for reg in self.dirty:
            if reg in live and reg not in self.analysis.constants:
                self._store_slot(reg, self.forms[reg], self.act())
        self.dirty.clear()
        self.act()
        for copies in block.copies.values():
            for _, source in copies:
                self.operand_form(Reg(source), 0)

    def copy(self, t: int, mask: Val) -> None:
        """Give registers the values that they have for the lanes `mask` on the edge to block `t`."""
        known = dict(self.cache)
        copies = self.flow.blocks[self.block].copies.get(t, ())
        values = [self.operand_form(Reg(source), 0) for _, source in copies]
        for (name, _), value in zip(copies, values, strict=True):
            self._store_slot(name, value, mask)
        self.watch.edge(t, copies, mask)
        self.cache = known  # what is made on one edge is not there on another

    def _store_slot(self, reg: str, form: Form, lanes: Val) -> None:
        kind, names, e = self.analysis.kinds.get(reg, V), self.slot(reg), self.e
        if kind[0] == "w":
            if not isinstance(form, Wide):
                raise AssertionError(f"{reg} is {form}, its slot is {kind}")
            form = form.split(e, kind[4])
            for val, name in zip([*form.offsets, *form.inners], names, strict=True):
                e.line(f"store {val}, ptr {name}")
            return
        if kind[0] == "a":
            if isinstance(form, Val) and form.n == 1:
                form = Affine((form,), 0)
            if not isinstance(form, Affine) or form.stride != kind[1]:
                raise AssertionError(f"{reg} is {form}, its slot is {kind}")
            for val, name in zip(form.split(e, kind[2]).bases, names, strict=True):
                e.line(f"store {val}, ptr {name}")
            return
        val = form.val if isinstance(form, Lazy) and self.lazy.get(reg) == form.kind else self.plain(form)
        if kind == U:
            if val.n != 1:
                raise AssertionError(f"{reg} varies, its slot is uniform")
            e.line(f"store {val}, ptr {names[0]}")
            return
        blend = (self.block, reg) in self.analysis.blends
        if val.ty == "i1":
            mask = self.mask_of(val)
            if blend:
                old = e.let("i32", 1, f"load i32, ptr {names[0]}")
                keep = e.bin("and", old, e.invert(lanes))
                mask = e.bin("or", e.bin("and", mask, lanes), keep)
            e.line(f"store {mask}, ptr {names[0]}")
            return
        val = e.splat(val, LANES)
        if blend:
            old = e.let(val.ty, LANES, f"load {val.t}, ptr {names[0]}")
            val = e.select(self.lanes(lanes), val, old)
        e.line(f"store {val}, ptr {names[0]}")

    # -- forms -------------------------------------------------------------------------------------------------
    def plain(self, form: Form) -> Val:
        """A form as a scalar or vector of raw bits, NaNs canonical."""
        if isinstance(form, Val):
            return form
        if isinstance(form, Lazy):
            key = ("canonical", form.val.ref)
            if key not in self.cache:
                self.cache[key] = arith.canonical(self.e, form.val, form.kind)
            return self.cache[key]
        key = ("lanes", form)
        if key not in self.cache:
            if isinstance(form, Agreed):
                self.cache[key] = arith.lower(self.e, form.op, [self.plain(x) for x in form.operands]).vals[0]
            else:
                self.cache[key] = spread(self.e, form)
        return self.cache[key]

    def operand_form(self, a, bits: int) -> Form:
        """The form of any operand; `bits` is the width of immediates."""
        if isinstance(a, Reg):
            known = self.analysis.constants.get(a.name)
            return immediate(known, self.bits_of(a.name)) if known is not None else self.form(a.name)
        if isinstance(a, Imm):
            return immediate(a, bits)
        if isinstance(a, Not):
            return self.e.invert(self.value(a.reg, 1))
        if isinstance(a, Special):
            return special(self, a.name)
        if isinstance(a, Sym):
            return symbol(self, a)
        raise self.unsupported(f"operand {a}")

    def value(self, a, bits: int) -> Val:
        """An operand as raw bits, scalar or vector."""
        return self.plain(self.operand_form(a, bits))

    def vector(self, a, bits: int) -> Val:
        return self.e.splat(self.value(a, bits), LANES)

    def number(self, a, bits: int, kind: str) -> Val:
        """An operand of a float instruction of type `kind`, whose NaNs may be any."""
        form = self.operand_form(a, bits)
        return form.val if isinstance(form, Lazy) and form.kind == kind else self.plain(form)

    # -- masks -------------------------------------------------------------------------------------------------
    def act(self) -> Val:
        if "act" not in self.cache:
            self.cache["act"] = self.e.let("i32", 1, "load i32, ptr %act")
        return self.cache["act"]

    def actv(self) -> Val:
        return self.lanes(self.act())

    def lanes(self, mask: Val) -> Val:
        """A 32-bit lane mask as a vector of conditions."""
        key = ("lanes", mask.ref)
        if key not in self.cache:
            self.cache[key] = self.e.let("i1", LANES, f"bitcast {mask} to <32 x i1>")
        return self.cache[key]

    def mask_of(self, cond: Val) -> Val:
        """A condition as a 32-bit lane mask."""
        if cond.n == 1:
            return self.e.let("i32", 1, f"sext {cond} to i32")
        return self.e.let("i32", 1, f"bitcast {cond} to i32")

    def first_lane(self) -> Val:
        """Number of the lowest active lane."""
        if "first" not in self.cache:
            self.cache["first"] = self.e.intrinsic("llvm.cttz", "i32", self.act(), extra=", i1 true")
        return self.cache["first"]
