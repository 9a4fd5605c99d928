"""Text as syntax: what is asked of the nodes of its tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.errors import NotDifferentiable

TYPES = frozenset(("primitive_type", "type_identifier", "sized_type_specifier", "placeholder_type_specifier"))
LOOPS = ("for_statement", "while_statement", "do_statement", "for_range_loop")
BREAKABLE = (*LOOPS, "switch_statement")
CHANGES = ("update_expression", "assignment_expression")
#: How names of functions begin that take the lanes of a warp together, and change nothing that they are given.
OF_WARPS = ("__shfl_", "__ballot_", "__any_", "__all_", "__syncwarp")


TENSOR_CORES = "it uses tensor cores (wmma), which have no derivative here"
#: What to do where rewriting the kernel does not help.
BY_HAND = "write the backward by hand, as @f.backward of the operator"
INSTEAD_OF_UNIONS = "declare one of its members alone, and cast a pointer to it: float4 v; float* f = (float*)&v"
#: What bits of floats are asked for that has a name, whose gradient is known.
INSTEAD_OF_BITS = f"use fabsf, copysignf, signbit, isnan, isinf, ldexpf or INFINITY where that is meant, else {BY_HAND}"
#: How names of functions begin that do more than compute, and what to do instead.
INSTEAD = {
    "atomicSub": "use atomicAdd of the negative", "atomic": BY_HAND, "__match_": BY_HAND,
    "__activemask": "use 0xffffffff, where whole warps come", "__reduce_": "use shuffles",
    "__shfl": "use __shfl_sync and its like", "__ballot": "use __ballot_sync", "__any": "use __any_sync",
    "__all": "use __all_sync", "__float_as_": INSTEAD_OF_BITS, "__double_as_": INSTEAD_OF_BITS,
    "__int_as_": INSTEAD_OF_BITS, "__uint_as_": INSTEAD_OF_BITS, "__longlong_as_": INSTEAD_OF_BITS,
    "clock": "leave it out", "__nanosleep": "leave it out",
    "__trap": "leave it out", "__prefetch": "leave it out", "mem": "copy element by element",
    "__pipeline_": "copy by assignments", "tex": "pass a pointer", "surf": "pass a pointer",
}  # fmt: skip


#: What to write instead of kinds of text.
WAYS_OUT = {
    "struct_specifier": "declare it outside of the kernel", "class_specifier": "declare it outside of the kernel",
    "gnu_asm_expression": f"write it in CUDA C, or {BY_HAND}",
    "labeled_statement": "write a loop", "goto_statement": "write a loop",
    "new_expression": "use a local array",
    "delete_expression": "use a local array",
}  # fmt: skip


def instead(name: str) -> tuple[str, str]:
    """What is in the way of a function that is not known, and what to do about it."""
    if name.startswith("curand"):
        return f"{name} is not replayed", "use curand_uniform or curand_normal (2, 4) of curandStatePhilox4_32_10_t"
    plain = "write it as a __device__ function here"
    way_out = next((way for start, way in INSTEAD.items() if name.startswith(start)), plain)
    return f"{name} has no known derivative", way_out


def of_matrices(node: Any) -> bool:
    """Whether a text, or the function that it is in, uses tensor cores through nvcuda::wmma."""
    while node.type != "function_definition" and node.parent is not None:
        node = node.parent
    return "wmma::" in text_of(node).replace(" ", "")


def without(node: Any, qualifiers: set[str]) -> tuple[str, str]:
    """Which qualifiers of a declaration are in the way, and what to do about them."""
    wide = [each for each in qualifiers if each.startswith("alignas")]
    if wide and of_matrices(node):
        return TENSOR_CORES, BY_HAND
    way = "leave that out"
    if wide:
        way = f"leave that out where nothing reads it in wider types, else {BY_HAND}"
    elif "volatile" in qualifiers and "__shared__" in words(node):
        way = "put __syncwarp() between the accesses instead"
    return f"{text_of(node)!r}: {' '.join(sorted(qualifiers))}", way


def unclear(node: Any) -> Any:
    """The innermost part of a text that could not be read."""
    inner = next((c for c in node.children if c.has_error), None)
    return node if inner is None or node.is_missing else unclear(inner)


@dataclass(frozen=True)
class Where:
    """Whose text is read: for messages."""

    title: str
    kernel: str
    place: Callable[[int], str]  # what messages call a line of the source

    def within(self, lines: Sequence[tuple[str | None, int]]) -> Where:
        """The same of a text of lines of the source and of headers."""

        def place(line: int) -> str:
            header, own = lines[line - 1] if 0 < line <= len(lines) else (None, line)
            return self.place(own) if header is None else f"{header}:{own}"

        return replace(self, place=place)

    def refuse(self, node: Any, reason: str, way_out: str) -> NotDifferentiable:
        """The error for what has no derived backward; `node` is a node of the tree, or a line."""
        line = node if isinstance(node, int) else node.start_point[0] + 1
        return NotDifferentiable(f"{self.place(line)}: {self.kernel} has no derived backward: {reason}; {way_out}")


def words(node: Any) -> set[str]:
    """Keywords and qualifiers that stand directly in a node; ``register`` has no meaning."""
    plain = ("type_qualifier", "storage_class_specifier")
    return {text_of(c) for c in node.children if not c.is_named or c.type in plain} - {"register"}


def identifier(declarator: Any) -> str | None:
    """The name in a declarator, through pointers, arrays and references."""
    while declarator is not None and declarator.type not in ("identifier", "field_identifier", "type_identifier"):
        inner = declarator.child_by_field_name("declarator")
        if inner is None:
            rest = [c for c in named(declarator) if c.type.endswith("declarator") or c.type == "identifier"]
            inner = rest[0] if rest else None
        declarator = inner
    return text_of(declarator) if declarator is not None else None


def extents_of(declarator: Any) -> tuple[list[Any], Any]:
    """The extents of an array's declarator, the outermost first, None for one left out; and what is declared."""
    sizes = []
    while declarator.type == "array_declarator":
        sizes.insert(0, declarator.child_by_field_name("size"))
        declarator = declarator.child_by_field_name("declarator")
    return sizes, declarator


