"""RawKernel: one CUDA kernel as a Python callable, and the way of its launches."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from rawkern.base.api_boundary import api_boundary, hide
from rawkern.base.attributes import Attributes as LaunchAttributes
from rawkern.base.dynamo import untraced
from rawkern.compile import lookup
from rawkern.engines.devices import default_device
from rawkern.errors import LaunchError, UnsupportedError
from rawkern.gradients.derivable import Derivable
from rawkern.launch import config as configs
from rawkern.launch import cupy_form, level
from rawkern.launch import launcher as launchers
from rawkern.launch.builds import Build, CuPySettings, PathLike, Unit, make_unit
from rawkern.launch.launcher import Plan
from rawkern.launch.unit import Kernel, State
from rawkern.properties import Attributes, OfUnit

if TYPE_CHECKING:
    from rawkern.launch.launcher import Launcher

if level.current() == level.FULL:  # asked for by the environment: nothing else may need the checks
    importlib.import_module("rawkern.checked.launches")

launchers.estimates = partial(importlib.import_module, "rawkern.estimation.estimate")
PLANS_KEPT = 256  # blocks with shared memory, per kernel


class RawKernel(OfUnit, Attributes, Derivable):
    """One CUDA kernel, called on torch tensors.

    The device of the tensors decides where it runs: CUDA tensors on their GPU, CPU tensors on the CPU. There are three
    forms of launch; in each, the kernel's own parameter types decide how arguments are converted. The first two also
    take arguments by parameter name::

        kernel[grid, block](n, 2.0, x, y)              # also kernel[grid, block, shared_mem](...)
        kernel.forall(n)(n, 2.0, x, y)                 # a 1-D grid that covers n elements
        kernel(grid, block, (n, 2.0, x, y), shared_mem=0, stream=None)

    ``grid`` and ``block`` are an int or a tuple of 1 to 3 positive ints. `configured` gives all of them clusters and
    CUDA's other launch attributes: ``kernel.configured(cluster=(2, 1, 1))[grid, block](n, 2.0, x, y)``.

    Parameters
    ----------
    code : str, optional
        CUDA source. Give this or ``path``.
    name : str, optional
        The kernel's name, a template instance (``"axpy<float, 4>"``) or an overload (``"axpy(int, float*)"``); may be
        left out where the source has one kernel.
    options, backend, translate_cucomplex, path, include_dirs, enable_cooperative_groups, strided, jitify
        As for `RawModule`.

    Raises
    ------
    CompileError, ValueError
        At the first use: the source does not compile, or has no such kernel.

    Notes
    -----
    Launches on a GPU are asynchronous, on torch's current stream of the tensors' device. A kernel may be launched from
    several threads. It is pickled as source and name; a copy is the same object.
    """

    unit: Unit
    _kernel: Kernel
    _attributes: LaunchAttributes
    _configured: dict[tuple[Any, ...], RawKernel]  # the same kernel with others
    _plans: dict[Any, Plan]  # by block and shared memory
    # What makes launchers: of a grid, by block alone or with shared memory; of a number of elements, by block.
    _grids: dict[Any, Any]
    _shared: dict[Any, Any]
    _covers: dict[int | None, Any]
    _by_address: bool  # whether a launch was given addresses

    @api_boundary
    def __init__(
        self,
        code: str | None = None,
        name: str | None = None,
        options: Sequence[str] = (),
        backend: str = "nvrtc",
        translate_cucomplex: bool = False,
        *,
        path: PathLike | None = None,
        include_dirs: Sequence[PathLike] = (),
        enable_cooperative_groups: bool = False,
        strided: bool = False,
        jitify: bool | None = None,
    ) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name is {type(name).__name__}; pass the kernel's name as a string")
        cupy = CuPySettings(backend, translate_cucomplex, jitify)
        unit = make_unit(code, path, options, include_dirs, None, enable_cooperative_groups, strided, cupy)
        self._start(Kernel(unit, name))

    @classmethod
    def of_unit(cls, unit: Unit, name: str | None, attributes: LaunchAttributes | None = None) -> RawKernel:
        """Return a kernel of a source that modules or other kernels hold already."""
        return cls.of(Kernel(unit, name), attributes)

    @classmethod
    def of(cls, known: Kernel, attributes: LaunchAttributes | None = None) -> RawKernel:
        """Return what users hold, of what launches know."""
        kernel = cls.__new__(cls)
        kernel._start(known, attributes)
        return kernel

    def _start(self, known: Kernel, attributes: LaunchAttributes | None = None) -> None:
        self.unit = known.unit
        self._kernel = known
        self._attributes = attributes or LaunchAttributes(cooperative=bool(known.unit.settings.cooperative))
        self._configured = {}
        self._plans, self._grids, self._shared, self._covers = {}, {}, {}, {}
        self._by_address = False

    def __reduce__(self) -> tuple[Any, ...]:
        return RawKernel.of_unit, (self.unit, self.asked_name, self._attributes)

    def __repr__(self) -> str:
        state = self._kernel.found
        return f"<RawKernel {state.signature}>" if state else f"<RawKernel {self.asked_name or 'not compiled yet'}>"

    # Launches -----------------------------------------------------------------------------------------------------

    @untraced
    @api_boundary
    def configured(
        self,
        *,
        cluster: int | tuple[int, ...] | None = None,
        cooperative: bool | None = None,
        programmatic: bool | None = None,
    ) -> RawKernel:
        """Return this kernel with launch attributes: all forms of its launches have them.

        Parameters
        ----------
        cluster : int or tuple of 1 to 3 ints, optional
            How many blocks along each axis of the grid are a thread block cluster: up to 8 together, or 16 where the
            GPU supports them. A grid consists of whole clusters; `forall` rounds up. The default is the source's
            ``__cluster_dims__``.
        cooperative : bool, optional
            All blocks run at the same time, so that ``grid.sync()`` works.
        programmatic : bool, optional
            Programmatic dependent launch: the kernel may begin before the previous one on the stream has ended, and
            waits for its writes with ``cudaGridDependencySynchronize()`` (``griddepcontrol.wait``). On the CPU one
            kernel runs after the other.

        Returns
        -------
        RawKernel
            The same kernel with these attributes; omitted ones keep their values. Repeated calls return the same
            object.

        Raises
        ------
        TypeError, ValueError
            For values that are not sizes or switches, and unsupported clusters. What the kernel or its device rejects
            raises at the launch.
        """
        key = cluster, cooperative, programmatic
        if key == (None, None, None):
            return self
        try:
            return self._configured[key]
        except (KeyError, TypeError):
            pass
        attributes = configs.make_attributes(
            self.name, self._attributes, cluster=cluster, cooperative=cooperative, programmatic=programmatic
        )
        if attributes == self._attributes:
            return self
        made = RawKernel.of(self._kernel, attributes)
        try:
            return self._configured.setdefault(key, made)
        except TypeError:  # a list, which is a size as a tuple is
            return made

    @untraced
    def __call__(self, *form: Any, shared_mem: int = 0, stream: Any = None, **named: Any) -> None:
        """Launch in CuPy's form: ``kernel(grid, block, args, *, shared_mem=0, stream=None)``.

        Parameters
        ----------
        grid, block : int or tuple of 1 to 3 ints
            Blocks of the grid, threads of a block; 1 by default, and 0 is 1, as CuPy has it.
        args : tuple
            The kernel's arguments. A pointer may be given as its address, ``x.data_ptr()``. On a GPU it is not checked;
            on the CPU it has to be in the memory of a live tensor.
        shared_mem : int
            Bytes of dynamic shared memory.
        stream : torch.cuda.Stream or other stream, optional
            A torch or CuPy stream, or anything with ``__cuda_stream__``; by default torch's current stream of the
            tensors' device. On the CPU a launch ends before it returns, whatever the stream.

        Warns
        -----
        UserWarning
            A cooperative grid of one dimension has more blocks than the device holds at a time: it is launched with
            those. Other forms, and other grids, raise `LaunchError`.
        """
        if named or len(form) != 3 or not isinstance(form[2], (tuple, list)):
            named.update({} if stream is None else {"stream": stream})
            named.update({} if type(shared_mem) is int and not shared_mem else {"shared_mem": shared_mem})
            form, shared_mem, stream = cupy_form.complete(self.name, form, named)
        if self._by_address:
            form = cupy_form.with_addresses(self._kernel, form) or form
        while True:
            try:
                launcher = self[form[0], form[1], shared_mem]
                if stream is None:
                    launcher(*form[2])
                else:
                    launcher.launch(form[2], {}, stream)
                return
            except (LaunchError, TypeError, ValueError) as error:
                adapted = cupy_form.adapted(self._kernel, form, error)
                if adapted is None:
                    hide(error)
                    raise
                self._by_address |= adapted[2] is not form[2]
            form = adapted

    @untraced
    def __getitem__(self, key: Any) -> Launcher:
        """Settle the launch: ``kernel[grid, block]`` or ``kernel[grid, block, shared_mem]``.

        Parameters
        ----------
        key : tuple
            ``grid`` and ``block``, each an int or a tuple of 1 to 3 positive ints; bytes of dynamic shared memory.

        Returns
        -------
        callable
            Call it with the kernel's arguments, by position or by parameter name; it can be kept and called again.

        Raises
        ------
        TypeError, ValueError
            A grid, block or shared memory that no device, or not this kernel, runs with.
        """
        try:
            if len(key) == 2:
                found = self._grids[key[1]](*key)
            else:
                found = self._shared[key[1:]](key[0], key[1]) if type(key[2]) is int else None
            if found is not None:
                return found
        except (IndexError, KeyError, TypeError):
            pass
        return self._settled(key)

    @api_boundary
    def _settled(self, key: Any) -> Launcher:
        """What `__getitem__` returns, for what is not known or not plain."""
        if not isinstance(key, tuple) or len(key) not in (2, 3):
            shown = ", ".join(map(repr, key)) if isinstance(key, tuple) else repr(key)
            forms = "kernel[grid, block](...) or kernel[grid, block, bytes](...)"
            raise TypeError(f"{self.name}: a launch is {forms}; got kernel[{shown}]")
        sizes = [size for part in key for size in (part if isinstance(part, tuple) else (part,))]
        if any(isinstance(size, torch.SymInt) for size in sizes):  # as in `_covering`
            return self._plan(None, 0).symbolic()
        config = configs.make_config(self.name, *key, attributes=self._attributes)
        plan = self._plan(config.block, config.shared_mem)
        if plan in self._plans.values():
            x, y, z = config.block
            for block in ((x, y, z), *[(x, y)] * (z == 1), *[(x,), x] * (y == z == 1)):
                self._shared[block, config.shared_mem] = plan.grid
                if not config.shared_mem:
                    self._grids[block] = plan.grid
        return plan.launcher(config)

    @untraced
    def forall(self, n: int, *, block: int | None = None) -> Launcher:
        """Prepare a 1-D launch whose threads cover ``n`` elements; ``n`` = 0 checks arguments and launches nothing.

        Parameters
        ----------
        n : int
            Elements, 0 or more. There may be more threads than that: the kernel compares its index with ``n``.
        block : int, optional
            Threads of a block; by default 256, or fewer if the kernel's registers or launch bounds require it.

        Returns
        -------
        callable
            Call it with the kernel's arguments, by position or by parameter name.

        Raises
        ------
        ValueError
            ``n`` is negative, or needs more than 2**31 - 1 blocks.
        """
        try:
            if (found := self._covers[block](n)) is not None and (block is None or type(block) is int):
                return found
        except (KeyError, TypeError):
            pass
        return self._covering(n, block)

    @api_boundary
    def _covering(self, n: int, block: int | None) -> Launcher:
        """What `forall` returns, for what is not known or not plain."""
        if isinstance(n, torch.SymInt):  # inside an operator's fake implementation: nothing is compared or launched
            return self._plan(None, 0).symbolic()
        count = configs.count(self.name, n)
        threads = configs.DEFAULT_BLOCK if block is None else block
        config = configs.cover(self.name, count, threads, self._attributes)
        plan = self._plan(None if block is None else config.block, 0)
        if plan in self._plans.values():
            self._covers[None if block is None else config.threads] = plan.cover
        return plan.cover(count)

    def _plan(self, block: tuple[int, int, int] | None, shared_mem: int) -> Plan:
        found = self._plans.get((block, shared_mem))
        if found is None:
            found = Plan(self._kernel, block, shared_mem, self._attributes)
            if len(self._plans) < PLANS_KEPT:
                found = self._plans.setdefault((block, shared_mem), found)  # another thread's, if that was first
        return found

    # What it is ---------------------------------------------------------------------------------------------------

    @property
    def launch_attributes(self) -> LaunchAttributes:
        """What launches are asked for besides grid, block and shared memory; `configured` changes it."""
        return self._attributes

    @property
    def enable_cooperative_groups(self) -> bool:
        """Whether launches are cooperative."""
        return self._attributes.cooperative

    @property
    def name(self) -> str:
        """The requested name, or the name in the source."""
        return self._kernel.name

    @property
    def __name__(self) -> str:
        """The same, under Python's name for it."""
        return self._kernel.name

    @property
    def asked_name(self) -> str | None:
        """The name as it was asked for; None where the source has one kernel, and none was asked for."""
        return self._kernel.asked_name

    @property
    @api_boundary
    def signature(self) -> str:
        """The kernel's declaration: ``"void saxpy(int n, float a, const float *x, float *y)"``."""
        return str(self.state().signature)

    @untraced
    @api_boundary
    def compile(self, log_stream: Any = None) -> None:
        """Compile now what the first launch would, for the current CUDA device if there is one, else for the CPU.

        Parameters
        ----------
        log_stream : file, optional
            Where the compiler's warnings are written.

        Raises
        ------
        CompileError, ValueError
            The source does not compile, or has no such kernel.
        """
        with self.unit.lock:
            state = self.state(default_device())
            program = state.build.program(state.build.architecture(default_device()), state.asked)
            if default_device().type == "cpu":  # a GPU's assembler has seen it by now
                state.build.engine_module(default_device(), state.asked)
        if log_stream is not None:
            log_stream.write(program.log)

    @api_boundary
    def ptx(self, arch: str | None = None) -> str:
        """Return the module's PTX; needs no GPU.

        Parameters
        ----------
        arch : str, optional
            Such as ``"compute_90"``; by default what the CPU engine runs.

        Returns
        -------
        str
            All kernels of the module, as the compiler printed them.

        Raises
        ------
        CompileError
            The source does not compile.
        """
        with self.unit.lock:
            state = self.state()
            arch = lookup.architecture_name(arch or state.build.source.cpu_arch, "compute")
            return state.build.program(arch, state.asked).ptx

    @api_boundary
    def cubin(self, arch: str) -> bytes:
        """Return the module's machine code; needs no GPU.

        Parameters
        ----------
        arch : str
            Such as ``"sm_90"``.

        Returns
        -------
        bytes
            An ELF file for NVIDIA's tools.

        Raises
        ------
        CompileError
            The source does not compile.
        """
        with self.unit.lock:
            state = self.state()
            if state.build.source.binary is not None:
                raise UnsupportedError(
                    f"{self.name} was loaded from {self.file_path}, which is already compiled; use that file"
                )
            return state.build.program(lookup.architecture_name(arch, "sm"), state.asked).code

    # Finding it in the source -------------------------------------------------------------------------------------

    def variant(self, name: str | None = None, options: Sequence[str] = ()) -> RawKernel:
        """Return this kernel under another name, such as another template instance, or compiled with more options.

        Without options it is of the same unit, and so has the same variables.
        """
        name, settings = self.asked_name if name is None else name, self.unit.settings
        if not options:
            same = name == self.asked_name
            return self if same else RawKernel.of_unit(self.unit, name, self._attributes)
        unit = Unit(dataclasses.replace(settings, options=(*settings.options, *options)))
        return RawKernel.of_unit(unit, name, self._attributes)

    def build(self) -> Build:
        """Return the reading of the source as it is now; nothing is compiled."""
        return self._kernel.build()

    @untraced
    def state(self, device: torch.device | None = None) -> State:
        """Return the state in the build of the source as it is now; what is not compiled is compiled for ``device``."""
        return self._kernel.state(device)

    def _engine_kernel(self, device: torch.device) -> Any:
        with self.unit.lock:
            return self.state(device).engine_kernel(device)
