"""CUDA C of a reduction, from its expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rawkern.arguments.memory import dtype_name
from rawkern.base.forking import cached_property
from rawkern.formulas.parameters import DTYPES, Formula, complex_header
from rawkern.formulas.statements import closed

UNROLL = 2  # packs that a thread loads before it uses the first; more take registers, so fewer blocks fit
STRUCT_BYTES = 64  # the largest accumulator that is a struct


@dataclass(eq=False)
class Expressions(Formula):
    """What is done with the elements that become one: `map` each, `reduce` two at a time, `post` the last."""

    map: str
    reduce: str
    post: str
    identity: str
    reduce_type: str | None = None
    preamble: str = ""

    @property
    def accumulator(self) -> str:
        """The type that is reduced in, as the source spells it; of a letter, what that is computed in."""
        kind = self.reduce_type or self.outputs[0].type
        return DTYPES[kind][1] if kind in DTYPES else kind

    @property
    def struct(self) -> bool:
        """Whether that is a struct of the preamble, which no tensor can hold."""
        return self.accumulator not in (*self.letters, *(computed for _, computed in DTYPES.values()))

    def accumulator_dtype(self, dtypes: dict[str, torch.dtype]) -> torch.dtype | None:
        """The dtype that is reduced in; None for a struct of the user's."""
        kind = self.reduce_type or self.outputs[0].type
        name = dtype_name(dtypes[kind]) if kind in dtypes else kind
        if name not in DTYPES:
            return None
        return torch.float32 if name in ("float16", "bfloat16") else getattr(torch, name)

    @property
    def parts(self) -> dict[str, str]:
        """The user's texts."""
        return {
            "map_expr": self.map, "identity": self.identity, "reduce_expr": self.reduce, "post_map_expr": self.post
        }  # fmt: skip

    @cached_property
    def source(self) -> str:
        """The CUDA C of the kernels NAME and NAME_finish."""
        return self.text()

    def text(self, complex_numbers: bool = False, updated: Sequence[str] = ()) -> str:
        """The same where letters stand for complex dtypes, or outputs start with what is there."""
        fixed = any(
            "complex" in text for text in (self.accumulator, *(p.storage for p in (*self.inputs, *self.outputs)))
        )
        return _source(self, complex_header(self.preamble) if complex_numbers or fixed else "", updated)


