"""Reductions of tensors of any layouts along any axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rawkern.base import frames
from rawkern.base.known import keep
from rawkern.base.operator_state import in_fake_op
from rawkern.compile.files import own_sources
from rawkern.engines.devices import overlaps
from rawkern.errors import CompileError
from rawkern.formulas.axes import MAX_DIMS, PACK_BYTES, aligned_ways, layouts, structs
from rawkern.formulas.blame import in_formula
from rawkern.formulas.parameters import Parameter, c_name
from rawkern.formulas.promotion import joint_shape
from rawkern.formulas.reduce_plan import THREADS, make_plan
from rawkern.formulas.reduce_source import STRUCT_BYTES, Expressions
from rawkern.formulas.statements import names_in
from rawkern.kernel import RawKernel


@dataclass(frozen=True)
class _Planned:
    """What reduces arrays of some layouts: one launch, or one for parts and another that joins them."""

    shape: list[int]  # of the outputs
    first: Any
    sizes: tuple[Any, ...]
    partial: tuple[int, torch.dtype] | None = None  # numbers of the parts
    finish: Any = None
    counts: tuple[int, ...] = ()

    def run(self, arrays: Sequence[torch.Tensor], outs: Sequence[torch.Tensor], total: torch.Tensor | None) -> None:
        """Launch; `total` gets what was reduced, if it is asked for."""
        if self.partial is None:
            self.first(*arrays, total, *outs, *self.sizes)
            return
        count, dtype = self.partial
        partial = torch.empty(count, dtype=dtype, device=outs[0].device)
        self.first(*arrays, partial, *[None] * len(outs), *self.sizes)
        self.finish(partial, total, *outs, *self.counts)


@dataclass(eq=False)
class ReduceLoop(Expressions):
    """Expressions of a reduction, run over tensors."""

    kernels: dict[Any, RawKernel] = field(default_factory=dict, repr=False)
    known: dict[Any, _Planned] = field(default_factory=dict, repr=False)
    origin: frames.Place | None = field(default_factory=frames.caller, repr=False)

    def kernel(self, arguments: str, overlap: bool, suffix: str = "", updated: tuple[str, ...] = ()) -> RawKernel:
        """Return an instance of a kernel, which may `overlap` with the one before it."""
        key = arguments, overlap, suffix, updated
        if key not in self.kernels:
            name = f"{self.name}{suffix}<{arguments}>" if arguments else f"{self.name}{suffix}"
            text = self.text("complex" in arguments, updated)
            made = RawKernel(text, name=name, include_dirs=(own_sources(),), strided=True)
            unit = made.unit.standing(self.origin, structs(len(self.inputs)))
            self.kernels[key] = RawKernel.of_unit(unit, name).configured(programmatic=overlap)
        return self.kernels[key]

    def shape(self, shapes: Sequence[torch.Size], axis: Sequence[int], keepdims: bool) -> list[int]:
        """The shape of the outputs, for inputs of these shapes."""
        full = joint_shape(self.name, shapes)
        return [1 if d in axis else size for d, size in enumerate(full) if keepdims or d not in axis]

    def run(
        self,
        tensors: Sequence[torch.Tensor],
        dtypes: dict[str, torch.dtype],
        axis: tuple[int, ...],
        keepdims: bool,
        *,
        accumulated: bool = False,
        launch: bool = True,
        out: Sequence[torch.Tensor] | None = None,
        updated: tuple[str, ...] = (),
    ) -> tuple[torch.Tensor, ...]:
        """Reduce tensors, which broadcast to one shape, along `axis`; return contiguous outputs, or `out`.

        With `accumulated` a last output holds what was reduced, before `post`. With `launch` False the outputs are
        made and nothing is run. The outputs that are `updated` start with what is in `out`.
        """
        alike = layouts(tensors) if launch else None
        key = None if alike is None else (alike, axis, keepdims, updated, *dtypes.values())
        found, shapes, device = self.known.get(key), [t.shape for t in tensors], tensors[0].device
        shape = found.shape if found is not None else self.shape(shapes, axis, keepdims)
        if out is None:
            outs = [torch.empty(shape, dtype=p.dtype or dtypes[p.type], device=device) for p in self.outputs]
        else:
            outs = [t.contiguous() for t in out]
        total = torch.empty(shape, dtype=self.accumulator_dtype(dtypes), device=device) if accumulated else None
        if launch and outs[0].numel():
            arrays = [t.detach() for t in tensors]
            try:
                if found is None:
                    full = joint_shape(self.name, shapes)
                    given = [t.resolve_neg().resolve_conj().expand(full) for t in arrays]
                    found, arrays = self._planned(given, shape, dtypes, axis, updated)
                    key = key if arrays is given else None
                found.run(arrays, outs, total)
            except CompileError as error:
                kernel = next((k for k in self.kernels.values() if k.unit.settings.title == error.file), None)
                source = (kernel.unit.settings.code or "") if kernel is not None else ""
                raise in_formula(error, self.name, source, self.parts, self.inputs) from None
            if key is not None and key not in self.known:
                keep(self.known, key, found)
        for t, value in zip(out or (), outs, strict=bool(out)):
            if value is not t:
                t.copy_(value)
        outs = outs if out is None else list(out)
        return (*outs, total) if total is not None else tuple(outs)

    def _planned(
        self,
        arrays: list[torch.Tensor],
        shape: list[int],
        dtypes: dict[str, torch.dtype],
        axis: tuple[int, ...],
        updated: tuple[str, ...],
    ) -> tuple[_Planned, list[torch.Tensor]]:
        """What reduces arrays of one shape, and the arrays: copies of them where no kernel takes their layouts."""
        device = arrays[0].device
        on_gpu, overlap = device.type == "cuda", overlaps(device)
        pack = max(1, PACK_BYTES // max([t.element_size() for t in arrays])) if on_gpu else 1
        processors = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 0
        kept = tuple(d for d in range(arrays[0].dim()) if d not in axis)
        rest = kept, axis, pack, processors, "_J" in names_in(self.map)
        plan = make_plan(tuple(arrays[0].shape), tuple(t.stride() for t in arrays), *rest)
        if plan is None:
            arrays = [t.contiguous() for t in arrays]
            plan = make_plan(tuple(arrays[0].shape), tuple(t.stride() for t in arrays), *rest)
        if plan is None:
            raise ValueError(
                f"{self.name}: more than {MAX_DIMS} groups of kept or reduced dimensions; reshape the input"
            )
        letters = [c_name(self.name, dtypes[x]) for x in self.letters]
        ways = aligned_ways(plan.ways, arrays, pack)
        kernel = self.kernel(", ".join([*letters, *plan.arguments, *ways]), overlap, "", updated)
        sizes = (
            plan.kept_axes, plan.reduced_axes, plan.kept_packs, plan.reduced_packs, plan.chunk, plan.kept, plan.count,
            plan.parts == 1,
        )  # fmt: skip
        first = kernel[(plan.blocks, plan.parts), plan.block]
        if plan.parts == 1:
            return _Planned(shape, first, sizes), arrays
        dtype, count = self.accumulator_dtype(dtypes), plan.parts * plan.kept
        partial = (count * STRUCT_BYTES, torch.uint8) if dtype is None else (count, dtype)
        x = min(32, 1 << (plan.kept - 1).bit_length())
        finish = self.kernel(", ".join(letters), overlap, "_finish", updated)[-(-plan.kept // x), (x, THREADS // x)]
        return _Planned(shape, first, sizes, partial, finish, (plan.kept, plan.parts, plan.count)), arrays


_sum = ReduceLoop("sum", (Parameter("x", "T"),), (Parameter("y", "T"),), "x", "a + b", "y = a", "0")


def sum_to(t: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return the sums of `t` over the dimensions along which a `shape` was broadcast, as torch's `sum_to_size`."""
    if not t.is_cuda or in_fake_op() or not t.numel():
        return t.sum_to_size(shape)
    before = t.dim() - len(shape)
    axis = (*range(before), *(before + d for d, size in enumerate(shape) if size == 1 and t.shape[before + d] != 1))
    return _sum.run([t], {"T": t.dtype}, axis, False)[0].view(shape)
