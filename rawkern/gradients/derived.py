"""`kernel.derive`: the backward of a kernel as a kernel."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property
from typing import Any

import torch

from rawkern.base.api_boundary import api_boundary
from rawkern.compile.files import read
from rawkern.errors import LaunchError, NotDifferentiable
from rawkern.gradients import verify
from rawkern.gradients.derive import derive, forward
from rawkern.gradients.launching import Backward, Launch, begin, block_for, summed
from rawkern.gradients.reading.preprocess import Headers
from rawkern.gradients.reading.reader import Launched
from rawkern.gradients.reading.syntax import Where
from rawkern.gradients.text import Text, base_name
from rawkern.launch import config as configs
from rawkern.launch import variables
from rawkern.launch.builds import Build

Shape = tuple[int, int, int]


class Derived:
    """The backward of a kernel, derived from its source; made by ``kernel.derive``.

    Attributes
    ----------
    source : str
        CUDA C, which can be kept and edited.
    kernel : RawKernel
        That source as a kernel, for a launch by hand: its parameters are those of ``parameters``. A template where
        blocks can add up gradients that all of them add to: this is the instance in which they do.
    parameters : tuple of (str, str)
        What each parameter is: ``("value", name)``, as the forward was given it, ``("variable", name)``, the memory of
        a variable of the device (``get_global``), ``("grad", name)``, ``("size", name)``, how many elements that
        gradient has, or ``("blocks", axis)``, of the forward's grid. Where the kernel overwrites what it has read,
        ``("copy", name)``, a copy of the array as it was before, in which it runs again, ``("tape", name)``, memory
        that it fills with what iterations read, and ``("iterations", name)``, how many a loop has at most.
    wrt : tuple of str
        Parameters whose gradients it adds to, or sets; those begin with zeros.
    outputs : tuple of str
        Pointers whose gradients it reads.
    saved : tuple of str
        Pointers whose values it reads, which so have to be what the forward saw.
    exchanged : tuple of str
        Outputs whose gradients it sets to zero while it reads them; calling gives it copies.
    sets : mapping of str
        Of ``wrt``: those whose gradients it sets, not adds to.
    handed : mapping of str to str
        Of ``sets``: those that are the gradient of an output or of another of ``sets``, element by element, where all
        of their elements are set; a call hands that on.
    block : tuple of int
        The shape of the blocks that it is right for; the grid is the forward's, unless the text says otherwise.
    shared_mem : int
        Bytes of dynamic shared memory that its launch needs, less the sums of its blocks.
    before : mapping of str
        Arrays that the kernel overwrites in place, as they were before it: ``{"y_before": "y"}``. A call takes that
        value, so keep a copy of it before the forward.
    rest : set of str
        Of ``before``: those whose gradients get in the end what is left in those of the outputs, which a call does.
    atomics : int
        Places in the text that add where several threads may meet. 0 means: the same result every time.
    """

    def __init__(
        self,
        original: Any,
        text: Text,
        twin: Any,
        where: str,
        general: Callable[[], Derived],
        plain: Callable[[], Text],
        resize: Callable[[int, bool], Derived],
    ) -> None:
        self._original, self._text, self._twin, self._where, self._plain = original, text, twin, where, plain
        self._general, self._other = general, None
        self._resize, self._sizes = resize, dict[tuple[int, bool], Derived | None]()
        self.source, self.parameters = text.source, text.parameters
        self.wrt, self.outputs, self.saved, self.exchanged = text.wrt, text.outputs, text.saved, text.exchanged
        self.block, self.atomics, self.assigned, self.sets = text.block, text.atomics, text.assigned, text.sets
        self.handed = dict(text.handed)
        self.shared_mem, self.before, self.rest = text.shared_mem, text.before, text.rest
        self._backward = Backward(text, lambda name: type(original)(text.source, name, options=original.options))
        self.kernel = self._backward.kernel(
            (True,) * len(text.sums), (True,) * len(text.handed), text.each, (0,) * len(text.rows)
        )

    def __repr__(self) -> str:
        return f"<Derived {self._text.name}, wrt {', '.join(self.wrt)}>"

    @api_boundary
    def __call__(
        self, grid: int | Sequence[int], args: Sequence[Any], grads: Mapping[str, torch.Tensor | None]
    ) -> dict[str, torch.Tensor]:
        """Run the backward of a launch of the forward.

        Parameters
        ----------
        grid : int or tuple of ints
            Blocks of the grid, as the forward's.
        args : sequence
            The forward's arguments, as they were before it ran.
        grads : mapping of str to torch.Tensor
            For each of ``outputs`` its gradient, of the output's shape and dtype; None or left out for zeros.

        Returns
        -------
        dict of str to torch.Tensor
            The gradient of each of ``wrt``: of the argument's shape and dtype, of one element for a number. Where it
            is that of an output, element by element, it is the tensor in ``grads`` or shares its memory; where it is
            that of another argument, it is the same tensor.

        Raises
        ------
        LaunchError
            The grid has more than one block along an axis that was taken to have one, or tensors overlap.
        TypeError, ValueError
            Arguments that do not fit.
        """
        shape = self.checked_grid(grid)
        named = self.named(args)
        right = self.fitting(shape, named)
        if right is not self:
            return right(grid, args, grads)
        self.check_overlaps(named)
        in_bytes = {n for n, v in named.items() if isinstance(v, torch.Tensor) and v.dtype == torch.uint8}
        named, grads = verify.floats(named, self._text), verify.floats(grads, self._text)
        run = self.launch(named, shape)
        names = {n for kind, n in self.parameters if kind == "grad" and n not in self.wrt} | set(self.before.values())
        read = {n: self._gradient(named, n, grads) for n in names}
        found = {
            n: read[self.before[n]].clone() if n in self.before and n not in self.rest else self.start(named, n, run)
            for n in self.wrt
            if n not in run.handed
        }
        found |= {n: (read | found)[of] for n, of in run.handed.items()}
        given = run.given(self.parameters, named, found | read)
        unknown = set(grads) - set(self.outputs)
        if unknown:
            raise ValueError(
                f"{self._text.name}: grads names {', '.join(sorted(unknown))}; outputs are {', '.join(self.outputs)}"
            )
        with torch.no_grad():
            packed = [verify.packed(g, n, self._text) for g, (_, n) in zip(given, self.parameters, strict=True)]
            run.run(self.block, packed)
            for name in self.rest:
                found[name] += read[self.before[name]]
        found = {n: self._rounded(g, named[n]) for n, g in found.items()}
        found = {n: verify.packed(g, n, self._text) if n in in_bytes else g for n, g in found.items()}
        return {n: found[n] for n in self.wrt}

    def verify(self, grid: int | Sequence[int], args: Sequence[Any], *, seed: int = 0) -> float:
        """Compare with a directional derivative of the forward, in double on the CPU engine.

        Two things are compared, on copies of the arguments: the kernel itself with the kernel as it was understood, and
        the derived gradient along a random direction with a central difference.

        Parameters
        ----------
        grid, args
            As for the call.
        seed : int
            Of the direction.

        Returns
        -------
        float
            The relative difference that was found.

        Raises
        ------
        ArithmeticError
            They differ; with both numbers.
        """
        shape = self.checked_grid(grid)
        named = self.named(args)
        right = self.fitting(shape, named)
        if right is not self:
            return right.verify(grid, args, seed=seed)
        named = verify.floats(named, self._text)
        here = self.variables({})  # those of the CPU engine, which get the values of the arguments' device for a while
        before = {n: v.clone() for n, v in here.items()}
        try:
            for n, v in here.items():
                v.copy_(named[n])
            called = [p.name for p in self._original.state().signature.params]
            whole = dict(zip(called, args, strict=True))
            return verify.verify(self._original, self._twin(), self._text, named, shape, seed, self._where, whole)
        finally:
            for n, v in here.items():
                v.copy_(before[n])

    @cached_property
    def plain(self) -> tuple[Text, Backward]:
        """The same backward as a text to derive again, and how it is launched."""
        text = self._plain()
        make = lambda called: type(self._original)(text.source, called, options=self._original.options)  # noqa: E731
        return text, Backward(text, make)

    # What calls and operators share -------------------------------------------------------------------------------

    def checked_grid(self, grid: int | Sequence[int]) -> Shape:
        """A grid that the derived text is right for."""
        shape = configs.make_config(self._text.name, grid, self.block).grid
        for axis, blocks, unit in zip("xyz", shape, self._text.unit_axes, strict=True):
            if unit and blocks != 1:
                raise LaunchError(
                    f"{self._text.name} was derived for gridDim.{axis} = 1 and the grid has {blocks} blocks there; "
                    f"derive it again with grid={tuple(shape)}"
                )
        return shape

    def fitting(self, grid: Shape, named: Mapping[str, Any]) -> Derived:
        """This backward, or one that assumes nothing of a launch's numbers if this is not right for it.

        On a GPU it may be one with blocks of another size, which suits the launch.
        """
        for n, value in self._text.constants.items():
            if named[n] != value:
                raise LaunchError(
                    f"{self._text.name} was derived for {n} = {value}, and the launch has {n} = {named[n]}; "
                    f"derive it again with constants={ {each: named[each] for each in self._text.constants} }"
                )
        right = self
        if not self._holds(named, grid):
            if self._other is None:
                self._other = self._general()
            right = self._other
        if any(isinstance(t, torch.Tensor) and t.is_cuda for t in named.values()):
            suits = block_for(right._text, named, grid)
            sized = right.with_threads(*suits) if suits is not None else None
            if sized is not None and sized._holds(named, grid):
                return sized
        return right

    def with_threads(self, threads: int, stage: bool = False) -> Derived | None:
        """This backward with blocks of so many threads; None if what the kernel computes may depend on their number.

        `stage`: with a row that several loops read in shared memory.
        """
        if (threads, stage) == (self.block[0], self._text.staged):
            return self
        if (threads, stage) not in self._sizes:
            try:
                self._sizes[threads, stage] = self._resize(threads, stage)
            except NotDifferentiable:
                self._sizes[threads, stage] = None
        return self._sizes[threads, stage]

    def _holds(self, named: Mapping[str, Any], grid: Shape) -> bool:
        """Whether what the text assumes of a launch's numbers is true."""
        return not self._text.assumed or self.launch(named, grid).fits

    def named(self, args: Sequence[Any]) -> dict[str, Any]:
        """The forward's arguments by name."""
        params = self._original.state().signature.params
        names = [p.name for p in params]
        if len(args) != len(names):
            raise TypeError(
                f"{self._text.name}: {len(args)} arguments, the forward takes {len(names)}: {', '.join(names)}"
            )
        members, named = self._text.members, dict[str, Any]()
        for p, value in zip(params, args, strict=True):
            own = {n: path[1:] for n, (path, _) in members.items() if path[0] == p.name}
            named |= {n: self._member(p.name, value, path) for n, path in own.items()} if own else {p.name: value}
        tensors = {p.name for p in params if p.takes_tensor} - {path[0] for path, _ in members.values()}
        for n in (n for n in named if n in tensors or n in self._text.pointers):
            if named[n] is not None and not isinstance(named[n], torch.Tensor):
                raise TypeError(f"{self._text.name}: {n} is {type(named[n]).__name__}; pass a torch.Tensor")
        return named | self.variables(named) | {name: named[of] for name, of in self.before.items()}

    def _member(self, name: str, value: Any, path: Sequence[str]) -> Any:
        """A member of an argument that is a struct or list."""
        for step in path:
            if isinstance(value, Mapping) and step in value:
                value = value[step]
            elif isinstance(value, list | tuple) and step.isdigit() and int(step) < len(value):
                value = value[int(step)]
            else:
                raise TypeError(
                    f"{self._text.name}: {name} is {type(value).__name__} without {step}; "
                    "pass a struct as a dict by member, a list of arrays as a list of tensors"
                )
        return value

    def variables(self, named: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The variables that the kernel reads, as they are now on the device of its arguments."""
        device = next((t.device for t in named.values() if isinstance(t, torch.Tensor)), torch.device("cpu"))
        build = self._original.build()
        with self._original.unit.lock:
            return {name: variables.view(build, full, device) for name, full in self._text.variables.items()}

    def check_overlaps(self, named: Mapping[str, Any]) -> None:
        """What the forward wrote may be nothing that it also read; and indices are counted as the text does."""
        tensors = {n: t for n, t in named.items() if isinstance(t, torch.Tensor) and t.numel()}
        for name, t in tensors.items():
            if t.numel() >= 1 << 31:
                raise ValueError(
                    f"{self._text.name}: {name} has {t.numel()} elements, and derived indices may have 31 bits; "
                    "launch on parts of it"
                )
        for output in sorted(self._text.written & set(tensors)):
            if not verify.apart(tensors[output]):
                raise LaunchError(
                    f"{self._text.name}: elements of {output} share memory (shape {tuple(tensors[output].shape)}, "
                    f"strides {tensors[output].stride()}), and the forward writes to it; give it memory of its own"
                )
            for other, t in tensors.items():
                if other != output and self.before.get(other) != output and verify.overlap(tensors[output], t):
                    raise LaunchError(
                        f"{self._text.name}: {output} and {other} share memory, so the forward overwrote what it read; "
                        "give it an output of its own"
                    )

    @staticmethod
    def _rounded(grad: torch.Tensor, value: Any) -> torch.Tensor:
        """A gradient in the dtype of what it is of: those of half precision are summed in float."""
        return grad.to(value.dtype) if isinstance(value, torch.Tensor) else grad

    def launch(self, named: Mapping[str, Any], grid: Shape, kept: Set[str] = frozenset()) -> Launch:
        """What to launch for a forward with these arguments and grid; `kept`: gradients that are not handed on."""
        return self._backward.launch(named, grid, kept)

    def start(self, named: Mapping[str, Any], name: str, run: Launch) -> torch.Tensor:
        """Memory for a gradient as the backward needs it: zeros where it adds, or may set nothing."""
        value = named[name]
        if isinstance(value, torch.Tensor):
            return begin(value, run.certain.get(name))
        like = next(t for t in named.values() if isinstance(t, torch.Tensor))
        params = self._original.state().signature.params
        kind = next((str(p.ctype.name) for p in params if p.name == name), None) or self._text.members[name][1]
        return torch.zeros(1, device=like.device, dtype=torch.float64 if "double" in kind else torch.float32)

    def _gradient(self, named: Mapping[str, Any], name: str, grads: Mapping[str, torch.Tensor | None]) -> torch.Tensor:
        grad, output = grads.get(name), named[name]
        if grad is None:
            return torch.zeros_like(output, dtype=summed(output.dtype), memory_format=torch.contiguous_format)
        if grad.shape != output.shape or grad.dtype != output.dtype or grad.device != output.device:
            raise ValueError(
                f"{self._text.name}: the gradient of {name} is {tuple(grad.shape)} {grad.dtype} on {grad.device}, "
                f"{name} is {tuple(output.shape)} {output.dtype} on {output.device}"
            )
        given = grad.detach().to(summed(grad.dtype)).contiguous()
        own = given.data_ptr() != grad.data_ptr()
        return given if (own or name not in self.exchanged) and given.data_ptr() % 16 == 0 else given.clone()


def derive_kernel(
    kernel: Any,
    block: int | Sequence[int],
    grid: int | Sequence[int] | None,
    shared_mem: int,
    wrt: Sequence[str] | None,
    max_iterations: int | None,
    constants: Mapping[str, int],
) -> Derived:
    """`RawKernel.derive`, whose parameters these are."""
    build: Build = kernel.build()
    name = kernel.asked_name or kernel.state().entry.name
    shape = configs.make_config(name, 1 if grid is None else grid, block, shared_mem)
    x, y, z = (n == 1 for n in shape.grid)
    units = None if grid is None else (x, y, z)
    source = build.source
    if source.binary is not None:
        raise LaunchError(
            f"{name} was loaded from {source.name}, as it is compiled; a backward is derived from CUDA source"
        )
    where = Where(source.title, name, lambda line: source.place(source.name, line))
    launched = Launched(shape.block, units, shape.shared_mem, dict(constants))
    found = {path: read(path) for path, _ in source.headers}
    texts = {path: data.decode(errors="replace").replace("\r\n", "\n") for path, data in found.items() if data}
    headers = Headers(texts, source.path and os.path.dirname(source.path), source.include_dirs, source)
    common: dict[str, Any] = {"where": where, "options": source.options, "launched": launched, "headers": headers}
    given: dict[str, Any] = {**common, "wrt": wrt, "max_iterations": max_iterations}

    def made(assume: bool, threads: int | None = None, stage: bool = False) -> Derived:
        text = derive(source.text, name, assume=assume, threads=threads, stage=stage, **given)
        own = {p.name for p in kernel.state().signature.params} | {*text.before, *text.variables, *text.members}
        for kind, each in text.parameters:
            if kind not in ("blocks", "tape", "iterations") and each not in own:  # a call could not tell what it means
                raise where.refuse(1, f"a macro declares the parameter {each}", "write it out in the kernel's head")
        return Derived(
            kernel, text, lambda: twin(assume, threads), source.title, lambda: made(False, threads, stage),
            lambda: plain(text.wrt), lambda size, stage: made(assume, size, stage),
        )  # fmt: skip

    def plain(wrt: tuple[str, ...]) -> Text:
        return derive(source.text, name, assume=False, plain=True, **{**given, "wrt": wrt})

    def twin(assume: bool, threads: int | None) -> dict[str, Any]:
        """The texts and kernels that `verify` compares."""
        double = derive(source.text, name, double=True, assume=assume, threads=threads, **given)
        again = {**common, "updated": double.updated, "tape": double.taped}
        make = lambda code, called: type(kernel)(code, called, options=source.options)  # noqa: E731
        base = base_name(name)
        return {
            "backward": Backward(double, lambda called: make(double.source, called)),
            "forward": make(forward(source.text, name, double=True, assume=assume, **again), f"{base}_forward"),
            "single": make(forward(source.text, name, assume=assume, **again), f"{base}_forward"),
            "block": shape.block,
            "shared_mem": shape.shared_mem,
        }

    return made(True)
