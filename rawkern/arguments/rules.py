"""The rules for arguments, one row each: how native code tests one, and how the slow path tests and explains it.

A native reading leaves for `SLOW_PATH` if an argument may violate the rule: it may reject what the slow one accepts,
but never the reverse. The slow reading raises the error that names argument, rule, value and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from rawkern.arguments.conversions import conversion
from rawkern.arguments.dlpack import DTYPES, dtype_word
from rawkern.arguments.memory import ANY, Memory
from rawkern.arguments.records import check_record, scalar_of
from rawkern.arguments.scalars import Where
from rawkern.arguments.tensor_map import KNOWN_AT, READ_ONLY_AT, TENSOR_AT, TensorMap
from rawkern.arguments.tensor_map import SIZE as MAP_SIZE
from rawkern.base import operator_state
from rawkern.base.ctype import CType, complex_of, parse
from rawkern.base.emit import Emit
from rawkern.base.records import CPU, CUDA

ADDRESSES = ("int64", "uint64")  # dtypes of a table of pointers
READ = parse("const void*")  # what a tensor is for a map of it
_STRUCTS = ("struct", "opaque")
_MOST_ITEMS = 64  # of an array that native code fills, item by item


@dataclass(frozen=True, slots=True)
class Pointer:
    """An argument for a pointer on the slow path: the parameter's type and the memory that was given."""

    ctype: CType
    memory: Memory
    where: Where

    @property
    def target(self) -> CType:
        assert self.ctype.target is not None
        return self.ctype.target

    @property
    def writes(self) -> bool:
        return not self.ctype.const

    @property
    def does(self) -> str:
        """What the kernel does with it, for errors."""
        return f"the kernel {'writes' if self.writes else 'reads'} {self.ctype.spell()}"


class Native(NamedTuple):
    """An argument for a pointer in native code: the parameter's type, the object's and its DLTensor's address."""

    ctype: CType
    object: str
    tensor: str
    strided: str = "%strided"  # whether the kernel knows about strides


class Call(Protocol):
    """What rules and structs see of the arguments of one launch on their way to C values."""

    device: int | None  # of the tensors so far: CUDA index, -1 for the CPU
    first: Where | None  # the tensor that settled it
    host: list[Memory]  # arguments so far that are on the CPU
    strided: bool
    tracked: bool

    def sized(self, ctype: CType) -> CType:
        """A struct type with its layout, if the source has one."""
        ...

    def value(self, ctype: CType, value: Any, where: Where) -> Any:
        """A value as `struct.pack` wants it for the type."""
        ...

    def mapped(self, ctype: CType, value: TensorMap, where: Where) -> bytes:
        """A tensor map's bytes."""
        ...


class Rule(NamedTuple):
    """One rule for a pointer's memory, in two readings."""

    native: Callable[[Emit, Native], None]
    slow_path: Callable[[Call, Pointer], None]


# What it is ---------------------------------------------------------------------------------------------------------


def _native_plain(e: Emit, n: Native) -> None:
    e.ask("rk_tensor", "%table", n.object, n.tensor)


def _described(call: Call, p: Pointer) -> None:
    """`rawkern.arguments.memory.describe` has found the memory, or said what it is instead."""


# Its dtype ----------------------------------------------------------------------------------------------------------


def _native_dtype(e: Emit, n: Native) -> None:
    target = n.ctype.target
    assert target is not None
    if target.kind == "void":
        return
    names = ADDRESSES if target.kind == "pointer" else target.dtypes
    if not names:  # structs, whose layout the slow path asks the compiler for
        e.unless("false")
    found = e.load("i32", n.tensor, 20)
    tests = []
    for word in sorted({dtype_word(name) for name in names if name in DTYPES}):
        tests.append(e.value(f"icmp eq i32 {found}, {word}"))
    while len(tests) > 1:
        tests[:2] = [e.value(f"or i1 {tests[0]}, {tests[1]}")]
    e.unless(*tests or ["false"])


