"""The way of a launch: arguments bound, kernel found for their device, launched on a stream.

The second launch of a launcher makes a function for those that follow, the hot path: it has all settled that can be
settled before, looks at plain arguments and launches. It then is what `kernel[grid, block]` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rawkern import _torch_private as private
from rawkern import allocator, checking, launch, lookup, tensors
from rawkern._torch_private import PLAIN
from rawkern.binder import DEVICES
from rawkern.builds import Build
from rawkern.compiler import Entry, Program
from rawkern.devices import CPU, architecture, default_device
from rawkern.dynamo import untraced
from rawkern.fused import Go, Inline
from rawkern.launch import LaunchConfig
from rawkern.signature import Signature

if TYPE_CHECKING:
    from rawkern.kernel import RawKernel

__all__ = ["Launcher", "State"]

LAUNCHERS_KEPT = 256  # per kernel; programs whose n changes at every launch would fill the memory

# Launches with grid, block and shared memory settled; a stream of None is torch's current one.
Run = Callable[[int | None, tuple[Any, ...]], None]
# What functions for repeated launches are made for: the device's index, and the positions of None.
Like = tuple[int | None, tuple[int, ...]]


class State:
    """What a kernel is in one build of its source; replaced as a whole, so that a launch sees one of them only."""

    __slots__ = ("asked", "build", "engine_kernels", "entry", "name", "plain", "signature", "strided", "watch")

    def __init__(
        self, build: Build, entry: Entry, name: str | None, asked: tuple[str, ...], signature: Signature
    ) -> None:
        self.build = build
        self.watch = build.watch
        self.entry = entry
        self.name = name  # as the user wrote it
        self.asked = asked
        self.signature = signature
        self.plain = signature.plain
        self.strided = build.settings.strided
        self.engine_kernels: dict[torch.device, Any] = {}

    def engine_kernel(self, device: torch.device) -> Any:
        """Load the kernel on a device, once. Call it under the module's lock."""
        found = self.engine_kernels.get(device)
        if found is None:
            same = self.entry_in(self.build.program(architecture(device), self.asked))
            found = self.build.engine_module(device, self.asked).kernel(
                same.symbol, self.signature, cooperative=self.build.settings.cooperative
            )
            self.engine_kernels[device] = found
        return found

    def entry_in(self, program: Program) -> Entry:
        """The kernel in a program for another architecture; its symbol may differ, as that of types of cub's does."""
        same = lookup.by_symbol(program, self.entry.symbol)
        if same is None and self.name is not None:
            same = lookup.entry(program, self.name)
        if same is None or same.params != self.entry.params:
            found = "other parameters for this kernel" if same else "no such kernel"
            raise ValueError(
                f"{self.entry.name}: compiled for {program.arch} the source has {found}; "
                "keep __CUDA_ARCH__ out of its declaration"
            )
        return same


