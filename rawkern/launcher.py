"""The way of a launch: arguments bound, kernel found for their device, launched on a stream.

`Launcher.__call__` is the hot path: what can be settled before is settled before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rawkern import launch, lookup, tensors
from rawkern.binder import DEVICES
from rawkern.compiler import Entry
from rawkern.devices import CPU, architecture, default_device
from rawkern.dynamo import untraced
from rawkern.launch import LaunchConfig
from rawkern.module import Build
from rawkern.signature import Signature

if TYPE_CHECKING:
    from rawkern.kernel import RawKernel

__all__ = ["Launcher", "State"]

# Launches with grid, block and shared memory settled; a stream of None is torch's current one.
Run = Callable[[int | None, tuple[Any, ...]], None]


class State:
    """What a kernel is in one build of its source; replaced as a whole, so that a launch sees one of them only."""

    __slots__ = ("asked", "bind", "build", "engine_kernels", "entry", "plain", "signature", "strided", "watch")

    def __init__(self, build: Build, entry: Entry, asked: tuple[str, ...], signature: Signature) -> None:
        self.build = build
        self.watch = build.watch
        self.entry = entry
        self.asked = asked
        self.signature = signature
        self.bind = signature.bind
        self.plain = signature.plain
        self.strided = build.settings.strided
        self.engine_kernels: dict[torch.device, Any] = {}

    def engine_kernel(self, device: torch.device) -> Any:
        """Load the kernel on a device, once. Call it under the module's lock."""
        found = self.engine_kernels.get(device)
        if found is None:
            program = self.build.program(architecture(device), self.asked)
            same = lookup.by_symbol(program, self.entry.symbol)
            if same is None or same.params != self.entry.params:
                found = "other parameters for this kernel" if same else "no such kernel"
                raise ValueError(
                    f"{self.entry.name}: compiled for {program.arch} the source has {found}; "
                    "keep __CUDA_ARCH__ out of its declaration"
                )
            found = self.build.engine_module(device, self.asked).kernel(
                self.entry.symbol, self.signature, cooperative=self.build.settings.cooperative
            )
            self.engine_kernels[device] = found
        return found


class Launcher:
    """A kernel with its grid, block and shared memory: call it with the kernel's arguments."""

    __slots__ = ("_config", "_kernel", "_nothing", "_picks_block", "_ready")

    def __init__(
        self, kernel: RawKernel, config: LaunchConfig | None, n: int | None = None, *, picks_block: bool = False
    ) -> None:
        self._kernel = kernel
        self._config = config
        self._nothing = n == 0
        self._picks_block = n if picks_block else None
        self._ready: tuple[State | None, dict[int | None, Run]] = (None, {})

    @untraced
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch on torch's current stream of the tensors' device."""
        state = self._kernel._state
        if state is None or ((watch := state.watch) is not None and watch.changed()):
            state = self._kernel._find(_device_of(args, kwargs))
        if not kwargs and (found := state.plain(args, state.strided)) is not None:
            index, values = found
            ready, runs = self._ready
            if ready is state and (run := runs.get(index)) is not None:
                run(None, values)
            else:
                self._prepare(state, None if index is None else DEVICES[index])(None, values)
        else:
            bound = state.bind(args, kwargs, state.strided)
            self._prepare(state, bound.device)(None, bound.values)

    def __repr__(self) -> str:
        config = self._config
        return f"<launch of {self._kernel.name}, {config}>"

    @untraced
    def _on_stream(self, stream: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Launch on a stream that is not torch's current one; the tensors are recorded on it."""
        state = self._kernel._find(_device_of(args, kwargs))
        bound = state.bind(args, kwargs, state.strided)
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

    def _prepare(self, state: State, device: torch.device | None) -> Run:
        """Return the launch for a device, loading the kernel there first where need be."""
        if self._nothing or (device is not None and device.type == "meta"):
            return _launch_nothing
        if device is None:
            device = default_device()
        index = device.index if device.type == "cuda" else -1
        with self._kernel._module._lock:
            ready, runs = self._ready
            if ready is not state:
                self._ready = _, runs = state, {}
            run = runs.get(index)
            if run is None:
                engine_kernel = state.engine_kernel(device)
                run = runs[index] = _run(engine_kernel, self._settled(engine_kernel))
        return run

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


def _run(engine_kernel: Any, config: LaunchConfig) -> Run:
    grid, block, shared_mem = config.grid, config.block, config.shared_mem
    configured = getattr(engine_kernel, "configured", None)
    if configured is not None:
        return configured(grid, block, shared_mem)
    do = engine_kernel.launch
    return lambda stream, values: do(grid, block, shared_mem, stream or 0, values)


def _launch_nothing(stream: int | None, values: tuple[Any, ...]) -> None:
    """The launch of no threads."""


def _device_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device | None:
    """Guess where a launch will run, so that the first compilation is for that; binding decides."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.device.type in ("cpu", "cuda"):
            return CPU if value.device.type == "cpu" else value.device
    return None


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
