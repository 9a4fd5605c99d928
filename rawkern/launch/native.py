"""The function that makes a launch in machine code: one for each list of parameter types, for both engines.

It has the signature of Python's vectorcall. Arguments that are plain, as `rawkern.arguments.rules` has it, are packed
and handed to the engine; for all others, and whatever else a launch has to do, it calls the slow path (`launcher`),
which is the way of all launches until the function is there.
"""

from __future__ import annotations

import contextlib
import os
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rawkern.arguments.accessors import native_accessor
from rawkern.arguments.rules import POINTER, SCALARS, Native, native_changes, native_pointer
from rawkern.base.accessor import accessor_of
from rawkern.base.emit import Emit
from rawkern.base.forking import WAIT_SECONDS, Lock
from rawkern.base.llvm import FULL, QUICK, LoadedObject, stored_object
from rawkern.base.records import DONE, LISTED, TARGET, UNFINISHED, Record, block_size, extents_at, filled, listed_at
from rawkern.base.table import ITER, TABLE, TYPE_OFFSET, field, keep, preamble, readings
from rawkern.errors import UnsupportedError
from rawkern.launch import lists

if TYPE_CHECKING:
    from rawkern.arguments.signature import Param, Signature
    from rawkern.base.ctype import CType

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
_RECORDS = (LAUNCHER, PLAN, TARGET, TABLE)
_functions: dict[tuple[Any, ...], int | None] = {}
_lock = Lock()
_making: dict[tuple[Any, ...], Making] = {}
#: Whether a function is found by a thread, while launches take the slow path.
in_background = True


class Making(threading.Thread):
    """Finds the function of a signature; the process ends no earlier than this."""

    def __init__(self, signature: Signature) -> None:
        super().__init__(name="rawkern: machine code of a launch")
        self.signature = signature

    def run(self) -> None:
        """Make it; where that fails the launch that asks for the function says why."""
        with contextlib.suppress(Exception):
            function(self.signature)


class Entries(NamedTuple):
    """Addresses of what `launcher.ll` defines."""

    relay: int
    forward: int
    cover: int
    grid: int
    dealloc: int
    make: int


@cache
def entries() -> Entries:
    """Load what all launchers have in common."""
    with open(os.path.join(os.path.dirname(__file__), "launcher.ll"), encoding="utf-8") as file:
        body = file.read()
    text = filled(body, _RECORDS, {"type_offset": TYPE_OFFSET, "iter": ITER})
    loaded = _loaded("\n".join([*(record.llvm for record in _RECORDS), text]), QUICK)
    found = Entries(*loaded.addresses(*(f"rk_{name}" for name in Entries._fields)))
    field("forward", found.forward)
    field("relay", found.relay)
    return found


def _loaded(text: str, effort: int = FULL) -> LoadedObject:
    loaded = LoadedObject(stored_object(text, effort))
    keep(loaded)
    return loaded


def known(signature: Signature) -> bool:
    """Whether `function` has its answer already."""
    return _types(signature) in _functions


def ready(signature: Signature) -> bool:
    """Whether `function` has its answer, or has to be asked for it; a thread finds it, once."""
    key = _types(signature)
    if key in _functions or not in_background:
        return True
    with _lock:
        making = _making.get(key)
        if making is None:
            making = _making[key] = Making(signature)
            with contextlib.suppress(RuntimeError):  # the process ends, and takes no new threads
                making.start()
    return not making.is_alive()  # nor is it in a forked child


def wait(seconds: float | None = None) -> None:
    """Until threads have found the functions of all launches so far: what measures launches means the later ones."""
    for making in list(_making.values()):
        if making.is_alive():
            making.join(seconds)


# A fork waits, too: what a thread is importing would stay half imported in the child, for whose imports it is locked.
# Not for ever, as the thread may need what is being imported around the fork.
os.register_at_fork(before=lambda: wait(WAIT_SECONDS / 10))


