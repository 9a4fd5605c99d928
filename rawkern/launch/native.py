"""The function that makes a launch in machine code: one for each list of parameter types, for both engines.

It has the signature of Python's vectorcall. Arguments that are plain, as `rawkern.arguments.rules` has it, are packed and
handed to the engine; for all others, and whatever else a launch has to do, it calls the careful way (`launcher`).
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from rawkern.arguments.rules import POINTER, SCALARS, Native, native_address
from rawkern.base.emit import CAREFUL, Emit
from rawkern.base.llvm import in_memory, stored_object
from rawkern.base.records import DONE, TARGET, UNFINISHED, Record, linked
from rawkern.base.table import TABLE, TYPE_OFFSET, field, keep, preamble
from rawkern.errors import UnsupportedError

if TYPE_CHECKING:
    from rawkern.signature import Param, Signature

__all__ = ["LAUNCHER", "PLAN", "Entries", "entries", "function"]

HEAD = object.__basicsize__
#: A launcher: Python's object, with its grid or the number of elements its grid covers (-1: none, -2: a symbol).
LAUNCHER = Record(
    "Launcher",
    (
        ("head", f"[{HEAD // 8} x i64]"), ("vectorcall", "ptr"), ("plan", "ptr"), ("object", "ptr"), ("table", "ptr"),
        ("n", "i64"), ("grid_x", "i32"), ("grid_y", "i32"), ("grid_z", "i32"), ("pad", "i32"),
    ),
)  # fmt: skip
#: What launchers of one kernel with one block share; `until`: where it stands how long the source counts as unchanged.
PLAN = Record(
    "Plan",
    (
        ("table", "ptr"), ("call", "ptr"), ("object", "ptr"), ("until", "ptr"), ("targets", "ptr"), ("strided", "i64"),
        ("most", "i64"),
    ),
)  # fmt: skip
FOREVER = (1 << 63) - 1
_RECORDS = (LAUNCHER, PLAN, TARGET, TABLE)
_functions: dict[tuple[Any, ...], int | None] = {}


class Entries(NamedTuple):
    """Addresses of what `launcher.ll` defines."""

    relay: int
    forward: int
    cover: int
    grid: int
    dealloc: int


@cache
def entries() -> Entries:
    """Load what all launchers have in common."""
    body = resources.files("rawkern.launch").joinpath("launcher.ll").read_text()
    text = linked(body.replace("{type_offset}", str(TYPE_OFFSET)), _RECORDS)
    engine = _loaded("\n".join([*(record.llvm for record in _RECORDS), text]))
    found = Entries(*(engine.get_function_address(f"rk_{name}") for name in Entries._fields))
    field("forward", found.forward)
    field("relay", found.relay)
    return found


def _loaded(text: str) -> Any:
    engine = in_memory(stored_object(text))
    keep(engine)
    return engine


def known(signature: Signature) -> bool:
    """Whether `function` has its answer already."""
    return _types(signature) in _functions


def function(signature: Signature) -> int | None:
    """The address of the function for a signature's parameter types; None where every launch goes the careful way."""
    key = _types(signature)
    if key not in _functions:
        try:
            engine = _loaded(_text(signature))
            _functions[key] = engine.get_function_address("rk_launch")
        except UnsupportedError:  # this torch is not one that native code can read
            _functions[key] = None
    return _functions[key]


def _types(signature: Signature) -> tuple[Any, ...]:
    return tuple(param.ctype for param in signature.params)


def _text(signature: Signature) -> str:
    """A module with the function."""
    e = Emit()
    _enter(e, len(signature.params))
    for param, offset in zip(signature.params, signature.offsets, strict=True):
        at = e.value(f"getelementptr i8, ptr %params, i64 {offset}")
        e.do(f"store ptr {at}, ptr {e.value(f'getelementptr ptr, ptr %pointers, i64 {param.index}')}")
        value = e.load("ptr", "%args", 8 * param.index)
        if param.is_pointer:
            _pointer(e, param, value, at)
        else:
            SCALARS[param.ctype.kind](e, param.ctype, value, at)
    _launch(e, signature)
    shared = preamble()
    declared = "" if "@llvm.memcpy" in shared else "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n"
    frame = f"""define ptr @rk_launch(ptr %self, ptr %args, i64 %nargsf, ptr %names) {{
  %params = alloca [{max(signature.size, 1)} x i8], align 16
  %pointers = alloca [{max(len(signature.params), 1)} x ptr]
  %dl = alloca [48 x i8], align 8
  %number = alloca i64
  %device = alloca i64
"""
    records = "\n".join(record.llvm for record in (LAUNCHER, PLAN, TARGET))
    return f"{records}\n{shared}\n{declared}{linked(frame + chr(10).join(e.lines), _RECORDS)}\n}}\n"


