"""The CUDA engine: cubins loaded through CuPy, in torch's contexts. CuPy is imported at the first use."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from rawkern.base import pip, table
from rawkern.base import torch_private as private
from rawkern.base.attributes import PLAIN, Attributes
from rawkern.base.gpus import PORTABLE_CLUSTER, STATIC_SHARED, target
from rawkern.base.libcuda import libcuda
from rawkern.compile import linetable
from rawkern.compile.names import demangle
from rawkern.compile.toolchain import nvrtc
from rawkern.engines.cuda_target import FORK, Dim3, Target, about_clusters
from rawkern.engines.cuda_variables import Variables
from rawkern.errors import LaunchError, MissingDependencyError, UnsupportedError

if TYPE_CHECKING:
    from rawkern.arguments.signature import Signature
    from rawkern.compile.programs import Program

# CuPy's names, in the order of the driver's CU_FUNC_ATTRIBUTE_* numbers.
ATTRIBUTES = (
    "max_threads_per_block",
    "shared_size_bytes",
    "const_size_bytes",
    "local_size_bytes",
    "num_regs",
    "ptx_version",
    "binary_version",
    "cache_mode_ca",
    "max_dynamic_shared_size_bytes",
    "preferred_shared_memory_carveout",
)
# More of them: whether a launch has to have a cluster's size; its width, height and depth; whether it may be larger
# than every GPU's.
_CLUSTER, _NON_PORTABLE_CLUSTER = (10, 11, 12, 13), 14
# Driver errors that say something a user can act on.
_LATE = "and CUDA reports it only now; set CUDA_LAUNCH_BLOCKING=1, or run the same kernel on CPU tensors"
HINTS = {
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "the block needs more registers or shared memory than the device has; use a "
    "smaller block, or __launch_bounds__ in the kernel",
    "CUDA_ERROR_ILLEGAL_ADDRESS": f"an earlier kernel read or wrote outside of its arrays, {_LATE}",
    "CUDA_ERROR_MISALIGNED_ADDRESS": f"an earlier kernel used a pointer that is not aligned to its type, {_LATE}",
    "CUDA_ERROR_LAUNCH_FAILED": f"an earlier kernel failed, {_LATE}",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "an earlier kernel ran into the display's watchdog",
    "CUDA_ERROR_INVALID_VALUE": "the device does not accept this grid, block or shared_mem",
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": "this cannot be recorded into a CUDA graph",
}


def shared_variables() -> Variables:
    """Where the variables of a module's programs on a GPU are, which `load_module` takes."""
    return Variables()


def load_module(program: Program, *, device: torch.device | None, variables: Variables | None = None) -> Module:
    """Load a compiled program on one device, with variables of its own or of the module's programs.

    LaunchError under CUDA graph capture, or when the driver rejects the program; MissingDependencyError if CuPy is not
    installed, or finds no GPU.
    """
    index = torch.cuda.current_device() if device is None or device.index is None else device.index
    return Module(program, index, variables)


def architecture(device: torch.device, compiled: bool = False) -> str:
    """What to compile for: ``sm_XYa`` of the device, or the nearest that this compiler knows and the device can run.

    Where everything is compiled, no compiler is asked.
    """
    major, minor = torch.cuda.get_device_capability(device)
    if compiled:
        return f"sm_{major * 10 + minor}"
    return _nearest(major * 10 + minor, _compiler_architectures())