def _source(loop: Expressions, numbers: str, updated: Sequence[str]) -> str:
    name, acc, many = loop.name, loop.accumulator, len(loop.inputs)
    letters = "".join(f"typename {x}, " for x in loop.letters)
    template = f"template <{letters.rstrip(', ')}>\n" if letters else ""
    compute = ", ".join(f"compute_t<{x}>" for x in loop.letters)
    of = f"<{compute}>" if compute else ""
    outer = f"compute_t<{acc}>" if acc in loop.letters else acc
    seen = ", ".join(f"const {p.compute} {p.name}" for p in loop.inputs)
    made = ", ".join(f"{p.compute}& {p.name}" for p in loop.outputs)
    arrays = ", ".join(f"const {p.storage}* in{k}" for k, p in enumerate(loop.inputs))
    outs = ", ".join(f"{p.storage}* out{k}" for k, p in enumerate(loop.outputs))
    ways = ", ".join(f"Way W{k}" for k in range(many))
    packs = " ".join(f"Pack<{p.storage}, VK * VR> of{k};" for k, p in enumerate(loop.inputs))
    gathers = ", ".join(f"gather<VK * VR, W{k}, true>(in{k} + at[{k}], step[{k}][0])" for k in range(many))
    values = ", ".join(f"compute_t<{p.storage}>(packs.of{k}.at[v])" for k, p in enumerate(loop.inputs))
    fresh = " ".join(
        f"compute_t<{p.storage}> r{k}{f'(out{k}[index])' if p.name in updated else '{}'};"
        for k, p in enumerate(loop.outputs)
    )
    results = ", ".join(f"r{k}" for k in range(len(loop.outputs)))
    stores = " ".join(f"out{k}[index] = static_cast<{p.storage}>(r{k});" for k, p in enumerate(loop.outputs))
    post = f"{{ {fresh} {name}_post{of}(value, {results}, count); {stores} }}"
    return f"""#include "reduce.cuh"
{numbers}{loop.preamble}

{template}__device__ __forceinline__ {acc} {name}_map({seen}, const long long _J) {{
return {closed(loop.map)}
}}

{template}__device__ __forceinline__ {acc} {name}_identity() {{
return {closed(loop.identity)}
}}

{template}__device__ __forceinline__ {acc} {name}_reduce(const {acc} a, const {acc} b) {{
return {closed(loop.reduce)}
}}

{template}__device__ __forceinline__ void {name}_post(const {acc} a, {made}, const long long count) {{
{closed(loop.post)}
}}

// Reduces {many} array(s). A thread has VK neighboring results and takes VR neighboring elements at a time, one of
// the two is 1. ROWS: threadIdx.x goes along the reduced elements and threadIdx.y along the results, else the other way
// round. FLAT: the reduced elements are one dimension, and a thread loads several packs before it uses the first. Grid:
// x over the results, y over `chunk` packs of reduced elements each; with several of these the results are in `partial`
// only. Block: REDUCE_THREADS threads, powers of two.
template <{letters}int VK, int VR, bool ROWS, bool FLAT, typename Index, {ways}>
__global__ void {name}({arrays}, void* partial, {outs}, const Axes<{many}> kept_axes, const Axes<{many}> reduced_axes,
    long long kept_packs, long long reduced_packs, long long chunk, long long kept, long long count, bool last) {{
    using Accumulator = {outer};
    wait_for_previous();
    static_assert(sizeof(Accumulator) <= {STRUCT_BYTES}, "an accumulator has at most {STRUCT_BYTES} bytes");
    __shared__ alignas(16) unsigned char bytes[VK * REDUCE_THREADS * sizeof(Accumulator)];
    Accumulator* const memory = reinterpret_cast<Accumulator*>(bytes);
    const auto combine = [](const Accumulator& a, const Accumulator& b) {{ return {name}_reduce{of}(a, b); }};
    const int tk = ROWS ? threadIdx.y : threadIdx.x, nk = ROWS ? blockDim.y : blockDim.x;
    const int tr = ROWS ? threadIdx.x : threadIdx.y, nr = ROWS ? blockDim.x : blockDim.y;
    const long long pack = (long long)blockIdx.x * nk + tk;
    Accumulator sum[VK];
#pragma unroll
    for (int v = 0; v < VK; ++v) sum[v] = {name}_identity{of}();
    if (pack < kept_packs) {{
        Index base[{many}] = {{}};
        locate<VK>(base, Index(pack), kept_axes);
        const long long first = blockIdx.y * chunk, end = first + chunk < reduced_packs ? first + chunk : reduced_packs;
        const auto& step = VK > 1 ? kept_axes.step : reduced_axes.step;
        struct Packs {{ {packs} }};
        const auto fetch = [&](long long r) {{
            Index at[{many}];
#pragma unroll
            for (int a = 0; a < {many}; ++a) {{
                at[a] = base[a] + (FLAT ? Index(r) * VR * Index(reduced_axes.step[a][0]) : 0);
            }}
            if constexpr (!FLAT) locate<VR>(at, Index(r), reduced_axes);
            return Packs{{{gathers}}};
        }};
        const auto take = [&](const Packs& packs, long long r) {{
#pragma unroll
            for (int v = 0; v < VK * VR; ++v) {{
                Accumulator& mine = sum[VK > 1 ? v : 0];
                mine = combine(mine, {name}_map{of}({values}, r * VR + (VR > 1 ? v : 0)));
            }}
        }};
        long long r = first + tr;
        if constexpr (FLAT) {{
#pragma unroll 1
            for (; r + {UNROLL - 1} * nr < end; r += {UNROLL} * nr) {{
                Packs several[{UNROLL}];
#pragma unroll
                for (int u = 0; u < {UNROLL}; ++u) several[u] = fetch(r + u * nr);
#pragma unroll
                for (int u = 0; u < {UNROLL}; ++u) take(several[u], r + u * nr);
            }}
        }}
#pragma unroll 1
        for (; r < end; r += nr) take(fetch(r), r);
    }}
    const int stride = ROWS ? 1 : nk, place = ROWS ? tk * nr + tr : tr * nk + tk;
#pragma unroll
    for (int v = 0; v < VK; ++v) {{
        memory[v * REDUCE_THREADS + place] = sum[v];
        reduce_shared(combine, memory + v * REDUCE_THREADS + place, tr, nr, stride);
    }}
    if (tr != 0 || pack >= kept_packs) return;
#pragma unroll
    for (int v = 0; v < VK; ++v) {{
        const long long index = pack * VK + v;
        const Accumulator value = memory[v * REDUCE_THREADS + place];
        if (partial) static_cast<Accumulator*>(partial)[blockIdx.y * kept + index] = value;
        if (last) {post}
    }}
}}

// Reduces the partial results of each block. Block: REDUCE_THREADS threads, threadIdx.x goes along the results and
// threadIdx.y along the parts, both powers of two. Grid: 1-D over the results.
{template}__global__ void {name}_finish(const void* partial, void* total, {outs},
    long long kept, long long parts, long long count) {{
    using Accumulator = {outer};
    wait_for_previous();
    __shared__ alignas(16) unsigned char bytes[REDUCE_THREADS * sizeof(Accumulator)];
    Accumulator* const memory = reinterpret_cast<Accumulator*>(bytes) + threadIdx.y * blockDim.x + threadIdx.x;
    const auto combine = [](const Accumulator& a, const Accumulator& b) {{ return {name}_reduce{of}(a, b); }};
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    Accumulator sum = {name}_identity{of}();
    if (index < kept) {{
        for (long long p = threadIdx.y; p < parts; p += blockDim.y) {{
            sum = combine(sum, static_cast<const Accumulator*>(partial)[p * kept + index]);
        }}
    }}
    *memory = sum;
    reduce_shared(combine, memory, threadIdx.y, blockDim.y, blockDim.x);
    if (threadIdx.y != 0 || index >= kept) return;
    const Accumulator value = *memory;
    if (total) static_cast<Accumulator*>(total)[index] = value;
    {post}
}}
"""