def _enter(e: Emit, count: int) -> None:
    """What has to hold before an argument is looked at."""
    e.lines += """\
  %pplan = &Launcher.plan %self
  %plan = load ptr, ptr %pplan
  %ptable = &Plan.table %plan
  %table = load ptr, ptr %ptable
  store i64 -1, ptr %device
  %pown = &Launcher.vectorcall %self
  %own = load ptr, ptr %pown
  %pcall = &Plan.call %plan
  %call = load ptr, ptr %pcall
  %pattention = &Table.attention %table
  %attention = load i64, ptr %pattention
  %nargs = and i64 %nargsf, 9223372036854775807
  %pn = &Launcher.n %self
  %n = load i64, ptr %pn
  %pstrided = &Plan.strided %plan
  %strided64 = load i64, ptr %pstrided
  %strided = icmp ne i64 %strided64, 0""".splitlines()
    e.unless(e.value("icmp eq ptr %own, %call"), "relay")  # the kernel has other parameters now
    e.unless(e.value("icmp eq i64 %attention, 0"))
    e.unless(e.value(f"icmp eq i64 %nargs, {count}"))
    e.unless(e.value("icmp eq ptr %names, null"))
    e.unless(e.value("icmp sge i64 %n, -1"))
    watched, fresh = e.label("watched"), e.label("unchanged")
    e.lines += f"""\
  %puntil = &Plan.until %plan
  %until = load ptr, ptr %puntil
  %limit = load i64, ptr %until
  %forever = icmp eq i64 %limit, {FOREVER}
  br i1 %forever, label %{fresh}, label %{watched}
{watched}:
  %pclock = &Table.clock %table
  %clock = load ptr, ptr %pclock
  %clockstatus = call i32 %clock(i32 1, ptr %dl)
  %seconds = load i64, ptr %dl
  %pnano = getelementptr i64, ptr %dl, i64 1
  %nano = load i64, ptr %pnano
  %wholens = mul i64 %seconds, 1000000000
  %now = add i64 %wholens, %nano""".splitlines()
    e.unless(e.value("icmp slt i64 %now, %limit"))
    e.place(fresh)


def _pointer(e: Emit, param: Param, value: str, at: str) -> None:
    done = e.label("passed")
    if param.ctype.kind == "pointer":
        null, some = e.label("null"), e.label("some")
        absent = e.value(f"icmp eq ptr {value}, {e.row('none')}")
        e.do(f"br i1 {absent}, label %{null}, label %{some}")
        e.place(null)
        e.do(f"store i64 0, ptr {at}, align 1")
        e.do(f"br label %{done}")
        e.place(some)
    pointer = Native(param.ctype, value, "%dl")
    for rule in POINTER:
        rule.native(e, pointer)
    e.do(f"store i64 {native_address(e, pointer)}, ptr {at}, align 1")
    e.place(done)


