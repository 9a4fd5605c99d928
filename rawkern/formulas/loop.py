"""Elementwise loops over tensors of any layouts."""

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
from rawkern.formulas.axes import (
    PACK_BYTES,
    aligned_ways,
    extents,
    layouts,
    many_extents,
    strided_layout,
    structs,
)
from rawkern.formulas.blame import in_formula
from rawkern.formulas.broadcasting import joint_strides, torch_strides
from rawkern.formulas.loop_source import ARRAY, ONE, RAW, VALUE, Statements
from rawkern.formulas.parameters import Parameter, c_name, parse_parameters
from rawkern.formulas.promotion import joint_shape
from rawkern.kernel import RawKernel
from rawkern.operators.native import Map


@dataclass(frozen=True)
class _Known:
    """What launches a loop over tensors of some layouts, and how its outputs are made."""

    launcher: Any
    rest: tuple[Any, ...]  # arguments after the tensors and numbers
    values: tuple[bool, ...]  # which inputs are passed by value
    outputs: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device], ...]

    def run(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        made = [torch.empty_strided(shape, steps, dtype=d, device=device) for shape, steps, d, device in self.outputs]
        given = []
        for t, value in zip(inputs, self.values, strict=True):
            if isinstance(t, torch.Tensor):
                t = t.item() if value else t.detach() if t.requires_grad else t
            given.append(t)
        self.launcher(*given, *made, *self.rest)
        return made


@dataclass(eq=False)
class Loop(Statements):
    """Statements for one element, run over tensors."""

    kernels: dict[Any, RawKernel] = field(default_factory=dict, repr=False)
    known: dict[Any, _Known] = field(default_factory=dict, repr=False)
    origin: frames.Place | None = field(default_factory=frames.caller, repr=False)

    @classmethod
    def parsed(cls, name: str, inputs: str, outputs: str, operation: str) -> Loop:
        """Return the loop of parameters as `rawkern.elementwise` takes them."""
        return cls(name, parse_parameters(inputs, name), parse_parameters(outputs, name), operation)

    def __post_init__(self) -> None:
        self.raw_outputs = any(p.raw for p in self.outputs)
        numbers = [k for k, p in enumerate(self.inputs) if p.type == "float64"]
        #: The loop as a call: an output, or a tuple of them, for its inputs.
        self.fast = Map(self._computed, len(self.inputs), len(self.outputs), numbers)
        self.fast_kinds = tuple(VALUE if k in numbers else ARRAY for k in range(len(self.inputs)))

    def _computed(self, *args: Any) -> Any:
        outs = self.run(args, self.dtypes(args), launch=not in_fake_op())
        return outs[0] if len(outs) == 1 else outs

    def run(
        self,
        tensors: Sequence[Any],
        dtypes: dict[str, torch.dtype],
        wanted: tuple[bool, ...] | None = None,
        out: Sequence[torch.Tensor] | None = None,
        launch: bool = True,
        updated: tuple[str, ...] = (),
    ) -> tuple[torch.Tensor | None, ...]:
        """Run the loop over tensors that broadcast to one shape; return the outputs (None for one not wanted).

        Parameters
        ----------
        tensors : sequence of torch.Tensor or number
            One for each input, on one device; a CPU tensor with one element may stand among CUDA tensors. Arrays with
            more than one element have the dtype of their parameter.
        dtypes : dict
            What each letter stands for.
        wanted : tuple of bool, optional
            Which outputs are computed; all by default.
        out : sequence of torch.Tensor, optional
            Where the outputs go: of the shape, dtype and device that a new one would have.
        launch : bool
            False to make the outputs only.
        updated : tuple of str
            The outputs that start with what is in `out`.
        """
        wanted = wanted or (True,) * len(self.outputs)
        key = self._layouts(tensors, dtypes, wanted) if launch and out is None and not updated else None
        if key is not None and (known := self.known.get(key)) is not None:
            return _with_unwanted(known.run(tensors), wanted)
        looped = [t for t, p in zip(tensors, self.inputs, strict=True) if not p.raw and isinstance(t, torch.Tensor)]
        made = [p.dtype or dtypes[p.type] for p, w in zip(self.outputs, wanted, strict=True) if w]
        outs = list(out) if out is not None else _outputs(self.name, looped, made, self.indexed)
        like = outs[0]  # of the shape and on the device of the loop
        if self.raw_outputs:  # which say nothing of its shape
            shape = [t.shape for t, p in zip(outs, self.outputs, strict=True) if not p.raw][:1]
            shape = shape[0] if shape else joint_shape(self.name, [t.shape for t in looped])
            like = torch.empty((), dtype=torch.bool, device=like.device).expand(shape)
        if launch and like.numel():
            try:
                launched = self._launch(tensors, dtypes, wanted, outs, like, updated)
                if key is not None and launched is not None:
                    made = tuple((tuple(t.shape), t.stride(), t.dtype, t.device) for t in outs)
                    keep(self.known, key, _Known(*launched, made))
            except CompileError as error:
                kernel = next((k for k in self.kernels.values() if k.unit.settings.title == error.file), None)
                source = (kernel.unit.settings.code or "") if kernel is not None else ""
                raise in_formula(error, self.name, source, {"the operation": self.operation}, self.inputs) from None
        return _with_unwanted(outs, wanted)

    def _layouts(self, tensors: Sequence[Any], dtypes: dict[str, torch.dtype], wanted: tuple[bool, ...]) -> Any:
        """A key for launches that differ in the values of their arguments alone; None where there may be more to do."""
        if self.described or self.raw_outputs or any(p.raw for p in self.inputs):
            return None
        found = layouts(tensors)
        return None if found is None else (wanted, *dtypes.values(), *found)

    def instance(
        self,
        kinds: tuple[str, ...],
        wanted: tuple[bool, ...],
        arguments: str,
        strided: bool,
        updated: tuple[str, ...] = (),
        ranks: tuple[int, ...] = (),
        overlap: bool = False,
    ) -> RawKernel:
        """Return an instance of a kernel, which may `overlap` with the one before it."""
        key = (kinds, wanted, arguments, strided, updated, ranks, overlap)
        if key not in self.kernels:
            name = f"{self.name}{'_strided' if strided else ''}<{arguments}>"
            source = self.source(kinds, wanted, updated, ranks, "complex" in arguments)
            made = RawKernel(source, name=name, options=self.options, include_dirs=(own_sources(),), strided=True)
            unit = made.unit.standing(self.origin, structs(self._columns(kinds, wanted), many_extents(ranks)))
            self.kernels[key] = RawKernel.of_unit(unit, name).configured(programmatic=overlap)
        return self.kernels[key]

    def _columns(self, kinds: tuple[str, ...], wanted: tuple[bool, ...]) -> int:
        """How many arrays the loop goes through."""
        return max(kinds.count(ARRAY) + sum(w and not p.raw for w, p in zip(wanted, self.outputs, strict=True)), 1)

    def _launch(
        self,
        tensors: Sequence[Any],
        dtypes: dict[str, torch.dtype],
        wanted: tuple[bool, ...],
        outs: list[torch.Tensor],
        like: torch.Tensor,
        updated: tuple[str, ...],
    ) -> tuple[Any, tuple[Any, ...], tuple[bool, ...]] | None:
        """Launch; the first members of a `_Known` where the tensors went to the kernel as they are."""
        raw = [p.raw for p, w in zip(self.outputs, wanted, strict=True) if w]
        results = [t for t, r in zip(outs, raw, strict=True) if not r]
        indexed = [t for t, r in zip(outs, raw, strict=True) if r]

        def run_with(results: list[torch.Tensor], indexed: list[torch.Tensor], tensors: Sequence[Any]) -> None:
            """Launch with other outputs, and copy those to where they belong."""
            every, others = iter(results), iter(indexed)
            instead = [next(others) if r else next(every) for r in raw]
            self._launch(tensors, dtypes, wanted, instead, like, updated)
            for t, value in zip(outs, instead, strict=True):
                if value is not t:
                    t.copy_(value)

        if not all(t.is_contiguous() for t in indexed):
            return run_with(results, [t.contiguous() for t in indexed], tensors)
        n, shape, on_gpu, overlap = like.numel(), like.shape, like.is_cuda, overlaps(like.device)
        given = [self._given(p, t, dtypes, like) for t, p in zip(tensors, self.inputs, strict=True)]
        kinds, arguments = tuple(kind for kind, _ in given), [*(value for _, value in given), *outs]
        same, values = all(map(_same_memory, tensors, given)), tuple(kind == VALUE for kind in kinds)
        columns = [*(value for kind, value in given if kind == ARRAY), *results]
        letters = [c_name(self.name, dtypes[x]) for x in self.letters]
        ranks: tuple[int, ...] = ()
        if self.described:
            ranks, described = extents([*(value for kind, value in given if kind == RAW), *indexed], shape)
            arguments.append(described)
        lead, pack = next(iter(results or columns), None), 1
        if lead is not None and on_gpu:
            sizes = [t.element_size() for t in columns]
            pack = max(1, min(PACK_BYTES // min(sizes), 2 * PACK_BYTES // max(sizes)))
        if lead is None or (all(t.stride() == lead.stride() for t in columns) and _dense(lead, self.indexed)):
            kernel = self.instance(kinds, wanted, ", ".join([*letters, str(pack)]), False, updated, ranks, overlap)
            launcher = kernel.forall(-(-n // pack))
            launcher(*arguments, n)
            expanded = [k for k, kind in enumerate(kinds) if kind == ONE]
            usual = tuple(ARRAY if kind == ONE else kind for kind in kinds) == self.fast_kinds and ARRAY in kinds
            arrays = [value for kind, value in given if kind in (ARRAY, ONE)]
            if usual and all(wanted) and not (updated or ranks) and len({t.dtype for t in (*arrays, *results)}) == 1:
                self.fast.learn(kernel, pack, like.dtype, on_gpu, expanded)
                return None  # native calls need nothing else
            return (launcher, (n,), values) if same else None
        order = None if self.indexed else lead.stride()
        layout, width, index, ways = strided_layout(tuple(shape), tuple(t.stride() for t in columns), order, pack)
        if layout is None:
            copies = [t.expand(shape).contiguous() if k == ARRAY else t for t, k in zip(tensors, kinds, strict=True)]
            whole = torch.contiguous_format
            fresh = [t.clone(memory_format=whole) if updated else torch.empty_like(t, memory_format=whole)
                     for t in results]  # fmt: skip
            return run_with(fresh, indexed, copies)
        instance = ", ".join([*letters, str(width), index, *aligned_ways(ways, columns, width)])
        kernel, packs = self.instance(kinds, wanted, instance, True, updated, ranks, overlap), n // width
        launcher = kernel.forall(packs)
        launcher(*arguments, layout, packs, n)
        return (launcher, (layout, packs, n), values) if same else None

    def _given(self, p: Parameter, t: Any, dtypes: dict[str, torch.dtype], out: torch.Tensor) -> tuple[str, Any]:
        """How an input comes to the kernel, and as what."""
        if not isinstance(t, torch.Tensor):
            return VALUE, t
        t, dtype, shape = t.detach().resolve_neg().resolve_conj(), p.dtype or dtypes[p.type], out.shape
        if p.raw:
            return RAW, t.to(dtype).contiguous()
        # One element that is all there is needs no kernel of its own.
        alike = t.shape == shape and t.device == out.device and t.dtype is dtype
        one = not alike if t.numel() == 1 else not any(t.stride())  # also if it is expanded
        if one and t.numel() == 1 and t.device.type == "cpu":
            return VALUE, t.item()
        if one:
            return ONE, t[(0,) * t.dim()].to(dtype)
        return ARRAY, t.expand(shape)


def _same_memory(t: Any, given: tuple[str, Any]) -> bool:
    """Whether a kernel gets an input's own memory, or a value."""
    kind, value = given
    return kind == VALUE or (t.data_ptr(), t.dtype) == (value.data_ptr(), value.dtype)


def _with_unwanted(outs: Sequence[torch.Tensor], wanted: tuple[bool, ...]) -> tuple[torch.Tensor | None, ...]:
    """Outputs with None for those that are not wanted."""
    every = iter(outs)
    return tuple(next(every) if w else None for w in wanted)


def _dense(t: torch.Tensor, indexed: bool) -> bool:
    """Whether the elements of `t` are one run of memory, in an order that will do."""
    if t.is_contiguous():
        return True
    return not indexed and torch.empty_like(t).stride() == t.stride()


def _outputs(name: str, tensors: list[torch.Tensor], dtypes: list[torch.dtype], indexed: bool) -> list[torch.Tensor]:
    """Make the outputs: of the broadcast shape, in the layout that torch's own elementwise operators would choose."""
    device = next((t.device for t in tensors if t.device.type != "cpu"), tensors[0].device)
    first = tensors[0]
    same = all(t.dim() == first.dim() and t.device == device for t in tensors)
    if same and all(t.shape == first.shape and t.is_contiguous() for t in tensors):
        return [torch.empty_like(first, dtype=d) for d in dtypes]
    shape = joint_shape(name, [t.shape for t in tensors])
    if indexed:
        return [torch.empty(shape, dtype=d, device=device) for d in dtypes]
    find = torch_strides if in_fake_op() else joint_strides
    strides = find(tuple([(t.shape, t.stride()) for t in tensors]))
    return [torch.empty_strided(shape, strides, dtype=d, device=device) for d in dtypes]
