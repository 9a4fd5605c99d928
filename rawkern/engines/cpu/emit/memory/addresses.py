"""Operands of memory instructions: which space and type they name, and lanes' addresses in the best form known."""

from __future__ import annotations

from rawkern.engines.cpu.emit.affine import widened
from rawkern.engines.cpu.emit.forms import LANES, Affine, Form, Wide
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.memory import clusters
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.ptx.data import Mem
from rawkern.engines.cpu.ptx.decode import Op
from rawkern.engines.cpu.records import BLOCK, LAUNCH


def ordering(op: Op) -> str:
    """How strong an access is, in LLVM's words; empty for a plain one."""
    return "monotonic" if op.order == "relaxed" else op.order


def address_parts(f: FunctionLowering, mem: Mem, space: str) -> tuple[Form, int]:
    """The host address of ``[base + offset]`` in two parts: code for the first serves all accesses near it.

    LLVM folds the second into each load and store, unless the sum is used by something else as well.
    """
    if f.watch.whole_addresses:
        return address(f, mem, space), 0
    return address(f, Mem(mem.base, 0), space), mem.offset


def address(f: FunctionLowering, mem: Mem, space: str) -> Form:
    """The host address of ``[base + offset]`` in the best form known."""
    form = f.values.operand(mem.base, 64)
    form = f.values.plain(form) if not isinstance(form, (Val, Affine, Wide)) else form
    form = widen(f, form)
    if mem.offset:
        form = shift(f, form, const("i64", mem.offset))
    if space == "cluster":
        form = clusters.placed_form(f, form)
    if space == "shared":
        form = shift(f, form, f.frame.field_address(BLOCK, "shared"))
    return form


def widen(f: FunctionLowering, form: Form) -> Form:
    """Extend 32-bit addresses (of shared memory) to 64 bits."""
    if isinstance(form, Affine) and form.bases[0].ty == "i32":
        return widened(f.e, form, 1, False)
    if isinstance(form, Val) and form.ty != "i64":
        return f.e.resize(form, "i64")
    return form


def shift(f: FunctionLowering, form: Form, by: Val) -> Form:
    """Add a scalar to an address."""
    if isinstance(form, Affine):
        return Affine(tuple(f.e.bin("add", x, by) for x in form.bases), form.stride)
    if isinstance(form, Wide):
        offsets = tuple(f.e.bin("add", x, by) for x in form.offsets)
        return Wide(offsets, form.inners, form.scale, form.stride, form.signed)
    assert isinstance(form, Val)
    return f.e.bin("add", form, by)


def in_shared(f: FunctionLowering, at: Val, every: bool = True) -> Val:
    """Whether a generic address is one of shared memory: the block's own, or that of `every` block of its cluster."""
    if every and f.plan.remote:
        return clusters.in_cluster(f, at)
    total = f.e.resize(f.frame.field(LAUNCH, "shared_total"), "i64")
    return f.e.cmp("icmp ult", f.e.bin("sub", at, f.frame.field_address(BLOCK, "shared")), total)


def fits(f: FunctionLowering, form: Wide) -> Val:
    """Whether the 32-bit part of a wide address does not wrap around within any segment."""
    run = LANES // form.segments

    def one(e: Emitter, inner: Val) -> Val:
        last = e.bin("add", e.resize(inner, "i64", form.signed), (run - 1) * form.stride)
        return e.cmp("icmp eq", last, e.resize(e.cast("trunc", last, "i32"), "i64", form.signed))

    keys = ((inner, ("fits", inner.ref, run, form.stride, form.signed)) for inner in dict.fromkeys(form.inners))
    return f.e.all("and", (f.in_block(key, lambda e, inner=inner: one(e, inner)) for inner, key in keys))


def starts(f: FunctionLowering, form: Affine | Wide) -> list[Val]:
    """Address of each segment's first lane; of a wide form whose 32-bit parts do not wrap."""
    if isinstance(form, Affine):
        return list(form.bases)
    e = f.e
    result: dict[tuple[Val, Val], Val] = {}
    for offset, inner in zip(form.offsets, form.inners, strict=True):
        if (offset, inner) not in result:
            wide = e.resize(inner, "i64", form.signed)
            result[offset, inner] = e.bin("add", e.bin("mul", wide, form.scale) if form.scale != 1 else wide, offset)
    return [result[pair] for pair in zip(form.offsets, form.inners, strict=True)]


def stride_of(form: Form) -> int | None:
    """Bytes from lane to lane, where known."""
    if isinstance(form, Affine):
        return form.stride
    return form.scale * form.stride if isinstance(form, Wide) else None
