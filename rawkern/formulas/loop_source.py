"""CUDA C of an elementwise loop, from the statements for one element."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rawkern.base.forking import cached_property
from rawkern.formulas.axes import MAX_DIMS, many_extents
from rawkern.formulas.parameters import Formula, Parameter, complex_header
from rawkern.formulas.statements import closed, names_in

# How an input comes to the kernel.
ARRAY, ONE, VALUE, RAW = "array", "one", "value", "raw"


@dataclass(eq=False)
class Statements(Formula):
    """What a thread does with one element of each array.

    The statements see the inputs as constants and the outputs as variables, in the type they are computed in (float
    for the half types), the index ``i`` and the number of elements ``n``. Statements after them may set outputs as
    well; an output that is not wanted is a variable that is not stored.
    """

    operation: str
    preamble: str = ""
    options: tuple[str, ...] = ()

    @cached_property
    def indexed(self) -> bool:
        """Whether it matters which element is which, so that the order of memory won't do."""
        return any(p.raw for p in (*self.inputs, *self.outputs)) or bool({"i", "_ind"} & names_in(self.operation))

    @cached_property
    def described(self) -> bool:
        """Whether the statements may ask for more of raw arrays than ``x[index]``, or for an element's indices."""
        raws = [p.name for p in (*self.inputs, *self.outputs) if p.raw]
        if "_ind" in names_in(self.operation):
            return True
        declares_array = re.search(r"\b[A-Za-z_]\w*\s+[A-Za-z_]\w*\s*\[", self.operation)
        plain = r"(?!\s*\[(?!\s*\{))"
        return bool(raws) and bool(
            declares_array or any(re.search(rf"(?<![\w.]){x}\b{plain}", self.operation) for x in raws)
        )

    def source(
        self,
        kinds: tuple[str, ...] | None = None,
        wanted: tuple[bool, ...] | None = None,
        updated: Sequence[str] = (),
        ranks: tuple[int, ...] | None = None,
        complex_numbers: bool = False,
    ) -> str:
        """Return the CUDA C of the two kernels NAME and NAME_strided.

        Parameters
        ----------
        kinds : tuple of str
            How each input comes: ARRAY, ONE (an array of one element), VALUE or RAW.
        wanted : tuple of bool
            Which outputs are stored.
        updated : sequence of str
            The outputs that start with what is there.
        ranks : tuple of int
            Of loops that are `described`: how many dimensions the raw inputs, the raw outputs and the loop have.
        complex_numbers : bool
            Whether letters stand for complex dtypes.
        """
        kinds = kinds or tuple(RAW if p.raw else ARRAY for p in self.inputs)
        raws = kinds.count(RAW) + sum(p.raw for p in self.outputs)
        ranks = ranks or ((1,) * (raws + 1) if self.described else ())
        return _source(self, kinds, wanted or (True,) * len(self.outputs), updated, ranks, complex_numbers)


_NUMBERED = re.compile(r"(?:in|out|one|p|q|r|W|Raw|Out)\d+")


@functools.cache
def _taken() -> frozenset[str]:
    """Names that the kernels use themselves, so that no parameter of theirs can be called so."""
    inputs = [Parameter(f"in{k}", "T") for k in range(4)]
    text = Statements("in9", tuple(inputs), (Parameter("out0", "T"),), "_ind").source((ARRAY, ONE, VALUE, RAW))
    return frozenset(re.findall(r"[A-Za-z_]\w*", text))


def _pointer(p: Parameter, otherwise: str) -> str:
    """What the kernel calls a raw array: as the user does, whom messages name it to, where it has no such name."""
    return otherwise if _NUMBERED.fullmatch(p.name) or p.name in _taken() else p.name


