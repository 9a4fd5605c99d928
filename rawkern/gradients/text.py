"""The text of a derived kernel around its body: comments, parameters, shared arrays."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from rawkern.base import gpus
from rawkern.gradients import types
from rawkern.gradients.analysis.definite_writes import Sets, set_by
from rawkern.gradients.analysis.loops import stores
from rawkern.gradients.backward import functions, helpers
from rawkern.gradients.backward.privatized_sums import BlockSum, looped
from rawkern.gradients.backward.reverse import Reverse
from rawkern.gradients.backward.stencil_gather import Gathering
from rawkern.gradients.code import expressions as expr
from rawkern.gradients.code import tree
from rawkern.gradients.code.expressions import SUMS, Binary, Cast, Name, Node
from rawkern.gradients.code.names import Names, spelling, summed_spelling
from rawkern.gradients.code.passes.dce import set_at_once, without_unused
from rawkern.gradients.code.passes.gradient_forwarding import forwardable
from rawkern.gradients.code.passes.renumbering import finished
from rawkern.gradients.code.passes.row_staging import StagedRow, stageable, staged
from rawkern.gradients.code.passes.thread_coarsening import Coarsening, coarsened
from rawkern.gradients.code.passes.unroll import Row, assumption, resident, rows
from rawkern.gradients.code.printing import expression, function
from rawkern.gradients.code.tree import BARRIER, Assign, Barrier, Declare, Function, If, Parameter, Run, Statement
from rawkern.gradients.index.affine import Poly
from rawkern.gradients.index.scev import loops_around
from rawkern.gradients.index.trips import Trips, trips
from rawkern.gradients.ir import Array, Kernel, Loop, Store, walk
from rawkern.gradients.passes.in_place import mixed
from rawkern.gradients.reading.reader import Shape
from rawkern.gradients.types import Aggregate

EXTERN = 'extern "C" '
ALIGNMENT = 32  # of sums, for vectors of double
ALIGNED = 16  # bytes that a thread reads or writes at once


@dataclass(frozen=True)
class Text:
    """The text of a derived kernel, and what its parameters are."""

    name: str
    source: str
    #: In order: ("value", of the forward's parameters), ("variable", of the device), ("grad", of a parameter),
    #: ("size", the number of its elements), ("blocks", how many the forward had along an axis of its grid); where the
    #: forward runs again ("copy", of a pointer as it was before), ("tape", of `tapes`), ("iterations", of `trips`).
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
    stageable: StagedRow | None = None  # what can be in shared memory, or is if `staged`
    staged: bool = False
    each: int = 1  # how many elements a thread can have, along x: a number of the template if there may be several
    records: Mapping[str, str] = field(default_factory=dict)  # pointers to structs of floats: the type of those
    assumed: tuple[tuple[Poly, Poly], ...] = ()  # numbers of a launch that have to be at most others
    before: Mapping[str, str] = field(default_factory=dict)  # arrays as they were before the kernel: of which
    #: Of `before`: those whose gradients begin with 0, and get in the end what is left in those of the outputs.
    rest: frozenset[str] = frozenset()
    variables: Mapping[str, str] = field(default_factory=dict)  # of the device, which it reads: with namespaces
    #: Parameters that are members of one of the forward's, a struct or list: of which, where in it, and of which type.
    members: Mapping[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    pointers: frozenset[str] = frozenset()  # of these: those that take tensors
    updated: frozenset[str] = frozenset()  # arrays of which += was read as setting the sum
    written: frozenset[str] = frozenset()  # pointers that the forward stores to
    constants: Mapping[str, int] = field(default_factory=dict)  # parameters that have to have these values
    taped: bool = False  # whether it reads on tapes, or could, what the forward overwrites
    #: Memory for what is read of an array that is overwritten: its name as it was before, and the loops around.
    tapes: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    trips: Mapping[str, Trips] = field(default_factory=dict)  # of these, from the outermost: by parameter
    #: By parameter, what its gradient is called; not ``grad_x`` in a plain text, as what is derived of that has those.
    gradients: Mapping[str, str] = field(default_factory=dict)

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
    """The name of a kernel without namespaces, template arguments and the types that select an overload."""
    return re.split(r"[<(]", name)[0].rpartition("::")[2].strip()


def backward_text(
    kernel: Kernel, reverse: Reverse, active: Sequence[Array], wrt: tuple[str, ...], body: list[Statement],
    names: Names, units: tuple[bool, bool, bool], gathered: Mapping[str, Gathering], plain: bool = False,
    stage: bool = False,
) -> Text:  # fmt: skip
    """The whole text, with this body; `active`: the outputs whose gradients are read.

    `plain`: with no pass for speed that changes what a thread does. `stage`: with a row in shared memory, if it can be.
    """
    outputs = tuple(a.name for a in active)
    made = _Assembly(kernel, reverse, outputs, wrt, names, gathered)
    made.optimize(body, plain, stage)
    lines = made.lines()
    used, called = tree.names(lines), [name for e in tree.all_expressions(lines) for name in expr.calls(e)]
    parameters = made.parameters(used)
    gradients = {each.of: f"grad_{each.of}" for each in parameters if each.kind == "grad"}
    if plain:
        given = {n: names.fresh(f"given_{n}") for n in gradients}
        lines, parameters = _renamed(lines, parameters, {gradients[n]: new for n, new in given.items()})
        gradients = given
    numbers = tuple((each.kind, each.of) for each in parameters)
    return Text(
        f"{base_name(kernel.name)}_backward", made.source(lines, parameters, set(called), units), numbers, outputs, wrt,
        _saved(kernel, numbers, _accessed(kernel, lines, used)), tuple(a.name for a in reverse.exchanged),
        called.count("atomicAdd") + called.count("warp_add"), units,
        assumed=tuple(reverse.assumed or ()), gradients=gradients, **made.launched(), **_of_forward(kernel, active),
    )  # fmt: skip


def _of_forward(kernel: Kernel, active: Sequence[Array]) -> dict[str, Any]:
    """What of a `Text` is so whatever its lines are."""
    members = [(n, kind, pointer) for n, kind, pointer in kernel.params if n in kernel.members]
    return {
        "block": kernel.block, "records": _records(kernel), "before": kernel.before, "variables": kernel.variables,
        "assigned": tuple(a.name for a in active if not all(s.adds for s in stores(kernel.body, a))),
        "members": {n: (kernel.members[n], str(kind)) for n, kind, _ in members},
        "pointers": frozenset(n for n, _, pointer in members if pointer),
        "written": frozenset(i.place.array.name for i in walk(kernel.body) if isinstance(i, Store)),
        "constants": kernel.constants, "taped": bool(kernel.taped),
    }  # fmt: skip


def _saved(kernel: Kernel, numbers: Sequence[tuple[str, str]], accessed: Set[str]) -> tuple[str, ...]:
    """The arrays of the forward whose values are read."""
    read = [n for kind, n in numbers if kind == "value" and n in kernel.arrays and n in accessed]
    return (*read, *(n for n, of in kernel.before.items() if ("copy", of) in numbers))


@dataclass(frozen=True)
class _Given:
    """A parameter of the kernel: the kind and name of `Text.parameters`, and its declaration."""

    kind: str
    of: str
    declared: Parameter


class _Assembly:
    """Puts a kernel together: passes over its body, then what stands around that."""

    def __init__(
        self, kernel: Kernel, reverse: Reverse, outputs: tuple[str, ...], wrt: tuple[str, ...], names: Names,
        gathered: Mapping[str, Gathering],
    ) -> None:  # fmt: skip
        self.kernel, self.reverse, self.outputs, self.wrt = kernel, reverse, outputs, wrt
        self.names, self.gathered = names, gathered
        self.assumed = list(
            dict.fromkeys((expr.written(low), expr.written(high)) for low, high in _strongest(reverse.assumed or ()))
        )
        self.sums = sorted((s for s in reverse.block_sums.values() if s), key=lambda s: -s.alignment)
        self.sets = {a.name: set_by(kernel, reads) for a, reads in reverse.set_by.items()}
        self.arrays = [
            *_shadows(kernel, reverse, names),
            *shared_lines(kernel, names, reverse.read, behind=reverse.shadows),
            *reverse.exchanges,
        ]
        self.blocks: dict[str, str] = {}  # by axis: the parameter with the number of the forward's blocks
        self.tapes: dict[str, tuple[Array, list[Loop]]] = {}  # by parameter: of which, and the loops around
        self.trips: dict[str, Loop] = {}  # by the parameter that says how often it runs at most
        self.rest = frozenset(n for n in kernel.before if n in wrt and mixed(kernel, n))
        self.shared_mem = sum(_bytes(a, reverse, names) for a in kernel.shared if a.dynamic)
        if self.sums:
            self.shared_mem = -(-self.shared_mem // ALIGNMENT) * ALIGNMENT

    # The body -----------------------------------------------------------------------------------------------------

    def optimize(self, body: list[Statement], plain: bool, stage: bool) -> None:
        """The passes over the body, in the order in which they run."""
        kernel, names = self.kernel, self.names
        body = set_at_once(without_unused(body), kernel.before)
        own = {
            n: a
            for n, a in kernel.arrays.items()
            if isinstance(a.type, str) and a not in self.reverse.exchanged and n not in kernel.before
        }
        body, self.passed = (body, {}) if plain else forwardable(body, self.sets, own, names.fresh)
        self.more: Coarsening | None = None
        if not plain and not self.sums and not self.arrays:
            self.more = coarsened(kernel, body, {g.size for g in self.gathered.values()}, names.fresh)
        self.rows: tuple[Row, ...] = ()
        self.stageable, self.staged = None, False
        if self.more is None and not plain:
            if not self.sums and not self.arrays:
                self.stageable = stageable(kernel, body, self._unwritten())
            self.staged = stage and self.stageable is not None
            if self.staged and self.stageable is not None:
                memory, body = staged(body, self.stageable, names)
                self.arrays.append(memory)
            self.rows, body = rows(kernel, body, names)
        elif self.more is not None:
            body, self.blocks = self.more.lines, {"x": self.more.blocks}
        self.room = names.fresh("resident") if self.rows else ""
        self.body = body
        self._find_tapes()
        self.sets |= {n: g.sets(kernel) for n, g in self.gathered.items()}

    def _unwritten(self) -> dict[str, str]:
        """The arrays of numbers that this kernel only reads, by parameter, with the types of those."""
        kernel, names = self.kernel, self.names
        arrays = [a for n, a in kernel.arrays.items() if n not in kernel.before and not a.accessor]
        kinds = {a: a.type for a in arrays if isinstance(a.type, str)}
        read = [a for a in kinds if a.name in self.outputs and a not in self.reverse.exchanged]
        return {a.name: names.type(kind) for a, kind in kinds.items()} | {
            f"grad_{a.name}": names.summed(kinds[a]) for a in read
        }

    def _find_tapes(self) -> None:
        """The tapes that the reverse reads."""
        for load in self.reverse.tapes:
            around = loops_around(load.block)[::-1]
            self.tapes[self.names.tape(load)] = load.attr.array, around
            self.trips |= {self.names.most(loop): loop for loop in around}

    def launched(self) -> dict[str, Any]:
        """What of a `Text` says how it is launched."""
        most, tapes = self.names.most, self.tapes.items()
        return {
            "sets": self.sets, "shared_mem": self.shared_mem, "rows": self.rows, "rest": self.rest,
            "stageable": self.stageable, "staged": self.staged,
            "sums": tuple((each.of, types.size(each.inner)) for each in self.sums),
            "handed": tuple((n, of) for n, (of, _) in self.passed.items()),
            "each": self.more.most if self.more else 1,
            "tapes": {n: (f"{a.name}_before", tuple(map(most, loops))) for n, (a, loops) in tapes},
            "trips": {n: trip for n, loop in self.trips.items() if (trip := trips(loop)) is not None},
        }  # fmt: skip

    def lines(self) -> list[Statement]:
        """The statements of the kernel, from its arrays to the last."""
        kernel, arrays = self.kernel, self.arrays
        blocks = {f"gridDim.{axis}": Name(n) for axis, n in self.blocks.items()}
        checks = tree.deep(list(map(_check, self.assumed)), lambda e: expr.substituted(e, blocks))
        wrong = [expr.infix(n, "!=", value) for n, value in kernel.constants.items()]
        checks += [If(each, [Run(expr.call("__trap"))], inline=True) for each in wrong]
        lines = [*checks, *_zeroed(kernel, self.reverse, self.names), *self.body]
        while lines and isinstance(lines[-1], Barrier):
            lines.pop()
        if self.sums:
            memory = self.names.fresh("memory")
            arrays = [*arrays, *_memory(kernel, self.reverse, self.shared_mem, memory)]
            thread = expr.thread_number(kernel.block)
            lines, self.blocks = looped(kernel, self.sums, memory, lines, thread, self.names.fresh)
        return [*([assumption(kernel)] if self.rows else []), *arrays, *lines]

    # What stands around it ----------------------------------------------------------------------------------------

    def parameters(self, used: Set[str]) -> list[_Given]:
        """The kernel's parameters: those of the forward that it uses, gradients, numbers of its own."""
        kernel, names = self.kernel, self.names
        found = [
            _Given("variable" if n in kernel.variables else "value", n, _value(kernel, n, kind, pointer, names))
            if n not in kernel.taped
            else _Given("copy", n, pointer_to(kernel.arrays[n], names))
            for n, kind, pointer in kernel.params
            if n in used
        ]
        for n, kind, _ in kernel.params:
            if n in self.outputs or n in self.wrt:
                const = "const " if n in self.outputs and kernel.arrays[n] not in self.reverse.exchanged else ""
                found.append(_Given("grad", n, Parameter(const + self._gradient(n, kind), f"grad_{n}")))
            if n in self.gathered:
                found.append(_Given("size", n, Parameter("long long", self.gathered[n].size)))
        for s in self.sums:
            if isinstance(s.count, Name):
                found.append(_Given("size", s.of, Parameter("int", s.count.name)))
        for n, (array, _) in self.tapes.items():
            found.append(_Given("tape", n, Parameter(f"{self._taped(array)}* __restrict__", n)))
        found += [_Given("iterations", n, Parameter("long long", n)) for n in self.trips if n in used]
        return found + [_Given("blocks", axis, Parameter("unsigned int", n)) for axis, n in self.blocks.items()]

    def _taped(self, array: Array) -> str:
        """The type of numbers that are read of an array."""
        return self.names.summed(types.scalars(array.type)[0])

    def _gradient(self, name: str, kind: types.Type) -> str:
        """The type of a parameter for a gradient."""
        array, spelled = self.kernel.arrays.get(name), summed_spelling(kind, self.names)
        return _accessor(array, spelled) if array is not None and array.accessor else f"{spelled}* __restrict__"

    def source(
        self, lines: list[Statement], parameters: Sequence[_Given], called: set[str], units: tuple[bool, bool, bool]
    ) -> str:
        """The text: structs, helpers, device functions, the kernel."""
        kernel, names, where = self.kernel, self.names, self.reverse.where
        given = {n for n, *_ in kernel.params} | {a.name for a in kernel.shared}
        functions.check_names(given, {f"grad_{n}" for n in given}, called, where)
        device, more_helpers = functions.called_functions(called, kernel, names, where)
        asked = more_helpers.union(self.reverse.helpers, *(g.helpers for g in self.gathered.values()))
        template = self._template()
        made = Function(
            f"{'' if template else EXTERN}__global__ void {_bounds(kernel.block, self.room)}",
            f"{base_name(kernel.name)}_backward", [each.declared for each in parameters], lines, template,
            self._comments([each.of for each in parameters if each.kind == "variable"], units),
        )  # fmt: skip
        vocabulary = tree.words([*device, made]) | asked
        if self.more and self.more.aligned:
            made.body = [*_aligned(made.parameters, self.more.each), *lines]
        kept = {made.name, *(p.name for p in made.parameters), *(name for _, name in template)}
        made.body = finished(made.body, names, kept, helpers.HELPERS.keys() - helpers.wanted(vocabulary))
        return "\n".join(
            [
                *includes(kernel),
                *structs(kernel, names),
                *helpers.texts(vocabulary, kernel.block),
                *map(function, device),
                function(made),
            ]
        )

    def _template(self) -> list[tuple[str, str]]:
        flags = [*(s.flag for s in self.sums), *(flag for _, flag in self.passed.values())]
        counts = [*([self.more.each] if self.more else []), *(row.name for row in self.rows)]
        return [("bool", n) for n in flags] + [("int", n) for n in (*counts, self.room) if n]

    def _comments(self, variables: Sequence[str], units: tuple[bool, bool, bool]) -> list[str]:
        kernel, gathered = self.kernel, self.gathered.items()
        title = kernel.title[-min(70, max(16, 68 - len(kernel.name))) :]
        unit = "".join(f", gridDim.{a} = 1" for a, one in zip("xyz", units, strict=True) if one)
        assumed = "".join(f", {expression(low)} <= {expression(high)}" for low, high in self.assumed)
        constants = "".join(f", {n} = {value}" for n, value in kernel.constants.items())
        memory = "" if len(variables) == 1 else "s"
        registers = f"// {self.room}: how many blocks a multiprocessor has registers for; changes no result."
        return [
            f"// The backward of {kernel.name}, derived by rawkern from {title}.",
            f"// For blocks of {'x'.join(map(str, kernel.block))} threads{unit}{constants}{assumed}.",
            *([f"// {', '.join(variables)}: the memory of the forward's variable{memory}."] if variables else []),
            *_effects(self.wrt, self.sets, self.reverse.exchanged, kernel.before, self.rest),
            *(f"// {g.size} is how many elements grad_{n} has." for n, g in gathered),
            *(
                f"// {flag}: whether it sets grad_{n}. If it sets all of that, it is grad_{of}, which can be handed on."
                for n, (of, flag) in self.passed.items()
            ),
            *_how_to_launch(self.sums, self.blocks, self.shared_mem, self.more),
            *([_where_staged(self.stageable)] if self.staged and self.stageable is not None else []),
            *map(_how_often, self.rows),
            *([registers] if self.room else []),
        ]


