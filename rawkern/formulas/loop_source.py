"""CUDA C of an elementwise loop, from the statements for one element."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from rawkern.base.forking import cached_property
from rawkern.formulas.axes import MAX_DIMS
from rawkern.formulas.derivative import closed, names_in
from rawkern.formulas.parameters import Formula, Parameter

# How an input comes to the kernel.
ARRAY, ONE, VALUE, RAW = "array", "one", "value", "raw"


@dataclass(eq=False)
class Statements(Formula):
    """What a thread does with one element of each array.

    The statements see the inputs as constants and the outputs as variables, in the type they are computed in (float
    for the half types), the index ``i`` and the number of elements ``n``. Statements after them may set outputs as
    well; an output that nobody wants is a variable that is not stored.
    """

    operation: str
    preamble: str = ""
    options: tuple[str, ...] = ()

    @cached_property
    def indexed(self) -> bool:
        """Whether it matters which element is which, so that the order of memory won't do."""
        return any(p.raw for p in (*self.inputs, *self.outputs)) or "i" in names_in(self.operation)

    def source(self, kinds: tuple[str, ...] | None = None, wanted: tuple[bool, ...] | None = None) -> str:
        """Return the CUDA C of the two kernels NAME and NAME_strided.

        Parameters
        ----------
        kinds : tuple of str
            How each input comes: ARRAY, ONE (an array of one element), VALUE or RAW.
        wanted : tuple of bool
            Which outputs are stored.
        """
        kinds = kinds or tuple(RAW if p.raw else ARRAY for p in self.inputs)
        return _source(self, kinds, wanted or (True,) * len(self.outputs))


_NUMBERED = re.compile(r"(?:in|out|one|p|q|r|W|Raw)\d+")


@functools.cache
def _taken() -> frozenset[str]:
    """Names that the kernels use themselves, so that no parameter of theirs can be called so."""
    inputs = [Parameter(f"in{k}", "T") for k in range(4)]
    text = Statements("in9", tuple(inputs), (Parameter("out0", "T"),), "").source((ARRAY, ONE, VALUE, ARRAY))
    return frozenset(["RawArray", *re.findall(r"[A-Za-z_]\w*", text)])


