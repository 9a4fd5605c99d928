"""Launchers, and the slow path of a launch: arguments bound, kernel found for their device, launched on a stream.

The native function (`native`) makes the launches whose arguments are plain. What comes here is everything else, and the
first launches of a kernel, which find out what that function needs to know.
"""

from __future__ import annotations

import ctypes
import gc
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rawkern.arguments import slow_path
from rawkern.arguments.scalars import by_value
from rawkern.arguments.slow_path import arrange
from rawkern.arguments.structs import Members
from rawkern.arguments.tensor_map import TensorMap
from rawkern.base import allocator, operator_state, streams, table
from rawkern.base.api_boundary import api_boundary
from rawkern.base.attributes import Attributes
from rawkern.base.dynamo import untraced
from rawkern.base.forking import Lock
from rawkern.base.records import CPU, Filled, start_of
from rawkern.engines.devices import default_device
from rawkern.launch import config, intercept, modes, native
from rawkern.launch.builds import Unit
from rawkern.launch.config import LaunchConfig
from rawkern.launch.native import LAUNCHER, PLAN
from rawkern.launch.unit import Kernel, State

Dim3 = tuple[int, int, int]
SYMBOLIC = -2  # in place of the number of elements
#: Returns the module that estimates launches, which is a layer above: whoever makes launchers for users sets this.
estimates: Any = None
_NUMBERS = frozenset(("int", "bool", "float", "half"))  # kinds whose values on the slow path are numbers of Python