class Launcher:
    """A kernel with its grid, block and shared memory: call it with the kernel's arguments."""

    __slots__ = ("_config", "_go", "_kept", "_kernel", "_nothing", "_picks_block", "_ready")

    def __init__(
        self, kernel: RawKernel, config: LaunchConfig | None, n: int | None = None, *, picks_block: bool = False
    ) -> None:
        self._kernel = kernel
        self._config = config
        self._nothing = n == 0
        self._picks_block = n if picks_block else None
        self._ready: tuple[State | None, dict[int | None, Run], dict[Like, Go | None]] = (None, {}, {})
        self._go: Go | None = None
        self._kept: tuple[dict[Any, Go], Any] | None = None

    def keep(self, kept: dict[Any, Go], key: Any) -> Launcher:
        """Be what `kept` has under a key, and put the function for repeated launches there once it is made."""
        _keep(kept, key, self)
        self._kept = kept, key
        return self

    @untraced
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch on torch's current stream of the tensors' device."""
        if (go := self._go) is not None:
            go(*args, **kwargs)
        else:
            self._any(args, kwargs)

    @untraced
    def _other(self, go: Go, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Launch what a function for repeated launches hands over."""
        better = self._ready[2].get((_index_of(args), _nulls_of(args)))
        if better is None or better is go or kwargs:
            self._any(args, kwargs)
        else:  # for another device, or a newer build
            better(*args)

    def _any(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Launch with any arguments, in any build of the source, on any device."""
        if checking.active():
            self._checked(args, kwargs, None)
            return
        state = self._kernel._state
        if state is None or ((watch := state.watch) is not None and watch.changed()):
            state = self._kernel._find(_device_of(args, kwargs))
        found, nulls = (None if kwargs else state.plain(args, state.strided)), ()
        if found is None and not kwargs and len(args) == len(state.signature.params) and (nulls := _nulls_of(args)):
            found = state.signature.plain_but(nulls)(args, state.strided)
        if found is not None:
            index, values = found
            ready, runs, gos = self._ready
            if ready is state and (run := runs.get(index)) is not None:
                if (index, nulls) not in gos:
                    gos[index, nulls] = self._fused(state, index, run, nulls)
                    self._use(gos[index, nulls])
                run(None, values)
            else:
                self._prepare(state, None if index is None else DEVICES[index])(None, values)
        else:
            bound = state.signature.bind(args, kwargs, state.strided)
            self._prepare(state, bound.device)(None, bound.values)

    def _checked(self, args: tuple[Any, ...], kwargs: dict[str, Any], stream: Any) -> None:
        """Launch on the CPU engine with the checker beside it, then on the tensors' GPU; or as a test does it."""
        if checking.instead is not None:
            checking.instead(self, args, kwargs, stream)
            return
        if not private.stream_capturing():  # copies for a check would break the graph
            device = checking.launch(self._kernel._find(), self, args, kwargs)
            if device is None or device.type != "cuda":
                return
        with checking.paused():
            if stream is None:
                self._any(args, kwargs)
            else:
                self._on_stream(stream, args, kwargs)

    def __repr__(self) -> str:
        config = self._config
        return f"<launch of {self._kernel.name}, {config}>"

    @untraced
    def _on_stream(self, stream: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Launch on a stream that is not torch's current one; the tensors are recorded on it."""
        if not isinstance(stream, torch.cpu.Stream):
            tensors.stream_handle(stream)  # what no GPU takes is refused on the CPU, too
        state = self._kernel._find(_device_of(args, kwargs))
        if checking.active():
            self._checked(args, kwargs, stream)
            return
        bound = state.signature.bind(args, kwargs, state.strided)
        device = bound.device or _stream_device(stream) or default_device()
        _check_stream(self._kernel.name, stream, device)
        run = self._prepare(state, device)
        if device.type != "cuda":
            run(None, bound.values)
            return
        handle = tensors.stream_handle(stream)
        if bound.fresh:
            _wait(handle, device)
        run(handle, bound.values)
        tensors.record(bound.tensors, stream)
        allocator.record((*args, *kwargs.values()), handle, device.index)

    def _prepare(self, state: State, device: torch.device | None) -> Run:
        """Return the launch for a device, loading the kernel there first where need be."""
        if self._nothing or (device is not None and device.type == "meta"):
            return _launch_nothing
        if device is None:
            device = default_device()
        index = device.index if device.type == "cuda" else -1
        with self._kernel._module._lock:
            ready, runs, _ = self._ready
            if ready is not state:
                self._ready = _, runs, _ = state, {}, {}
            run = runs.get(index)
            if run is None:
                engine_kernel = state.engine_kernel(device)
                config = self._settled(engine_kernel)
                run = runs[index] = engine_kernel.configured(config.grid, config.block, config.shared_mem)
        return run

    def _use(self, go: Go | None) -> None:
        """Make a function the one for the launches that follow."""
        self._go = go
        if self._kept is not None:
            _keep(*self._kept, go or self)

    def _fused(self, state: State, index: int | None, run: Run, nulls: tuple[int, ...]) -> Go | None:
        """Return the function for plain arguments on the device of this index, if there can be one."""
        if index is None:
            return None
        kernel = state.engine_kernels.get(DEVICES[index])
        if (inlined := getattr(kernel, "inlined", None)) is not None:
            config = self._settled(kernel)
            inline = inlined(config.grid, config.block, config.shared_mem)
        else:
            inline = Inline((), (), ("run(None, ({values},))",), {"run": run})
        make = state.signature.maker(inline, strided=state.strided, watched=state.watch is not None, nulls=nulls)
        if make is None:
            return None
        changed = None if state.watch is None else state.watch.changed
        go = untraced(make(self._kernel, state, changed, self._other, index, **inline.names))
        go.__name__ = go.__qualname__ = f"launch of {self._kernel.name}, {self._config}"
        go.launcher = self  # type: ignore[attr-defined]
        return go

    def _settled(self, engine_kernel: Any) -> LaunchConfig:
        """Return the configuration, compared with the compiled kernel's limits."""
        config, name = self._config, self._kernel.name
        if config is None:
            raise TypeError(f"{name}: forall got a symbolic size, which only an operator's fake implementation can use")
        attributes = engine_kernel.attributes
        most = attributes["max_threads_per_block"]
        if self._picks_block is not None and most < config.threads:
            block = launch.auto_block(most)
            config = launch.cover(name, self._picks_block, block, cooperative=config.cooperative)
        launch.check_kernel_limits(name, config, most, engine_kernel.max_shared_mem, attributes["shared_size_bytes"])
        return config


def _keep(kept: dict[Any, Go], key: Any, go: Go) -> None:
    if len(kept) >= LAUNCHERS_KEPT and key not in kept:
        kept.clear()
    kept[key] = go


def _launch_nothing(stream: int | None, values: tuple[Any, ...]) -> None:
    """The launch of no threads."""


def _device_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device | None:
    """Guess where a launch will run, so that the first compilation is for that; binding decides."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.device.type in ("cpu", "cuda"):
            return CPU if value.device.type == "cpu" else value.device
    return None


def _index_of(args: Sequence[Any]) -> int | None:
    """The device index of the first tensor, -1 on the CPU."""
    for value in args:
        if type(value) in PLAIN:
            return value.get_device()
    return None


def _nulls_of(args: Sequence[Any]) -> tuple[int, ...]:
    """The positions of None."""
    return tuple([index for index, value in enumerate(args) if value is None])


# Streams ------------------------------------------------------------------------------------------------------


def _stream_device(stream: Any) -> torch.device | None:
    device = getattr(stream, "device", None)
    return device if isinstance(device, torch.device) and device.type == "cuda" else None


def _check_stream(name: str, stream: Any, device: torch.device) -> None:
    theirs = _stream_device(stream)
    if theirs is not None and device.type == "cuda" and theirs != device:
        raise ValueError(f"{name}: the stream is on {theirs}, the tensors are on {device}; pass a stream of {device}")


def _wait(handle: int, device: torch.device) -> None:
    """Let a stream wait for torch's current one, on which `bind` has just made something for the kernel."""
    current = torch.cuda.current_stream(device)
    if current.cuda_stream != handle:
        torch.cuda.ExternalStream(handle, device=device).wait_stream(current)