def _source(loop: Statements, kinds: tuple[str, ...], wanted: tuple[bool, ...]) -> str:
    letters = "".join(f"typename {letter}, " for letter in loop.letters)
    raws = [(f"Raw{k}", p.storage) for k, (p, kind) in enumerate(zip(loop.inputs, kinds, strict=True)) if kind == RAW]
    raws += [(f"Out{k}", p.storage) for k, p in enumerate(loop.outputs) if p.raw]
    generic = ", ".join([*(f"typename {x}" for x in loop.letters), *(f"typename {name}" for name, _ in raws)])
    template = f"template <{generic}>\n" if generic else ""
    instance = ", ".join([*(f"compute_t<{x}>" for x in loop.letters), *(storage for _, storage in raws)])
    name = loop.name
    call = f"{name}_element<{instance}>" if instance else f"{name}_element"
    seen = [  # what the statements see
        f"const RawArray<Raw{k}> {p.name}" if kind == RAW else f"const {p.compute} {p.name}"
        for k, (p, kind) in enumerate(zip(loop.inputs, kinds, strict=True))
    ]
    seen += [
        f"const RawOutput<Out{k}> {p.name}" if p.raw else f"{p.compute}& {p.name}" for k, p in enumerate(loop.outputs)
    ]
    ins = [p.name if kind == RAW and p.name not in _taken() and not _NUMBERED.fullmatch(p.name) else f"in{k}"
           for k, (p, kind) in enumerate(zip(loop.inputs, kinds, strict=True))]  # fmt: skip
    parameters, before, loads, from_pack, from_one = [], [], [], [], []
    for k, (p, kind) in enumerate(zip(loop.inputs, kinds, strict=True)):
        storage, computed = p.storage, f"compute_t<{p.storage}>"
        parameters.append(f"const {computed} in{k}" if kind == VALUE else f"const {storage}* {ins[k]}")
        if kind == ARRAY:
            loads.append((k, storage))
            from_pack.append(f"{computed}(p{k}.at[k])")
            from_one.append(f"{computed}(in{k}[i])")
            continue
        if kind == ONE:
            before.append(f"const {computed} one{k} = {computed}(*in{k});")
        taken = {VALUE: f"in{k}", ONE: f"one{k}", RAW: f"RawArray<{storage}>{{{ins[k]}}}"}[kind]
        from_pack.append(taken)
        from_one.append(taken)
    parameters += [f"{p.storage}* out{k}" for k, p in enumerate(loop.outputs) if wanted[k]]
    stores = [(k, p.storage) for k, p in enumerate(loop.outputs) if wanted[k] and not p.raw]
    results = [f"RawOutput<{p.storage}>{{out{k}}}" if p.raw else f"r{k}" for k, p in enumerate(loop.outputs)]
    fresh = " ".join(f"compute_t<{p.storage}> r{k}{{}};" for k, p in enumerate(loop.outputs) if not p.raw)
    pointers = ", ".join([*(f"in{k}" for k, _ in loads), *(f"out{k}" for k, _ in stores)])
    pack_out = " ".join(f"Pack<{storage}, V> q{k};" for k, storage in stores)
    set_pack = " ".join(f"q{k}.at[k] = static_cast<{storage}>(r{k});" for k, storage in stores)
    set_one = " ".join(f"out{k}[i] = static_cast<{storage}>(r{k});" for k, storage in stores)
    columns = max(len(loads) + len(stores), 1)
    ways = ", ".join(f"Way W{a}" for a in range(columns))
    gathers = " ".join(
        f"const auto p{k} = gather<V, W{a}>(in{k} + at[{a}], layout.step[{a}][0]);" for a, (k, _) in enumerate(loads)
    )
    scatters = " ".join(
        f"scatter<V, W{a}>(out{k} + at[{a}], layout.step[{a}][0], q{k});" for a, (k, _) in enumerate(stores, len(loads))
    )

    def element(taken: list[str], index: str) -> str:
        return f"{fresh} {call}({', '.join([*taken, *results, index, 'n'])});"

    return f"""#include "pack.cuh"
{loop.preamble}

// What is done with one element.
{template}__device__ __forceinline__ void {name}_element({", ".join(seen)}, const long long i, const long long n) {{
{closed(loop.operation)}
}}

// All arrays lie in memory in one order. Grid: 1-D, at least ceil(n / V) threads, V elements each.
template <{letters}int V> __global__ void {name}({", ".join([*parameters, "long long n"])}) {{
    const long long block = (long long)blockIdx.x * blockDim.x * V;
    {" ".join(before)}
    if (V > 1 && block + (long long)blockDim.x * V <= n && aligned<V>({pointers})) {{
        const long long first = block + threadIdx.x * V;  // in 32 bits: else the compiler takes the stores apart
        {" ".join(f"const auto p{k} = load<{storage}, V>(in{k} + first);" for k, storage in loads)}
        {pack_out}
#pragma unroll
        for (int k = 0; k < V; ++k) {{ {element(from_pack, "first + k")} {set_pack} }}
        {" ".join(f"store(out{k} + first, q{k});" for k, _ in stores)}
        return;
    }}
#pragma unroll
    for (int k = 0; k < V; ++k) {{
        const long long i = block + (long long)k * blockDim.x + threadIdx.x;
        if (i < n) {{ {element(from_one, "i")} {set_one} }}
    }}
}}

// The sizes of the result, innermost dimension first (size[0] counts packs), and each array's steps along them.
struct Layout {{ long long dims, size[{MAX_DIMS}], step[{columns}][{MAX_DIMS}]; }};

// Arrays of any strides. Grid: 1-D, at least n / V = packs threads, V neighbours of the innermost dimension each. Index
// is the type that all indices fit.
template <{letters}int V, typename Index, {ways}>
__global__ void {name}_strided({", ".join([*parameters, "const Layout layout", "long long packs", "long long n"])}) {{
    const long long pack = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (pack >= packs) return;
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
    {gathers}
    {pack_out}
#pragma unroll
    for (int k = 0; k < V; ++k) {{ {element(from_pack, "pack * V + k")} {set_pack} }}
    {scatters}
}}
"""