class Plan:
    """A kernel with block and shared memory settled: what all its launchers share, native code included.

    A block of None lets each device's kernel pick, for grids that cover a number of elements.
    """

    def __init__(
        self, kernel: Kernel, block: tuple[int, int, int] | None, shared_mem: int, attributes: Attributes
    ) -> None:
        self.kernel = kernel
        self.block = block
        self.shared_mem = shared_mem
        self.attributes = attributes
        #: A state of the kernel, and what launches it by `modes.place`: replaced together.
        self.built: tuple[State | None, dict[object, Any]] = (None, {})
        self._left: list[tuple[State, Any]] = []  # targets of builds before, which may still have launches
        threads = config.DEFAULT_BLOCK if block is None else block[0]
        self._never = ctypes.c_int64(0)
        self.record = Filled(
            PLAN, table=launcher_type().table, object=id(self), most=config.MAX_GRID[0] * threads,
            until=ctypes.addressof(self._never),
        )  # fmt: skip

    @property
    def cover(self) -> Any:
        """`cover(n)` returns a launcher, or None for what is not plain; the plan lives as long as the callable."""
        return launcher_type().make(self.record.address, native.entries().cover)

    @property
    def grid(self) -> Any:
        """`grid(grid, block)` returns one; the same holds for it."""
        return launcher_type().make(self.record.address, native.entries().grid)

    def launcher(self, settled: LaunchConfig) -> Launcher:
        """A launcher with the grid of a configuration."""
        return self.grid(settled.grid, settled.block)

    def symbolic(self) -> Launcher:
        """A launcher for an operator's fake implementation, where nothing is compared or launched."""
        launcher = self.cover(0)
        launcher.n = SYMBOLIC
        return launcher

    def config(self, launcher: Launcher, block: Dim3 | None = None, cluster: Dim3 | None = None) -> LaunchConfig:
        """The configuration of one of its launchers, on a device where block and cluster are these."""
        if launcher.n == SYMBOLIC:
            raise TypeError(
                f"{self.kernel.name}: the size is symbolic, which only an operator's fake implementation can use"
            )
        block = block or self.block or (config.DEFAULT_BLOCK, 1, 1)
        attributes = self.attributes if cluster is None else replace(self.attributes, cluster=cluster)
        if launcher.n >= 0:
            return config.cover(self.kernel.name, launcher.n, block[0], attributes)
        return LaunchConfig((launcher.grid_x, launcher.grid_y, launcher.grid_z), block, self.shared_mem, attributes)

    def settled(self, launcher: Launcher, engine_kernel: Any) -> LaunchConfig:
        """The configuration, compared with a compiled kernel's limits."""
        most, name = engine_kernel.attributes["max_threads_per_block"], self.kernel.name
        cluster = config.cluster_of(name, self.attributes, engine_kernel)
        found = self.config(launcher, self.block or (config.auto_block(most), 1, 1), cluster)
        config.check_kernel_limits(name, found, engine_kernel)
        config.check_cluster(name, found, engine_kernel)
        config.check_grid(name, found)
        return found

    def target(self, launcher: Launcher, state: State, device: torch.device) -> tuple[LaunchConfig, Any]:
        """Configuration and what launches it on a device; the kernel is loaded there first where need be."""
        built, targets = self.built
        found = targets.get(modes.place(device)) if built is state else None
        if found is None or not found.linked:
            with state.build.lock:
                found = self._found(launcher, state, device)
        settled = self.config(launcher, found.block, found.attributes.cluster)
        config.check_grid(self.kernel.name, settled)
        return settled, found

    def _found(self, launcher: Launcher, state: State, device: torch.device) -> Any:
        """What launches it on a device, which a later launch makes known to native code."""
        if (before := self.built[0]) is not state:
            own = [(before, one) for one in self.built[1].values()] if before is not None else []
            self._left = [(each, one) for each, one in (*self._left, *own) if one.busy]
            # Native code forgets the targets before they may go, and reads `until` while the build before still lives.
            self.record.set(call=0, targets=0, until=ctypes.addressof(self._never), strided=int(state.strided))
            self.built = state, {}
        targets, place = self.built[1], modes.place(device)
        found, second = targets.get(place), place in targets
        if found is None:
            engine_kernel = state.engine_kernel(device)
            settled = self.settled(launcher, engine_kernel)
            found = targets[place] = engine_kernel.target(settled.block, settled.shared_mem, settled.attributes)
        if not found.linked and (second or native.known(state.signature)):
            self._ready(state, found)
        return found

    def _ready(self, state: State, target: Any) -> None:
        """Let native code make the launches that follow, if there is any yet."""
        if target.address and not native.ready(state.signature):
            return
        call = native.function(state.signature) if target.address else None
        if call:
            following, known = native.TARGET.offset("next"), self.record["targets"]
            while known not in (0, target.address):
                known = ctypes.c_uint64.from_address(known + following).value
            if not known:  # else it is there already, from a time that was interrupted
                ctypes.c_uint64.from_address(target.address + following).value = self.record["targets"]
                self.record.set(targets=target.address)
            self.record.set(until=ctypes.addressof(state.build.until), call=call)
        target.linked = True

    def finish(self, address: int, args: tuple[Any, ...] = ()) -> None:
        """Bring a launch to its end that has suspended; `args`: its arguments."""
        state, target = self._at(address)
        target.finish(lambda: slow_path.listed(state.signature, args, state.strided))

    def abandon(self, address: int, token: int) -> None:
        """Give back the stacks of such a launch if it has them still: an interrupt has ended it."""
        self._at(address)[1].abandon(token)

    def _at(self, address: int) -> tuple[Any, Any]:
        state, targets = self.built
        found = (*((state, target) for target in targets.values()), *self._left)
        return next(each for each in found if each[1].address == address)


