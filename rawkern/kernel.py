"""RawKernel: one CUDA kernel as a Python callable, and the way of its launches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rawkern.arguments.signature import make_signature
from rawkern.base.dynamo import untraced
from rawkern.base.shared import Shared
from rawkern.compile import lookup, programs
from rawkern.engines.devices import architecture, default_device
from rawkern.launch import config as configs
from rawkern.launch.builds import Build, PathLike, Unit, make_unit
from rawkern.launch.launcher import Plan, device_of
from rawkern.launch.unit import State

if TYPE_CHECKING:
    from rawkern.launch.launcher import Launcher

PLANS_KEPT = 256  # blocks with shared memory, per kernel


def _attribute(name: str, what: str) -> property:
    return property(lambda kernel: kernel.attributes[name], doc=what)


class RawKernel(Shared):
    """One CUDA kernel, called on torch tensors.

    The device of the tensors decides where it runs: CUDA tensors on their GPU, CPU tensors on the CPU. There are three
    forms of launch; in each, the kernel's own parameter types decide how arguments are converted. The first two also
    take arguments by parameter name::

        kernel[grid, block](n, 2.0, x, y)              # also kernel[grid, block, shared_mem](...)
        kernel.forall(n)(n, 2.0, x, y)                 # a grid of one dimension that covers n elements
        kernel(grid, block, (n, 2.0, x, y), shared_mem=0, stream=None)

    ``grid`` and ``block`` are an int or a tuple of 1 to 3 positive ints.

    Parameters
    ----------
    code : str, optional
        CUDA source. Give this or ``path``.
    name : str, optional
        The kernel's name, a template instance (``"axpy<float, 4>"``) or an overload (``"axpy(int, float*)"``); may be
        left out where the source has one kernel.
    options, path, include_dirs, enable_cooperative_groups, strided
        As for `RawModule`.

    Raises
    ------
    CompileError, ValueError
        At the first use: the source does not compile, or has no such kernel.

    Notes
    -----
    Launches on a GPU are asynchronous, on torch's current stream of the tensors' device. A kernel may be launched from
    several threads, pickles as its source and name, and a copy of it is the kernel itself.
    """

    unit: Unit
    asked_name: str | None  # None where the source has one kernel, and none was asked for
    _known: State | None  # of the last build that was looked at
    _plans: dict[Any, Plan]  # by block and shared memory
    # What makes launchers: of a grid, by block alone or with shared memory; of a number of elements, by block.
    _grids: dict[Any, Any]
    _shared: dict[Any, Any]
    _covers: dict[int | None, Any]
    # What code for CuPy sets before a launch with much shared memory; launches here do it themselves.
    max_dynamic_shared_size_bytes: int
    preferred_shared_memory_carveout: int

    def __init__(
        self,
        code: str | None = None,
        name: str | None = None,
        options: Sequence[str] = (),
        *,
        path: PathLike | None = None,
        include_dirs: Sequence[PathLike] = (),
        enable_cooperative_groups: bool = False,
        strided: bool = False,
    ) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name is {type(name).__name__}; pass the kernel's name as a string")
        unit = make_unit(code, path, options, include_dirs, None, enable_cooperative_groups, strided)
        self._start(unit, name)

    @classmethod
    def of_unit(cls, unit: Unit, name: str | None) -> RawKernel:
        """Return a kernel of a source that modules or other kernels hold already."""
        kernel = cls.__new__(cls)
        kernel._start(unit, name)
        return kernel

    def _start(self, unit: Unit, name: str | None) -> None:
        self.unit = unit
        self.asked_name = name
        self._known = None
        self._plans, self._grids, self._shared, self._covers = {}, {}, {}, {}

    def __reduce__(self) -> tuple[Any, ...]:
        return RawKernel.of_unit, (self.unit, self.asked_name)

    def __repr__(self) -> str:
        state = self._known
        return f"<RawKernel {state.signature}>" if state else f"<RawKernel {self.asked_name or 'not compiled yet'}>"

    # Launches -----------------------------------------------------------------------------------------------------

    @untraced
    def __call__(self, *form: Any, shared_mem: int = 0, stream: Any = None, **wrong: Any) -> None:
        """Launch in CuPy's form: ``kernel(grid, block, args, *, shared_mem=0, stream=None)``.

        Parameters
        ----------
        grid, block : int or tuple of 1 to 3 ints
            Blocks of the grid, threads of a block.
        args : tuple
            The kernel's arguments.
        shared_mem : int
            Bytes of dynamic shared memory.
        stream : torch.cuda.Stream or other stream, optional
            A torch or CuPy stream, or anything with ``__cuda_stream__``; by default torch's current stream of the
            tensors' device. On the CPU a launch ends before it returns, whatever the stream.
        """
        if wrong:  # CuPy's form, and that of torch.cuda._compile_kernel, may name its parts
            form += tuple(wrong.pop(part) for part in ("grid", "block", "args")[len(form) :] if part in wrong)
        if wrong or len(form) != 3 or not isinstance(form[2], (tuple, list)):
            raise TypeError(
                f"{self.name}: a launch is kernel[grid, block](*args), kernel.forall(n)(*args) or "
                f"kernel(grid, block, (arg, ...), shared_mem=0, stream=None); got {self._shown(form, wrong)}"
            )
        launcher = self[form[0], form[1], shared_mem]
        if stream is None:
            launcher(*form[2])
        else:
            launcher.launch(form[2], {}, stream)

    def _shown(self, form: tuple[Any, ...], wrong: Mapping[str, Any]) -> str:
        given = [type(value).__name__ for value in form] + [f"{key}=..." for key in wrong]
        return f"kernel({', '.join(given)})"

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
        if not isinstance(key, tuple) or len(key) not in (2, 3):
            raise TypeError(f"{self.name}: a launch is kernel[grid, block](...) or kernel[grid, block, bytes](...)")
        config = configs.make_config(self.name, *key, cooperative=self.unit.settings.cooperative)
        plan = self._plan(config.block, config.shared_mem)
        if self._plans.get((config.block, config.shared_mem)) is plan:
            x, y, z = config.block
            for block in ((x, y, z), *[(x, y)] * (z == 1), *[(x,), x] * (y == z == 1)):
                self._shared[block, config.shared_mem] = plan.grid
                if not config.shared_mem:
                    self._grids[block] = plan.grid
        return plan.launcher(config)

    @untraced
    def forall(self, n: int, *, block: int | None = None) -> Launcher:
        """Settle a launch of one dimension whose threads cover ``n`` elements; ``n`` = 0 checks and launches nothing.

        Parameters
        ----------
        n : int
            Elements, 0 or more. There may be more threads than that: the kernel compares its index with ``n``.
        block : int, optional
            Threads of a block; by default 256, or fewer where the kernel's registers or launch bounds ask for it.

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
        if isinstance(n, torch.SymInt):  # inside an operator's fake implementation: nothing is compared or launched
            return self._plan(None, 0).symbolic()
        count = configs.count(self.name, n)
        threads = configs.DEFAULT_BLOCK if block is None else block
        config = configs.cover(self.name, count, threads, cooperative=self.unit.settings.cooperative)
        plan = self._plan(None if block is None else config.block, 0)
        if plan in self._plans.values():
            self._covers[None if block is None else config.threads] = plan.cover
        return plan.cover(count)

    def _plan(self, block: tuple[int, int, int] | None, shared_mem: int) -> Plan:
        found = self._plans.get((block, shared_mem))
        if found is None:
            found = Plan(self, block, shared_mem, self.unit.settings.cooperative)
            if len(self._plans) < PLANS_KEPT:
                self._plans[block, shared_mem] = found
        return found

    # What it is ---------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The kernel's name as it was asked for, or as the source has it."""
        if self.asked_name is not None:
            return self.asked_name
        return self._known.entry.name if self._known else "kernel"

    @property
    def signature(self) -> str:
        """The kernel's declaration: ``"void saxpy(int n, float a, const float *x, float *y)"``."""
        return str(self.state().signature)

    @property
    def attributes(self) -> dict[str, int]:
        """Registers, memory and limits under CuPy's names, on the current CUDA device if there is one, else the CPU.

        ``num_regs`` (per thread), ``shared_size_bytes`` (static), ``local_size_bytes``, ``const_size_bytes``,
        ``max_threads_per_block``, ``max_dynamic_shared_size_bytes``, ``ptx_version``, ``binary_version`` and others.
        The CPU engine has no registers or binary version: 0.
        """
        return dict(self._engine_kernel(default_device()).attributes)

    # The same one by one, as CuPy has them.
    num_regs = _attribute("num_regs", "Registers of a thread; 0 on the CPU.")
    shared_size_bytes = _attribute("shared_size_bytes", "Bytes of static shared memory of a block.")
    local_size_bytes = _attribute("local_size_bytes", "Bytes of local memory of a thread.")
    const_size_bytes = _attribute("const_size_bytes", "Bytes of constant memory of the kernel.")
    max_threads_per_block = _attribute("max_threads_per_block", "The largest block that the kernel runs with.")
    ptx_version = _attribute("ptx_version", "The PTX version it was compiled for, as 10 * major + minor.")
    binary_version = _attribute("binary_version", "The architecture of its machine code, such as 90; 0 on the CPU.")

    def ptx(self, arch: str | None = None) -> str:
        """Return the module's PTX; needs no GPU.

        Parameters
        ----------
        arch : str, optional
            Such as ``"compute_90"``; by default what the CPU engine runs.

        Returns
        -------
        str
            All kernels of the module, in the compiler's words.

        Raises
        ------
        CompileError
            The source does not compile.
        """
        with self.unit.lock:
            state = self.state()
            return state.build.program(
                lookup.architecture_name(arch or programs.CPU_ARCH, "compute"), state.asked
            ).code.decode()

    def cubin(self, arch: str) -> bytes:
        """Return the module's machine code; needs no GPU.

        Parameters
        ----------
        arch : str
            Such as ``"sm_90"``.

        Returns
        -------
        bytes
            An ELF file, as NVIDIA's tools take it.

        Raises
        ------
        CompileError
            The source does not compile.
        """
        with self.unit.lock:
            state = self.state()
            return state.build.program(lookup.architecture_name(arch, "sm"), state.asked).code

    # Finding it in the source -------------------------------------------------------------------------------------

    def current(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> State:
        """What the kernel is in the source as it is now, for a launch with these arguments."""
        state = self._known
        if state is None or state.build.stale():
            state = self.state(device_of(args, kwargs))
        return state

    def variant(self, name: str | None = None, options: Sequence[str] = ()) -> RawKernel:
        """Return this kernel under another name, such as another template instance, or compiled with more options.

        Without options it is of the same unit, and so has the same variables.
        """
        name = self.asked_name if name is None else name
        if not options:
            return self if name == self.asked_name else RawKernel.of_unit(self.unit, name)
        settings = self.unit.settings
        return RawKernel.of_unit(Unit(dataclasses.replace(settings, options=(*settings.options, *options))), name)

    def build(self) -> Build:
        """Return the reading of the source as it is now; nothing is compiled."""
        with self.unit.lock:
            return self.unit.current()

    @untraced
    def state(self, device: torch.device | None = None) -> State:
        """Return the state in the build of the source as it is now; what is not compiled is compiled for ``device``."""
        with self.unit.lock:
            build = self.unit.current()
            state = self._known
            if state is None or state.build is not build:
                state = self._known = self._look(build, device)
            return state

    def _look(self, build: Build, device: torch.device | None) -> State:
        name = self.asked_name
        asked: tuple[str, ...] = ()
        if name is not None and name not in build.settings.name_expressions and "<" in name.partition("(")[0]:
            asked = (name,)
        arch = architecture(device) if device is not None else None
        program = build.program(arch, asked)
        entry = lookup.entry(program, name)
        if entry is None and name is not None and "(" in name:
            # An overload by types as the source spells them (typedefs, macros): the compiler has to read them.
            asked = (name,)
            program = build.program(arch, asked)
            entry = lookup.entry(program, name)
        if entry is None:
            raise ValueError(lookup.unknown(program, name))
        names = programs.parameter_names(build.source, entry)
        signature = make_signature(entry, names, lambda struct: programs.struct_layout(program, struct))
        return State(build, entry, name, asked, signature)

    def _engine_kernel(self, device: torch.device) -> Any:
        with self.unit.lock:
            return self.state(device).engine_kernel(device)
