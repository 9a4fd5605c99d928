"""Elementwise loops over tensors of any layouts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rawkern.base.operator_state import in_fake_op
from rawkern.formulas.axes import PACK_BYTES, aligned_ways, strided_layout
from rawkern.formulas.loop_source import ARRAY, ONE, RAW, VALUE, Statements
from rawkern.formulas.parameters import c_name
from rawkern.formulas.promotion import joint_shape
from rawkern.kernel import RawKernel
from rawkern.module import own_sources
from rawkern.operators.native import Map


@dataclass(eq=False)
class Loop(Statements):
    """Statements for one element, run over tensors."""

    kernels: dict[Any, RawKernel] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        numbers = [k for k, p in enumerate(self.inputs) if p.type == "float64"]
        #: The loop as a call: an output, or a tuple of them, for its inputs.
        self.fast = Map(self._computed, len(self.inputs), len(self.outputs), numbers)
        self.fast_kinds = [VALUE if k in numbers else ARRAY for k in range(len(self.inputs))]

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
        return _run(self, tensors, dtypes, wanted or (True,) * len(self.outputs), out, launch)

    def instance(self, kinds: tuple[str, ...], wanted: tuple[bool, ...], arguments: str, strided: bool) -> RawKernel:
        key = (kinds, wanted, arguments, strided)
        if key not in self.kernels:
            name = f"{self.name}{'_strided' if strided else ''}<{arguments}>"
            source = self.source(kinds, wanted)
            self.kernels[key] = RawKernel(
                source, name=name, options=self.options, include_dirs=(own_sources(),), strided=True
            )
        return self.kernels[key]


def _run(
    loop: Loop,
    tensors: Sequence[Any],
    dtypes: dict[str, torch.dtype],
    wanted: tuple[bool, ...],
    out: Sequence[torch.Tensor] | None,
    launch: bool,
) -> tuple[torch.Tensor | None, ...]:
    looped = [t for t, p in zip(tensors, loop.inputs, strict=True) if not p.raw and isinstance(t, torch.Tensor)]
    made = [d for p, w in zip(loop.outputs, wanted, strict=True) if w for d in [p.dtype or dtypes[p.type]]]
    outs = list(out) if out is not None else _outputs(looped, made, loop.indexed)
    every = iter(outs)
    result = tuple(next(every) if w else None for w in wanted)
    n = outs[0].numel()
    if not launch or n == 0:
        return result
    shape = outs[0].shape
    kinds: list[str] = []
    arguments: list[Any] = []
    arrays: list[torch.Tensor] = []
    for t, p in zip(tensors, loop.inputs, strict=True):
        if not isinstance(t, torch.Tensor):
            kinds.append(VALUE)
            arguments.append(t)
            continue
        dtype = p.dtype or dtypes[p.type]
        t = t.detach()
        if p.raw:
            kinds.append(RAW)
            arguments.append(t.to(dtype).contiguous())
        elif t.numel() == 1 and t.device.type == "cpu":
            kinds.append(VALUE)
            arguments.append(t.item())
        elif t.numel() == 1 or not any(t.stride()):  # one element, also if it is expanded
            kinds.append(ONE)
            arguments.append(t[(0,) * t.dim()].to(dtype).resolve_neg())
        else:
            kinds.append(ARRAY)
            t = t.resolve_neg().expand(shape)
            arguments.append(t)
            arrays.append(t)
    columns = [*arrays, *outs]
    sizes = [t.element_size() for t in columns]
    on_gpu = outs[0].is_cuda
    letters = [c_name(loop.name, dtypes[x]) for x in loop.letters]
    strides = outs[0].stride()
    one_order = all(t.stride() == strides for t in columns) and _dense(outs[0], loop.indexed)
    pack = max(1, min(PACK_BYTES // min(sizes), 2 * PACK_BYTES // max(sizes))) if on_gpu else 1
    if one_order:
        kernel = loop.instance(tuple(kinds), wanted, ", ".join([*letters, str(pack)]), False)
        kernel.forall(-(-n // pack))(*arguments, *outs, n)
        if all(wanted) and kinds == loop.fast_kinds and len({t.dtype for t in columns}) == 1:
            loop.fast.learn(kernel, pack, outs[0].dtype, on_gpu)
        return result
    order = None if loop.indexed else strides
    layout, width, index, ways = strided_layout(tuple(shape), tuple(t.stride() for t in columns), order, pack)
    if layout is None:
        copies = [t.expand(shape).contiguous() if k == ARRAY else t for t, k in zip(tensors, kinds, strict=True)]
        made_outs = [torch.empty(shape, dtype=t.dtype, device=t.device) for t in outs]
        _run(loop, copies, dtypes, wanted, made_outs, True)
        for t, value in zip(outs, made_outs, strict=True):
            t.copy_(value)
        return result
    kernel = loop.instance(
        tuple(kinds), wanted, ", ".join([*letters, str(width), index, *aligned_ways(ways, columns, width)]), True
    )
    packs = n // width
    kernel.forall(packs)(*arguments, *outs, layout, packs, n)
    return result


def _dense(t: torch.Tensor, indexed: bool) -> bool:
    """Whether the elements of `t` are one run of memory, in an order that will do."""
    if t.is_contiguous():
        return True
    return not indexed and torch.empty_like(t).stride() == t.stride()


def _outputs(tensors: list[torch.Tensor], dtypes: list[torch.dtype], indexed: bool) -> list[torch.Tensor]:
    """Make the outputs: of the broadcast shape, in the layout that torch's own elementwise operators would choose."""
    device = next((t.device for t in tensors if t.device.type != "cpu"), tensors[0].device)
    first = tensors[0]
    same = all(t.dim() == first.dim() and t.device == device for t in tensors)
    if same and all(t.shape == first.shape and t.is_contiguous() for t in tensors):
        return [torch.empty_like(first, dtype=d) for d in dtypes]
    shape = joint_shape([t.shape for t in tensors])
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
