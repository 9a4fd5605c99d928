"""Checked launches: `check` turns them on, `launch` runs one and raises what it found.

A checked launch runs on the CPU engine, on one thread, from its own build: compiled with fewer optimizations, so
that each access of the source is there with its line, and with a call of the checker before each of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import struct
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from rawkern.arguments import slow_path
from rawkern.arguments.memory import Piece
from rawkern.arguments.signature import Signature
from rawkern.base import gpus
from rawkern.base import torch_private as private
from rawkern.base.nested import tensors_in
from rawkern.base.scoped_setting import SettingScope
from rawkern.checked import skips, trials
from rawkern.checked.trials import CHECKED, COVERED, DEPENDENT, PLAIN
from rawkern.compile import cubin, programs
from rawkern.compile.programs import Program
from rawkern.compile.toolchain import nvrtc
from rawkern.engines.cpu.needs import ptxas_errors
from rawkern.engines.devices import CPU
from rawkern.errors import CheckError, CompileError, LaunchError, UnsupportedError
from rawkern.launch import intercept, modes, reachable, reports, variables
from rawkern.launch import level as levels

if TYPE_CHECKING:
    from rawkern.launch.builds import Build
    from rawkern.launch.config import LaunchConfig
    from rawkern.launch.unit import State

_builds: weakref.WeakKeyDictionary[Build, dict[tuple[str, tuple[str, ...]], Any]] = weakref.WeakKeyDictionary()
#: Called with the error of each launch that found something, before it is raised: code may catch it.
listeners: list[Callable[[CheckError], None]] = []
LESS_OPTIMIZED = "--Ofast-compile=mid"  # keeps loops, and reads whose values are not used; still inlines
UNOPTIMIZED = "-G"


def _follow(now: str) -> None:
    """Get all launches while they are checked in full."""
    if now == levels.FULL:
        intercept.add(_checked, _checked, last=True)
    else:
        intercept.remove(_checked)


class check(SettingScope):
    """Check every launch inside: ``with rawkern.check(): ...``, or as a decorator of a function.

    A launch then runs on the CPU engine, where every memory access, barrier and warp instruction is checked; it takes
    about 4 to 100 times as long. At its end it raises the exception of the first defect, with all defects in
    ``reports``. A launch on CUDA tensors is checked on copies of them; if nothing is found, it then runs on the GPU.
    Launches that a CUDA graph captures are not checked, because copies cannot be made during capture.

    The environment variable ``RAWKERN_CHECK`` sets the level for a whole program; the default is "bounds". The level
    applies to the whole process: while one thread is inside, it applies to the launches of all threads.

    Parameters
    ----------
    *also : torch.Tensor
        Tensors that kernels may use besides their arguments. They are needed only if an address reaches a kernel in a
        way that cannot be traced. Addresses in int64 and uint8 arguments that point into a live tensor are traced.
    level : {"full", "bounds", "off"}
        "full" checks everything. At "bounds", launches on the CPU run as usual, and raise before an access that is out
        of bounds, misaligned, or a write to read-only memory. At "off" nothing is checked.
    volatile : {"relaxed", "plain"}
        "relaxed": volatile accesses follow PTX: they do not race with atomic accesses, nor with volatile accesses of
        other warps. "plain": they follow C++ and race like any other access.
    acquire : {"fence", "read"}
        What has to follow an atomic or volatile read before a thread may use what another thread has released. "fence":
        a fence or a barrier. "read": nothing, except after a compare-and-swap, which takes a lock.
    equal_writes : {"allowed", "race"}
        Writes of the same value to one address that nothing orders. "allowed": they do not race, as the outcome is the
        same in any order. "race": they race, as PTX's memory model says.
    optimized : bool
        False: each launch is checked a second time in an unoptimized build, to find defects at accesses that the
        compiler otherwise deletes because their values are never used.
    orders : sequence of int
        Seeds of `rawkern.order`: each launch is also checked in each of these orders.
    inputs : int
        Each launch is also checked with up to this many other values of the integers that branches depend on: the
        values that the code compares them with, and the values next to those. A value that makes the kernel leave its
        memory is skipped.

    Attributes
    ----------
    untaken : list of str
        With ``inputs``, the branches that never went both ways in the kernels launched inside, by file and line.

    Notes
    -----
    ``optimized``, ``orders`` and ``inputs`` repeat the launch on the same memory, which is restored each time. A note
    on the exception says which of these launches found the defect.

    Raises
    ------
    OutOfBoundsError, MisalignedError, FreedMemoryError, ReadOnlyError
        By a launch: a thread accesses memory that it may not access.
    UninitializedReadError
        By a launch: a thread reads uninitialized shared or local memory.
    RaceError
        By a launch: two threads access the same shared or global memory, at least one writes, and nothing orders them.
    BarrierError, WarpSyncError
        By a launch: not all threads reach a barrier or warp instruction that needs them.
    """

    def __init__(
        self,
        *also: torch.Tensor,
        level: Literal["off", "bounds", "full"] = "full",
        volatile: Literal["relaxed", "plain"] = "relaxed",
        acquire: Literal["fence", "read"] = "fence",
        equal_writes: Literal["allowed", "race"] = "allowed",
        optimized: bool = True,
        orders: Sequence[int] = (),
        inputs: int = 0,
    ) -> None:
        self.also, self.level = also, levels.parse(level, "level")
        given = {"volatile": volatile, "acquire": acquire, "equal_writes": equal_writes}
        self.rules = {name: levels.one_of(levels.RULES[name], value, name) for name, value in given.items()}
        if isinstance(inputs, bool) or not isinstance(inputs, int) or inputs < 0:
            raise ValueError(f"inputs is {inputs!r}; pass the number of values to try, an int of 0 or more")
        if isinstance(orders, (int, str)):
            raise TypeError(f"orders is {orders!r}; pass a sequence of seeds, such as (0, 1, 2)")
        seeds = tuple(modes.parse_seed(seed, "orders") for seed in orders)
        self.trials = levels.Trials(bool(optimized), seeds, inputs)
        asked = (levels.setting, self.level), (levels.lent, also), (levels.rules, self.rules)
        super().__init__(*asked, (levels.trials, self.trials))

    @property
    def untaken(self) -> list[str]:
        """Branches that went one way only, or that no thread has reached."""
        return trials.untaken(self.trials)


def _checked(given: intercept.Launch) -> None:
    """Launch on the CPU engine with the checker beside it, then on the tensors' GPU."""
    if not private.stream_capturing():  # copies for a check would break the graph
        device = launch(given.launcher, given.args, given.kwargs)
        if device is None or device.type != "cuda":
            return
    with levels.scoped(levels.BOUNDS):
        given.proceed()