def _dtype(call: Call, p: Pointer) -> None:
    target, memory, where = p.target, p.memory, p.where
    if target.kind in ("void", "function") or memory.dtype == ANY:
        return
    if target.kind == "pointer":
        if memory.dtype not in ADDRESSES:
            fix = "pass an int64 tensor of addresses or a list of tensors"
            raise TypeError(f"{where} is {memory.dtype}, {p.does}; {fix}")
        return
    if target.dtypes:
        if memory.dtype not in target.dtypes:
            raise TypeError(f"{where} is {memory.dtype}, {p.does}; {conversion(target, memory, where, p.writes)}")
        return
    target = call.sized(target)
    if memory.fields:
        if target.size and memory.itemsize != target.size:
            raise TypeError(
                f"{where} has elements of {memory.itemsize} bytes, {p.does}, whose size is {target.size}; "
                "give its dtype the kernel's members and padding (numpy.dtype(..., align=True))"
            )
        check_record(target, memory.owner.dtype, where)
    elif memory.dtype != "uint8":
        _numbers_of_structs(call, p, target)
    elif target.size and memory.count % target.size:
        raise ValueError(
            f"{where} has {memory.count} bytes, {p.does}, whose size is {target.size}; pass a multiple of that"
        )
    if target.align > 1 and memory.pointer % target.align:
        raise ValueError(f"{where} starts at an address that is not a multiple of {target.align} bytes, {p.does}")


def _numbers_of_structs(call: Call, p: Pointer, target: CType) -> None:
    """Numbers for a pointer to structs: those that such a struct is made of, in rows of whole structs."""
    memory, where = p.memory, p.where
    scalar = scalar_of(target, call.sized)
    if scalar is None:
        raise TypeError(
            f"{where} is {memory.dtype}, {p.does}; pass {where.expr}.view(torch.uint8) or a structured array"
        )
    lanes = target.size // scalar.size
    pairs = (complex_of(scalar),) if lanes == 2 else ()
    if memory.dtype not in (*scalar.dtypes, *pairs):
        fix = conversion(scalar, memory, where, p.writes)
        raise TypeError(f"{where} is {memory.dtype}, {p.does}, of {lanes} {scalar.name} each; {fix}")
    shape, size = (memory.owner if memory.tensor is None else memory.tensor).shape, memory.itemsize
    for n in reversed(shape if memory.count else ()):
        if size % target.size == 0 or target.size % size:
            break
        size *= n
    if memory.count and size % target.size:
        raise ValueError(
            f"{where} has shape {tuple(shape)}, {p.does}, of {lanes} {scalar.name} each; "
            f"give it a last dimension of {lanes}"
        )


# Its device ---------------------------------------------------------------------------------------------------------


def _native_device(e: Emit, n: Native) -> None:
    """``%device`` holds the first tensor's device, kind and number, or -1."""
    found, first = e.load("i64", n.tensor, 8), e.load("i64", "%device")
    none, same = e.value(f"icmp eq i64 {first}, -1"), e.value(f"icmp eq i64 {first}, {found}")
    e.unless(e.value(f"or i1 {none}, {same}"))
    e.do(f"store i64 {found}, ptr %device, align 1")


def _device(call: Call, p: Pointer) -> None:
    memory, where = p.memory, p.where
    if memory.device < 0:
        call.host.append(memory)
    if call.device is None or (call.device < 0 <= memory.device and all(map(_pinned, call.host))):
        call.device, call.first = memory.device, where
    elif memory.device != call.device and not (memory.device < 0 and _pinned(memory)):
        assert call.first is not None
        there = "cpu" if call.device < 0 else f"cuda:{call.device}"
        fix = f"{where.expr}.to({there!r})" if memory.tensor is not None else f"a copy of it on {there}"
        raise ValueError(
            f"{where} is on {memory.place}, argument {call.first.position} '{call.first.expr}' is on {there}; "
            f"a launch runs on one device: pass {fix}"
        )


def _pinned(memory: Memory) -> bool:
    """Whether kernels on a GPU reach memory of the CPU as they do their own."""
    return memory.tensor is not None and memory.kind == "tensor" and memory.tensor.is_pinned()


# How its elements lie -----------------------------------------------------------------------------------------------


def _native_count(e: Emit, n: Native) -> None:
    if n.ctype.kind == "reference":
        e.ask("rk_one", n.tensor)


def _count(call: Call, p: Pointer) -> None:
    if p.ctype.kind != "reference":
        return
    size = call.sized(p.target).size if p.target.kind == "struct" else p.memory.itemsize
    if p.memory.count * p.memory.itemsize != (size or p.memory.itemsize):
        raise ValueError(f"{p.where} has {p.memory.count} elements, {p.does}, a reference; pass a one-element tensor")


def _native_order(e: Emit, n: Native) -> None:
    """Even where the kernel knows about strides no two written elements may be one."""
    found = e.value(f"call i1 @rk_order(ptr {n.tensor}, i1 {n.strided}, i1 {str(not n.ctype.const).lower()})")
    e.unless(found)


