"""From the source of a kernel to that of its backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rawkern.base.nearest import did_you_mean
from rawkern.errors import NotDifferentiable
from rawkern.gradients import types
from rawkern.gradients.analysis import loops
from rawkern.gradients.analysis.activity import Activity, activity, check_memory, reads_overwritten
from rawkern.gradients.analysis.blocks import redistributions
from rawkern.gradients.analysis.gather import gathers, short_loops
from rawkern.gradients.backward import helpers
from rawkern.gradients.backward.block_redistribution import Redistributing, redistributed
from rawkern.gradients.backward.forward import Frame
from rawkern.gradients.backward.reverse import Reverse
from rawkern.gradients.backward.stencil_gather import Gathering
from rawkern.gradients.code import tree
from rawkern.gradients.code.names import Names, spelling
from rawkern.gradients.code.passes.dce import without_unused
from rawkern.gradients.code.passes.renumbering import renumbered
from rawkern.gradients.code.printing import function
from rawkern.gradients.code.tree import Function, Parameter, Statement
from rawkern.gradients.index.answers import changing, unchanged
from rawkern.gradients.index.injective import sets_once
from rawkern.gradients.ir import Kernel, Loop, Store, Value, clone, walk
from rawkern.gradients.passes.block_size import resized
from rawkern.gradients.passes.grid_stride import in_strides, without_grid_stride
from rawkern.gradients.passes.pipeline import Options, prepared, tell, without_dead_code
from rawkern.gradients.reading.places import Unroll
from rawkern.gradients.reading.preprocess import Headers
from rawkern.gradients.reading.reader import Launched, Reader
from rawkern.gradients.reading.syntax import Where
from rawkern.gradients.rules import functions_of
from rawkern.gradients.text import EXTERN, Text, backward_text, base_name, includes, pointer_to, shared_lines, structs
from rawkern.gradients.types import Aggregate

TYPES, WORDS = ("float", "double", "int", "bool", "long", "short", "char"), ("for", "if", "while", "const", "return")
DEAREST = 12  # loads and calls that gathering a window may take, by those of the forward; else it adds atomically


def derive(
    text: str,
    name: str,
    *,
    where: Where,
    launched: Launched,
    options: Sequence[str] = (),
    headers: Headers | None = None,
    wrt: Sequence[str] | None = None,
    max_iterations: int | None = None,
    double: bool = False,
    assume: bool = True,
    plain: bool = False,
    threads: int | None = None,
    stage: bool = False,
) -> Text:
    """Derive the backward of a kernel; with `double` in double, whatever its own type.

    If that is not supported, device functions are put in, then reads of a thread's own shared memory are followed; in
    the end a tape keeps what loops read of global memory and overwrite.

    With `assume`, it may be right only for launches of which `Text.assumed` is true. A `plain` text is one to derive
    again: each thread does what the forward's did, so what it reads and adds to has the forward's form. With `threads`,
    its blocks have that number of them; NotDifferentiable if what the kernel computes may depend on it. With `stage`, a
    row that several loops read is in shared memory, where it can be.
    """
    reader = Reader(text, name, where, options, launched, headers=headers, assume=assume)
    where = reader.where
    refused: Exception | None = None
    first = Strategy(Options(assume))
    for strategy in _strategies(reader, first, "__shared__" in text):
        again = reader if strategy == first else reader.variant(strategy.keep, strategy.updated)
        task = _Task(again, strategy.passes, where, wrt, max_iterations, double, plain, threads, stage)
        found = _attempt(again, task.text)
        if isinstance(found, Text):
            return replace(found, updated=again.updated)
        # Why a kernel is rejected as it is written says most, and best where device functions are put in.
        if refused is None or strategy == replace(first, keep=False):
            refused = found
    assert refused is not None
    raise refused


@dataclass(frozen=True)
class Strategy:
    """How a kernel is read, and what passes may do with what it overwrites."""

    passes: Options
    keep: bool = True  # device functions of numbers stay functions
    updated: frozenset[str] = frozenset()  # arrays of which += reads and sets


def _strategies(reader: Reader, first: Strategy, shared: bool) -> Iterator[Strategy]:
    """What is tried, in this order, until one derives a backward; by what the first reading has shown of it."""
    yield first
    updated = reader.added_and_read()
    for tape in (False, True) if reader.overwritten() else (False,):
        for memory in ({}, {"shared": True}, {"rename": True}) if shared else ({},):
            for each in (frozenset(), updated) if updated else (frozenset(),):
                for keep in (True, False) if reader.outlined else (True,):
                    strategy = Strategy(replace(first.passes, **memory, tape=tape), keep, each)
                    if strategy != first:
                        yield strategy


def _attempt(reader: Reader, make: Callable[[Kernel], Text | Unroll]) -> Text | Exception:
    """The text, or why there is none this way."""
    try:
        return reader.settle(make)
    except (NotDifferentiable, ValueError) as error:  # wrt may name what an array was before
        return error


def forward(
    text: str,
    name: str,
    *,
    where: Where,
    launched: Launched,
    options: Sequence[str] = (),
    headers: Headers | None = None,
    double: bool = False,
    assume: bool = True,
    updated: frozenset[str] = frozenset(),
    tape: bool = False,
) -> str:
    """The kernel itself as it was understood, as ``NAME_forward``; with `double` in double."""
    reader = Reader(
        text, name, where, options, launched,
        headers=headers, vectors=False, outline=False, updated=updated, assume=assume,
    )  # fmt: skip
    return reader.settle(lambda kernel: _forward(reader, prepared(kernel, Options(assume, tape=tape)), double))


def statements(
    text: str, name: str, where: Where, wrt: tuple[str, ...], taken: Set[str], change: Callable[[Kernel], Kernel]
) -> list[Statement]:
    """The statements of the backward of a kernel of one thread, in double: nothing where no output depends on `wrt`.

    `taken`: names that no variable of theirs may have. `change`: a pass of the caller's own, before the others.
    """
    reader = Reader(text, name, where, (), Launched((1, 1, 1), (True, True, True)), vectors=False, outline=False)

    def made(given: Kernel) -> list[Statement] | Unroll:
        kernel = prepared(change(given), Options(assume=False))
        active = activity(kernel, wrt)
        if not active.outputs:
            return []
        kernel = without_dead_code(kernel, {a.name for a in active.outputs})
        names = Names(_taken(kernel, double=True) | taken, double=True)
        reverse = Reverse(kernel, activity(kernel, wrt), names, where)
        reverse.block_sums = dict.fromkeys(wrt)
        lines = reverse.run()
        if reverse.unrolling:
            return reverse.unrolling[0]
        return renumbered(without_unused(lines), names, taken, helpers.HELPERS.keys())

    return reader.settle(made)


def _forward(reader: Reader, kernel: Kernel, double: bool) -> str:
    names = Names(_taken(kernel, double) | reader.file.options, double)
    frame = Frame(kernel.body, None, names, stores_all=True, replays=True)
    frame.settle()
    params = [
        pointer_to(kernel.arrays[n], names) if pointer else Parameter(spelling(kind, names), n)
        for n, kind, pointer in kernel.params
    ]
    body = [*shared_lines(kernel, names, set(kernel.shared)), *frame.printed()]
    made = Function(f"{EXTERN}__global__ void", f"{base_name(kernel.name)}_forward", params, body)
    return "\n".join(
        [*includes(kernel), *structs(kernel, names), *helpers.texts(tree.words([made]), kernel.block), function(made)]
    )


def _taken(kernel: Kernel, double: bool) -> set[str]:
    """Names that no variable of a derived text may have: it means something else by them."""
    words = {n for n, *_ in kernel.params} | {a.name for a in kernel.shared} | {f"grad_{n}" for n, *_ in kernel.params}
    words |= {f"grad_{a.name}" for a in kernel.shared} | {"lane", *helpers.HELPERS, *kernel.structs}
    words |= {each for n in kernel.functions for each in (n, f"{n}_backward")}
    values = [i for i in walk(kernel.body) if isinstance(i, Value)]
    words |= functions_of(frozenset({"double"} if double else (v.type for v in values if types.is_float(v.type))))
    words |= {v.attr for v in values if v.op == "call" and isinstance(v.attr, str)}
    return words | {"unsigned", *TYPES, *WORDS}


@dataclass(frozen=True)
class _Task:
    """One way to derive a kernel."""

    reader: Reader
    passes: Options
    where: Where
    wrt: Sequence[str] | None
    max_iterations: int | None
    double: bool
    plain: bool
    threads: int | None
    stage: bool

    def text(self, given: Kernel) -> Text | Unroll:
        """The text of the backward of a kernel, as it was read; or what has to be written out first."""
        made = {"lane", *helpers.HELPERS, *(f"{n}_backward" for n in given.functions)}
        for same in made & set(given.functions):  # which are then put in
            raise self.where.refuse(1, f"{same} is also the name of a function of the backward", "give it another")
        tell("read", given)
        given.constants = _constants(given, self.reader.launched.constants)
        kernel = prepared(given, self.passes)
        wrt = _chosen(kernel, self.wrt)
        check_memory(kernel, wrt, self.where)
        for item in walk(kernel.body):
            if isinstance(item, Loop):
                loops.check_condition(item, self.where.refuse)
        active = activity(kernel, wrt)
        _check_outputs(kernel, active, wrt, self.where)
        outputs = {a.name for a in active.outputs}
        kernel = self._resized(without_dead_code(kernel, outputs))

        def unrolled(more: frozenset[int]) -> Kernel | None:
            another = self.reader.again(more)
            if another is None:
                return None
            another = prepared(another, self.passes)
            if any(reads_overwritten(another, array) for array in another.arrays.values()):
                return None  # iterations that were known to be apart no longer are
            return self._resized(without_dead_code(another, outputs))

        return self._of_parts(kernel, _Copies(kernel, unrolled), wrt)

    def _resized(self, kernel: Kernel) -> Kernel:
        """The kernel for blocks of the number of threads that is asked for."""
        if self.threads is None:
            return kernel
        found = resized(kernel, self.threads)
        if found is None:
            raise self.where.refuse(1, f"the kernel may depend on its {kernel.block[0]} threads", "keep their number")
        tell("block size", found)
        return found

    def _of_parts(self, kernel: Kernel, copies: _Copies, wrt: tuple[str, ...]) -> Text | Unroll:
        """The text: what is gathered, what blocks deal out, and the reverse of the rest."""
        with unchanged():
            return self._assembled(kernel, copies, wrt)

    def _assembled(self, kernel: Kernel, copies: _Copies, wrt: tuple[str, ...]) -> Text | Unroll:
        where, active = self.where, activity(kernel, wrt)
        names = Names(_taken(kernel, self.double) | self.reader.file.options, self.double)
        assumed: list[Any] | None = kernel.assumed if self.passes.assume else None
        others = tuple(n for n in wrt if n not in kernel.before)  # elements of those are of one thread
        simple = self.plain or bool(kernel.taped)
        gathering = [] if simple else _gathering(copies, kernel, others, names, where, assumed)
        lines = [line for g in gathering for line in g.made]
        gathered = {g.gather.array.name: g for g in gathering}
        found = [] if simple else redistributions(kernel, active, others, partial(sets_once, kernel, assumed=assumed))
        parts = redistributed(found, copies.get, names, where)
        rest = active if not gathered and not parts else _left(kernel, [n for n in wrt if n not in gathered], parts)
        reverse = Reverse(kernel, rest, names, where, self.max_iterations, assumed)
        if simple:
            reverse.block_sums = dict.fromkeys(wrt)
        reverse.beside = frozenset(n for part in parts for n in part.deal.arrays)
        for part in parts:
            lines += part.found
            reverse.include(part.copy)
        lines += reverse.run() if reverse.active.outputs else []
        if reverse.unrolling:
            return reverse.unrolling[0]
        return backward_text(
            kernel, reverse, active.outputs, wrt, lines, names, self.reader.units, gathered, self.plain, self.stage
        )


class _Copies:
    """Copies of a kernel, each for a part of the text, which may change it.

    `unrolled`: the kernel, read and prepared once more, with these loops written out; None where it cannot be.
    """

    def __init__(self, kernel: Kernel, unrolled: Callable[[frozenset[int]], Kernel | None]) -> None:
        self.unrolled = unrolled
        self.made = {(frozenset[int](), False): kernel}

    def make(self, more: frozenset[int], flat: bool) -> bool:
        """Make it with more loops written out, or as if each place that threads go through in strides had a thread.

        Returns whether that can be.
        """
        if (more, flat) not in self.made:
            with changing():
                made = without_grid_stride(self.get()) if flat else self.unrolled(more)
            if made is None:
                return False
            self.made[more, flat] = made
        return True

    def get(self, more: frozenset[int] = frozenset(), flat: bool = False) -> Kernel:
        """A copy of one that was made."""
        return clone(self.made[more, flat])


def _left(kernel: Kernel, wrt: Sequence[str], parts: Sequence[Redistributing]) -> Activity:
    """What is active without the reads whose gradients blocks deal out."""
    taken = frozenset(order for part in parts for order in part.deal.reads)
    left = {i for i in walk(kernel.body) if isinstance(i, Value) and i.op == "load" and i.order not in taken}
    return activity(kernel, tuple(wrt), left)


def _constants(kernel: Kernel, constants: Mapping[str, int]) -> dict[str, int]:
    """The values of parameters, which have to be integers."""
    integers = {n: kind for n, kind, pointer in kernel.params if not pointer and not types.is_float(kind)}
    for name in constants:
        if name not in integers:
            raise ValueError(
                f"constants names {name!r}, which is not an integer parameter of {kernel.name}; "
                f"it has {', '.join(integers) or 'none'}{did_you_mean(name, integers)}"
            )
    return dict(constants)


def _chosen(kernel: Kernel, wrt: Sequence[str] | None) -> tuple[str, ...]:
    """The parameters that get gradients: those that were named, or the arrays that are only read."""
    written = {i.place.array for i in walk(kernel.body) if isinstance(i, Store)}
    known = {
        n: pointer
        for n, kind, pointer in kernel.params
        if n not in kernel.variables and (_has_floats(kind) if pointer else types.is_float(kind))
    }
    if wrt is None:
        return tuple(n for n, pointer in known.items() if pointer and kernel.arrays[n] not in written)
    for each in wrt:
        if each not in known:
            raise ValueError(
                f"wrt names {each!r}, which is not a floating-point parameter of {kernel.name}; "
                f"it has {', '.join(known) or 'none'}{did_you_mean(each, known)}"
            )
    return tuple(wrt)


def _check_outputs(kernel: Kernel, active: Activity, wrt: tuple[str, ...], where: Where) -> None:
    """Reject structs that are not of floats, and a kernel of which no output depends on a parameter."""
    for array in active.outputs:
        if not _has_floats(array.type):
            raise where.refuse(
                1, f"{array.name} points to structs", "use an array of float or of a vector type for each field"
            )
    for n, kind, pointer in kernel.params if not wrt else ():
        if pointer and isinstance(kind, Aggregate) and not _has_floats(kind):
            raise where.refuse(1, f"{n} points to structs", "pass an array of float or of vectors for each field")
    if not active.outputs:
        raise where.refuse(1, f"no output depends on {', '.join(wrt) or 'any parameter'}", "name others in wrt")


def _gathering(
    copies: _Copies, kernel: Kernel, wrt: tuple[str, ...], names: Names, where: Where, assumed: list[Any] | None
) -> list[Gathering]:
    """What gathers gradients: in the kernel as it is, or with its short loops written out, or without its strides."""
    for more, strided in _ways_to_gather(kernel):
        if not copies.make(more, strided):
            continue
        another, original = partial(copies.get, more, strided), copies.made[more, strided]
        plain = partial(sets_once, original, assumed=assumed)
        found = gathers(original, activity(original, wrt), wrt, plain, endless=strided)
        if found:
            given = sum(isinstance(i, Value) and i.op in ("load", "call") for i in walk(original.body))
            made = []
            for g in found:
                size = names.fresh(f"size_{g.array.name}")
                made.append(Gathering(g, another, names, where, size, strided=strided))
                made[-1].made = made[-1].lines(original, DEAREST * given if more else math.inf)
            return [g for g in made if g.made]
    return []


def _ways_to_gather(kernel: Kernel) -> list[tuple[frozenset[int], bool]]:
    """Loops to write out, and whether strides are taken for threads."""
    if not any(isinstance(i, Loop) for i in walk(kernel.body)):
        return [(frozenset(), False)]
    short = short_loops(kernel)
    ways = [(short, False)] if short else []
    return [*ways, (frozenset(), True)] if in_strides(kernel) else ways


def _has_floats(kind: types.Type) -> bool:
    """Whether it consists of floats of one type, so that its gradient has the same type."""
    return len(set(types.scalars(kind))) == 1 and types.is_float(types.scalars(kind)[0])