def _accessed(kernel: Kernel, lines: list[Statement], used: set[str]) -> set[str]:
    """The arrays, of the names that are used, of which more than the sizes are."""
    sizes = {n for n, array in kernel.arrays.items() if array.accessor}
    if not sizes:
        return used
    found = {n for e in tree.all_expressions(lines) for a in expr.accesses(e) if (n := expr.base(a)) in sizes}
    return used - sizes | found


def _renamed(
    lines: list[Statement], parameters: list[_Given], new: Mapping[str, str]
) -> tuple[list[Statement], list[_Given]]:
    """The same with other names for parameters."""
    declared = [replace(each.declared, name=new.get(each.declared.name, each.declared.name)) for each in parameters]
    return tree.deep(lines, lambda e: expr.renamed(e, new)), [
        replace(each, declared=p) for each, p in zip(parameters, declared, strict=True)
    ]


def _check(assumed: tuple[Node, Node]) -> Statement:
    """Stop a launch whose numbers are not as the text assumes."""
    low, high = map(_wide, assumed)
    return If(expr.infix(low, ">", high), [Run(expr.call("__trap"))], inline=True)


def _strongest(assumed: Sequence[tuple[Poly, Poly]]) -> list[tuple[Poly, Poly]]:
    """What is assumed, without what a greater number says as well."""
    numbers = {high.frozen: max(low.number or 0 for low, other in assumed if other == high) for _, high in assumed}
    return [(low, high) for low, high in assumed if low.number is None or low.number == numbers[high.frozen]]


