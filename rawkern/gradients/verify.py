"""A derived backward compared with a finite difference of the forward, in double on the CPU engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rawkern.gradients.launching import begin
from rawkern.gradients.text import Text

STEP = 1e-6
TOLERANCE = 1e-5  # relative to the sum of the sizes of what is added up
READING = 1e-4  # of the kernel in its own type against the kernel as it was understood


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the memory of two tensors, from the first element to the last, meets."""
    if a.device != b.device:
        return False
    (p, n), (q, m) = ((t.data_ptr(), _extent(t) * t.element_size()) for t in (a, b))
    return p < q + m and q < p + n


def _extent(t: torch.Tensor) -> int:
    """How many elements lie from a tensor's first to its last."""
    steps = ((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return t.numel() and 1 + sum(steps)


def apart(t: torch.Tensor) -> bool:
    """Whether a tensor's elements have memory each for itself."""
    dimensions = sorted((stride, size) for size, stride in zip(t.shape, t.stride(), strict=True) if size > 1)
    taken = 1
    for stride, size in dimensions:
        if stride < taken:
            return False
        taken = stride * (size - 1) + taken
    return True


def verify(
    original: Any, twin: Mapping[str, Any], text: Text, named: Mapping[str, Any], grid: Any, seed: int, where: str,
    whole: Mapping[str, Any],
) -> float:  # fmt: skip
    """Compare; the relative difference, or ArithmeticError. `whole`: the arguments as they were given.

    `twin`: kernels in double and the forward's block and shared memory; the backward's block may be another.
    """
    here = {n: v.detach().cpu().contiguous() if isinstance(v, torch.Tensor) else v for n, v in named.items()}
    _same_reading(original, twin["single"], here, text, (grid, twin["block"], twin["shared_mem"]), where, whole)
    draw = np.random.default_rng(seed)  # torch's numbers cannot be drawn inside of vmap
    wide = {n: v.double() if _is_float(v) else v for n, v in here.items()}  # as floats are in the twins
    wide |= {n: _beside(wide[n], draw) for n in text.wrt}
    along = {n: _like(wide[n], draw) for n in text.wrt}
    weights = {n: _like(wide[n], draw) for n in text.outputs}
    grads = _derived(twin["backward"], text, wide, weights, grid)
    derived = sum(float((grads[n] * along[n]).sum()) for n in text.wrt)
    size = sum(float((grads[n] * along[n]).abs().sum()) for n in text.wrt)
    longer = 4 if any(v.element_size() == 2 for v in here.values() if _is_float(v)) else 2
    forward = twin["forward"][grid, twin["block"], longer * twin["shared_mem"]]
    measured = 0.0
    for step in (STEP, STEP / 16, STEP * 8):
        ends = (_value(forward, text, wide, along, weights, times) for times in (step, -step))
        measured = (next(ends) - next(ends)) / (2 * step)
        if max(size, abs(measured)) <= 1e-12 or (derived != derived and measured != measured):
            return 0.0
        found = abs(derived - measured) / max(size, abs(measured))
        if found <= TOLERANCE:
            return found
    raise ArithmeticError(
        f"{where}: the derived backward of {original.name} is wrong: along a random direction it gives {derived!r}, "
        f"a central difference of the kernel gives {measured!r}; write the backward by hand, and report the kernel"
    )


def _value(
    forward: Any, text: Text, wide: Mapping[str, Any], along: Mapping[str, Any], weights: Mapping[str, Any],
    times: float,
) -> float:  # fmt: skip
    """The weighted sum of the outputs, some way along a direction."""
    moved = dict(wide)
    for n, v in along.items():
        moved[n] = wide[n] + times * v if isinstance(wide[n], torch.Tensor) else float(wide[n] + times * v)
    moved |= {n: torch.zeros_like(wide[n]) for n in text.outputs}
    moved |= {of: moved[n].clone() for n, of in text.before.items()}
    forward(*(packed(v, n, text) for n, v in moved.items()))
    return sum(float((weights[n] * moved[n]).sum()) for n in text.outputs)


def _derived(
    backward: Any, text: Text, wide: Mapping[str, Any], weights: Mapping[str, Any], grid: Any
) -> dict[str, torch.Tensor]:
    """The gradients that the backward gives, of outputs with these weights."""
    run = backward.launch(wide, grid, kept=frozenset(n for n, _ in text.handed))
    grads = {
        n: begin(wide[n], run.certain.get(n), float("nan"))
        if isinstance(wide[n], torch.Tensor)
        else torch.zeros(1, dtype=torch.float64)
        for n in text.wrt
    }
    changed = {n: of for n, of in text.before.items() if n in grads and n not in text.rest}
    grads |= {n: torch.as_tensor(weights[of]).clone() for n, of in changed.items()}
    read = {n: torch.as_tensor(v).clone() for n, v in weights.items()}
    given = run.given(backward.text.parameters, wide, read | grads)
    run.run(text.block, [packed(v, n, text) for v, (_, n) in zip(given, backward.text.parameters, strict=True)])
    for n in text.rest:
        grads[n] += read[text.before[n]]
    return grads


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def floats(named: Mapping[str, Any], text: Text) -> dict[str, Any]:
    """Tensors of bytes that hold structs of floats, as these floats."""
    return {
        n: v.contiguous().view(torch.float64 if text.records[n] == "double" else torch.float32)
        if n in text.records and isinstance(v, torch.Tensor) and v.dtype == torch.uint8
        else v
        for n, v in named.items()
    }


def packed(value: Any, name: str, text: Text) -> Any:
    """An argument as a launch takes it: structs as bytes."""
    return value.view(torch.uint8) if name in text.records and isinstance(value, torch.Tensor) else value


def _beside(value: Any, draw: np.random.Generator) -> Any:
    """Values nearby: exactly equal ones, or zeros, may be where a maximum or relu has a kink."""
    if not isinstance(value, torch.Tensor):
        return value
    size = 0.01 * value.abs() + 0.001 * float(value[value.isfinite()].abs().sum()) / max(value.numel(), 1) + 1e-9
    moved = value + 0.1 * size * torch.from_numpy(np.asarray(draw.random(tuple(value.shape))))
    return torch.where(value.isfinite(), moved, value)


def _like(value: Any, draw: np.random.Generator) -> torch.Tensor | float:
    if not isinstance(value, torch.Tensor):
        return draw.standard_normal()
    return torch.from_numpy(np.asarray(draw.standard_normal(tuple(value.shape))))


def _rebuilt(value: Any, members: Mapping[tuple[str, ...], Any], path: tuple[str, ...]) -> Any:
    """An argument as it was given, with these values for members of it, and all on the CPU."""
    if path in members:
        return members[path]
    if isinstance(value, Mapping):
        return {n: _rebuilt(v, members, (*path, n)) for n, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rebuilt(v, members, (*path, str(k))) for k, v in enumerate(value)]
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _same_reading(
    original: Any, single: Any, here: Mapping[str, Any], text: Text, at: Any, where: str, whole: Mapping[str, Any]
) -> None:
    """The kernel and the kernel as it was understood have to do the same."""
    results = []
    for kernel, left_out in ((original, (*text.before, *text.variables)), (single, ())):
        args = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in here.items() if n not in left_out}
        args |= {n: torch.zeros_like(here[n]) for n in text.outputs if n not in text.before.values()}
        given = {n: packed(v, n, text) for n, v in args.items()}
        if kernel is original and text.members:
            members = {path: given.pop(n) for n, (path, _) in text.members.items()}
            given = {n: given[n] if n in given else _rebuilt(v, members, (n,)) for n, v in whole.items()}
        kernel[at](*given.values())
        results.append({n: args[n].double() for n in text.outputs})
    for n in text.outputs:
        a, b = results[0][n], results[1][n]
        scale = float(a[a.isfinite()].abs().max()) if a.isfinite().any() else 0.0
        if not torch.allclose(a, b, rtol=READING, atol=READING * scale, equal_nan=True):
            raise ArithmeticError(
                f"{where}: {original.name} was not understood: {n} differs by {float((a - b).abs().max())!r} from "
                "what the text says as it was read; write the backward by hand, and please report the kernel"
            )
