"""The CUDA engine: cubins loaded and launched through CuPy, on torch's streams and in torch's contexts.

Nothing here synchronises or copies. CuPy is imported at the first use.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from rawkern import _torch_private as private
from rawkern._torch_private import current_device
from rawkern.errors import LaunchError, MissingDependencyError, UnsupportedError
from rawkern.fused import Inline

if TYPE_CHECKING:
    from rawkern.compiler import Program
    from rawkern.signature import Signature

__all__ = ["EngineKernel", "Module", "architecture", "load_module"]

Dim3 = tuple[int, int, int]
# Launches with everything but stream and values settled. A stream of None is torch's current stream.
Run = Callable[[int | None, tuple[Any, ...]], None]

STATIC_LIMIT = 48 * 1024  # bytes of shared memory a block gets unless the kernel's limit is raised
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
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
# EngineKernel.configured's launch as code that stands in one function with the checks of the arguments.
PACK = """\
try:
    taken = pop()
except IndexError:
    taken = new_buffer()
buffer, pointers = taken
try:
    pack_into(buffer, 0, {values})
except (OverflowError, pack_error):
    push(taken)
    {otherwise}"""
LAUNCH = """\
stream = current_stream(index)
try:
    start(function, gx, gy, gz, bx, by, bz, shared_mem, stream, pointers, 0)
except driver_error as error:
    again(error, (function, gx, gy, gz, bx, by, bz, shared_mem, stream, pointers, 0))