def _wide(e: Node) -> Node:
    """An integer, computed with 64 bits."""
    if not isinstance(e, Binary):
        return Cast("long long", e)
    return Binary(e.sign, _wide(e.left), _wide(e.right) if e.sign in SUMS else e.right)


def _value(kernel: Kernel, name: str, kind: types.Type, pointer: bool, names: Names) -> Parameter:
    """A parameter that is one of the forward's."""
    if not pointer:
        return Parameter(spelling(kind, names), name)
    found = pointer_to(kernel.arrays[name], names)
    return replace(found, type=f"const {found.type}")


def pointer_to(array: Array, names: Names) -> Parameter:
    """The declaration of a parameter that points to an array, or is its accessor."""
    kind, rows = spelling(array.type, names), array.sizes[1:]
    if array.accessor:
        return Parameter(_accessor(array, kind), array.name)
    return Parameter(kind, array.name, rows) if rows else Parameter(f"{kind}* __restrict__", array.name)


def _accessor(array: Array, kind: str) -> str:
    """The type of an accessor whose elements have a type."""
    bits = 32 if array.accessor == "int" else 64
    return f"at::PackedTensorAccessor{bits}<{kind}, {len(array.sizes)}, at::RestrictPtrTraits>"


def includes(kernel: Kernel) -> list[str]:
    """What a text has to include."""
    return ["#include <ATen/core/TensorAccessor.h>"] if any(a.accessor for a in kernel.arrays.values()) else []


