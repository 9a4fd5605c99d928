"""One PTX function to LLVM IR: registers, masks and control flow; instructions are lowered by tables.

Inside a block a register is held in whatever form it was computed (scalar, affine parts, vector); between blocks it
lives in stack slots of the form that `kinds` found, which LLVM turns into SSA values.

A lane that cannot go on with the others waits at a block: its bit is set in the block's ``wait`` mask. The code visits
the blocks in order (`flow`), so a check stands where lanes can wait and the lowest block with waiting lanes runs next.
"""

from __future__ import annotations

from dataclasses import dataclass

from rawkern.engines.cpu import kinds as kinds_
from rawkern.engines.cpu.arith import canonical
from rawkern.engines.cpu.flow import Flow
from rawkern.engines.cpu.ir import Emitter, Module, Val, const
from rawkern.engines.cpu.kinds import U, V
from rawkern.engines.cpu.operands import base, destinations, is_barrier
from rawkern.engines.cpu.ptx import TYPE_BYTES, Function, Imm, Instr, Not, Reg, Special, Sym
from rawkern.errors import UnsupportedError

LANES = 32
POLL_EVERY = 4096  # back edges of ordinary loops between looks at the clock
SPIN_LIMIT = 64  # back edges of a loop that waits for other threads before those get their turn

#: Instructions whose float results may hold any NaN until the bits are looked at.
LAZY_NAN = frozenset(
    ["add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"]
)
#: Instructions that read floats as numbers, for which the bits of a NaN do not matter.
READS_NUMBERS = LAZY_NAN | frozenset(["setp", "set", "testp", "min", "max", "abs", "neg", "cvt"])


@dataclass(frozen=True, slots=True)
class Affine:
    """An integer that grows by `stride` from lane to lane, modulo its width; `aligned`: 32 divides lane 0's."""

    base: Val
    stride: int
    aligned: bool = False


@dataclass(frozen=True, slots=True)
class Wide:
    """A 64-bit integer ``offset + scale * extend(inner + lane * stride)``, the inner sum modulo 2^32."""

    offset: Val
    inner: Val
    scale: int
    stride: int
    signed: bool


@dataclass(frozen=True, slots=True)
class Lazy:
    """A float whose NaNs are not canonical yet; ``kind`` as the arithmetic tables name it."""

    val: Val
    kind: str


Form = Val | Affine | Wide | Lazy


@dataclass(frozen=True)
class Target:
    """What the emitted code may rely on."""

    tid_affine: bool  # a warp's threads lie in one row of the block
    waiting: bool  # warps have stacks of their own and may wait


def int_type(bits: int) -> str:
    return f"i{bits}"


def register_bits(kind: str) -> int:
    return 1 if kind == "pred" else 8 * TYPE_BYTES[kind]


