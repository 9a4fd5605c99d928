"""Declarations of PTX: variables with their initializers, and parameter lists."""

from __future__ import annotations

from math import prod

from rawkern.engines.cpu.ptx.constants import constant, literal
from rawkern.engines.cpu.ptx.data import TYPE_BYTES, Imm, Sym, Var
from rawkern.engines.cpu.ptx.tokens import closing, is_name, shown, split
from rawkern.errors import UnsupportedError

_SPACES = (".global", ".const", ".shared", ".local", ".param")
_VECTORS = {".v2": 2, ".v4": 4, ".v8": 8}


def variables(statement: list[str], extern: bool = False) -> list[Var]:
    """What a statement without its semicolon declares, such as ``.global .align 8 .f32 a[4], b = 0f3F800000``."""
    space = statement[0]
    if space not in _SPACES:
        raise _unknown(statement)
    align, count, kind, at = 0, 1, "b8", 1
    pointer = False  # what follows `.ptr` is about the memory pointed to
    while at < len(statement) and statement[at][0] == ".":
        word = statement[at]
        at += 1
        if word == ".align":
            if not pointer:
                align = _number(statement, at)
            at += 1
        elif word == ".attribute":
            at = closing(statement, at) + 1
        elif word == ".ptr":
            pointer = True
        elif word in _VECTORS:
            count = _VECTORS[word]
        elif word[1:] in TYPE_BYTES:
            kind = word[1:]
        elif not (pointer and word in _SPACES):
            raise _unknown(statement)
    if at == len(statement):
        raise _unknown(statement)
    return [
        _declared(part, statement, space[1:], kind, align or TYPE_BYTES[kind] * count, count, extern)
        for part in split(statement[at:])
    ]


def _declared(
    part: list[str], statement: list[str], space: str, kind: str, align: int, count: int, extern: bool
) -> Var:
    """One of the names that a statement declares, with its dimensions and what it starts with."""
    if not is_name(part[0]):
        raise _unknown(statement)
    at, dims = 1, []
    while at < len(part) and part[at] == "[":
        stop = closing(part, at)
        dims.append(_number(part, at + 1) if stop > at + 1 else 0)
        at = stop + 1
    values: tuple = ()
    if at < len(part):
        if part[at] != "=":
            raise _unknown(statement)
        rows = [*dims, count] if count > 1 else dims
        values = tuple(_initial(part[at + 1 :], rows))
        if dims and not dims[0]:
            dims[0] = -(-len(values) // prod(rows[1:]))
    return Var(part[0], space, kind, align, TYPE_BYTES[kind] * count * prod(dims), values, extern)


def _initial(part: list[str], dims: list[int]) -> list[Imm | Sym]:
    """Initial values in the order of memory, for an array of these dimensions (0: as many as there are)."""
    if not part or part[0] != "{":
        return [_value(part)]
    if closing(part, 0) != len(part) - 1:
        raise _not_initial(part)
    values: list[Imm | Sym] = []
    inner = dims[1:]
    if all(token[0].isdigit() for token in part[1:-1:2]) and {*part[2:-1:2]} <= {","} and len(part) % 2:
        values += map(literal, part[1:-1:2])  # one number after the other: libraries have tables of 100,000
    else:
        for item in split(part[1:-1]):
            got = _initial(item, inner)
            rest = prod(inner) - len(got) if item[0] == "{" else 0
            values += [*got, *[Imm(0, "i")] * rest]
    if not dims or (dims[0] and len(values) > prod(dims)):
        raise _not_initial(part)
    return values


def _value(part: list[str]) -> Imm | Sym:
    """A number, or the address of a variable or function, in its own space or generic."""
    if not part or not is_name(part[0]) or part[0] == "WARP_SZ":
        if "(" in part and any(is_name(token) for token in part):
            raise _not_initial(part)  # a byte of an address
        return constant(part)
    generic = part[0] == "generic" and len(part) > 3 and (part[1], part[3]) == ("(", ")")
    name, rest = (part[2], part[4:]) if generic else (part[0], part[1:])
    if rest and rest[0] not in ("+", "-"):
        raise _not_initial(part)
    return Sym(f"generic:{name}" if generic else name, constant(rest).value if rest else 0)


def thread_bound(part: list[str]) -> int:
    """The most threads of a block by a function's directives, ``.maxntid`` or ``.reqntid``; 0 without them."""
    most = 0
    for name in (".maxntid", ".reqntid"):
        sizes = _sizes(part, name)
        most = prod(sizes) if sizes else most
    return most


def cluster(part: list[str]) -> tuple[int, int, int] | None:
    """Blocks of a cluster by a function's directives, zeros where each launch has to tell them; None without."""
    x, y, z = (*_sizes(part, ".reqnctapercluster"), 1, 1, 1)[:3]
    if ".reqnctapercluster" in part:
        return x, y, z
    return (0, 0, 0) if ".explicitcluster" in part else None


def _sizes(part: list[str], directive: str) -> list[int]:
    """The numbers that follow a directive, if it is there."""
    at = part.index(directive) + 1 if directive in part else len(part)
    sizes = []
    while part[at : at + 1] and part[at].isdigit():
        sizes.append(int(part[at]))
        at += 2 if part[at + 1 : at + 2] == [","] else 1
    return sizes


def parameters(part: list[str]) -> list[Var]:
    """A list of parameters or results, without its brackets."""
    found = []
    for item in split(part):
        if item[0] == ".reg":
            raise UnsupportedError(f"PTX parameter in a register is not supported: {shown(item)!r}")
        found += variables(item)
    return found


def _number(part: list[str], at: int) -> int:
    if at >= len(part):
        raise _unknown(part)
    return constant(part[at : at + 1]).value


def _not_initial(part: list[str]) -> UnsupportedError:
    return UnsupportedError(f"PTX initializer not supported: {shown(part)!r}")


def _unknown(statement: list[str]) -> UnsupportedError:
    return UnsupportedError(f"PTX variable not understood: {shown(statement)[:80]!r}")