def _aligned(parameters: Sequence[Parameter], each: str) -> Iterator[Statement]:
    """What the compiler may count on of pointers, where a thread has several elements."""
    bytes_of = expr.where(expr.infix(each, ">", 1), ALIGNED, 1)
    for p in parameters:
        if p.type.endswith("* __restrict__"):
            aligned = expr.call("__builtin_assume_aligned", p.name, bytes_of)
            yield tree.assign(p.name, Cast(p.type.removesuffix(" __restrict__"), aligned))


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


def _bytes(array: Array, reverse: Reverse, names: Names) -> int:
    numbers = types.scalars(array.type)
    kinds = list(map(names.type, numbers)) if array in reverse.read else []
    kinds += map(names.summed, numbers) if array in reverse.shadows else []
    return array.sizes[0] * sum(map(types.size, kinds))


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
    """Declarations of shared arrays; dynamic ones are after their shadows."""
    found: list[Statement] = []
    for a in kernel.shared:
        kind = spelling(a.type, names)
        if a in wanted and a in (behind or ()) and a.dynamic:
            behind_it = Cast(f"{kind}*", Name(f"grad_{a.name}") + a.sizes[0], bits=True)
            found.append(tree.variable(f"{kind}*", a.name, behind_it))
        elif a in wanted:
            found.append(_declared(a, kind, a.name))
    return found