class FunctionLowering:
    """Holds what the handlers of instructions work on; `run` emits the function."""

    def __init__(
        self, program, module: Module, function: Function, flow: Flow, analysis: kinds_.Analysis, target: Target
    ):
        self.program, self.module, self.function = program, module, function
        self.flow, self.analysis, self.target = flow, analysis, target
        self.e = Emitter(module)
        self.entry: list[str] = []  # allocas and values made once per call
        self.once = Emitter(module, self.entry, "once")
        self.entry_cache: dict[str, Val] = {}
        self.slots: dict[str, list[str]] = {}
        self.forms: dict[str, Form] = {}
        self.dirty: dict[str, None] = {}
        self.cache: dict[object, Val] = {}  # per block: masks and address checks
        self.carry: Val | None = None
        self.block = 0
        self.instr: Instr | None = None
        self.lazy = self._lazy_registers()
        self.waitable = self._waitable()
        self.barriers: dict[int, Instr] = {}  # free-running: blocks whose barrier not all lanes may reach together

    # -- errors ------------------------------------------------------------------------------------------------
    def where(self, loc: int | None = None) -> str:
        return self.program.where(self.instr.loc if loc is None and self.instr else loc or 0)

    def unsupported(self, why: str = "") -> UnsupportedError:
        op = self.instr.op if self.instr else "?"
        text = f"{self.program.kernel}: the PTX instruction {op} is not supported on the CPU engine"
        return UnsupportedError(f"{text}{f' ({why})' if why else ''}; it comes from {self.where()}")

    # -- registers ---------------------------------------------------------------------------------------------
    def bits_of(self, reg: str) -> int:
        return register_bits(self.function.regs[reg])

    def _lazy_registers(self) -> dict[str, str]:
        """Registers all of whose writes are float arithmetic of one type, with that type."""
        lazy: dict[str, str] = {}
        writes: dict[str, list[Instr]] = {}
        for block in self.flow.blocks:
            for instr in block.instrs:
                for name in destinations(instr):
                    writes.setdefault(name, []).append(instr)
        for name, instrs in writes.items():
            types = {i.op.rsplit(".", 1)[1] for i in instrs if base(i.op) in LAZY_NAN}
            plain = all(
                base(i.op) in LAZY_NAN or (base(i.op) == "mov" and isinstance(i.args[1], (Imm, Reg))) for i in instrs
            )
            if plain and len(types) == 1 and types <= {"f32", "f64"}:
                lazy[name] = types.pop()
        changed = True
        while changed:
            changed = False
            for name in list(lazy):
                for i in writes[name]:
                    if base(i.op) == "mov" and isinstance(i.args[1], Reg) and lazy.get(i.args[1].name) != lazy[name]:
                        del lazy[name]
                        changed = True
                        break
        return lazy

    def slot(self, reg: str) -> list[str]:
        """Stack slots of a register that lives across blocks: one, or two for wide affine values."""
        names = self.slots.get(reg)
        if names is None:
            kind = self.analysis.kinds.get(reg, V)
            ty = int_type(self.bits_of(reg))
            types = {"u": [ty], "a": [ty], "w": ["i64", "i32"]}.get(kind[0]) or [
                f"<32 x {ty}>" if ty != "i1" else "i32"
            ]
            names = self.slots[reg] = [f"%s{len(self.slots)}.{k}" for k in range(len(types))]
            self.entry += [f"{n} = alloca {t}" for n, t in zip(names, types, strict=True)]
        return names

    def form(self, reg: str) -> Form:
        """Current value of a register in whatever form it is held."""
        found = self.forms.get(reg)
        if found is None:
            found = self.forms[reg] = self._load_slot(reg)
        return found

    def _load_slot(self, reg: str) -> Form:
        kind, bits = self.analysis.kinds.get(reg, V), self.bits_of(reg)
        ty = int_type(bits)
        names = self.slot(reg)
        e = self.e
        if kind[0] == "w":
            off, inner = e.let("i64", 1, f"load i64, ptr {names[0]}"), e.let("i32", 1, f"load i32, ptr {names[1]}")
            return Wide(off, inner, kind[1], kind[2], kind[3])
        if kind[0] == "a":
            return Affine(e.let(ty, 1, f"load {ty}, ptr {names[0]}"), kind[1], len(kind) > 2)
        n = 1 if kind == U else LANES
        if bits == 1 and n > 1:
            return self.lanes(e.let("i32", 1, f"load i32, ptr {names[0]}"))
        val = e.let(ty, n, f"load {Val('', ty, n).t}, ptr {names[0]}")
        return Lazy(val, self.lazy[reg]) if reg in self.lazy else val

    def put(self, reg: str, form: Form) -> None:
        """Write a register; integers of another width are fitted."""
        bits = self.bits_of(reg)
        if isinstance(form, Val) and form.bits != bits:
            form = self.e.resize(form, int_type(bits))
        self.forms[reg] = form
        self.dirty[reg] = None

    def flush(self) -> None:
        """Store what later blocks read, keeping the values of lanes that wait elsewhere."""
        block = self.flow.blocks[self.block]
        live: set[str] = set()
        for t in block.targets:
            live |= self.flow.live_in[t]
        for reg in self.dirty:
            if reg in live:
                self._store_slot(reg)
        self.dirty.clear()

    def _store_slot(self, reg: str) -> None:
        kind, form, names, e = self.analysis.kinds.get(reg, V), self.forms[reg], self.slot(reg), self.e
        if kind[0] == "w":
            if not isinstance(form, Wide):
                raise AssertionError(f"{reg} is {form}, its slot is {kind}")
            e.line(f"store {form.offset}, ptr {names[0]}")
            e.line(f"store {form.inner}, ptr {names[1]}")
            return
        if kind[0] == "a":
            if not isinstance(form, Affine) or form.stride != kind[1]:
                raise AssertionError(f"{reg} is {form}, its slot is {kind}")
            e.line(f"store {form.base}, ptr {names[0]}")
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
                keep = e.bin("and", old, e.invert(self.act()))
                mask = e.bin("or", e.bin("and", mask, self.act()), keep)
            e.line(f"store {mask}, ptr {names[0]}")
            return
        val = e.splat(val, LANES)
        if blend:
            old = e.let(val.ty, LANES, f"load {val.t}, ptr {names[0]}")
            val = e.select(self.actv(), val, old)
        e.line(f"store {val}, ptr {names[0]}")

    # -- forms -------------------------------------------------------------------------------------------------
    def plain(self, form: Form) -> Val:
        """A form as a scalar or vector of raw bits, NaNs canonical."""
        if isinstance(form, Val):
            return form
        if isinstance(form, Lazy):
            key = ("canonical", form.val.ref)
            if key not in self.cache:
                self.cache[key] = canonical(self.e, form.val, form.kind)
            return self.cache[key]
        key = ("lanes", form)
        if key not in self.cache:
            self.cache[key] = self.spread(form)
        return self.cache[key]

    def spread(self, form: Affine | Wide) -> Val:
        """The 32 lanes of an affine form, emitted anew."""
        e = self.e
        if isinstance(form, Affine):
            return e.bin("add", e.splat(form.base, LANES), ramp(form.base.ty, form.stride))
        inner = e.bin("add", e.splat(form.inner, LANES), ramp("i32", form.stride))
        wide = e.resize(inner, "i64", form.signed)
        if form.scale != 1:
            wide = e.bin("mul", wide, const("i64", form.scale, LANES))
        return e.bin("add", wide, e.splat(form.offset, LANES))

    def operand_form(self, a, bits: int) -> Form:
        """The form of any operand; `bits` is the width of immediates."""
        if isinstance(a, Reg):
            known = self.analysis.constants.get(a.name)
            return immediate(known, self.bits_of(a.name)) if known is not None else self.form(a.name)
        if isinstance(a, Imm):
            return immediate(a, bits)
        if isinstance(a, Not):
            return self.e.invert(self.plain(self.form(a.reg.name)))
        if isinstance(a, Special):
            return self.program.special(self, a.name)
        if isinstance(a, Sym):
            return self.program.symbol(self, a)
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
        if "actv" not in self.cache:
            self.cache["actv"] = self.lanes(self.act())
        return self.cache["actv"]

    def lanes(self, mask: Val) -> Val:
        """A 32-bit lane mask as a vector of conditions."""
        return self.e.let("i1", LANES, f"bitcast {mask} to <32 x i1>")

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

    # -- emission ----------------------------------------------------------------------------------------------
    def run(self, handlers) -> str:
        """Emit the whole function; returns its text."""
        e = self.e
        self.handlers = handlers
        for i, block in enumerate(self.flow.blocks):
            if block.exit_only and i and i not in self.waitable:
                continue
            if i in self.waitable:
                self._check(i)
            self._begin(i)
            last = len(block.instrs) - 1
            for k, instr in enumerate(block.instrs):
                if k == last and block.kind == "barrier":
                    break
                self.lower(instr)
            self._end(i)
        self._finish()
        name, params = self.program.header(self.function)
        inline = "" if self.target.waiting or not self.function.entry else " alwaysinline"
        body = [f"define internal void @{name}({params}){inline} {{", "entry:", *self.entry]
        body += ["store i32 %initial, ptr %act", "br label %b0", *e.lines, "}"]
        return "\n".join(body)

    def lower(self, instr: Instr) -> None:
        self.instr = instr
        handler = self.handlers.get(base(instr.op))
        if handler is None:
            raise self.unsupported()
        handler(self, instr)

    def alloca(self, text: str, prefix: str = "l") -> str:
        """Reserve a slot on the stack for the whole call."""
        ref = self.e.fresh(prefix)
        self.entry.append(f"{ref} = alloca {text}")
        return ref

    def _begin(self, i: int) -> None:
        self.block = i
        self.forms, self.cache, self.carry = {}, {}, None
        self.dirty.clear()
        e = self.e
        e.label(f"b{i}")
        if i in self.waitable:
            act = e.let("i32", 1, "load i32, ptr %act")
            waiting = e.let("i32", 1, f"load i32, ptr %wait{i}")
            e.line(f"store i32 0, ptr %wait{i}")
            act = e.bin("or", act, waiting)
            e.line(f"store {act}, ptr %act")
            self.cache["act"] = act

    def _check(self, i: int) -> None:
        e = self.e
        e.label(f"c{i}")
        waiting = e.let("i32", 1, f"load i32, ptr %wait{i}")
        some = e.cmp("icmp ne", waiting, 0)
        e.line("store i32 0, ptr %act")
        e.line(f"br {some}, label %b{i}, label %{self._next_check(i)}")

    def _next_check(self, i: int) -> str:
        later = [w for w in self.waitable_order if w > i]
        return f"c{later[0]}" if later else "end"

    def _finish(self) -> None:
        """The end of the order: lanes set aside in spin loops or at barriers come back, or the call is over."""
        e = self.e
        self.entry.insert(0, "%act = alloca i32")
        for w in self.waitable_order:
            self.entry += [f"%wait{w} = alloca i32", f"store i32 0, ptr %wait{w}"]
        e.label("end")
        if self.analysis.free_running:
            from rawkern.engines.cpu.waiting import resume_set_aside

            resume_set_aside(self)
        e.line("ret void")

    # -- control -----------------------------------------------------------------------------------------------
    def _waitable(self) -> set[int]:
        """Blocks where lanes can wait for their turn."""
        flow, analysis = self.flow, self.analysis
        found: set[int] = set()
        for i in analysis.divergent:
            targets = flow.lane_targets(i)
            if len(targets) > 1 or analysis.free_running:
                found |= set(targets)
        if analysis.free_running:
            found |= {h for h in analysis.spin_headers}
            found |= {flow.blocks[i].targets[0] for i in range(len(flow.blocks)) if flow.blocks[i].kind == "barrier"}
        self.waitable_order: list[int] = sorted(found)
        while True:
            more = {
                t
                for i in range(len(flow.blocks))
                for t in flow.blocks[i].targets
                if t > i and t not in found and not flow.blocks[t].exit_only and self._between(i, t, found)
            }
            if not more:
                self.waitable_order = sorted(found)
                return found
            found |= more

    def _between(self, i: int, t: int, waitable: set[int]) -> bool:
        return any(i < w < t and w in waitable for w in self.analysis.concurrent[i])

    def after(self, i: int) -> str:
        """Label to go to when no lane can go on from block `i`."""
        later = sorted(w for w in self.analysis.concurrent[i] if w > i and w in self.waitable)
        if later:
            return f"c{later[0]}"
        return self._next_check(i) if self.analysis.free_running else "end"

    def retire(self, mask: Val) -> None:
        """Lanes end."""
        if self.analysis.free_running:
            alive = self.e.let("i32", 1, "load i32, ptr %alive")
            self.e.line(f"store {self.e.bin('and', alive, self.e.invert(mask))}, ptr %alive")

    def wait_at(self, t: int, mask: Val) -> None:
        old = self.e.let("i32", 1, f"load i32, ptr %wait{t}")
        self.e.line(f"store {self.e.bin('or', old, mask)}, ptr %wait{t}")

    def jump(self, t: int, mask: Val) -> None:
        """All lanes that run, `mask`, go to block `t`; ends the LLVM block."""
        e, i = self.e, self.block
        if self.flow.blocks[t].exit_only:
            self.retire(mask)
            e.line(f"br label %{self.after(i)}")
        elif t <= i:
            self._back(t, mask)
        elif self._between(i, t, self.waitable):
            self.wait_at(t, mask)
            e.line(f"br label %{self.after(i)}")
        else:
            e.line(f"store {mask}, ptr %act")
            e.line(f"br label %b{t}")

    def _back(self, t: int, mask: Val) -> None:
        """A loop goes round: look at the clock now and then, and let others run if the loop waits for them."""
        e = self.e
        e.line(f"store {mask}, ptr %act")
        if t in self.analysis.spin_headers and self.target.waiting:
            from rawkern.engines.cpu.waiting import spin_round

            spin_round(self, t, mask)
            return
        if "polls" not in self.entry_cache:
            self.entry += ["%polls = alloca i32", f"store i32 {POLL_EVERY}, ptr %polls"]
            self.entry_cache["polls"] = const("i32", 0)
        left = e.bin("sub", e.let("i32", 1, "load i32, ptr %polls"), 1)
        e.line(f"store {left}, ptr %polls")
        zero, poll = e.cmp("icmp eq", left, 0), e.fresh("poll")[1:]
        e.line(f"br {zero}, label %{poll}, label %b{t}, !prof !0")
        e.label(poll)
        e.line(f"store i32 {POLL_EVERY}, ptr %polls")
        e.line("call void @rk_poll(ptr %blk)")
        e.line(f"br label %b{t}")

    def _end(self, i: int) -> None:
        block, e = self.flow.blocks[i], self.e
        act = self.act()
        if block.kind == "ret":
            self.flush()
            self.retire(act)
            e.line(f"br label %{self.after(i)}")
            return
        if block.kind == "jump":
            self.flush()
            self.jump(block.targets[0], act)
            return
        if block.kind == "barrier":
            from rawkern.engines.cpu.waiting import barrier

            self.instr = block.instrs[-1]
            assert is_barrier(self.instr.op)
            barrier(self, self.instr, block.targets[0])
            return
        assert block.pred is not None
        cond = self.plain(self.form(block.pred.name))
        if block.kind == "switch":
            self._switch(i, cond)
            return
        if cond.n == 1:
            self.flush()
            yes, no = e.fresh("t")[1:], e.fresh("f")[1:]
            first, second = (no, yes) if block.negated else (yes, no)
            e.line(f"br {cond}, label %{first}, label %{second}")
            for label, t in ((yes, block.targets[0]), (no, block.targets[1])):
                e.label(label)
                self.jump(t, act)
            return
        mask = self.mask_of(e.invert(cond) if block.negated else cond)
        self.flush()
        self._diverge(i, act, e.bin("and", act, mask))

    def _diverge(self, i: int, act: Val, taken: Val) -> None:
        """Lanes choose between two targets; where they agree nobody waits."""
        e, (t, f) = self.e, self.flow.blocks[i].targets
        all_label, some_label, none_label, both_label = (e.fresh(p)[1:] for p in ("all", "some", "none", "both"))
        e.line(f"br {e.cmp('icmp eq', taken, act)}, label %{all_label}, label %{some_label}")
        e.label(all_label)
        self.jump(t, act)
        e.label(some_label)
        e.line(f"br {e.cmp('icmp eq', taken, 0)}, label %{none_label}, label %{both_label}")
        e.label(none_label)
        self.jump(f, act)
        e.label(both_label)
        rest = e.bin("xor", act, taken)
        for target, other, ending, going in ((t, f, taken, rest), (f, t, rest, taken)):
            if self.flow.blocks[target].exit_only:
                self.retire(ending)
                self.jump(other, going)
                return
        self.wait_at(t, taken)
        self.wait_at(f, rest)
        self._lowest(i, (t, f))

    def _lowest(self, i: int, targets: tuple[int, ...]) -> None:
        """Go to the lowest block where lanes wait, some at `targets`."""
        low = min(targets)
        if low > i:
            others = [w for w in self.analysis.concurrent[i] if i < w < low and w in self.waitable]
            self.e.line(f"br label %c{min(others, default=low)}")
        elif low in self.analysis.spin_headers and self.target.waiting:
            mask = self.e.let("i32", 1, f"load i32, ptr %wait{low}")
            self.e.line(f"store i32 0, ptr %wait{low}")
            self._back(low, mask)
        else:
            self._back(low, const("i32", 0))

    def _switch(self, i: int, index: Val) -> None:
        e, targets = self.e, self.flow.blocks[i].targets
        act = self.act()
        self.flush()
        if index.n == 1:
            labels = [e.fresh("case")[1:] for _ in targets]
            cases = " ".join(f"i32 {k}, label %{label}" for k, label in enumerate(labels))
            e.line(f"switch {index}, label %{labels[0]} [ {cases} ]")
            for label, t in zip(labels, targets, strict=True):
                e.label(label)
                self.jump(t, act)
            return
        going = []
        for t in dict.fromkeys(targets):
            mask = const("i32", 0)
            for k, other in enumerate(targets):
                if other == t:
                    mask = e.bin("or", mask, self.mask_of(e.cmp("icmp eq", index, k)))
            mask = e.bin("and", act, mask)
            if self.flow.blocks[t].exit_only:
                self.retire(mask)
            else:
                self.wait_at(t, mask)
                going.append(t)
        others = [w for w in self.analysis.concurrent[i] if w > i and w in self.waitable]
        if going:  # the checks find out where lanes wait
            e.line(f"br label %c{min([*going, *others])}")
        else:
            e.line(f"br label %{self.after(i)}")


def ramp(ty: str, stride: int) -> Val:
    """The constant vector 0, stride, 2 * stride, ... modulo the width of `ty`."""
    top = (1 << int(ty[1:])) - 1
    return Val(f"<{', '.join(f'{ty} {k * stride & top}' for k in range(LANES))}>", ty, LANES)


def immediate(imm: Imm, bits: int) -> Val:
    if bits == 1:
        return const("i1", imm.value)
    value = imm.value
    if imm.kind == "d" and bits == 32:
        raise UnsupportedError("PTX float64 immediate for a 32-bit operand")
    return Val(str(value & (1 << bits) - 1), int_type(bits), 1)
