"""Checked builds: accesses of a warp to neighboring words, followed as vectors of the shadow's words.

What `check_order` does for one lane, for many at a time as long as nothing stands against any of them; it looks again
one by one where something may. LLVM IR by the emitter, as `scalar` knows 64-bit integers only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rawkern.engines.cpu.checker.native.layout import CHECK, LANE_MASK, MASK_AT, REST_AT, TIME_AT
from rawkern.engines.cpu.emit.lanes import define, pointer
from rawkern.engines.cpu.ir import Emitter, Module, Val, const

LENGTH = 8  # of the vectors
_TIME = -1 << TIME_AT
_BYTES = 15 << MASK_AT
_WARP = 31 << REST_AT
#: Arguments of both functions: the checker; the shadow of the first word and the distance of its planes (0: nothing was
#: read); the row of `runs`; how many bytes of shadow; the lanes.
_PARAMS = "ck words plane table count mask"
#: Fields of the checker: what the lanes' words have in common, and that of a read; times of the block (`floor`), of
#: which the warp has seen `span`; those of its own (`own`, `own_span`) that it has seen; below `gone` words stand for
#: nothing; bits that words which are read `need`; the distance of the plane of `others` (0: it is empty).
_FIELDS = "me reader floor span own own_span gone need others"


def text() -> str:
    """``rk_run_read`` and ``rk_run_write`` for words of one and two lanes, and ``rk_check_join``."""
    m = Module()
    functions = [f"define internal i64 @rk_run_{name}{n}" for name in ("read", "write") for n in (1, 2)]
    bodies = [_Run(m, n, write).text() for write in (False, True) for n in (1, 2)]
    params = ", ".join(f"i64 %{p}" for p in _PARAMS.split())
    parts = [f"{head}({params}) noinline {{\n{body}\n}}" for head, body in zip(functions, bodies, strict=True)]
    return "\n".join([_join(m), *m.declarations.values(), *parts])


class _Run:
    """One of the functions; words are of `lanes` lanes."""

    def __init__(self, m: Module, lanes: int, write: bool):
        self.e, self.lanes, self.write = Emitter(m), lanes, write
        e = self.e
        self.all = {"mask": e.splat(Val("%mask", "i64"), LENGTH)}
        for name in _FIELDS.split():
            at = pointer(e, e.bin("add", Val("%ck", "i64"), CHECK.offset(name)))
            self.all[name] = e.splat(e.let("i64", 1, f"load i64, {at}"), LENGTH)

    def text(self) -> str:
        e = self.e
        for name, body in (("look", self.look), ("keep", self.keep)):
            with self.loop(name):
                body()
        e.line("ret i64 1")
        e.label("stop")
        e.line("ret i64 0")
        return "\n".join(e.lines)

    @contextmanager
    def loop(self, name: str) -> Iterator[None]:
        """Over the words, a vector at a time; ``%at`` are bytes."""
        e = self.e
        before = e.fresh("before")[1:]
        e.line(f"br label %{before}")
        e.label(before)
        e.line(f"br label %{name}")
        e.label(name)
        self.at = Val(f"%{name}.at", "i64")
        e.line(f"{self.at.ref} = phi i64 [ 0, %{before} ], [ %{name}.next, %{name}.end ]")
        yield
        e.line(f"br label %{name}.end")
        e.label(f"{name}.end")
        e.line(f"%{name}.next = add i64 {self.at.ref}, {8 * LENGTH}")
        e.line(f"%{name}.more = icmp ult i64 %{name}.next, %count")
        e.line(f"br i1 %{name}.more, label %{name}, label %{name}.done")
        e.label(f"{name}.done")

    def place(self, plane: int) -> str:
        e = self.e
        at = e.bin("add", Val("%words", "i64"), self.at)
        for _ in range(plane):
            at = e.bin("add", at, Val("%plane", "i64"))
        return pointer(e, at)

    def load(self, plane: int) -> Val:
        return self.e.let("i64", LENGTH, f"load <{LENGTH} x i64>, {self.place(plane)}, align 8")

    def store(self, plane: int, value: Val) -> None:
        self.e.line(f"store {value}, {self.place(plane)}, align 8")

    def lane(self, k: int) -> tuple[Val, Val]:
        """The `k`-th lanes of the words, as the table has them, and whether they access."""
        e = self.e
        at = e.bin("add", e.bin("add", Val("%table", "i64"), self.at), 128 * k)  # bytes of 16 words of two lanes
        entry = e.let("i64", LENGTH, f"load <8 x i64>, {pointer(e, at)}, align 8")
        bit = e.bin("lshr", self.all["mask"], e.bin("and", entry, LANE_MASK))
        return entry, e.cmp("icmp ne", e.bin("and", bit, 1), 0)

    def seen(self, w: Val) -> Val:
        """Words of times that the warp has seen."""
        e, a = self.e, self.all
        block = e.cmp("icmp ult", e.bin("sub", w, a["floor"]), a["span"])
        return e.bin("or", block, e.cmp("icmp ult", e.bin("sub", w, a["own"]), a["own_span"]))

    def same(self, w: Val, mine: Val, bits: int) -> Val:
        e = self.e
        return e.cmp("icmp eq", e.bin("and", e.bin("xor", w, mine), bits), 0)

    def alone(self, w: Val, entries: list[Val], me: str, bits: int) -> Val:
        """Words that one of the lanes has made and none of the others goes with."""
        e = self.e

        def one(entry: Val) -> Val:
            same = self.same(w, e.bin("or", self.all[me], entry), bits)
            if self.lanes == 1:
                return same
            others = e.bin("and", e.bin("and", w, _BYTES), e.invert(entry))
            return e.bin("and", same, e.cmp("icmp eq", others, 0))

        return e.all("or", map(one, entries))

    def look(self) -> None:
        """Stop where something may stand against an access."""
        e, a = self.e, self.all
        pairs = [self.lane(k) for k in range(self.lanes)]
        entries, active = [x for x, _ in pairs], e.all("or", (a for _, a in pairs))
        w = self.load(0)
        fine = e.bin("or", self.seen(w), self.alone(w, entries, "me", _TIME | LANE_MASK))
        fine = e.bin("and", fine, e.cmp("icmp eq", e.bin("and", w, a["need"]), a["need"]))
        gone = e.cmp("icmp ult", w, a["gone"])
        others = e.let("i64", 1, f"extractelement {a['others']}, i32 0")
        with e.where(e.cmp("icmp ne", others, 0)):
            at = pointer(e, e.bin("add", e.bin("add", Val("%words", "i64"), self.at), others))
            o = e.let("i64", LENGTH, f"load <{LENGTH} x i64>, {at}, align 8")
            passed = e.bin("or", self.seen(o), self.alone(o, entries, "me", _TIME | LANE_MASK))
            self.stop(e.bin("and", active, e.invert(e.bin("or", passed, e.cmp("icmp ult", o, a["gone"])))))
        if self.write:
            fine = e.bin("or", fine, gone)
            self.stop(e.bin("and", active, e.invert(fine)))
            with e.where(e.cmp("icmp ne", Val("%plane", "i64"), 0)):
                for plane in (1, 2):
                    r = self.load(plane)
                    own = self.alone(r, entries, "reader", _WARP | LANE_MASK)
                    own = e.bin("and", own, e.cmp("icmp uge", r, a["floor"]))
                    fine = e.bin("or", e.bin("or", self.seen(r), own), e.cmp("icmp ult", r, a["gone"]))
                    self.stop(e.bin("and", active, e.invert(fine)))
            return
        absent = e.bin(
            "and", gone, e.cmp("icmp eq", a["need"], 0)
        )  # memory that was never written may be read, or is uninitialized
        r = self.load(1)
        known = e.bin("or", e.cmp("icmp uge", r, a["floor"]), e.cmp("icmp ult", r, a["gone"]))
        self.stop(e.bin("and", active, e.invert(e.bin("and", e.bin("or", fine, absent), known))))

    def stop(self, bad: Val) -> None:
        e = self.e
        some = e.cmp("icmp ne", e.let("i8", 1, f"bitcast {bad} to i8"), 0)
        on = e.fresh("fine")[1:]
        e.line(f"br {some}, label %stop, label %{on}")
        e.label(on)

    def keep(self) -> None:
        """Note the accesses, lane by lane of a word."""
        e, a = self.e, self.all
        for k in range(self.lanes):
            entry, active = self.lane(k)
            if self.write:
                w = self.load(0)
                valid = e.select(e.cmp("icmp uge", w, a["floor"]), e.bin("and", w, 15 << REST_AT), e.like(w, 0))
                new = e.bin(
                    "or", e.bin("or", a["me"], entry), e.bin("shl", e.bin("and", entry, _BYTES), REST_AT - MASK_AT)
                )
                self.store(0, e.select(active, e.bin("or", new, valid), w))
                continue
            r, new = self.load(1), e.bin("or", a["reader"], entry)
            there = e.cmp("icmp uge", r, a["floor"])
            same = e.bin("and", there, self.same(r, new, _WARP | LANE_MASK))
            again = self.same(r, new, _TIME | LANE_MASK)
            dropped = e.bin("or", e.bin("or", same, self.seen(r)), e.bin("or", e.invert(there), e.invert(active)))
            rest = e.cmp("icmp ne", e.let("i8", 1, f"bitcast {dropped} to i8"), const("i8", -1))
            with e.where(rest):
                self.store(2, e.select(dropped, self.load(2), r))
            new = e.select(again, e.bin("or", new, e.bin("and", r, _BYTES)), new)
            self.store(1, e.select(active, new, r))


def _join(m: Module) -> str:
    """See what another has seen: the later of the times in two rows of `size` bytes."""
    e = Emitter(m)
    e.line("br label %each")
    e.label("each")
    e.line("%at = phi i64 [ 0, %0 ], [ %next, %each ]")
    places = [pointer(e, e.bin("add", Val(p, "i64"), Val("%at", "i64"))) for p in ("%a", "%b")]
    seen = (e.let("i64", LENGTH, f"load <8 x i64>, {at}, align 8") for at in places)
    later = e.intrinsic("llvm.umax", "i64", *seen)
    e.line(f"store {later}, {places[0]}, align 8")
    e.line("%next = add i64 %at, 64")
    e.line("%more = icmp ult i64 %next, %size")
    e.line("br i1 %more, label %each, label %out")
    e.label("out")
    e.line("ret i64 0")
    return define("define internal i64 @rk_check_join(i64 %a, i64 %b, i64 %size) noinline", e)