def _declared(array: Array, kind: str, name: str) -> Statement:
    if array.private:
        return Declare(kind, name, extents=array.extents)
    extents = (None,) if array.dynamic else array.sizes
    return Declare(f"{'extern ' if array.dynamic else ''}__shared__ {kind}", name, extents=extents)


def _shadows(kernel: Kernel, reverse: Reverse, names: Names) -> list[Statement]:
    every = [a for a in kernel.shared if a in reverse.shadows]
    return [_declared(a, summed_spelling(a.type, names), f"grad_{a.name}") for a in every]


def _memory(kernel: Kernel, reverse: Reverse, start: int, name: str) -> list[Statement]:
    """Lines that declare dynamic shared memory for sums, after that of the kernel."""
    dynamic = [a for a in kernel.shared if a.dynamic and (a in reverse.shadows or a in reverse.read)]
    if not dynamic:
        return [Declare(f"extern __shared__ __align__({ALIGNMENT}) char", name, extents=(None,))]
    first = f"grad_{dynamic[0].name}" if dynamic[0] in reverse.shadows else dynamic[0].name
    return [tree.variable("char*", name, Cast("char*", Name(first), bits=True) + start)]


def _how_to_launch(
    sums: Sequence[BlockSum], blocks: Mapping[str, str], shared_mem: int, more: Coarsening | None
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
        *(f"// {s.flag}: each has sums of its own for all {expression(s.count)} of grad_{s.of}." for s in sums),
        f"// They are in dynamic shared memory{f', after {shared_mem} bytes' if shared_mem else ''}.",
    ]


