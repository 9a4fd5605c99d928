"""The CPU engine: PTX to LLVM IR, a warp of 32 lanes as one vector, blocks over cores.

The way of a kernel: `parser` makes PTX plain data; `plan` settles its functions (`control_flow` orders their blocks,
`ssa` splits registers, `uniformity` and `divergence` find what lanes share); `program` emits LLVM IR, through `control`
and the table in `instructions`; `jit` makes machine code; `grid` runs it.
"""

from __future__ import annotations

import contextlib
import platform
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from struct import Struct
from typing import TYPE_CHECKING, Any

from rawkern.base import gpus
from rawkern.base.attributes import PLAIN, Attributes
from rawkern.base.forking import Lock
from rawkern.base.records import block_size, extents_at
from rawkern.engines.cpu.emit.instrument import Instrument
from rawkern.engines.cpu.mode import FIRST, Mode
from rawkern.engines.cpu.needs import ptxas_errors
from rawkern.errors import LaunchError, RawkernError, UnsupportedError

if TYPE_CHECKING:
    from rawkern.arguments.signature import Signature
    from rawkern.compile.programs import Program
    from rawkern.engines.cpu.checker.findings import Host
    from rawkern.engines.cpu.runtime.grid import Target
    from rawkern.engines.cpu.runtime.variables import Variables

    Dim3 = tuple[int, int, int]


def shared_variables() -> Variables:
    """Where the variables of a module's programs lie, which `load_module` takes."""
    from rawkern.engines.cpu.runtime.variables import Variables

    return Variables()


def load_module(program: Program, *, device: Any = None, variables: Variables | None = None) -> Module:
    """Make a PTX program ready to run on this machine's CPU, with variables of its own or of the module's programs.

    Raises
    ------
    CompileError
        If a kernel needs more than any GPU has, in the words of CUDA's assembler.
    UnsupportedError
        On machines other than Linux on x86-64 and AArch64.
    """
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise UnsupportedError(
            f"the CPU engine runs on Linux on x86-64 and AArch64, not on {sys.platform} {platform.machine()}"
        )
    from rawkern.engines.cpu.checker.bounds import Bounds

    foreign = program.source.path if program.source.binary is not None else None
    module = Module(
        program.ptx, Bounds, readable=program.source.readable, foreign=foreign, variables=variables,
        every_variable=any(name.startswith("&") for name, _ in program.symbols),
    )  # fmt: skip
    if log := ptxas_errors(module.needs):
        from rawkern.compile import diagnostics

        raise diagnostics.compile_error(program.source, log)
    return module


def set_limit(device: Any, name: str, value: int) -> None:
    """Set a limit of `rawkern.set_limit` in bytes; ValueError if it is more than there is room for."""
    from rawkern.engines.cpu.runtime import limits

    limits.put(name, value)


def get_limit(device: Any, name: str) -> int:
    """Return a limit in bytes."""
    from rawkern.engines.cpu.runtime import limits

    return limits.get(name)


class Module:
    """One PTX module with its variables' memory; its kernels are built with an instrument.

    `readable` puts messages that hold lines and symbols of the PTX into the user's words. `foreign` is the file of PTX
    that was not compiled here, and may be anything. `variables` are shared with the programs of one source; with
    `every_variable` those that no function uses are there, too.
    """

    def __init__(
        self, text: str, instrument: type[Instrument] = Instrument, readable: Callable[[str], str] = lambda text: text,
        foreign: str | None = None, variables: Variables | None = None, every_variable: bool = False,
    ):  # fmt: skip
        from rawkern.engines.cpu.runtime.jit import Translation

        self.translation, self.readable, self.foreign = Translation(text, every_variable), readable, foreign
        with self.named():
            self.variables = variables or shared_variables()
            self.layout = self.variables.add(self.translation)
            self.needs = self.translation.needs()
        self.instrument = instrument
        self.lock = Lock()
        self.globals_address = self.variables.address

    def kernel(
        self, symbol: str, signature: Signature, *, host: Host | None = None, mode: Mode = FIRST,
        instrument: type[Instrument] | None = None,
    ) -> EngineKernel:  # fmt: skip
        """Make a kernel ready for launches in a mode, by its symbol; `host` is asked while they run.

        It is built with the module's instrument unless another one is given, or with none if the mode is not guarded.
        """
        return EngineKernel(self, symbol, signature, host, mode, instrument or self.instrument)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Errors raised inside are reworded in the user's terms."""
        try:
            yield
        except UnsupportedError as error:
            where = f"{self.foreign}: " if self.foreign else ""
            raise UnsupportedError(where + self.readable(str(error))) from None
        except Exception as error:
            if self.foreign is None or isinstance(error, RawkernError):
                raise
            raise UnsupportedError(
                f"{self.foreign}: PTX not understood ({type(error).__name__}: {error}); compile it again, or run "
                "it on a GPU, whose driver says what is wrong"
            ) from error

    def global_view(self, name: str) -> tuple[int, int]:
        """Address and size in bytes of a ``__device__`` or ``__constant__`` variable; KeyError where there is none."""
        return self.globals_address + self.layout.offsets[name], self.layout.sizes[name]


