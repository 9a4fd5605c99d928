"""Shared memory of the other blocks of a cluster: its addresses, and what maps them.

The windows of a cluster's blocks lie one after the other, each as large as a power of two. An address in shared memory
of 32 or 64 bits is the block's own below 2^24; above, the highest bits are the rank of the block that is meant, plus 1.
Only `mapa` makes such addresses, so without it there are none.
"""

from __future__ import annotations

from collections.abc import Iterator

from rawkern.engines.cpu.emit.calls import service
from rawkern.engines.cpu.emit.forms import LANES, Form
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.lanes import pointer
from rawkern.engines.cpu.emit.memory.loops import counted
from rawkern.engines.cpu.ir import Emitter, Val
from rawkern.engines.cpu.ptx.data import Instr, Reg, Sym
from rawkern.engines.cpu.ptx.decode import Op
from rawkern.engines.cpu.records import BLOCK, LAUNCH

_RANK_AT = 24
_OFFSET = (1 << _RANK_AT) - 1


def space_of(f: FunctionLowering, op: Op) -> str:
    """The memory that an instruction names: as PTX has it, or "cluster"."""
    return "cluster" if f.plan.remote and op.has("shared::cluster") else op.space


def named(space: str) -> str:
    """What instruments are told of the memory: host addresses of any block's shared memory are generic ones."""
    return "generic" if space == "cluster" else space


def is_own(f: FunctionLowering, a: object) -> bool:
    """Whether an operand is the address of one of the block's own variables in shared memory."""
    root = f.provenance.get(a.name) if isinstance(a, (Reg, Sym)) else None
    return root is not None and root[0] == "shared"


def _first(f: FunctionLowering) -> Val:
    """Where the shared memory of the cluster's first block lies."""

    def load(e: Emitter) -> Val:
        first = f.frame.field_address(BLOCK, "first")
        return e.let("i64", 1, f"load i64, {pointer(e, first, BLOCK.offset('shared'))}")

    return f.frame.once("cluster.shared", load)


def _own(f: FunctionLowering) -> Val:
    return f.frame.field_address(BLOCK, "shared")


def _rank(f: FunctionLowering) -> Val:
    return f.frame.once("cluster.rank", lambda e: e.resize(f.frame.field(BLOCK, "rank"), "i64"))


def _shift(f: FunctionLowering) -> Val:
    """How many bits an offset in a window has."""
    return f.frame.field(LAUNCH, "window")


def _count(f: FunctionLowering) -> Val:
    return f.frame.field(LAUNCH, "together")


def _parts(f: FunctionLowering, at: Val) -> tuple[Val, Val]:
    """Which window, and where in it, a generic address is."""
    e, shift = f.e, _shift(f)
    far = e.bin("sub", at, _first(f))
    whole = e.bin("lshr", far, shift)
    return whole, e.bin("sub", far, e.bin("shl", whole, shift))


def placed(f: FunctionLowering, at: Val) -> Val:
    """The host address of an address in the cluster's shared memory."""
    e = f.e
    top, offset = e.bin("lshr", at, _RANK_AT), e.bin("and", at, _OFFSET)
    start = e.bin("add", e.bin("shl", e.bin("sub", top, 1), _shift(f)), _first(f))
    return e.select(e.cmp("icmp eq", top, 0), e.bin("add", at, _own(f)), e.bin("add", start, offset))


def unplaced(f: FunctionLowering, at: Val) -> Val:
    """The address in the cluster's shared memory of a host address there."""
    e = f.e
    rank, offset = _parts(f, at)
    other = e.bin("and", e.cmp("icmp ult", rank, _count(f)), e.cmp("icmp ne", rank, _rank(f)))
    return e.select(other, _remote(f, rank, offset), e.bin("sub", at, _own(f)))


def in_cluster(f: FunctionLowering, at: Val) -> Val:
    """Whether a host address is one of the shared memory of the cluster's blocks."""
    rank, offset = _parts(f, at)
    total = f.e.resize(f.frame.field(LAUNCH, "shared_total"), "i64")
    return f.e.bin("and", f.e.cmp("icmp ult", rank, _count(f)), f.e.cmp("icmp ult", offset, total))