def _nearest(capability: int, known: tuple[int, ...]) -> str:
    if capability in known:
        return target(capability)
    same_family = [arch for arch in known if arch < capability and arch // 10 == capability // 10]
    if same_family:  # machine code runs on later chips of the same major version
        return f"sm_{max(same_family)}"
    older = [arch for arch in known if arch < capability]
    if older:  # PTX, which the driver translates
        return f"compute_{max(older)}"
    raise UnsupportedError(
        f"the GPU's compute capability is {capability // 10}.{capability % 10}, the CUDA compiler installed here "
        f"starts at {min(known) // 10}.{min(known) % 10}; install an older one: {pip.command('cuda12')}"
    )


@functools.cache
def _compiler_architectures() -> tuple[int, ...]:
    return nvrtc().architectures


@functools.cache
def _cuda() -> Any:
    """Import `cupy.cuda` and see that it finds a GPU."""
    fix = pip.command()
    try:
        import cupy
    except ImportError as error:
        raise MissingDependencyError(f"a kernel on CUDA tensors needs CuPy ({error}); run: {fix}") from error
    cuda: Any = cupy.cuda
    try:
        count, reason = cuda.runtime.getDeviceCount(), ""
    except RuntimeError as error:
        count, reason = 0, f" ({error})"
    if not count:
        raise MissingDependencyError(
            f"the tensors are on a GPU, but CuPy {cupy.__version__} finds none{reason}; its CUDA version must match "
            f"the driver, as torch's does (CUDA {torch.version.cuda}); run: {fix}"
        )
    return cuda


def driver_version() -> int:
    """Return the CUDA version that the driver supports, as 1000 * major + 10 * minor."""
    return _cuda().runtime.driverGetVersion()


_LIMITS = {"malloc_heap_size": "cudaLimitMallocHeapSize", "stack_size": "cudaLimitStackSize"}


def set_limit(device: torch.device, name: str, value: int) -> None:
    """Set a limit of `rawkern.set_limit` in bytes; LaunchError if the driver rejects it."""
    runtime, index = _cuda().runtime, device.index
    try:
        _on_device(runtime, index, runtime.deviceSetLimit, getattr(runtime, _LIMITS[name]), value)
    except RuntimeError as error:
        heap = "; set it before the first kernel that uses malloc" if name == "malloc_heap_size" else ""
        raise LaunchError(f"cannot set {name} of cuda:{index} to {value} bytes: {error}{heap}") from None


def get_limit(device: torch.device, name: str) -> int:
    """Return a limit in bytes."""
    runtime = _cuda().runtime
    return _on_device(runtime, device.index, runtime.deviceGetLimit, getattr(runtime, _LIMITS[name]))


def _on_device(runtime: Any, index: int, call: Callable[..., Any], *args: int) -> Any:
    """Make a call of CUDA's runtime for a device, in a thread of its own: the caller's device must not change."""
    if torch.cuda._is_in_bad_fork():
        raise RuntimeError(FORK)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(runtime.setDevice, index).result()
        return thread.submit(call, *args).result()


def _reject_capture(what: str) -> None:
    if private.stream_capturing():
        raise LaunchError(
            f"{what} has to be compiled and loaded first, which cannot be recorded into a CUDA graph; "
            f"warm up first: launch it once before the capture"
        )


class Module:
    """A program loaded on one GPU. It stays loaded as long as the process: a CUDA graph may hold its kernels."""

    def __init__(self, program: Program, index: int, variables: Variables | None = None) -> None:
        if torch.cuda._is_in_bad_fork():
            raise RuntimeError(FORK)
        cuda = _cuda()
        self.driver: Any = cuda.driver
        _reject_capture(", ".join(entry.name for entry in program.entries) or "the module")
        torch.cuda.init()
        table.table()
        table.learn_cuda()
        self.index = index
        self.context = _primary_context(cuda, index)
        with self.current():
            try:
                self.handle = self._load(program)
            except self.driver.CUDADriverError as why:
                raise LaunchError(f"the driver cannot load code for {program.arch} on cuda:{index}: {why}") from None
        #: Variables that another program of the module has had before, by symbol.
        self.copies = variables.add(self, program) if variables is not None else {}

    def _load(self, program: Program) -> Any:
        """Load code: with the source's file in its line table, if the driver takes that."""
        with contextlib.suppress(self.driver.CUDADriverError):
            return self.driver.moduleLoadData(linetable.findable(program))
        return self.driver.moduleLoadData(program.code)

    def kernel(self, symbol: str, signature: Signature, *, host: Any = None, mode: Any = None) -> EngineKernel:
        """Make a compiled kernel ready for launches, by its symbol; launches themselves query nothing.

        The mode of launches on the CPU means nothing here: a GPU has its own limits and order.
        """
        _reject_capture(signature.name)
        with self.current():
            return EngineKernel(self, symbol, signature)

    def global_view(self, name: str) -> tuple[int, int]:
        """Return address and bytes of a ``__device__`` or ``__constant__`` variable, by its symbol."""
        copied = self.copies.get(name)
        return (copied.home, copied.size) if copied else self.own_view(name)

    def own_view(self, name: str) -> tuple[int, int]:
        """The same of the memory that the program has for the variable."""
        address, nbytes = ctypes.c_uint64(), ctypes.c_size_t()
        with self.current():
            status = libcuda().cuModuleGetGlobal_v2(
                ctypes.byref(address), ctypes.byref(nbytes), ctypes.c_void_p(self.handle), name.encode()
            )
        if status:
            raise LaunchError(
                f"the module has no variable {demangle(name)!r} on cuda:{self.index} (driver error {status})"
            )
        return address.value, nbytes.value

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make the module's context the thread's own, for the time of the block."""
        driver = self.driver
        before = driver.ctxGetCurrent()
        driver.ctxSetCurrent(self.context)
        try:
            yield
        finally:
            driver.ctxSetCurrent(before)


@functools.cache
def _primary_context(cuda: Any, index: int) -> int:
    """Return the context that torch and the CUDA runtime use on a device."""
    _on_device(cuda.runtime, index, cuda.runtime.free, 0)  # makes it where there is none
    context = _on_device(cuda.runtime, index, cuda.driver.ctxGetCurrent)
    if not context:
        raise LaunchError(f"cuda:{index} has no primary context")
    return context


class EngineKernel:
    """One kernel on one GPU."""

    def __init__(self, module: Module, symbol: str, signature: Signature) -> None:
        driver = module.driver
        self.name = signature.name
        self.module = module
        self.function: int = driver.moduleGetFunction(module.handle, symbol)
        # Asking also makes the driver load the kernel now instead of at its first launch.
        self.attributes: dict[str, int] = {
            name: driver.funcGetAttribute(number, self.function) for number, name in enumerate(ATTRIBUTES)
        }
        properties = torch.cuda.get_device_properties(module.index)
        self.max_shared_mem: int = properties.shared_memory_per_block_optin
        self.architecture = f"sm_{properties.major}{properties.minor}"
        self._has_clusters: bool = properties.major >= 9
        #: The blocks of a cluster as the source has them, if it does; zeros where it leaves them to the launch.
        self.cluster = self._compiled_cluster() if self._has_clusters else None
        self.multiprocessors: int = properties.multi_processor_count
        self._dynamic_limit = STATIC_SHARED - self.attributes["shared_size_bytes"]
        self._raising = threading.Lock()
        self.offsets = tuple(signature.offsets)
        self.pack = struct.Struct(signature.format).pack

    def target(self, block: Dim3, shared_mem: int, attributes: Attributes = PLAIN) -> Target:
        """What launches the kernel with a shape of block, so many bytes of dynamic shared memory and attributes."""
        self._allow(shared_mem, attributes.together)
        return Target(self, block, shared_mem, attributes)

    def _compiled_cluster(self) -> Dim3 | None:
        must, x, y, z = (self.module.driver.funcGetAttribute(number, self.function) for number in _CLUSTER)
        return (x, y, z) if x else (0, 0, 0) if must else None

    def most_of_cluster(self, block: Dim3, shared_mem: int, cluster: Dim3) -> int:
        """Blocks of a cluster: those asked for where that many fit, else the most that do; 0 where there are none."""
        if not self._has_clusters:
            return 0
        together = Attributes(cluster).together
        self._allow(shared_mem, together)
        launch = self, cluster, block, shared_mem
        if together == 1 or about_clusters("cuOccupancyMaxActiveClusters", *launch):
            return together
        most = about_clusters("cuOccupancyMaxPotentialClusterSize", *launch)
        return min(most or PORTABLE_CLUSTER, together - 1)

    def failed(self, error: Exception) -> NoReturn:
        """Say what the driver said of a launch, and what can be done about it."""
        text = str(error)
        hint = next((f"; {hint}" for code, hint in HINTS.items() if code in text), "")
        raise LaunchError(f"{self.name}: the launch failed on cuda:{self.module.index}: {text}{hint}") from None

    def _allow(self, shared_mem: int, together: int) -> None:
        """Opt in to so much shared memory, and to clusters of so many blocks."""
        if shared_mem > self._dynamic_limit:
            self.set_attribute("max_dynamic_shared_size_bytes", shared_mem)
        if together > PORTABLE_CLUSTER:
            with self.module.current():
                self.module.driver.funcSetAttribute(self.function, _NON_PORTABLE_CLUSTER, 1)

    def set_attribute(self, name: str, value: int) -> None:
        """Set an attribute of the driver's; LaunchError if it rejects the value.

        The limit of dynamic shared memory is not lowered there: launches that were prepared need theirs.
        """
        memory, driver = name == "max_dynamic_shared_size_bytes", self.module.driver
        with self._raising, self.module.current():
            if not memory or value > self._dynamic_limit:
                try:
                    driver.funcSetAttribute(self.function, ATTRIBUTES.index(name), value)
                except driver.CUDADriverError as error:
                    room = self.max_shared_mem - self.attributes["shared_size_bytes"]
                    most = f" bytes, the maximum here is {room} bytes" if memory else ""
                    raise LaunchError(f"{self.name}: {name} is {value}{most}: {error}") from error
            self.attributes[name] = value
            if memory:
                self._dynamic_limit = max(self._dynamic_limit, value)

    def most_blocks(self, block: Dim3, shared_mem: int, attributes: Attributes) -> int:
        """How many blocks of a shape, in whole clusters, the device holds at a time."""
        if attributes.cluster is not None:
            most = about_clusters("cuOccupancyMaxActiveClusters", self, attributes.cluster, block, shared_mem)
            return most * attributes.together
        threads = block[0] * block[1] * block[2]
        with self.module.current():
            each = self.module.driver.occupancyMaxActiveBlocksPerMultiprocessor(self.function, threads, shared_mem)
        return each * self.multiprocessors