class _Launcher:
    """A kernel with its grid, block and shared memory: call it with the kernel's arguments, by position or name.

    Launches on torch's current stream of the tensors' device. It can be kept and called again, from any thread.
    """

    plan: Plan
    n: int
    grid_x: int
    grid_y: int
    grid_z: int

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> None: ...

    def __repr__(self) -> str:
        shown = "n" if self.n == SYMBOLIC else self.plan.config(self)  # type: ignore[arg-type]
        return f"<launch of {self.plan.kernel.name}, {shown}>"

    def __copy__(self) -> Launcher:
        return self  # type: ignore[return-value]  # as a kernel is shared, so are its launches

    def __deepcopy__(self, memo: dict[int, Any]) -> Launcher:
        return self  # type: ignore[return-value]

    def __reduce__(self) -> tuple[Any, ...]:
        plan = self.plan
        settings = plan.kernel.unit, plan.kernel.asked_name, plan.block, plan.shared_mem, plan.attributes
        return _remade, (*settings, self.n, (self.grid_x, self.grid_y, self.grid_z))

    @api_boundary
    def launch(self, args: Sequence[Any], kwargs: dict[str, Any], stream: Any = None) -> None:
        """Launch with care, on a stream or torch's current one."""
        intercept.start(self, tuple(args), kwargs, stream)  # type: ignore[arg-type]

    @api_boundary
    def estimate(self, *args: Any, device: str, cold: bool = False, **kwargs: Any) -> Any:
        """Estimate how long the launch would take on a GPU that need not be there.

        Some of its blocks run on the CPU engine; the arguments hold afterwards what they held before.

        Parameters
        ----------
        *args, **kwargs
            The kernel's arguments, as for a launch. What it does may depend on their values.
        device : str
            A GPU such as ``"h100"``.
        cold : bool
            Whether caches hold nothing of the arguments. By default L2 holds what a launch before, alike, has left.

        Returns
        -------
        Estimate
            ``us`` with ``low`` and ``high``, ``limited_by`` and ``by_line``; it prints as one line.

        Raises
        ------
        ValueError
            Nothing is known of that GPU, or nothing would be launched.
        UnsupportedError
            The kernel waits for other blocks or the host, or has instructions whose time was not measured.
        """
        if not isinstance(cold, bool):
            raise TypeError(f"cold is {cold!r}; pass True or False")
        return estimates().estimated(self, args, kwargs, device, cold)

    def make(self, args: tuple[Any, ...], kwargs: dict[str, Any], stream: Any = None) -> None:
        """Make a launch that no hook wants to see any more."""
        plan, kernel = self.plan, self.plan.kernel
        if stream is not None and not isinstance(stream, torch.cpu.Stream):
            streams.stream_handle(stream)  # what no GPU accepts also raises on the CPU
        state = kernel.current(args, kwargs)
        given = arrange(state.signature, args, kwargs)
        if stream is None and not intercept.active() and ((plainer := _plainer(state, given)) is not None or kwargs):
            self(*(plainer or given))  # now they may be plain
            return
        bound = slow_path.bind(state.signature, given, None, state.strided)
        if self.n == 0 or (bound.device is not None and bound.device.type == "meta"):
            return
        device = bound.device or (stream_device(stream) if stream is not None else None)
        if device is None:
            device = default_device()
            if device.type == "cpu":  # there is no GPU, nor will there be one
                table.field("default_device", CPU)
        settled, target = plan.target(self, state, device)  # type: ignore[arg-type]
        if stream is None or device.type != "cuda":
            target.run(settled.grid, None, bound)
            return
        _check_stream(kernel.name, stream, device)
        handle = streams.stream_handle(stream)
        if bound.fresh:
            _wait(handle, device)
        target.run(settled.grid, handle, bound)
        streams.record(bound.tensors, stream)
        allocator.record((*args, *kwargs.values()), handle, device.index)


if TYPE_CHECKING:
    Launcher = _Launcher


def _remade(
    unit: Unit, name: str | None, block: Dim3 | None, shared_mem: int, attributes: Attributes, n: int, grid: Dim3
) -> Launcher:
    """A launcher as it was pickled."""
    plan = Plan(Kernel(unit, name), block, shared_mem, attributes)
    if n == SYMBOLIC:
        return plan.symbolic()
    return plan.cover(n) if n >= 0 else plan.grid(grid, block)