def function_name(definition: Any) -> str:
    declarator = definition.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "function_declarator":
        inner = declarator.child_by_field_name("declarator")
        declarator = inner if inner is not None else next(iter(named(declarator)), None)
    return re.sub(r"\s", "", text_of(declarator.child_by_field_name("declarator"))) if declarator is not None else ""


def parameters_of(definition: Any) -> list[Any]:
    """The parameters of a function or a lambda."""
    declarator = definition.child_by_field_name("declarator")
    while declarator is not None and declarator.child_by_field_name("parameters") is None:
        declarator = declarator.child_by_field_name("declarator") or named(declarator)[0]
    found = named(declarator.child_by_field_name("parameters")) if declarator is not None else []
    return [] if [text_of(p) for p in found] == ["void"] else found


def contains(node: Any, kinds: tuple[str, ...], stop: tuple[str, ...] = ()) -> bool:
    """Whether a node of one of these types, which are not tokens, is in a node, not looking into `stop` and lambdas."""
    left, stop = [node], (*stop, "lambda_expression")
    while left:
        node = left.pop()
        if node.type in kinds:
            return True
        if node.named_child_count:
            left += [c for c in node.named_children if c.type not in stop]
    return False


def nodes(node: Any) -> Iterator[Any]:
    """A node and all in it."""
    left = [node]
    while left:
        node = left.pop()
        yield node
        left += reversed(node.children)


def assigned(node: Any) -> set[str]:
    """Every name that a piece of text may change: left of assignments, of ++, and all that functions are given."""
    found: set[str] = set()
    for each in nodes(node):
        if each.type == "call_expression":
            arguments, callee = each.child_by_field_name("arguments"), each.child_by_field_name("function")
            given = named(arguments) if arguments is not None and not text_of(callee).startswith(OF_WARPS) else []
            found |= set().union(*map(_changed, given))
            found |= _changed(callee) if callee.type == "field_expression" else set()
        elif (target := _target(each)) is not None:
            found |= _changed(target)
    return found


def moved(node: Any) -> set[str]:
    """Every name that a piece of text assigns to as a whole, or counts up or down."""
    targets = [target for each in nodes(node) if (target := _target(each)) is not None]
    return {text_of(target) for target in targets if target.type == "identifier"}


def _target(node: Any) -> Any:
    """What an assignment or an update changes; None for others."""
    if node.type == "assignment_expression":
        return node.child_by_field_name("left")
    return node.child_by_field_name("argument") if node.type == "update_expression" else None


def calls(node: Any) -> set[str]:
    """The names of all that a piece of text calls by a name alone."""
    callees = [each.child_by_field_name("function") for each in nodes(node) if each.type == "call_expression"]
    return {text_of(callee) for callee in callees if callee.type == "identifier"}


def _changed(node: Any) -> set[str]:
    """The variables that change if what an expression means does: not those of an index."""
    if node.type in ("identifier", "this"):
        return {text_of(node)}
    if node.type in ("subscript_expression", "field_expression"):
        return _changed(node.child_by_field_name("argument"))
    return set().union(*map(_changed, node.children))