def _source(
    loop: Statements,
    kinds: tuple[str, ...],
    wanted: tuple[bool, ...],
    updated: Sequence[str],
    ranks: tuple[int, ...],
    complex_numbers: bool,
) -> str:
    inputs = [(k, p, kind) for k, (p, kind) in enumerate(zip(loop.inputs, kinds, strict=True))]
    ins = [_pointer(p, f"in{k}") if kind == RAW else f"in{k}" for k, p, kind in inputs]
    outs = [_pointer(p, f"out{k}") if p.raw else f"out{k}" for k, p in enumerate(loop.outputs)]
    raws = [(f"Raw{k}", p, ins[k], "const ") for k, p, kind in inputs if kind == RAW]
    raws += [(f"Out{k}", p, outs[k], "") for k, p in enumerate(loop.outputs) if p.raw]
    # Of each raw array, and of the loop at last: its dimensions, and where its extents lie.
    extents = [(f", {rank}", f", extents.at + {2 * sum(ranks[:k])}") for k, rank in enumerate(ranks)]
    raw_seen, raw_given = {}, {}
    for (letter, p, pointer, const), (rank, place) in zip(raws, extents[:-1] or [("", "")] * len(raws), strict=True):
        raw_seen[p.name] = f"const RawArray<{const}{letter}{rank}> {p.name}"
        raw_given[p.name] = f"RawArray<{const}{p.storage}{rank}>{{{pointer}{place}}}"

    letters = "".join(f"typename {letter}, " for letter in loop.letters)
    generic = ", ".join([*(f"typename {x}" for x in loop.letters), *(f"typename {letter}" for letter, *_ in raws)])
    template = f"template <{generic}>\n" if generic else ""
    instance = ", ".join([*(f"compute_t<{x}>" for x in loop.letters), *(p.storage for _, p, *_ in raws)])
    name = loop.name
    call = f"{name}_element<{instance}>" if instance else f"{name}_element"
    seen = [raw_seen.get(p.name, f"const {p.compute} {p.name}") for p in loop.inputs]  # what the statements see
    seen += [raw_seen.get(p.name, f"{p.compute}& {p.name}") for p in loop.outputs]
    seen += [f"const Indexer<{ranks[-1]}> _ind"] if ranks else []

    parameters, before, loads, from_pack, from_one = [], [], [], [], []
    for k, p, kind in inputs:
        computed = f"compute_t<{p.storage}>"
        parameters.append(f"const {computed} in{k}" if kind == VALUE else f"const {p.storage}* {ins[k]}")
        if kind == ARRAY:
            loads.append((k, p.storage))
            from_pack.append(f"{computed}(p{k}.at[k])")
            from_one.append(f"{computed}(in{k}[i])")
            continue
        if kind == ONE:
            before.append(f"const {computed} one{k} = {computed}(*in{k});")
        taken = {VALUE: f"in{k}", ONE: f"one{k}", RAW: raw_given.get(p.name)}[kind]
        from_pack.append(taken)
        from_one.append(taken)
    parameters += [f"{p.storage}* {outs[k]}" for k, p in enumerate(loop.outputs) if wanted[k]]
    parameters += ["const Extents extents"] if ranks else []
    stores = [(k, p.storage) for k, p in enumerate(loop.outputs) if wanted[k] and not p.raw]
    there = {k for k, _ in stores if loop.outputs[k].name in updated}  # what they hold is where they start
    results = [raw_given.get(p.name, f"r{k}") for k, p in enumerate(loop.outputs)]
    pointers = ", ".join([*(f"in{k}" for k, _ in loads), *(f"out{k}" for k, _ in stores)])
    columns = max(len(loads) + len(stores), 1)
    ways = ", ".join(f"Way W{a}" for a in range(columns))
    gather = "gather<V, W{a}>({array}{k} + at[{a}], layout.step[{a}][0])"
    gathers = [f"const auto p{k} = {gather.format(a=a, array='in', k=k)};" for a, (k, _) in enumerate(loads)]
    made, gathered = [], []
    for a, (k, storage) in enumerate(stores, len(loads)):
        old = gather.format(a=a, array="out", k=k)
        made.append(f"auto q{k} = load<{storage}, V>(out{k} + first);" if k in there else f"Pack<{storage}, V> q{k};")
        gathered.append(f"auto q{k} = {old};" if k in there else f"Pack<{storage}, V> q{k};")
    set_pack = " ".join(f"q{k}.at[k] = static_cast<{storage}>(r{k});" for k, storage in stores)
    set_one = " ".join(f"out{k}[i] = static_cast<{storage}>(r{k});" for k, storage in stores)
    scatters = " ".join(
        f"scatter<V, W{a}>(out{k} + at[{a}], layout.step[{a}][0], q{k});" for a, (k, _) in enumerate(stores, len(loads))
    )

    def element(taken: list[str], index: str, old: str) -> str:
        """A call for one element; `old` is what an output holds, whose number takes the place of the braces."""
        fresh = " ".join(
            f"compute_t<{p.storage}> r{k}{f'({old.format(k)})' if k in there else '{}'};"
            for k, p in enumerate(loop.outputs)
            if not p.raw
        )
        where = [f"Indexer<{ranks[-1]}>(extents.at + {2 * sum(ranks[:-1])}, {index}, n)"] if ranks else []
        return f"{fresh} {call}({', '.join([*taken, *results, *where, index, 'n'])});"

    complex_numbers = complex_numbers or any("complex" in p.storage for p in (*loop.inputs, *loop.outputs))
    numbers = complex_header(loop.preamble) if complex_numbers else ""
    declared = f"struct Extents {{ long long at[{many_extents(ranks)}]; }};\n\n" if ranks else ""

    return f"""#include "pack.cuh"
{numbers}{loop.preamble}

{declared}// What is done with one element.
{template}__device__ __forceinline__ void {name}_element({", ".join(seen)}, const long long i, const long long n) {{
{closed(loop.operation)}
}}

// All arrays lie in memory in one order. Grid: 1-D, at least ceil(n / V) threads, V elements each.
template <{letters}int V> __global__ void {name}({", ".join([*parameters, "long long n"])}) {{
    const long long block = (long long)blockIdx.x * blockDim.x * V;
    wait_for_previous();
    {" ".join(before)}
    if (V > 1 && block + (long long)blockDim.x * V <= n && aligned<V>({pointers})) {{
        const long long first = block + threadIdx.x * V;  // in 32 bits: else the compiler takes the stores apart
        {" ".join(f"const auto p{k} = load<{storage}, V>(in{k} + first);" for k, storage in loads)}
        {" ".join(made)}
#pragma unroll
        for (int k = 0; k < V; ++k) {{ {element(from_pack, "first + k", "q{}.at[k]")} {set_pack} }}
        {" ".join(f"store(out{k} + first, q{k});" for k, _ in stores)}
        return;
    }}
#pragma unroll
    for (int k = 0; k < V; ++k) {{
        const long long i = block + (long long)k * blockDim.x + threadIdx.x;
        if (i < n) {{ {element(from_one, "i", "out{}[i]")} {set_one} }}
    }}
}}

// The sizes of the result, innermost dimension first (size[0] counts packs), and each array's steps along them.
struct Layout {{ long long dims, size[{MAX_DIMS}], step[{columns}][{MAX_DIMS}]; }};

// Arrays of any strides. Grid: 1-D, at least n / V = packs threads, V neighbors of the innermost dimension each. Index
// is the type that all indices fit.
template <{letters}int V, typename Index, {ways}>
__global__ void {name}_strided({", ".join([*parameters, "const Layout layout", "long long packs", "long long n"])}) {{
    const long long pack = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (pack >= packs) return;
    wait_for_previous();
    {" ".join(before)}
    Index rest = pack, at[{columns}] = {{}};
#pragma unroll
    for (int d = 0; d < {MAX_DIMS}; ++d) {{
        const Index size = layout.size[d], scale = d == 0 ? V : 1;
        const bool last = d + 1 >= layout.dims;
        const Index outer = last ? 0 : rest / size, index = rest - outer * size;
#pragma unroll
        for (int a = 0; a < {columns}; ++a) at[a] += index * scale * Index(layout.step[a][d]);
        if (last) break;
        rest = outer;
    }}
    {" ".join(gathers)}
    {" ".join(gathered)}
#pragma unroll
    for (int k = 0; k < V; ++k) {{ {element(from_pack, "pack * V + k", "q{}.at[k]")} {set_pack} }}
    {scatters}
}}
"""