def _remote(f: FunctionLowering, rank: Val, offset: Val) -> Val:
    return f.e.bin("or", f.e.bin("shl", f.e.bin("add", rank, 1), _RANK_AT), offset)


def _map(f: FunctionLowering, instr: Instr) -> None:
    """``mapa``: the same place in another block of the cluster."""
    dest, source, rank = instr.args
    e = f.e
    to = e.resize(f.values.value(rank, 32), "i64")
    if instr.op.has("shared::cluster"):
        offset = e.bin("and", e.resize(_address(f, source, instr.op), "i64"), _OFFSET)
        found = e.select(e.cmp("icmp eq", to, _rank(f)), offset, _remote(f, to, offset))
        found = e.resize(found, instr.op.type.int)
    else:
        _, offset = _parts(f, _address(f, source, instr.op))
        found = e.bin("add", e.bin("add", e.bin("shl", to, _shift(f)), _first(f)), offset)
    f.values.put(dest.name, found)


def _get_rank(f: FunctionLowering, instr: Instr) -> None:
    """``getctarank``: whose shared memory an address is in."""
    dest, source = instr.args
    e, at = f.e, _address(f, source, instr.op)
    if instr.op.has("shared::cluster"):
        top = e.bin("lshr", e.resize(at, "i64"), _RANK_AT)
        rank = e.select(e.cmp("icmp eq", top, 0), _rank(f), e.bin("sub", top, 1))
    else:
        rank, _ = _parts(f, at)
    f.values.put(dest.name, e.resize(rank, "i32"))


def _address(f: FunctionLowering, source: object, op: Op) -> Val:
    return f.values.value(source, op.type.bits)


def placed_form(f: FunctionLowering, form: Form) -> Val:
    """`placed` of lanes' addresses in any form."""
    plain = f.values.plain(form)
    return placed(f, plain if plain.n in (1, LANES) else f.e.splat(plain, LANES))


def window(f: FunctionLowering, at: Val) -> Val:
    """Where the shared memory begins of the block of the cluster in whose window a host address is."""
    if not f.plan.remote:
        return _own(f)
    whole, _ = _parts(f, at)
    return f.e.bin("add", f.e.bin("shl", whole, _shift(f)), _first(f))


def destinations(f: FunctionLowering, instr: Instr, ranks: Val | None) -> Iterator[Val | None]:
    """Emit what follows once, for each block of the cluster to which lanes copy: those of the bits `ranks`.

    Gives how far the block's shared memory is from the own; `local` is in the own. Without ranks lanes copy to where
    their addresses lead, which is None.
    """
    if ranks is None:
        yield None
        return
    e = f.e
    bits = e.splat(e.resize(ranks, "i64"), LANES)
    count = e.splat(_count(f), LANES)
    outside = e.bin("and", f.lanes.mask_of(e.cmp("icmp ne", e.bin("lshr", bits, count), 0)), f.lanes.act())
    with e.where(e.cmp("icmp ne", outside, 0), rare=True):
        service(f, "MULTICAST", instr, bits, count, lanes=outside)
    for k in counted(f, _count(f)):
        named_ = e.cmp("icmp ne", e.bin("and", e.bin("lshr", bits, e.splat(k, LANES)), 1), 0)
        lanes, known = e.bin("and", f.lanes.mask_of(named_), f.lanes.act()), dict(f.cache)
        with e.where(e.cmp("icmp ne", lanes, 0)):
            f.lanes.set_act(lanes)
            yield e.bin("sub", e.bin("add", e.bin("shl", k, _shift(f)), _first(f)), _own(f))
        f.cache = known


def local(f: FunctionLowering, at: Val) -> Val:
    """The place in the own shared memory of that of a host address in its block's."""
    return f.e.bin("add", _parts(f, at)[1], _own(f))


HANDLERS = {"mapa": _map, "getctarank": _get_rank}
