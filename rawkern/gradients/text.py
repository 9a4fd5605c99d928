"""The text of a derived kernel around its body: comments, parameters, shared arrays."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from rawkern.base import gpus
from rawkern.gradients import types
from rawkern.gradients.analysis.definite_writes import Sets, set_by
from rawkern.gradients.backward import functions, helpers
from rawkern.gradients.backward.privatized_sums import BlockSum, looped
from rawkern.gradients.backward.reverse import Reverse
from rawkern.gradients.backward.stencil_gather import Gathering
from rawkern.gradients.code.expressions import thread_number, written
from rawkern.gradients.code.names import Names, spelling, summed_spelling
from rawkern.gradients.code.passes.dce import set_at_once, without_unused
from rawkern.gradients.code.passes.gradient_forwarding import handed
from rawkern.gradients.code.passes.renumbering import finished
from rawkern.gradients.code.passes.thread_coarsening import Several, several
from rawkern.gradients.code.passes.unroll import Row, assumption, resident, rows
from rawkern.gradients.code.tree import BARRIER, Assign, Barrier, Declare, For, If, Run, Statement, commented, rendered
from rawkern.gradients.index.affine import Poly
from rawkern.gradients.ir import Array, Kernel, Store, walk
from rawkern.gradients.passes.in_place import mixed
from rawkern.gradients.reading.reader import Shape
from rawkern.gradients.rules import number
from rawkern.gradients.types import Aggregate

ALIGNMENT = 32  # of sums, for vectors of double
ALIGNED = 16  # bytes that a thread reads or writes at once


@dataclass(frozen=True)
class Text:
    """The text of a derived kernel, and what its parameters are."""

    name: str
    source: str
    #: In order: ("value", of the forward's parameters), ("variable", of the device), ("grad", of a parameter),
    #: ("size", the number of its elements), ("blocks", how many the forward had along an axis of its grid).
    parameters: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]  # pointers whose gradients are read
    wrt: tuple[str, ...]  # parameters whose gradients are added to
    saved: tuple[str, ...]  # pointers whose values are read
    exchanged: tuple[str, ...]  # outputs whose gradients are set to 0 while they are read
    atomics: int  # how many additions may meet in one element
    unit_axes: tuple[bool, bool, bool]  # axes of the grid that have to have one block
    block: Shape = (1, 1, 1)
    assigned: tuple[str, ...] = field(default=())  # outputs that are set, not added to
    sets: Mapping[str, Sets] = field(default_factory=dict)  # of `wrt`: those whose elements are set, not added to
    shared_mem: int = 0  # bytes of dynamic shared memory, less those of the sums
    #: Gradients that blocks can add up first, each a flag of the template: the parameter, and bytes of a number.
    sums: tuple[tuple[str, int], ...] = ()
    #: Gradients that are those of an output, each a flag of the template: the parameter, and the output.
    handed: tuple[tuple[str, str], ...] = ()
    rows: tuple[Row, ...] = ()  # each a number of the template: how often threads go through it
    each: int = 1  # how many elements a thread can have, along x: a number of the template if there may be several
    records: Mapping[str, str] = field(default_factory=dict)  # pointers to structs of floats: the type of those
    assumed: tuple[tuple[Poly, Poly], ...] = ()  # numbers of a launch that have to be at most others
    before: Mapping[str, str] = field(default_factory=dict)  # arrays as they were before the kernel: of which
    #: Of `before`: those whose gradients begin with 0, and get in the end what is left in those of the outputs.
    rest: frozenset[str] = frozenset()
    variables: Mapping[str, str] = field(default_factory=dict)  # of the device, which it reads: with namespaces
    updated: frozenset[str] = frozenset()  # arrays of which += was read as setting the sum

    def instance(
        self, sums: Sequence[bool], set_too: Sequence[bool], each: int, times: Sequence[int],
        gpu: gpus.Specification = gpus.DEFAULT,
    ) -> str:  # fmt: skip
        """The name of the kernel of these choices: flags of `sums` and `handed`, how many elements, times of `rows`."""
        given = [str(flag).lower() for flag in (*sums, *set_too)] + ([str(each)] if self.each > 1 else [])
        if self.rows:
            given += map(str, (*times, resident(math.prod(self.block), self.rows, times, gpu)))
        return f"{self.name}<{', '.join(given)}>" if given else self.name


def base_name(name: str) -> str:
    """The name of a kernel without namespaces and template arguments."""
    return name.partition("<")[0].rpartition("::")[2].strip()


def backward_text(
    kernel: Kernel, reverse: Reverse, active: Sequence[Array], wrt: tuple[str, ...], body: list[Statement],
    names: Names, units: tuple[bool, bool, bool], gathered: Mapping[str, Gathering],
) -> Text:  # fmt: skip
    """The whole text, with this body; `active`: the outputs whose gradients are read."""
    assumed = list(dict.fromkeys((written(low), written(high)) for low, high in reverse.assumed or ()))
    arrays = [
        *_shadows(kernel, reverse, names),
        *shared_lines(kernel, names, reverse.read, behind=reverse.shadows),
        *reverse.exchanges,
    ]
    checks = [If(f"(long long){low} > (long long){high}", [Run("__trap()")], inline=True) for low, high in assumed]
    body = set_at_once(without_unused(body), kernel.before)
    sums = sorted((s for s in reverse.block_sums.values() if s), key=lambda s: -s.alignment)
    sets = {a.name: set_by(kernel, reads) for a, reads in reverse.set_by.items()}
    scalars = {n: a for n, a in kernel.arrays.items() if isinstance(a.type, str) and a not in reverse.exchanged}
    body, passed = handed(body, sets, {n: a for n, a in scalars.items() if n not in kernel.before}, names.fresh)
    more = None if sums or arrays else several(kernel, body, {g.size for g in gathered.values()}, names.fresh)
    lengths, body = rows(kernel, body, names) if more is None else ((), body)
    room = names.fresh("resident") if lengths else ""
    lines = [*checks, *_zeroed(kernel, reverse, names), *(more.lines if more else body)]
    while lines and isinstance(lines[-1], Barrier):
        lines.pop()
    shared_mem = sum(_bytes(a, reverse, names) for a in kernel.shared if a.dynamic)
    blocks: dict[str, str] = {"x": more.blocks} if more else {}
    if sums:
        shared_mem = -(-shared_mem // ALIGNMENT) * ALIGNMENT
        memory = names.fresh("memory")
        arrays += _memory(kernel, reverse, shared_mem, memory)
        lines, blocks = looped(kernel, sums, memory, lines, thread_number(kernel.block), names.fresh)
    arrays = [*([assumption(kernel)] if lengths else []), *arrays]
    lines = [*arrays, *lines]
    inner = "\n".join(rendered(lines))
    outputs = tuple(a.name for a in active)
    parameters, spelled = [], []
    for n, kind, pointer in kernel.params:
        if re.search(rf"(?<![\w.]){n}\b", inner):
            parameters.append(("variable" if n in kernel.variables else "value", n))
            spelled.append(
                f"const {pointer_to(kernel.arrays[n], names)}" if pointer else f"{spelling(kind, names)} {n}"
            )
    for n, kind, _ in kernel.params:
        if n in outputs or n in wrt:
            parameters.append(("grad", n))
            const = "const " if n in outputs and kernel.arrays[n] not in reverse.exchanged else ""
            spelled.append(f"{const}{summed_spelling(kind, names)}* __restrict__ grad_{n}")
        if n in gathered:
            parameters.append(("size", n))
            spelled.append(f"long long {gathered[n].size}")
    for each in sums:
        if each.count != "1":
            parameters.append(("size", each.of))
            spelled.append(f"int {each.count}")
    for axis, blocks_there in blocks.items():
        parameters.append(("blocks", axis))
        spelled.append(f"unsigned int {blocks_there}")
    name = f"{base_name(kernel.name)}_backward"
    rest = frozenset(n for n in kernel.before if n in wrt and mixed(kernel, n))
    sets |= {n: g.sets(kernel) for n, g in gathered.items()}
    used = reverse.helpers.union(*(g.helpers for g in gathered.values()))
    given = {n for n, *_ in kernel.params} | {a.name for a in kernel.shared}
    functions.check_names(given, {f"grad_{n}" for n in given}, inner, reverse.where)
    called, more_helpers = functions.texts(inner, kernel, names, reverse.where)
    used |= more_helpers
    shape = "x".join(map(str, kernel.block))
    unit = "".join(f", gridDim.{a} = 1" for a, one in zip("xyz", units, strict=True) if one)
    title = kernel.title[-min(70, max(16, 68 - len(kernel.name))) :]
    comment = [
        f"// The backward of {kernel.name}, derived by rawkern from {title}.",
        f"// For blocks of {shape} threads{unit}{''.join(f', {low} <= {high}' for low, high in assumed)}.",
        *_variables([n for kind, n in parameters if kind == "variable"]),
        *_effects(wrt, sets, reverse.exchanged, kernel.before, rest),
        *(f"// {g.size} is how many elements grad_{n} has." for n, g in gathered.items()),
        *(
            f"// {flag}: whether it sets grad_{n}. If it sets all of that, it is grad_{of}, which can be handed on."
            for n, (of, flag) in passed.items()
        ),
        *_how_to_launch(sums, blocks, shared_mem, more),
        *(row.comment for row in lengths),
        *([f"// {room}: how many blocks a multiprocessor has registers for; changes no result."] if lengths else []),
    ]
    chosen = [f"bool {flag}" for flag in (*(s.flag for s in sums), *(flag for _, flag in passed.values()))]
    chosen += [f"int {more.each}"] if more else []
    chosen += [f"int {n}" for n in (*(row.name for row in lengths), room) if n]
    kind = f"template <{', '.join(chosen)}>\n" if chosen else 'extern "C" '
    kind += f"__global__ void {_bounds(kernel.block, room)} {name}"
    head = f"{kind}({', '.join(spelled)}) {{"
    if len(head) > 120:
        head = f"{kind}(\n    " + ",\n    ".join(spelled) + ") {"
    before = helpers.texts("\n".join([*spelled, *called, inner]), kernel.block, used)
    if more and more.aligned:
        pointers = [each for each in spelled if "* __restrict__ " in each and "(" not in each]
        lines = [*(_aligned(each, more.each) for each in pointers), *lines]
    free = helpers.unused("\n".join([*before, *called, inner]))
    inner = "\n".join(rendered(finished(lines, names, head, free)))
    text = "\n".join([*structs(kernel, names), *before, *called, *commented(comment), head, inner, "}", ""])
    assigned = tuple(
        a.name
        for a in active
        if any(isinstance(i, Store) and i.place.array == a and not i.adds for i in walk(kernel.body))
    )
    saved = tuple(n for kind, n in parameters if kind == "value" and n in kernel.arrays)
    return Text(
        name, text, tuple(parameters), outputs, wrt, saved, tuple(a.name for a in reverse.exchanged),
        len(re.findall(r"atomicAdd|warp_add", inner)), units, kernel.block, assigned, sets,
        shared_mem, tuple((each.of, types.size(each.inner)) for each in sums),
        tuple((n, of) for n, (of, _) in passed.items()), lengths,
        more.most if more else 1, _records(kernel),
        tuple(reverse.assumed or ()), kernel.before, rest, kernel.variables,
    )  # fmt: skip


def pointer_to(array: Array, names: Names) -> str:
    """The declaration of a parameter that points to an array."""
    kind, rows = spelling(array.type, names), "".join(f"[{size}]" for size in array.sizes[1:])
    return f"{kind} (* __restrict__ {array.name}){rows}" if rows else f"{kind}* __restrict__ {array.name}"


def _aligned(parameter: str, each: str) -> Statement:
    """What the compiler may count on of a pointer, where a thread has several elements."""
    kind, _, name = parameter.partition("* __restrict__ ")
    return Assign(name, f"({kind}*)__builtin_assume_aligned({name}, {each} > 1 ? {ALIGNED} : 1)")


def _bounds(block: Shape, room: str) -> str:
    """What the compiler may count on: blocks of this size, and as many of them with the registers of a processor."""
    threads = math.prod(block)
    return f"__launch_bounds__({threads}, {room or resident(threads)})"


def _records(kernel: Kernel) -> dict[str, str]:
    """The pointers to structs whose numbers are all floats of one type, which a tensor of bytes stands for."""
    found = {n: set(types.scalars(kind)) for n, kind, pointer in kernel.params if pointer and kind in _structs(kernel)}
    return {n: next(iter(kinds)) for n, kinds in found.items() if len(kinds) == 1 and kinds <= {"float", "double"}}


def _structs(kernel: Kernel) -> list[Aggregate]:
    return [kind for kind, _ in kernel.structs.values()]


def _effects(
    wrt: Sequence[str], sets: Mapping[str, Sets], exchanged: set[Array], before: Mapping[str, str], rest: Set[str]
) -> list[str]:
    """Comments on what a backward does to gradients."""
    added = [f"grad_{n}" for n in wrt if n not in sets and (n not in before or n in rest)]
    found = [f"// Sets {', '.join(f'grad_{n}' for n in sets)}; what it does not set begins with 0."] if sets else []
    found += [f"// Adds to {', '.join(added)}, which begin with 0."] if added else []
    found += [f"// {n} is {of} as it was before." for n, of in before.items()]
    changed = [(n, of) for n, of in before.items() if n in wrt and n not in rest]
    found += [f"// Changes grad_{n}, which begins with a copy of grad_{of}." for n, of in changed]
    found += [f"// Add to grad_{n} what is left in grad_{before[n]}." for n in sorted(rest)]
    return [*found, *(f"// Sets grad_{a} to 0." for a in sorted(a.name for a in exchanged))]


def _variables(names: Sequence[str]) -> list[str]:
    return [f"// {', '.join(names)}: the memory of the forward's variable{'s' * (len(names) > 1)}."] if names else []


def _bytes(array: Array, reverse: Reverse, names: Names) -> int:
    each = _size(array.type, names) if array in reverse.read else 0
    return array.sizes[0] * (each + (_summed_size(array.type, names) if array in reverse.shadows else 0))


def _summed_size(kind: types.Type, names: Names) -> int:
    if isinstance(kind, Aggregate):
        return sum(_summed_size(inner, names) for _, inner in kind.fields)
    return max(_size(kind, names), 4) if kind in types.HALVES else _size(kind, names)


def _size(kind: types.Type, names: Names) -> int:
    """Bytes of a type as it is spelled."""
    if isinstance(kind, Aggregate):
        return sum(_size(inner, names) for _, inner in kind.fields)
    return types.size(names.type(kind))


def structs(kernel: Kernel, names: Names) -> list[str]:
    """The declarations of structs; with doubles for floats, but where memory of a launch has them beside others."""
    kept: set[str] = set()
    for _, kind, pointer in kernel.params:
        if pointer and isinstance(kind, Aggregate) and len(set(types.scalars(kind))) > 1:
            kept |= {each.name for each in _nested(kind)}
    return [
        re.sub(r"\bfloat(\d?)\b", r"double\1", text) if names.double and name not in kept else text
        for name, (_, text) in kernel.structs.items()
    ]


def _nested(kind: Aggregate) -> list[Aggregate]:
    return [kind, *(each for _, inner in kind.fields if isinstance(inner, Aggregate) for each in _nested(inner))]


def shared_lines(kernel: Kernel, names: Names, wanted: set[Array], behind: set[Array] | None = None) -> list[Statement]:
    """Declarations of shared arrays; dynamic ones lie behind their shadows."""
    found: list[Statement] = []
    for a in kernel.shared:
        kind = spelling(a.type, names)
        if a in wanted and a in (behind or ()) and a.dynamic:
            found.append(Declare(f"{kind}*", a.name, f"reinterpret_cast<{kind}*>(grad_{a.name} + {a.sizes[0]})"))
        elif a in wanted:
            found.append(Declare(f"{'extern ' if a.dynamic else ''}__shared__ {kind}", a.name, extent=_extents(a)))
    return found


def _extents(array: Array) -> str:
    return "[]" if array.dynamic else "".join(f"[{size}]" for size in array.sizes)


def _shadows(kernel: Kernel, reverse: Reverse, names: Names) -> list[Statement]:
    return [
        Declare(
            f"{'extern ' if a.dynamic else ''}__shared__ {summed_spelling(a.type, names)}",
            f"grad_{a.name}",
            extent=_extents(a),
        )
        for a in kernel.shared
        if a in reverse.shadows
    ]


def _memory(kernel: Kernel, reverse: Reverse, start: int, name: str) -> list[Statement]:
    """Lines that declare dynamic shared memory for sums, behind that of the kernel."""
    dynamic = [a for a in kernel.shared if a.dynamic and (a in reverse.shadows or a in reverse.read)]
    if not dynamic:
        return [Declare(f"extern __shared__ __align__({ALIGNMENT}) char", name, extent="[]")]
    first = f"grad_{dynamic[0].name}" if dynamic[0] in reverse.shadows else dynamic[0].name
    return [Declare("char*", name, f"reinterpret_cast<char*>({first}) + {start}")]


def _how_to_launch(
    sums: Sequence[BlockSum], blocks: Mapping[str, str], shared_mem: int, more: Several | None
) -> list[str]:
    """Comments on what a launch of fewer blocks is to know."""
    if more:
        return [
            f"// {more.blocks}: how many blocks the forward had along x; {more.each}: how many elements a thread has.",
            f"// This grid has {more.blocks} / {more.each} blocks along x, rounded up.",
            *([f"// With more than one, pointers are multiples of {ALIGNED} bytes."] if more.aligned else ()),
        ]
    if not sums:
        return []
    return [
        f"// {', '.join(blocks.values())}: how many blocks the forward had. As many as run at a time do their work.",
        *(f"// {s.flag}: each has sums of its own for all {s.count} of grad_{s.of}." for s in sums),
        f"// They are in dynamic shared memory{f', behind {shared_mem} bytes' if shared_mem else ''}.",
    ]


def _zeroed(kernel: Kernel, reverse: Reverse, names: Names) -> list[Statement]:
    """Lines that set the shadows to 0, all threads of the block together."""
    found: list[Statement] = []
    thread = thread_number(kernel.block)
    for a in kernel.shared:
        if a not in reverse.shadows or a in reverse.set_whole:
            continue
        count = 1
        for size in a.sizes:
            count *= size
        kind = summed_spelling(a.type, names)
        zero = f"{kind}()" if isinstance(a.type, Aggregate) else number(0.0, kind)
        place = f"grad_{a.name}" if not a.sizes else f"(&grad_{a.name}{'[0]' * len(a.sizes)})[i]"
        place = f"grad_{a.name}[i]" if len(a.sizes) == 1 else place
        step = Assign("i", str(math.prod(kernel.block)), "+=")
        start = Declare("int", "i", thread)
        found.append(For(start, f"i < {count}", step, [Assign(place, zero)], inline=True))
    return [*found, BARRIER] if found else []
