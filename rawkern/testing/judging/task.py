"""The task of candidates: a reference, inputs, and the launch of a kernel on them."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from rawkern.base.forking import Lock
from rawkern.base.nested import mapped, tensors_in
from rawkern.testing.results import Outcome
from rawkern.testing.samples import Sample, make_sample
from rawkern.testing.trials import Target, Trial, call, exact
from rawkern.testing.variations import legal

CPU = torch.device("cpu")
SPECIAL = ("zeros", "nan", "inf", "large")
_generator = Lock()
_EVERY = 7  # elements from one special value to the next


@dataclass(frozen=True)
class Configuration:
    """The launch of a kernel; each value may be a function of the arguments."""

    grid: Any = None
    block: Any = None
    forall: Any = None
    shared_mem: Any = 0

    @property
    def fixed(self) -> bool:
        """Whether the number of threads is independent of the arguments."""
        return any(each is not None and not callable(each) for each in (self.grid, self.forall))

    def of(self, args: Sequence[Any], outputs: Sequence[int]) -> dict[str, Any]:
        """The configuration for some arguments, as numbers."""
        made = {name: value(*args) if callable(value) else value for name, value in vars(self).items()}
        if made["grid"] is None and made["forall"] is None:
            made["forall"] = args[outputs[0]].numel()
        return made


@dataclass(frozen=True)
class Task:
    """A reference with inputs; candidates may be kernels, whose outputs are among the arguments, or functions."""

    reference: Callable[..., Any]
    inputs: Callable[..., Sequence[Any]] | Sequence[Any]
    outputs: tuple[int, ...]  # arguments that a kernel writes, and the reference returns
    mutates: tuple[int, ...]  # arguments that are read and written
    init: Sequence[Any]
    configuration: Configuration
    device: torch.device
    tolerance: float | None
    seed: int
    size: int | None = None  # the size of the sample if inputs is a function of a size
    _samples: dict[tuple[int, int | None], Sample] = field(default_factory=dict)

    @property
    def target(self) -> Target:
        return Target(self.reference, self.reference, "the candidate", self.tolerance)

    def sample(self, number: int, size: int | None = None) -> Sample:
        """The inputs of a seed number: from the function called again, or the sample's values permuted."""
        size = self.size if size is None else size
        if (number, size) not in self._samples:
            args = self._drawn(number, size) if callable(self.inputs) else self.inputs
            self._samples[number, size] = self._made(args)
            if number and not callable(self.inputs):
                self._samples[number, size] = _shuffled(self._samples[number, size], self.seed + number)
        return self._samples[number, size]

    def _drawn(self, number: int, size: int | None) -> Sequence[Any]:
        assert callable(self.inputs)
        with _seeded(self.seed + number):
            return self.inputs() if size is None else self.inputs(size)

    def _made(self, args: Sequence[Any]) -> Sample:
        if not isinstance(args, (list, tuple)):
            raise TypeError(f"judge: inputs is a {type(args).__name__}; pass a list or tuple of arguments")
        for name, positions in (("outputs", self.outputs), ("mutates", self.mutates)):
            for p in positions:
                if not -len(args) <= p < len(args) or not isinstance(args[p], torch.Tensor):
                    raise ValueError(f"judge: {name} names argument {p}, which is not a tensor of the inputs")
        places = [p % len(args) for p in (*self.outputs, *self.mutates)]
        named: Any = self.reference if not self.outputs else None
        return make_sample(named, args, {}, places, "judge")

    def places(self, sample: Sample, positions: Sequence[int]) -> list[int]:
        """The sample's tensors at the given positions of the arguments."""
        args = self.arguments(sample)
        starts = [0]
        for each in args:
            starts.append(starts[-1] + len(tensors_in(each)))
        return [starts[p % len(args)] for p in positions]

    def arguments(self, sample: Sample) -> tuple[Any, ...]:
        """The arguments of a call, with the sample's own tensors."""
        return sample.filled(sample.tensors)[0]

    def trial(self, sample: Sample) -> Trial:
        """The arguments of a call of the reference: without those that are only outputs."""
        count = len(sample.args)
        left = {p % count for p in self.outputs}
        args = tuple(each for p, each in enumerate(sample.args) if p not in left)
        written = frozenset(self.places(sample, self.mutates))
        return Trial("", replace(sample, args=args, written=written), CPU)

    def exact(self, sample: Sample) -> Outcome:
        """The expected results of a call: the reference in float64."""
        return exact(self.target, self.trial(sample))

    def native(self, sample: Sample) -> tuple[Outcome, bool] | None:
        """The reference's results in the inputs' dtype, and whether they share an input's memory; None if it fails."""
        trial = self.trial(sample)
        tensors = [t.clone() for t in sample.tensors]
        try:
            with torch.no_grad():
                found = call(self.reference, trial.sample, tensors, False)
        except Exception:  # the CPU lacks some operators for half types
            return None
        inputs = {t.untyped_storage().data_ptr() for t in tensors if t.numel()}
        returned = found.results[: len(found.results) - len(trial.sample.written)]
        return found, any(t.untyped_storage().data_ptr() in inputs for t in returned)

    # Variations -------------------------------------------------------------------------------------------------------

    def resized(self, sizes: Sequence[int], kernel: bool) -> Iterator[tuple[str, Sample]]:
        """Samples with each size replaced by others that the reference accepts, which is tried with other values."""
        if self.size is not None:
            yield from ((f"size {size}", self.sample(0, size)) for size in sizes if size != self.size)
            return
        probe, sample = self.sample(-1), self.sample(0)
        for old in sample.sizes():
            for new in sizes:
                for numbers in (True,) if kernel else (False, True):
                    if new == old or legal(self.target, self.trial(probe.resized(old, new, numbers))) is None:
                        continue
                    yield f"{new} in place of {old}", sample.resized(old, new, numbers)
                    break

    def special(self, kind: str) -> Sample | None:
        """A sample with special values in the floating-point inputs; None if there are no such inputs."""
        sample = self.sample(0)
        outputs = set(self.places(sample, self.outputs))
        changed = [
            _special(t, kind) if i not in outputs and t.is_floating_point() else t for i, t in enumerate(sample.tensors)
        ]
        if all(a is b for a, b in zip(changed, sample.tensors, strict=True)):
            return None
        return replace(sample, tensors=tuple(changed))


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch's generator, which all threads share, for the duration of the block."""
    with _generator, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def sized(inputs: Any) -> bool:
    """Whether inputs are a function of a size."""
    if not callable(inputs):
        return False
    parameters = inspect.signature(inputs).parameters.values()
    return any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def runs_on(reference: Any, init: Sequence[Any], device: torch.device, seed: int) -> Callable[..., Any]:
    """A reference as a function: a module is converted to the dtype of its inputs and runs on the device."""
    if inspect.isclass(reference):
        with _seeded(seed):
            reference = reference(*init)
    if not callable(reference):
        raise TypeError(f"judge: reference is a {type(reference).__name__}; pass a function, a module or its class")
    if not isinstance(reference, torch.nn.Module):
        return reference
    module, kept = reference, {}

    def of_module(*args: Any) -> Any:
        dtype = next((t.dtype for t in tensors_in(args) if t.is_floating_point()), None)
        if dtype not in kept:
            made = copy.deepcopy(module).to(device)
            own = {p.dtype for p in made.parameters() if p.is_floating_point()}
            kept[dtype] = made if dtype is None or own == {dtype} else made.to(dtype)
        with torch.no_grad():
            given = mapped(lambda _, v: v.to(device) if isinstance(v, torch.Tensor) else v, args)
            found = kept[dtype](*given)
        return mapped(lambda _, v: v.cpu() if isinstance(v, torch.Tensor) else v, found)

    return of_module


def _shuffled(sample: Sample, seed: int) -> Sample:
    """Permute the floating-point values; integers may be indices or counts, and do not change."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for t in sample.tensors:
        if t.is_floating_point() or t.is_complex():
            t = t.reshape(-1)[torch.randperm(t.numel(), generator=generator)].reshape(t.shape)
        tensors.append(t)
    return replace(sample, tensors=tuple(tensors))


def _special(t: torch.Tensor, kind: str) -> torch.Tensor:
    made = t.clone()
    flat = made.view(-1)
    if kind == "zeros":
        flat.zero_()
    elif kind == "nan":
        flat[::_EVERY] = float("nan")
    elif kind == "inf":
        flat[:: 2 * _EVERY], flat[_EVERY :: 2 * _EVERY] = float("inf"), -float("inf")
    else:  # their squares are finite, sums of a few squares overflow
        flat[::_EVERY] = torch.finfo(t.dtype).max ** 0.5 / 2
    return made