def _plainer(state: State, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The arguments with the numbers of NumPy and of tensors as Python's, and mappings for structs as dicts.

    None where there are none of those.
    """
    found = None
    for param, where in zip(state.signature.params, state.signature.wheres, strict=True):
        value, kind = args[param.index], param.ctype.kind
        if kind in _NUMBERS and isinstance(value, (np.generic, np.ndarray, torch.Tensor)):
            if operator_state.state.level > operator_state.IMPLEMENTATION:
                return None
            value = by_value(param.ctype, value, where)
        elif kind == "struct" and type(value) not in (dict, bytes) and isinstance(value, Mapping):
            value = dict(value)
        if value is not args[param.index]:
            found = list(args) if found is None else found
            found[param.index] = value
    return None if found is None else tuple(found)


# The type -------------------------------------------------------------------------------------------------------

_VECTORCALL, _NO_INSTANCES = 1 << 11, 1 << 7  # Py_TPFLAGS_*
_CALL, _DEALLOC, _MEMBERS = 50, 52, 72  # Py_tp_*
_INT, _OBJECT, _LONG, _SIZE, _READ_ONLY = 1, 6, 17, 19, 1  # of PyMemberDef


class _Type:
    """The type of launchers and the address of what native code knows."""

    def __init__(self) -> None:
        at, python = LAUNCHER.offset, ctypes.pythonapi
        names = [
            (b"__vectorcalloffset__", _SIZE, at("vectorcall"), _READ_ONLY),
            (b"plan", _OBJECT, at("object"), _READ_ONLY),
        ]
        names += [(b"n", _LONG, at("n"), 0)]
        names += [(f"grid_{axis}".encode(), _INT, at(f"grid_{axis}"), _READ_ONLY) for axis in "xyz"]
        texts = [bytearray(name + b"\0") for name, *_ in names]
        members = bytearray(40 * (len(names) + 1))  # PyMemberDef: name, type, offset, flags, text
        for k, (_, kind, offset, flags) in enumerate(names):
            struct.pack_into("=Qi4xqi4xQ", members, 40 * k, start_of(texts[k]), kind, offset, flags, 0)
        call, dealloc = table.python_function("PyVectorcall_Call"), native.entries().dealloc
        slots = bytearray(struct.pack("=i4xQi4xQi4xQ16x", _CALL, call, _DEALLOC, dealloc, _MEMBERS, start_of(members)))
        name = bytearray(b"rawkern.launch.launcher.Launcher\0")
        flags = _VECTORCALL | _NO_INSTANCES
        spec = struct.pack("=QiiI4xQ", start_of(name), LAUNCHER.size, 0, flags, start_of(slots))
        make = python.PyType_FromSpec
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_char_p,)
        self.type: Any = make(spec)
        table.keep((name, texts, members, slots))
        for method in ("__doc__", "__repr__", "__copy__", "__deepcopy__", "__reduce__", "launch", "estimate", "make"):
            setattr(self.type, method, vars(_Launcher)[method])
        # What torch.compile finds when it looks; set as an attribute it would take the place of the native call.
        gc.get_referents(vars(self.type))[0]["__call__"] = _slow_path
        python.PyType_Modified(ctypes.py_object(self.type))
        table.kept("launcher_type", self.type)
        table.kept("map_type", TensorMap)
        table.kept("members_type", Members)
        table.kept("slow_path", _slow_path)
        table.kept("finish", _finish)
        table.kept("abandon", _abandon)
        self.table = table.table()
        #: A callable of a plan's record, by an entry.
        self.make = table.native_function(native.entries().make, ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)


_type_lock = Lock()
_type: list[_Type] = []


def launcher_type() -> _Type:
    """Make the type at its first use, once: native code makes launchers of it, and there is one for all threads."""
    if not _type:
        with _type_lock:
            if not _type:
                _type.append(_Type())
    return _type[0]


@untraced
@api_boundary
def _slow_path(launcher: Launcher, /, *args: Any, **kwargs: Any) -> None:
    intercept.start(launcher, args, kwargs, None)


@untraced
@api_boundary
def _finish(launcher: Launcher, address: int, *args: Any) -> None:
    launcher.plan.finish(address, args)


@untraced
def _abandon(launcher: Launcher, address: int, token: int) -> None:
    launcher.plan.abandon(address, token)


def __getattr__(name: str) -> Any:
    if name == "Launcher":
        return launcher_type().type
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Devices and streams --------------------------------------------------------------------------------------------


def stream_device(stream: Any) -> torch.device | None:
    """The GPU of a stream of torch's."""
    device = getattr(stream, "device", None)
    return device if isinstance(device, torch.device) and device.type == "cuda" else None


def _check_stream(name: str, stream: Any, device: torch.device) -> None:
    theirs = stream_device(stream)
    if theirs is not None and device.type == "cuda" and theirs != device:
        raise ValueError(f"{name}: the stream is on {theirs}, the tensors are on {device}; pass a stream of {device}")


def _wait(handle: int, device: torch.device) -> None:
    """Let a stream wait for torch's current one, on which `bind` has just made something for the kernel."""
    current = torch.cuda.current_stream(device)
    if current.cuda_stream != handle:
        torch.cuda.ExternalStream(handle, device=device).wait_stream(current)