class EngineKernel:
    """A kernel of a module; compiled at its first launch, once for each shape of block."""

    def __init__(
        self, module: Module, symbol: str, signature: Signature, host: Host | None, mode: Mode,
        instrument: type[Instrument],
    ):  # fmt: skip
        self.module, self.symbol = module, symbol
        self.name = signature.name
        self.globals_address = module.globals_address
        self.signature, self.mode = signature, mode
        self._host = weakref.ref(host) if host is not None else None  # which holds this kernel
        self.gpu = self._emulated_gpu(mode.gpu)
        self.architecture = self.gpu.name
        self.instrument = instrument if mode.guarded else Instrument
        extents = extents_at(signature.size)
        self.params_size = block_size(signature.size)
        self.pack = Struct(f"{signature.format}{extents - signature.size}x{extents // 4}QQ").pack
        self.no_extents: tuple[int, ...] = (0,) * (extents // 4)
        self._shapes: dict[str, tuple] = {}
        self._set: dict[str, int] = {}

    def _emulated_gpu(self, named: gpus.Specification | None) -> gpus.Specification:
        """The GPU whose limits launches keep: the one that is named, or one that the code is for."""
        if self.module.needs.target < 90:
            return named or gpus.DEFAULT
        if named is not None and not named.cluster:
            raise UnsupportedError(
                f"{self.name}: this kernel needs compute capability 9.0, for clusters, TMA, wgmma or the like; the GPU "
                f"that RAWKERN_ARCH or rawkern.architecture names is {named.name}: name a newer one, or none"
            )
        return named or gpus.HOPPER

    @property
    def host(self) -> Host | None:
        """Who is asked while launches run, and outlives them."""
        return self._host() if self._host is not None else None

    def loaded(self, shape: str) -> tuple:
        """Machine code for a shape of block: (code, loaded, shape)."""
        if self.mode.ordered and shape == "line":
            shape = "rows"  # where a table says which warp's threads run
        found = self._shapes.get(shape)
        if found is None:
            from rawkern.engines.cpu.runtime.jit import Loaded

            with self.module.lock:
                found = self._shapes.get(shape)
                if found is None:
                    with self.module.named():
                        code = self.module.translation.code(self.symbol, self.module.layout, shape, self.instrument)
                    loaded = Loaded(code, self.instrument)
                    code = replace(code, sites=tuple(map(self.module.readable, code.sites)))
                    found = self._shapes[shape] = (code, loaded, shape)
        return found

    @property
    def bounded(self) -> bool:
        """Whether the compiler sees to it that a GPU has registers for all blocks: ``__launch_bounds__``."""
        needs = self.module.needs.kernels.get(self.symbol)
        return needs is not None and needs.bounded

    @property
    def most_registers(self) -> int:
        """An upper estimate of the registers that a GPU's machine code needs for each thread.

        They are about what PTX's values take at once, though loops are unrolled again and loads moved up. Of 84 kernels
        with 9 to 254 registers none needed more than twice that, of which 16 more are room to spare.
        """
        live = self.module.translation.most_live(self.symbol)
        return gpus.MOST_REGISTERS if live is None else 2 * live + 16

    @property
    def cluster(self) -> Dim3 | None:
        """The blocks of a cluster as the source has them, if it does; zeros where it leaves them to the launch."""
        needs = self.module.needs.kernels.get(self.symbol)
        return needs.cluster if needs is not None else None

    def most_of_cluster(self, block: Dim3, shared_mem: int, cluster: Dim3) -> int:
        """Blocks of a cluster, at most; 0 on a GPU without clusters."""
        return self.gpu.cluster

    def target(self, block: Dim3, shared_mem: int, attributes: Attributes = PLAIN) -> Target:
        """What launches the kernel with a shape of block, so many bytes of dynamic shared memory and attributes."""
        from rawkern.engines.cpu.runtime.grid import Target

        return Target(self, block, shared_mem, attributes)

    @property
    def attributes(self) -> dict[str, int]:
        """Resources under CuPy's names; the CPU engine has no registers to count."""
        needs = self.module.needs.kernels.get(self.symbol)
        if needs is None:  # it was not understood: say why
            with self.module.named():
                self.module.translation.understood(self.symbol)
        assert needs is not None
        return {
            "max_threads_per_block": needs.max_threads,
            "shared_size_bytes": needs.shared,
            "const_size_bytes": self.module.needs.constant,
            "local_size_bytes": needs.local,
            "num_regs": 0,
            "ptx_version": self.module.needs.version,
            "binary_version": 0,
            "cache_mode_ca": 0,
            "max_dynamic_shared_size_bytes": self.max_shared_mem - needs.shared,
            "preferred_shared_memory_carveout": -1,
            **self._set,
        }

    def set_attribute(self, name: str, value: int) -> None:
        """Note what `attributes` then tells; LaunchError for more shared memory than there is."""
        room = self.max_shared_mem - self.attributes["shared_size_bytes"]
        if name == "max_dynamic_shared_size_bytes" and value > room:
            raise LaunchError(
                f"{self.name}: {name} is {value} bytes, the maximum here is {room} bytes on {self.architecture}"
            )
        self._set[name] = value

    @property
    def max_shared_mem(self) -> int:
        """The most bytes of shared memory that a block may have."""
        return self.gpu.shared_per_block