def _launch(e: Emit, signature: Signature) -> None:
    """The engine's launch on the tensors' device, the versions of what was written, and the way back."""
    written = [param.index for param in signature.params if param.is_pointer and not param.const]
    e.lines += """\
  %where = load i64, ptr %device
  %somewhere = icmp ne i64 %where, -1""".splitlines()
    e.unless("%somewhere")
    e.unless(e.value("call i1 @rk_unwatched(ptr %table)"))
    e.lines += f"""\
  %ptargets = &Plan.targets %plan
  br label %search
search:
  %link = phi ptr [ %ptargets, %{_last(e)} ], [ %plink, %other ]
  %target = load ptr, ptr %link
  %nowhere = icmp eq ptr %target, null
  br i1 %nowhere, label %{CAREFUL}, label %compare
compare:
  %pthere = &Target.device %target
  %there = load i64, ptr %pthere
  %here = icmp eq i64 %there, %where
  %plink = &Target.next %target
  br i1 %here, label %found, label %other
other:
  br label %search
found:
  %covers = icmp sge i64 %n, 0
  br i1 %covers, label %cover, label %explicit
cover:
  %pblock = &Target.block %target
  %block = load i64, ptr %pblock
  %less = sub i64 %block, 1
  %rounded = add i64 %n, %less
  %blocks = udiv i64 %rounded, %block
  %many = icmp ugt i64 %blocks, 2147483647
  br i1 %many, label %{CAREFUL}, label %covered
covered:
  %blocks32 = trunc i64 %blocks to i32
  %nothing = icmp eq i64 %n, 0
  br i1 %nothing, label %bump, label %go
explicit:
  %pgx = &Launcher.grid_x %self
  %gx0 = load i32, ptr %pgx
  %pgy = &Launcher.grid_y %self
  %gy0 = load i32, ptr %pgy
  %pgz = &Launcher.grid_z %self
  %gz0 = load i32, ptr %pgz
  br label %go
go:
  %gx = phi i32 [ %blocks32, %covered ], [ %gx0, %explicit ]
  %gy = phi i32 [ 1, %covered ], [ %gy0, %explicit ]
  %gz = phi i32 [ 1, %covered ], [ %gz0, %explicit ]
  %pgo = &Target.go %target
  %gof = load ptr, ptr %pgo
  %result = call i32 %gof(ptr %target, i32 %gx, i32 %gy, i32 %gz, ptr %params, ptr %pointers)
  switch i32 %result, label %{CAREFUL} [ i32 {DONE}, label %bump
                                         i32 {UNFINISHED}, label %bump ]
bump:
  %state = phi i32 [ {DONE}, %covered ], [ %result, %go ], [ %result, %go ]""".splitlines()
    _bump(e, written)
    e.lines += f"""\
  %open = icmp eq i32 %state, {UNFINISHED}
  br i1 %open, label %finish, label %done
finish:
  %pfinish = &Table.finish %table
  %finishf = load ptr, ptr %pfinish
  %pwrap = &Table.PyLong_FromVoidPtr %table
  %wrap = load ptr, ptr %pwrap
  %number0 = call ptr %wrap(ptr %target)
  %two = alloca [2 x ptr]
  store ptr %self, ptr %two
  %second = getelementptr ptr, ptr %two, i64 1
  store ptr %number0, ptr %second
  %pvectorcall = &Table.PyObject_Vectorcall %table
  %vectorcall = load ptr, ptr %pvectorcall
  %finished = call ptr %vectorcall(ptr %finishf, ptr %two, i64 2, ptr null)
  call void @rk_release(ptr %table, ptr %number0)
  ret ptr %finished
done:
  %pnone = &Table.none %table
  %none = load ptr, ptr %pnone
  %pincrease = &Table.Py_IncRef %table
  %increase = load ptr, ptr %pincrease
  call void %increase(ptr %none)
  ret ptr %none
failed:
  ret ptr null
relay:
  %prelay = &Table.relay %table
  %relayf = load ptr, ptr %prelay
  %relayed = tail call ptr %relayf(ptr %self, ptr %args, i64 %nargsf, ptr %names)
  ret ptr %relayed
{CAREFUL}:
  %pforward = &Table.forward %table
  %forward = load ptr, ptr %pforward
  %careful0 = tail call ptr %forward(ptr %self, ptr %args, i64 %nargsf, ptr %names)
  ret ptr %careful0""".splitlines()


def _bump(e: Emit, written: list[int]) -> None:
    """Count a change for each tensor that was written, None left out."""
    if not written:
        return
    objects = [e.load("ptr", "%args", 8 * index) for index in written]
    none = e.row("none")
    there = [e.value(f"icmp ne ptr {one}, {none}") for one in objects]
    total = "0"
    for one in there:
        total = e.value(f"add i64 {total}, {e.value(f'zext i1 {one} to i64')}")
    some, after = e.label("some"), e.label("bumped")
    e.do(f"br i1 {e.value(f'icmp ne i64 {total}, 0')}, label %{some}, label %{after}")
    e.place(some)
    versions = e.value(f"call ptr {e.row('PyTuple_New')}(i64 {total})")
    e.unless(e.value(f"icmp ne ptr {versions}, null"), "failed")
    at = "0"
    for one, given in zip(objects, there, strict=True):
        put, past = e.label("put"), e.label("past")
        e.do(f"br i1 {given}, label %{put}, label %{past}")
        e.place(put)
        e.do(f"call void {e.row('Py_IncRef')}(ptr {one})")
        e.value(f"call i32 {e.row('PyTuple_SetItem')}(ptr {versions}, i64 {at}, ptr {one})")
        e.place(past)
        at = e.value(f"add i64 {at}, {e.value(f'zext i1 {given} to i64')}")
    result = e.value(f"call ptr {e.row('bump')}(ptr null, ptr {versions})")
    e.do(f"call void @rk_release(ptr %table, ptr {versions})")
    e.unless(e.value(f"icmp ne ptr {result}, null"), "failed")
    e.do(f"call void @rk_release(ptr %table, ptr {result})")
    e.place(after)


def _last(e: Emit) -> str:
    """The label of the block that is being written."""
    return next(line[:-1] for line in reversed(e.lines) if line.endswith(":"))
