"""Elementwise loops over tensors of any layouts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rawkern.base import frames
from rawkern.base.operator_state import in_fake_op
from rawkern.compile.files import own_sources
from rawkern.errors import CompileError
from rawkern.formulas.axes import PACK_BYTES, aligned_ways, strided_layout, structs
from rawkern.formulas.blame import in_formula
from rawkern.formulas.loop_source import ARRAY, ONE, RAW, VALUE, Statements
from rawkern.formulas.parameters import Parameter, c_name, parse_parameters
from rawkern.formulas.promotion import joint_shape
from rawkern.kernel import RawKernel
from rawkern.operators.native import Map


@dataclass(eq=False)
class Loop(Statements):
    """Statements for one element, run over tensors."""

    kernels: dict[Any, RawKernel] = field(default_factory=dict, repr=False)
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
        """
        wanted = wanted or (True,) * len(self.outputs)
        looped = [t for t, p in zip(tensors, self.inputs, strict=True) if not p.raw and isinstance(t, torch.Tensor)]
        made = [p.dtype or dtypes[p.type] for p, w in zip(self.outputs, wanted, strict=True) if w]
        outs = list(out) if out is not None else _outputs(self.name, looped, made, self.indexed)
        # Of the shape and on the device of the loop; outputs that are raw say nothing of its shape.
        like = (
            next((t for t, p in zip(outs, self.outputs, strict=True) if not p.raw), None)
            if self.raw_outputs
            else outs[0]
        )
        if like is None:
            shape = joint_shape(self.name, [t.shape for t in looped])
            like = torch.empty((), dtype=torch.bool, device=outs[0].device).expand(shape)
        if launch and like.numel():
            try:
                self._launch(tensors, dtypes, wanted, outs, like)
            except CompileError as error:
                kernel = next((k for k in self.kernels.values() if k.unit.settings.title == error.file), None)
                source = (kernel.unit.settings.code or "") if kernel is not None else ""
                raise in_formula(error, self.name, source, {"the operation": self.operation}, self.inputs) from None
        every = iter(outs)
        return tuple(next(every) if w else None for w in wanted)

    def instance(self, kinds: tuple[str, ...], wanted: tuple[bool, ...], arguments: str, strided: bool) -> RawKernel:
        key = (kinds, wanted, arguments, strided)
        if key not in self.kernels:
            name = f"{self.name}{'_strided' if strided else ''}<{arguments}>"
            source = self.source(kinds, wanted)
            made = RawKernel(source, name=name, options=self.options, include_dirs=(own_sources(),), strided=True)
            unit = made.unit.standing(self.origin, structs(self._columns(kinds, wanted)))
            self.kernels[key] = RawKernel.of_unit(unit, name)
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
    ) -> None:
        if self.raw_outputs and not all(t.is_contiguous() for t, p in zip(outs, self.outputs, strict=True) if p.raw):
            whole = [t.contiguous() if p.raw else t for t, p in zip(outs, self.outputs, strict=True)]
            self._launch(tensors, dtypes, wanted, whole, like)
            for t, value in zip(outs, whole, strict=True):
                if value is not t:
                    t.copy_(value)
            return
        n, shape, on_gpu = like.numel(), like.shape, like.is_cuda
        given = [self._given(p, t, dtypes, like) for t, p in zip(tensors, self.inputs, strict=True)]
        kinds, arguments = tuple(kind for kind, _ in given), [value for _, value in given]
        results = [t for t, p in zip(outs, self.outputs, strict=True) if not p.raw] if self.raw_outputs else outs
        columns = [*(value for kind, value in given if kind == ARRAY), *results]
        if not columns:
            letters = ", ".join([*(c_name(self.name, dtypes[x]) for x in self.letters), "1"])
            self.instance(kinds, wanted, letters, False).forall(n)(*arguments, *outs, n)
            return
        lead = results[0] if results else columns[0]
        strides, sizes = lead.stride(), [t.element_size() for t in columns]
        letters = [c_name(self.name, dtypes[x]) for x in self.letters]
        pack = max(1, min(PACK_BYTES // min(sizes), 2 * PACK_BYTES // max(sizes))) if on_gpu else 1
        if all(t.stride() == strides for t in columns) and _dense(lead, self.indexed):
            kernel = self.instance(kinds, wanted, ", ".join([*letters, str(pack)]), False)
            kernel.forall(-(-n // pack))(*arguments, *outs, n)
            if all(wanted) and kinds == self.fast_kinds and len({t.dtype for t in columns}) == 1:
                self.fast.learn(kernel, pack, lead.dtype, on_gpu)
            return
        order = None if self.indexed else strides
        layout, width, index, ways = strided_layout(tuple(shape), tuple(t.stride() for t in columns), order, pack)
        if layout is None:
            copies = [t.expand(shape).contiguous() if k == ARRAY else t for t, k in zip(tensors, kinds, strict=True)]
            raw = [p.raw for p, w in zip(self.outputs, wanted, strict=True) if w]
            fresh = [torch.empty(shape, dtype=t.dtype, device=t.device) for t in results]
            every = iter(fresh)
            self._launch(
                copies, dtypes, wanted, [t if r else next(every) for t, r in zip(outs, raw, strict=True)], like
            )
            for t, value in zip(results, fresh, strict=True):
                t.copy_(value)
            return
        instance = ", ".join([*letters, str(width), index, *aligned_ways(ways, columns, width)])
        packs = n // width
        self.instance(kinds, wanted, instance, True).forall(packs)(*arguments, *outs, layout, packs, n)

    def _given(self, p: Parameter, t: Any, dtypes: dict[str, torch.dtype], out: torch.Tensor) -> tuple[str, Any]:
        """How an input comes to the kernel, and as what."""
        if not isinstance(t, torch.Tensor):
            return VALUE, t
        t, dtype, shape = t.detach(), p.dtype or dtypes[p.type], out.shape
        if p.raw:
            return RAW, t.to(dtype).contiguous()
        # One element that is all there is needs no kernel of its own.
        alike = t.shape == shape and t.device == out.device and t.dtype is dtype
        one = not alike if t.numel() == 1 else not any(t.stride())  # also if it is expanded
        if one and t.numel() == 1 and t.device.type == "cpu":
            return VALUE, t.item()
        if one:
            return ONE, t[(0,) * t.dim()].to(dtype).resolve_neg()
        return ARRAY, t.resolve_neg().expand(shape)


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
    find = _joint_strides.__wrapped__ if in_fake_op() else _joint_strides  # what stands for any size has no hash
    strides = find(tuple([(t.shape, t.stride()) for t in tensors]))
    return [torch.empty_strided(shape, strides, dtype=d, device=device) for d in dtypes]


@functools.lru_cache(maxsize=1024)
def _joint_strides(layouts: tuple[tuple[torch.Size, tuple[int, ...]], ...]) -> tuple[int, ...]:
    """Return the strides that torch's elementwise operators choose for tensors of these shapes and strides.

    torch finds them in Python, which takes longer than the kernel.
    """
    metas = [torch.empty_strided(shape, strides, device="meta") for shape, strides in layouts]
    added = functools.reduce(torch.add, metas, metas[0])  # at least once: one that is expanded has no layout
    return added.stride()