def _where_staged(row: StagedRow) -> str:
    size = expression(expr.written(row.length) * row.bytes)
    return f"// A row of {row.array} is in dynamic shared memory: {size} bytes."


def _how_often(row: Row) -> str:
    times = expression(expr.written(row.length) / row.step)
    return f"// {row.name}: {times} rounded up, or 0; how often a thread goes through a row."


def _zeroed(kernel: Kernel, reverse: Reverse, names: Names) -> list[Statement]:
    """Lines that set the shadows to 0, all threads of the block together."""
    found: list[Statement] = []
    together = False
    thread = expr.thread_number(kernel.block)
    for a in kernel.shared:
        if a not in reverse.shadows or a in reverse.set_whole:
            continue
        kind, grad = summed_spelling(a.type, names), Name(f"grad_{a.name}")
        zero = expr.call(kind) if isinstance(a.type, Aggregate) else expr.number(0.0, kind)
        place: Node = grad if len(a.extents) < 2 else expr.address(expr.element(grad, [0] * len(a.extents)))
        sets = Assign(place["i"] if a.extents else place, zero)
        first, threads = (expr.literal("0"), 1) if a.private else (thread, math.prod(kernel.block))
        start, together = tree.variable("int", "i", first), together or not a.private
        found.append(tree.counting(start, math.prod(a.extents), threads, [sets], inline=True))
    return [*found, BARRIER] if together else found