def _order(call: Call, p: Pointer) -> None:
    memory, where = p.memory, p.where
    if memory.contiguous or call.strided:
        return
    if p.writes:
        fix = "write into a contiguous tensor and copy it back, or make the kernel with strided=True"
    else:
        copy = "contiguous()" if memory.tensor is not None else "copy()"
        fix = f"pass {where.expr}.{copy}, or make the kernel with strided=True"
    t = memory.tensor
    strides = f" (shape {tuple(t.shape)}, strides {t.stride()})" if t is not None else ""
    raise ValueError(f"{where} is not contiguous{strides}, {p.does}; {fix}")


# Whether it may be written ------------------------------------------------------------------------------------------


def _native_written(e: Emit, n: Native) -> None:
    if not n.ctype.const:
        recorded = e.value(f"call i1 @rk_recorded(ptr %table, ptr {n.object})")
        e.unless(e.value(f"xor i1 {recorded}, true"))


def _written(call: Call, p: Pointer) -> None:
    memory, where, does = p.memory, p.where, p.does
    if not p.writes:
        return
    if not memory.writable:
        raise ValueError(f"{where} is a read-only {memory.kind}, {does}; pass a writable copy, {where.expr}.copy()")
    if memory.overlaps:
        fix = f"pass {where.expr}.{_copy_call(memory)}"
        raise ValueError(f"{where} has several elements at one address (stride 0), {does}; {fix}")
    t = memory.tensor
    if call.tracked and t is not None and operator_state.unseen_by_autograd(t):
        raise operator_state.not_inside_op(f"{where} requires grad, {does} and autograd would not know")


def _copy_call(memory: Memory) -> str:
    return "clone()" if memory.tensor is not None else "copy()"


# Its address --------------------------------------------------------------------------------------------------------


def _native_aligned(e: Emit, n: Native) -> None:
    assert n.ctype.target is not None
    if n.ctype.target.align > 1:
        low = e.value(f"and i64 {native_address(e, n)}, {n.ctype.target.align - 1}")
        e.unless(e.value(f"icmp eq i64 {low}, 0"))


def native_address(e: Emit, n: Native) -> str:
    """What is passed to the kernel."""
    return e.value(f"add i64 {e.load('i64', n.tensor)}, {e.load('i64', n.tensor, 40)}")


def native_pointer(e: Emit, n: Native, at: str, words: str = "%params", extents: str = "%extents") -> str:
    """Put the address among words, the parameters, and its extents after them; returns how many bytes may be read."""
    e.do(f"store i64 {native_address(e, n)}, ptr {at}, align 1")
    extent = e.value(f"call i64 @rk_extent(ptr {n.tensor})")
    written = 0 if n.ctype.const else extent
    e.do(f"call void @rk_put_extent(ptr {words}, ptr {extents}, ptr {at}, i64 {extent}, i64 {written})")
    return extent


def _aligned(call: Call, p: Pointer) -> None:
    memory, where, align = p.memory, p.where, p.target.align
    if align > 1 and memory.pointer % align:
        fix = "give it memory of its own" if p.writes else f"pass {where.expr}.{_copy_call(memory)}"
        raise ValueError(f"{where} starts at an address that is not a multiple of {align} bytes, {p.does}; {fix}")


DTYPE = Rule(_native_dtype, _dtype)
DEVICE = Rule(_native_device, _device)
#: The rules for a pointer's memory, in the order in which they are checked.
POINTER = (
    Rule(_native_plain, _described),
    DTYPE,
    DEVICE,
    Rule(_native_count, _count),
    Rule(_native_order, _order),
    Rule(_native_written, _written),
    Rule(_native_aligned, _aligned),
)


# By value -----------------------------------------------------------------------------------------------------------
# The slow readings of these are the conversions of `rawkern.arguments.scalars`, which has the same kinds.


def _native_int(e: Emit, ctype: CType, value: str, at: str) -> None:
    low, high = max(ctype.low, -(1 << 63)), min(ctype.high, (1 << 63) - 1)
    e.ask("rk_put_int", "%table", value, at, size=ctype.size, low=low, high=high)


def _native_bool(e: Emit, ctype: CType, value: str, at: str) -> None:
    e.ask("rk_put_bool", "%table", value, at)


# Bits of precision, the smallest exponent, infinity and the NaN that is passed; wider types need none of it.
_NARROW = {"half": (11, -14, 0x7C00, 0x7E00), "bfloat16": (8, -126, 0x7F80, 0x7FC0)}