def launch(launcher: intercept.Launcher, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device | None:
    """Run one launch checked, and raise a CheckError of the kind that was found.

    Returns where the tensors are; None if there is nothing to launch. CUDA tensors are as they were: no GPU has run it.
    """
    plan = launcher.plan
    state = plan.kernel.current(args, kwargs, _declaring)
    signature = state.signature
    given = slow_path.arrange(signature, args, kwargs)
    bound = slow_path.bind(signature, given, None, state.strided)
    device = bound.device or CPU
    if launcher.n == 0 or device.type == "meta":
        return None
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        copies = reachable.Copies(given)
        given = tuple(map(copies.of, given))
        bound = slow_path.bind(signature, given, None, state.strided)
        behind = copies.behind
    else:
        tensors = [*tensors_in(given), *bound.tensors]
        behind = reachable.reached(tensors, signature.numbers(bound.values), "cpu")
    pieces = [*bound.pieces, *map(_whole, [*behind, *levels.also()])]
    checked = Launch(state, device, _settled(launcher, state, device), bound, pieces)
    also = list(trials.made(checked, levels.trials.current))
    runs = [("", checked.run()), *also]
    how, run = next(((how, run) for how, run in runs if run.found), runs[0])
    if run.found:
        first: dict[Any, reports.Report] = {}
        for report in map(state.report, run.found):
            first.setdefault((report.error, report.file, report.line), report)
        raised = reports.error_of(tuple(first.values()))
        for listener in listeners:
            listener(raised)
        if how:
            raised.add_note(f"found {how}, not in the launch as it is")
        if run.error is not None:
            raised.add_note(f"the launch ended with: {run.error}")
        raise raised
    if run.error is not None:
        raise run.error
    return device


@dataclasses.dataclass(frozen=True)
class Launch:
    """A checked launch that can be made more than once, on memory in the host's reach."""

    state: State
    device: torch.device
    config: LaunchConfig
    bound: slow_path.Bound
    pieces: list[Piece]

    def run(self, build: str = CHECKED, values: tuple[Any, ...] | None = None) -> trials.Run:
        """Make it, with other values of parameters if there are any."""
        from rawkern.engines.cpu.checker import launch as check_launch

        state, config = self.state, self.config
        bound = self.bound if values is None else self.bound._replace(values=values)
        dependent = build == CHECKED and config.attributes.programmatic
        kernel = _kernel(state, DEPENDENT if dependent else build)
        pieces = _placed(state.signature, bound.values, self.pieces)
        with check_launch.lock, _variables(state, kernel.module, self.device) as theirs:
            rules = levels.rules.current
            shape = config.grid, config.block, config.shared_mem, config.attributes
            found, error, made = check_launch.run(
                kernel, *shape, bound, [*pieces, *theirs],
                plain_volatile=rules["volatile"] == "plain", unfenced=rules["acquire"] == "read",
                equal_races=rules["equal_writes"] == "race",
            )  # fmt: skip
        return trials.Run(skips.without_returns(found, state.build.source), error, made.checks, made.sides())

    def sites(self) -> list[dict[str, Any]]:
        """The accesses of the build of all checked launches."""
        from rawkern.engines.cpu.runtime.grid import shape_of

        return _kernel(self.state, CHECKED).loaded(shape_of(self.config.block))[0].table["sites"]

    def undone(self) -> contextlib.AbstractContextManager[None]:
        """Put back what launches write to meanwhile."""
        ranges = {(p.address, p.size) for p in self.pieces if p.size and not p.read_only}
        if self.device.type == "cpu" and _kernel(self.state, CHECKED).module.layout.size:
            usual = self.state.build.engine_module(self.device, self.state.asked)
            ranges.add((usual.globals_address, usual.layout.size))
        return reachable.as_before(ranges)


def _settled(launcher: intercept.Launcher, state: State, device: torch.device) -> LaunchConfig:
    """The configuration, compared with the limits of the usual code.

    Checked code, of fewer optimizations, needs as much memory or more. Where it keeps all limits, so does the usual
    code, which need not be compiled.
    """
    plan = launcher.plan
    if device.type == "cpu":
        # beyond a limit, as the usual code may need less
        with contextlib.suppress(LaunchError, UnsupportedError, ValueError):
            kernel = _kernel(state, CHECKED)
            config = plan.settled(launcher, kernel)
            if not ptxas_errors(kernel.module.needs) and _fits(gpus.MOST_REGISTERS, config):
                return config
    with state.build.lock:
        usual = state.engine_kernel(device)
    config = plan.settled(launcher, usual)
    if device.type == "cpu":
        _compare_registers(state, usual, config)
    return config


def _fits(registers: int, config: LaunchConfig) -> bool:
    """Whether a GPU has so many registers for each thread of a block."""
    return gpus.block_registers(registers, config.threads) <= gpus.REGISTERS


def _compare_registers(state: State, usual: Any, config: LaunchConfig) -> None:
    """Reject a block whose registers do not fit the GPU; only its machine code tells, where it can be made.

    That takes longer than all the rest, so it is not made for a kernel whose bounds the compiler keeps, nor for one
    that holds few values at once.
    """
    gpu, source, name = usual.gpu, state.build.source, state.entry.name
    if _fits(gpus.MOST_REGISTERS, config) or source.binary is not None or usual.bounded:
        return
    if _fits(usual.most_registers, config):
        return
    if int(gpu.name.removeprefix("sm_")) not in nvrtc().architectures:
        return
    with state.build.lock:
        program = state.build.program(gpus.target(int(gpu.name.removeprefix("sm_"))), state.asked)
    each = cubin.resources(program.code, gpu.name)[state.entry_in(program).symbol].registers
    needed = gpus.block_registers(each, config.threads)
    if needed > gpus.REGISTERS:
        raise ValueError(
            f"{name}: a block of {config.threads} threads needs {needed} registers on {gpu.name}, {each} a thread, and "
            f"gets at most {gpus.REGISTERS}; use a smaller block, or __launch_bounds__({config.threads}) in the kernel"
        )


def _kernel(state: State, build: str) -> Any:
    """The kernel in a checked build of its source."""
    known = _builds.setdefault(state.build, {})
    if (build, state.asked) not in known:
        from rawkern.engines.cpu import Module
        from rawkern.engines.cpu.checker.coverage import Coverage
        from rawkern.engines.cpu.checker.instrument import Checker, DependentChecker

        program = _program(state.build, state.asked, UNOPTIMIZED if build == PLAIN else LESS_OPTIMIZED, state.entry_in)
        instrument = {COVERED: Coverage, DEPENDENT: DependentChecker}.get(build, Checker)
        source = program.source
        foreign = source.path if source.binary is not None else None
        known[build, state.asked] = program, Module(program.ptx, instrument, source.readable, foreign), {}
    program, module, kernels = known[build, state.asked]
    mode = modes.current()
    if (state.entry.symbol, mode) not in kernels:
        kernels[state.entry.symbol, mode] = module.kernel(state.entry_in(program).symbol, state.signature, mode=mode)
    return kernels[state.entry.symbol, mode]


@contextlib.contextmanager
def _variables(state: State, module: Any, device: torch.device) -> Iterator[list[Piece]]:
    """Give the checked build's ``__device__`` variables the values of the usual build's, and take them back.

    Yields the usual build's memory: pointers may lead there, as those to its strings do.
    """
    names = [name for name in module.layout.offsets if not name.startswith(("$", "__unnamed"))]
    if not names:
        yield []
        return
    usual, pairs = state.build.engine_module(device, state.asked), []
    for name in names:
        with contextlib.suppress(KeyError):  # not used in the usual build
            (theirs, size), (ours, same) = usual.global_view(name), module.global_view(name)
            if size == same:
                pairs.append((theirs, ours, size))
    if device.type == "cuda":  # addresses of GPU memory in them lead nowhere
        for theirs, ours, size in pairs:
            values = variables.on_gpu(theirs, size, device, usual).cpu()
            ctypes.memmove(ours, values.data_ptr(), size)
        yield []
        return
    for theirs, ours, size in pairs:
        ctypes.memmove(ours, theirs, size)
        _relocate(ours, size, pairs)
    try:
        yield [Piece("a variable", usual.globals_address, usual.layout.size, 1, False, followed=False)]
    finally:
        for theirs, ours, size in pairs:
            ctypes.memmove(theirs, ours, size)
            _relocate(theirs, size, [(o, t, n) for t, o, n in pairs])


def _whole(t: torch.Tensor) -> Piece:
    """A tensor's storage, which an address leads to."""
    storage = t.untyped_storage()
    name = f"the tensor of {t.numel()} elements that an address leads to"
    return Piece(name, storage.data_ptr(), storage.nbytes(), t.element_size(), False)


def _relocate(address: int, size: int, moved: Sequence[tuple[int, int, int]]) -> None:
    """Let pointers in copied memory that lead to one of the variables lead to its copy."""
    for at in range(address, address + size - 7, 8):
        word = ctypes.c_uint64.from_address(at)
        for before, after, length in moved:
            if before <= word.value < before + length:
                word.value += after - before
                break


def _declaring(build: Build, asked: tuple[str, ...]) -> Program:
    """The program that tells a kernel's name and parameters: that of checked launches, unless there is one already."""
    if build.source.binary is not None or build.compiled_for(asked) is not None:
        return build.program(asked=asked)
    return dataclasses.replace(_program(build, asked, LESS_OPTIMIZED), source=build.source)


def _program(
    build: Build, asked: tuple[str, ...], option: str, holds: Callable[[Program], object] = lambda _: None
) -> Program:
    """Compile the source with an option, or without where that fails or `holds` raises a ValueError."""
    source, names = build.source, (*build.settings.name_expressions, *asked)
    if not any(
        "fast-compile" in option or option.startswith(("-Ofc", "-G", "--device-debug")) for option in source.options
    ):
        # An NVRTC that does not know the option, or a source that looks different with it.
        try:
            program = programs.compile_program(
                dataclasses.replace(source, options=(*source.options, option)), source.cpu_arch, names
            )
            holds(program)
            return program
        except (CompileError, ValueError) as error:
            if option == LESS_OPTIMIZED and isinstance(error, CompileError) and error.line is not None:
                raise  # what NVRTC says of a line does not depend on what it would have optimized
    return programs.compile_program(source, source.cpu_arch, names)


def _placed(signature: Signature, values: tuple[Any, ...], pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces with the places of their addresses among the parameters."""
    block = struct.pack(signature.format, *values)
    result = list(pieces)
    at = {offset: param for offset, param in zip(signature.offsets, signature.params, strict=True)}
    starts = sorted(at)
    for offset in range(0, len(block) - 7, 8):
        (word,) = struct.unpack_from("<Q", block, offset)
        param = at[max(start for start in starts if start <= offset)]
        same = [p for p in pieces if p.address == word and p.given_as == param.name]
        if same and (word or offset in at):  # a tensor of no elements may have no address
            one = min(same, key=lambda p: p.read_only)  # of members with one address
            result.append(dataclasses.replace(one, parameter=offset))
        elif word == 0 and offset in at and param.is_pointer:
            result.append(Piece(param.name, 0, 0, 0, True, offset, given_as=param.name))
    return result


levels.followers.append(_follow)
_follow(levels.current())