def function(signature: Signature) -> int | None:
    """The address of the function for a signature's parameter types; None where every launch takes the slow path."""
    key = _types(signature)
    if key not in _functions:
        try:
            loaded = _loaded(_text(signature))
            _functions[key] = loaded.address("rk_launch")
        except UnsupportedError:  # this torch is not one that native code can read
            _functions[key] = None
        _making.pop(key, None)
    return _functions[key]


def _types(signature: Signature) -> tuple[Any, ...]:
    return signature.tracked, *(param.ctype for param in signature.params)


def _text(signature: Signature) -> str:
    """A module with the function."""
    e, written = Emit(), Emit("w")
    for param, offset in zip(signature.params, signature.offsets, strict=True):
        at = e.value(f"getelementptr i8, ptr %params, i64 {offset}")
        e.do(f"store ptr {at}, ptr {e.value(f'getelementptr ptr, ptr %pointers, i64 {param.index}')}")
        value = e.load("ptr", "%args", 8 * param.index)
        if (passed := param.address) is not None:
            done = lists.fill(e, param, value, at) if lists.takes_list(param) else e.label("passed")
            _memory(e, param, passed, value, at)
            e.place(done)
        else:
            SCALARS[param.ctype.kind](e, param.ctype, value, at)
    for param in signature.params if signature.tracked else ():
        value = written.load("ptr", "%args", 8 * param.index)
        if lists.takes_list(param):
            lists.changes(written, param, value)
        elif (passed := param.address) is None:
            native_changes(written, param.ctype, value)
        elif not passed.const:
            written.do(f"call void @rk_bump(ptr %table, ptr {value})")
    structs = any(param.ctype.kind in ("struct", "opaque") for param in signature.params)
    listed = [param for param in signature.params if lists.takes_list(param)]
    files = [file for file, there in (("structs.ll", structs or listed), ("lists.ll", listed)) if there]
    parts = {
        "records": "\n".join(record.llvm for record in (LAUNCHER, PLAN, LISTED)),
        "readings": "\n".join((preamble(), *(readings(Path(__file__).with_name(file), (LISTED,)) for file in files))),
        "lists": lists.memory(listed),
        "no_lists": lists.begin(listed),
        "listed": lists.end(listed, listed_at(signature.size)),
        "hand_over": lists.hand_over(listed),
        "release": lists.release(listed),
        "handed": 2 + len(signature.params),
        "args_size": 8 * len(signature.params),
        "constants": "\n".join((*e.constants, *written.constants)),
        "arguments": "\n".join(e.lines),
        "written": "\n".join(written.lines),
        "extents": extents_at(signature.size),
        "extents_size": block_size(signature.size) - extents_at(signature.size),
        "size": max(block_size(signature.size), 1),
        "count": max(len(signature.params), 1),
        "given": len(signature.params),
        "DONE": DONE,
        "UNFINISHED": UNFINISHED,
    }
    text = Path(__file__).with_name("launch.ll").read_text()
    return filled("\n".join(line for line in text.splitlines() if not line.startswith(";")), _RECORDS, parts)


def _memory(e: Emit, param: Param, passed: CType, value: str, at: str) -> None:
    """A tensor for a pointer or an accessor, which begins with one: its address, what follows it, its extents."""
    done = e.label("passed")
    if param.ctype.kind == "pointer":
        null, some = e.label("null"), e.label("some")
        absent = e.value(f"icmp eq ptr {value}, {e.row('none')}")
        e.do(f"br i1 {absent}, label %{null}, label %{some}")
        e.place(null)
        e.do(f"store i64 0, ptr {at}, align 1")
        e.do(f"br label %{done}")
        e.place(some)
    accessor = accessor_of(param.ctype)
    pointer = Native(passed, value, "%dl", "%strided" if accessor is None else "true")
    for rule in POINTER:
        rule.native(e, pointer)
    if accessor is not None:
        native_accessor(e, param.ctype, accessor, pointer.tensor, at)
    native_pointer(e, pointer, at)
    e.place(done)