def _native_float(e: Emit, ctype: CType, value: str, at: str) -> None:
    element = ctype.element or ctype
    reader = "rk_put_complex" if ctype.kind == "complex" else "rk_put_float"
    e.ask(reader, "%table", value, at, *_NARROW.get(element.kind, (0, 0, 0, 0)), size=element.size)


def _native_vector(e: Emit, ctype: CType, value: str, at: str) -> None:
    """A tuple of numbers, each as its element's kind is read."""
    element = ctype.element
    assert element is not None
    e.ask("rk_is_tuple", "%table", value, count=ctype.lanes)
    for k in range(ctype.lanes):
        item = e.value(f"call ptr {e.row('PyTuple_GetItem')}(ptr {value}, i64 {k})")
        place = e.value(f"getelementptr i8, ptr {at}, i64 {k * element.size}")
        SCALARS[element.kind](e, element, item, place)


def _native_struct(e: Emit, ctype: CType, value: str, at: str) -> None:
    """A tensor map, all members by name, or the bytes that are passed."""
    done = e.label("filled")
    if ctype.size == MAP_SIZE:
        other = e.either(e.is_a(value, "map_type"))
        _native_map(e, value, at)
        e.do(f"br label %{done}")
        e.place(other)
    if has_plain_members(ctype):
        members = e.value(f"call ptr @rk_members(ptr %table, ptr {value})")
        other = e.either(e.value(f"icmp ne ptr {members}, null"))
        _native_members(e, ctype, members, at)
        e.do(f"br label %{done}")
        e.place(other)
    e.ask("rk_put_bytes", "%table", value, at, size=ctype.size)
    e.place(done)


def _native_map(e: Emit, value: str, at: str) -> None:
    tensor, only = e.load("ptr", value, TENSOR_AT), e.load("ptr", value, READ_ONLY_AT)
    e.unless(e.value(f"icmp ne ptr {tensor}, null"))
    pointer = Native(READ, tensor, "%dl")
    _native_plain(e, pointer)
    _native_device(e, pointer)
    recorded = e.value(f"call i1 @rk_recorded(ptr %table, ptr {tensor})")
    reads = e.value(f"icmp eq ptr {only}, {e.row('true')}")
    e.unless(e.value(f"select i1 {recorded}, i1 {reads}, i1 true"))
    # The slow path tells the CPU engine what a kernel must not write.
    on_cpu = e.value(f"icmp eq i32 {e.load('i32', '%dl', 8)}, {CPU}")
    protected = e.value(f"and i1 {on_cpu}, {reads}")
    e.unless(e.value(f"xor i1 {protected}, true"))
    e.ask("rk_put_map", "%table", "%dl", e.load("ptr", value, KNOWN_AT), at, size=MAP_SIZE)


def member_pointers(ctype: CType, name: str = "", offset: int = 0) -> Iterator[tuple[str, int, CType]]:
    """The pointers that native code fills in a struct of a dict: as they are named, where they stand, their types."""
    if ctype.kind == "pointer":
        yield name, offset, ctype
    elif ctype.kind == "array" and ctype.element is not None:
        for k in range(ctype.lanes if _holds_pointers(ctype) else 0):
            yield from member_pointers(ctype.element, f"{name}[{k}]", offset + k * ctype.element.size)
    elif ctype.layout is not None and has_plain_members(ctype):
        for member in ctype.layout.members:
            yield from member_pointers(parse(member.type), f"{name}.{member.name}", offset + member.offset)


def has_plain_members(ctype: CType) -> bool:
    """Whether native code fills a struct of a dict: all members are known, and have bytes of their own."""
    layout = ctype.layout
    return (
        layout is not None
        and not layout.unknown
        and bool(layout.members)
        and all(not m.bits and not m.choices and _is_plain_member(parse(m.type)) for m in layout.members)
        # Only at multiples of 8 there is an extent.
        and not any((m.offset % 8 or layout.align % 8) and _holds_pointers(parse(m.type)) for m in layout.members)
    )


def _is_plain_member(ctype: CType) -> bool:
    if ctype.kind == "array":
        return ctype.element is not None and ctype.lanes <= _MOST_ITEMS and _is_plain_member(ctype.element)
    return ctype.kind == "pointer" or (ctype.kind in SCALARS and ctype.kind != "struct")