push(taken)"""
FORK = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' "
    "start method (a kernel on CPU tensors runs after a fork too)"
)
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


def load_module(program: Program, *, device: torch.device | None) -> Module:
    """Load a compiled program on one device.

    Raises
    ------
    LaunchError
        Under CUDA graph capture, or when the driver refuses the program.
    MissingDependencyError
        CuPy is not installed, or finds no GPU.
    """
    index = torch.cuda.current_device() if device is None or device.index is None else device.index
    return Module(program, index)


def architecture(device: torch.device) -> str:
    """What to compile for: ``sm_XY`` of the device, or the nearest that this compiler knows and the device can run."""
    major, minor = torch.cuda.get_device_capability(device)
    return _nearest(major * 10 + minor, _compiler_architectures())


def _nearest(capability: int, known: tuple[int, ...]) -> str:
    if capability in known:
        return f"sm_{capability}"
    same_family = [arch for arch in known if arch < capability and arch // 10 == capability // 10]
    if same_family:  # machine code runs on later chips of the same major version
        return f"sm_{max(same_family)}"
    older = [arch for arch in known if arch < capability]
    if older:  # PTX, which the driver translates
        return f"compute_{max(older)}"
    raise UnsupportedError(
        f"the GPU's compute capability is {capability // 10}.{capability % 10}, the CUDA compiler installed here "
        f"starts at {min(known) // 10}.{min(known) % 10}; install an older one: pip install 'rawkern[cuda12]'"
    )


@functools.cache
def _compiler_architectures() -> tuple[int, ...]:
    return tuple(_cuda().nvrtc.getSupportedArchs())


@functools.cache
def _cuda() -> Any:
    """Import `cupy.cuda` and see that it finds a GPU."""
    extra = "cuda12" if (torch.version.cuda or "13").startswith("12") else "cuda13"
    try:
        import cupy
    except ImportError as error:
        raise MissingDependencyError(
            f"a kernel on CUDA tensors needs CuPy ({error}); pip install 'rawkern[{extra}]'"
        ) from error
    cuda: Any = cupy.cuda
    try:
        count, reason = cuda.runtime.getDeviceCount(), ""
    except RuntimeError as error:
        count, reason = 0, f" ({error})"
    if not count:
        raise MissingDependencyError(
            f"the tensors are on a GPU, but CuPy {cupy.__version__} finds none{reason}; its CUDA version has to fit "
            f"the driver, as torch's does (CUDA {torch.version.cuda}): pip install 'rawkern[{extra}]'"
        )
    return cuda


_LIMITS = {"malloc_heap_size": "cudaLimitMallocHeapSize", "stack_size": "cudaLimitStackSize"}


def set_limit(device: torch.device, name: str, value: int) -> None:
    """Set a limit of `rawkern.set_limit` in bytes; LaunchError if the driver refuses it."""
    runtime, index = _cuda().runtime, device.index
    try:
        _on_device(runtime, index, runtime.deviceSetLimit, getattr(runtime, _LIMITS[name]), value)
    except RuntimeError as error:
        heap = "; set it before the first kernel that uses malloc" if name == "malloc_heap_size" else ""
        raise LaunchError(f"cuda:{index} does not take {value} bytes as its {name}: {error}{heap}") from error


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


def _refuse_capture(what: str) -> None:
    if private.stream_capturing():
        raise LaunchError(
            f"{what} has to be compiled and loaded first, which cannot be recorded into a CUDA graph; "
            f"warm up first: launch it once before the capture"
        )


class Module:
    """A program loaded on one GPU. It stays loaded as long as the process: a CUDA graph may hold its kernels."""

    def __init__(self, program: Program, index: int) -> None:
        if torch.cuda._is_in_bad_fork():
            raise RuntimeError(FORK)
        cuda = _cuda()
        self.driver: Any = cuda.driver
        _refuse_capture(", ".join(entry.name for entry in program.entries) or "the module")
        torch.cuda.init()
        self.index = index
        self.context = _primary_context(cuda, index)
        with self.current():
            try:
                self.handle = self.driver.moduleLoadData(program.code)
            except self.driver.CUDADriverError as error:
                message = f"the driver does not load code for {program.arch} on cuda:{index}: {error}"
                raise LaunchError(message) from error

    def kernel(self, symbol: str, signature: Signature, *, cooperative: bool = False) -> EngineKernel:
        """Make a compiled kernel ready for launches, by its symbol."""
        _refuse_capture(signature.name)
        with self.current():
            return EngineKernel(self, symbol, signature, cooperative)

    def global_view(self, name: str) -> tuple[int, int]:
        """Return address and bytes of a ``__device__`` or ``__constant__`` variable, by its symbol."""
        address, nbytes = ctypes.c_uint64(), ctypes.c_size_t()
        with self.current():
            status = ctypes.CDLL("libcuda.so.1").cuModuleGetGlobal_v2(
                ctypes.byref(address), ctypes.byref(nbytes), ctypes.c_void_p(self.handle), name.encode()
            )
        if status:
            raise LaunchError(f"the module has no variable {name!r} on cuda:{self.index} (driver error {status})")
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

    def __init__(self, module: Module, symbol: str, signature: Signature, cooperative: bool) -> None:
        driver = module.driver
        self.name = signature.name
        self.module = module
        self.cooperative = cooperative
        self.function: int = driver.moduleGetFunction(module.handle, symbol)
        # Asking also makes the driver load the kernel now instead of at its first launch.
        self.attributes: dict[str, int] = {
            name: driver.funcGetAttribute(number, self.function) for number, name in enumerate(ATTRIBUTES)
        }
        properties = torch.cuda.get_device_properties(module.index)
        self.max_shared_mem: int = properties.shared_memory_per_block_optin
        self.multiprocessors: int = properties.multi_processor_count
        self._dynamic_limit = STATIC_LIMIT - self.attributes["shared_size_bytes"]
        self._raising = threading.Lock()
        self._size = signature.size
        self._offsets = tuple(signature.offsets)
        self._pack_into = struct.Struct(signature.format).pack_into
        # Parameter buffers, taken for the time of one launch: launches run without the GIL, so two threads, or a
        # launch inside a launch (a signal, a destructor), must never meet in one buffer.
        self.pool: list[tuple[bytearray, int]] = []
        _alive.add(self)

    def configured(self, grid: Dim3, block: Dim3, shared_mem: int) -> Run:
        """Return the launch with this configuration, as a function of stream and parameter values."""
        self._allow_shared_mem(shared_mem)
        if self.cooperative:
            self._check_cooperative(grid, block, shared_mem)
        (gx, gy, gz), (bx, by, bz) = grid, block
        function, index = self.function, self.module.index
        pool, pack_into, start = self.pool, self._pack_into, self._starter()
        device_now, current_stream = current_device, private.raw_stream
        driver_error = self.module.driver.CUDADriverError

        def run(stream: int | None, values: tuple[Any, ...]) -> None:
            try:
                taken = pool.pop()
            except IndexError:
                taken = self._new_buffer()
            buffer, pointers = taken
            pack_into(buffer, 0, *values)
            if stream is None:
                stream = current_stream(index)
            try:
                if device_now() == index:
                    start(function, gx, gy, gz, bx, by, bz, shared_mem, stream, pointers, 0)
                else:
                    with self.module.current():
                        start(function, gx, gy, gz, bx, by, bz, shared_mem, stream, pointers, 0)
            except driver_error as error:
                self._again(error, (function, gx, gy, gz, bx, by, bz, shared_mem, stream, pointers, 0))
            pool.append(taken)

        return run

    def inlined(self, grid: Dim3, block: Dim3, shared_mem: int) -> Inline:
        """Return a launch that `configured` has settled as code, on torch's current stream of the current device."""
        names = dict(zip(("gx", "gy", "gz", "bx", "by", "bz"), (*grid, *block), strict=True))
        names |= {
            "again": self._again,
            "current_stream": private.raw_stream,
            "device_now": current_device,
            "driver_error": self.module.driver.CUDADriverError,
            "function": self.function,
            "new_buffer": self._new_buffer,
            "pack_error": struct.error,
            "pack_into": self._pack_into,
            "pop": self.pool.pop,
            "push": self.pool.append,
            "shared_mem": shared_mem,
            "start": self._starter(),
        }
        # The only device is the current one, in every thread.
        tests = () if torch.cuda.device_count() == 1 else ("device_now() == index",)
        return Inline(tests, tuple(PACK.splitlines()), tuple(LAUNCH.splitlines()), names)

    def _starter(self) -> Callable[..., None]:
        driver = self.module.driver
        if not self.cooperative:
            return driver.launchKernel
        launch = driver.launchCooperativeKernel

        def start(*arguments: int) -> None:
            launch(*arguments[:-1])  # it has no `extra`

        return start

    def _again(self, error: Exception, arguments: tuple[int, ...]) -> None:
        """Launch again in a thread that had no context, because this is its first CUDA call; else say what failed."""
        driver = self.module.driver
        if driver.ctxGetCurrent() == self.module.context:
            self._failed(error)
        if not driver.ctxGetCurrent():
            driver.ctxSetCurrent(self.module.context)
        try:
            with self.module.current():
                self._starter()(*arguments)
        except driver.CUDADriverError as second:
            self._failed(second)

    def _failed(self, error: Exception) -> NoReturn:
        text = str(error)
        hint = next((f"; {hint}" for code, hint in HINTS.items() if code in text), "")
        raise LaunchError(f"{self.name}: the launch failed on cuda:{self.module.index}: {text}{hint}") from error

    def _new_buffer(self) -> tuple[bytearray, int]:
        """Make room for one launch's parameters: their bytes, then a pointer to each."""
        if torch.cuda._is_in_bad_fork():
            raise RuntimeError(FORK)
        start = (self._size + 7) // 8 * 8
        buffer = bytearray(start + 8 * max(len(self._offsets), 1))
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        struct.pack_into(f"={len(self._offsets)}Q", buffer, start, *(address + offset for offset in self._offsets))
        return buffer, address + start

    def _allow_shared_mem(self, shared_mem: int) -> None:
        if shared_mem <= self._dynamic_limit:
            return
        with self._raising, self.module.current():
            if shared_mem > self._dynamic_limit:
                try:
                    self.module.driver.funcSetAttribute(self.function, MAX_DYNAMIC_SHARED, shared_mem)
                except self.module.driver.CUDADriverError as error:
                    room = self.max_shared_mem - self.attributes["shared_size_bytes"]
                    raise LaunchError(
                        f"{self.name}: shared_mem is {shared_mem} bytes, the maximum here is {room} bytes: {error}"
                    ) from error
                self._dynamic_limit = shared_mem

    def _check_cooperative(self, grid: Dim3, block: Dim3, shared_mem: int) -> None:
        blocks, threads = grid[0] * grid[1] * grid[2], block[0] * block[1] * block[2]
        with self.module.current():
            each = self.module.driver.occupancyMaxActiveBlocksPerMultiprocessor(self.function, threads, shared_mem)
        if blocks > each * self.multiprocessors:
            raise LaunchError(
                f"{self.name}: a cooperative launch needs all {blocks} blocks at once, cuda:{self.module.index} holds "
                f"{each * self.multiprocessors} of this kernel ({each} on each of {self.multiprocessors} "
                f"multiprocessors); use fewer blocks and a grid-stride loop"
            )


_alive: weakref.WeakSet[EngineKernel] = weakref.WeakSet()


def _after_fork() -> None:
    # No buffers left means that the next launch asks for one, and is told that CUDA is gone in a forked child.
    for kernel in list(_alive):
        kernel.pool.clear()


os.register_at_fork(after_in_child=_after_fork)