def _native_members(e: Emit, ctype: CType, value: str, at: str) -> None:
    assert ctype.layout is not None
    members = ctype.layout.members
    e.ask("rk_has_keys", "%table", value, count=len(members))
    e.do(f"call void @llvm.memset.p0.i64(ptr {at}, i8 0, i64 {ctype.size}, i1 false)")
    for member in members:
        item = e.value(f"call ptr @rk_value(ptr %table, ptr {value}, ptr {e.text(member.name)})")
        e.unless(e.value(f"icmp ne ptr {item}, null"))
        _native_member(e, parse(member.type), item, e.value(f"getelementptr i8, ptr {at}, i64 {member.offset}"))


def _native_member(e: Emit, ctype: CType, value: str, at: str) -> None:
    if ctype.kind == "array":
        element = ctype.element
        assert element is not None
        e.ask("rk_is_sequence", "%table", value, count=ctype.lanes)
        for k in range(ctype.lanes):
            item = e.value(f"call ptr @rk_item(ptr %table, ptr {value}, i64 {k})")
            _native_member(e, element, item, e.value(f"getelementptr i8, ptr {at}, i64 {k * element.size}"))
    elif ctype.kind == "pointer":
        native_pointer_or_none(e, ctype, value, at)
    else:
        SCALARS[ctype.kind](e, ctype, value, at)


def native_pointer_or_none(
    e: Emit, ctype: CType, value: str, at: str, words: str = "%params", extents: str = "%extents"
) -> None:
    """A tensor or None for a member of a struct, or an item of a list."""
    done, pointer = e.label("passed"), Native(ctype, value, "%dl")
    other = e.either(e.value(f"icmp ne ptr {value}, {e.row('none')}"))
    for rule in POINTER:
        rule.native(e, pointer)
    # Of a word without an extent nothing is known: the slow path tells the CPU engine of a tensor without elements.
    some = e.value(f"icmp ne i64 {native_pointer(e, pointer, at, words, extents)}, 0")
    on_gpu = e.value(f"icmp eq i32 {e.load('i32', '%dl', 8)}, {CUDA}")
    e.unless(e.value(f"or i1 {some}, {on_gpu}"))
    e.do(f"br label %{done}")
    e.place(other)
    e.do(f"store i64 0, ptr {at}, align 1")
    e.place(done)


def native_changes(e: Emit, ctype: CType, value: str) -> None:
    """Count a change of each tensor that an argument has brought, and that is written."""
    if ctype.kind in ("pointer", "reference"):
        if not ctype.const:
            e.do(f"call void @rk_bump_held(ptr %table, ptr {value})")
    elif ctype.kind == "array" and ctype.element is not None and _holds_pointers(ctype.element, written=True):
        for k in range(ctype.lanes):
            item = e.value(f"call ptr @rk_held_item(ptr %table, ptr {value}, i64 {ctype.lanes}, i64 {k})")
            native_changes(e, ctype.element, item)
    elif ctype.kind in _STRUCTS:
        if ctype.size == MAP_SIZE:
            e.do(f"call void @rk_bump_map(ptr %table, ptr {value}, i64 {TENSOR_AT}, i64 {READ_ONLY_AT})")
        for member in ctype.layout.members if ctype.layout is not None and has_plain_members(ctype) else ():
            of = parse(member.type)
            if _holds_pointers(of, written=True):
                item = e.value(f"call ptr @rk_held_value(ptr %table, ptr {value}, ptr {e.text(member.name)})")
                native_changes(e, of, item)


def _holds_pointers(ctype: CType, written: bool = False) -> bool:
    """Whether a member, or each item of one, is a pointer; or one to what may be `written`."""
    while ctype.kind == "array" and ctype.element is not None:
        ctype = ctype.element
    return ctype.kind == "pointer" and not (written and ctype.const)


def _native_opaque(e: Emit, ctype: CType, value: str, at: str) -> None:
    """Bytes of which the size alone is known may be a tensor map."""
    if ctype.size == MAP_SIZE:
        e.unless(e.is_a(value, "map_type"))
        _native_map(e, value, at)
    else:
        e.unless("false")


def _never(e: Emit, ctype: CType, value: str, at: str) -> None:
    e.unless("false")


#: How native code reads an object for a parameter by value, and stores it at an address: by the type's kind.
SCALARS: dict[str, Callable[[Emit, CType, str, str], None]] = {
    "int": _native_int,
    "bool": _native_bool,
    "float": _native_float,
    "half": _native_float,
    "bfloat16": _native_float,
    "complex": _native_float,
    "vector": _native_vector,
    "struct": _native_struct,
    "float8": _never,
    "function": _never,
    "opaque": _native_opaque,
}
