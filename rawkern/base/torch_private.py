"""Every private torch name that argument binding uses, each with a public way round where there is one.

Nothing else under `rawkern` that binds arguments reaches into `torch._C`. `tests/test_interop.py` names each of these,
so that a torch release which moves one says which it was.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch

from rawkern.base.records import exported
from rawkern.errors import UnsupportedError

# The classes whose data_ptr() means what it says. Buffer is public since torch 2.5.
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer))


def _get(path: str) -> Any:
    found: Any = torch
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _mode_stack_length() -> int:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return len(_get_current_dispatch_mode_stack())


def _increment_version(tensors: tuple[torch.Tensor, ...]) -> None:
    torch.autograd.graph.increment_version(tensors)


def _raw_stream(index: int) -> int:
    return torch.cuda.current_stream(index).cuda_stream


# Number of active torch dispatch modes (FakeTensorMode, make_fx, FlopCounterMode ...): 0.03 us.
dispatch_modes: Callable[[], int] = _get("_C._len_torch_dispatch_stack") or _mode_stack_length
# Whether torch.jit.trace is recording: 0.04 us.
jit_tracing: Callable[[], bool] = _get("_C._is_tracing") or _get("jit.is_tracing")
# The version bump without the isinstance check of the public one: 0.09 us instead of 0.20.
increment_version: Callable[[tuple[torch.Tensor, ...]], None] = _get("_C._increment_version") or _increment_version
# torch's current stream of a device as an integer: 0.07 us instead of 3.4. Missing in builds without CUDA.
raw_stream: Callable[[int], int] = _get("_C._cuda_getCurrentRawStream") or _raw_stream
# torch's current device without the initialization check of the public function, which every launch would pay.
current_device: Callable[[], int] = _get("_C._cuda_getDevice") or torch.cuda.current_device

# A new tensor on the CPU by size, strides and dtype, past the dispatcher: 0.35 us instead of 0.6.
empty_strided: Callable[..., torch.Tensor] | None = _get("_C._dynamo.guards._empty_strided_cpu")

# Within it, no mode and no subclass of tensors sees the calls of torch's functions.
without_torch_function: Callable[[], Any] = _get("_C.DisableTorchFunction") or contextlib.nullcontext

# --- for operators. These have no public counterpart: without one of them an operator says so when it is defined.
# Number of active torch function modes (torch.device as a context among them).
function_modes: Callable[[], int] = _get("_C._len_torch_function_stack")
# Whether a functorch transform (vmap, grad, jvp) is active.
transforms: Callable[[], bool] = _get("_C._are_functorch_transforms_active")
autocast_enabled: Callable[[], bool] = _get("_C._is_any_autocast_enabled")
# The autograd function that records at one level of functorch, and the switch that allows it under functorch.
SingleLevelFunction: Any = _get("autograd.function._SingleLevelFunction")
# Whether one of the arguments requires grad; looks into lists.
any_requires_grad: Callable[..., bool] = _get("_C._any_requires_grad")
# Context for the rest of the dispatcher below its autograd keys, and the keys that come after those.
below_autograd: Any = _get("_C._AutoDispatchBelowAutograd")
_fwd_grad_enabled: Callable[[], bool] = _get("_C._is_fwd_grad_enabled")
after_autograd: Any = _get("_C._after_autograd_keyset")
# Where the level of forward-mode AD stands, -1 for none: a module and a name in it.
forward_level = torch.autograd.forward_ad, "_current_level"
# Where it stands whether one of torch's profilers records, which shows the operators that the dispatcher calls.
profiler_flag = torch.autograd.profiler, "_is_profiler_enabled"
# Whether two tensors share memory, fake ones included.
same_memory: Callable[[torch.Tensor, torch.Tensor], bool] = _get("_C._is_alias_of")
# torch's former vmap, which implements is_grads_batched=True: whether it has batched a tensor, a tensor with its batch
# in front, and the way back. One level of it is ever active, the first.
_former_key: Any = _get("_C._parse_dispatch_key")("Batched")
_dispatch_keys: Callable[[torch.Tensor], Any] = _get("_C._dispatch_keys")


def formerly_batched(t: torch.Tensor) -> bool:
    """Whether a tensor is a batch of torch's former vmap."""
    return _dispatch_keys(t).has(_former_key)


def with_former_batch(t: torch.Tensor) -> torch.Tensor:
    """The whole batch, as dimension 0."""
    return _get("_remove_batch_dim")(t, 1, 0, 0)


def as_former_batch(t: torch.Tensor, dim: int) -> torch.Tensor:
    """A tensor as torch's former vmap has it, with the batch in a dimension."""
    return _get("_add_batch_dim")(t, dim, 1)


def by_vmap_rule(rule: Callable[..., Any], overload: Any, *args: Any) -> Any:
    """Call a rule for vmap with batched tensors, as one of `torch.library.register_vmap` is called."""
    from torch._functorch.autograd_function import custom_function_call_vmap_helper
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

    interpreter: Any = retrieve_current_functorch_interpreter()
    return custom_function_call_vmap_helper(interpreter, rule, overload, *args)


def called_straight(function: Any, backward: Any = None) -> Any:
    """An autograd function whose backward autograd calls itself, not through a method that looks for it first.

    `backward` is what it calls, if that is another one.
    """
    node = getattr(function, "_backward_cls", None)
    if node is not None:
        node.apply = backward or function.backward
    return function


def profiling() -> bool:
    """Whether one of torch's profilers records."""
    return getattr(*profiler_flag)


@contextlib.contextmanager
def plain_tensors() -> Iterator[None]:
    """Context in which new tensors are plain ones, whatever modes and transforms of functorch are active."""
    if not (dispatch_modes() or transforms()):
        yield
        return
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._C._DisableFuncTorch(), _disable_current_modes():
        yield


def forward_mode() -> bool:
    """Whether a level of forward-mode AD is active."""
    return getattr(*forward_level) >= 0


def single_level() -> Any:
    """Context in which a `SingleLevelFunction` may run while functorch is active."""
    from torch._functorch.utils import enable_single_level_autograd_function

    return enable_single_level_autograd_function()


class Below:
    """Context for what an autograd function does below its own level of functorch, as a torch operator does it.

    The function switches recording off, and functorch switches on again only what its own level is about: a gradient
    around a jvp, or a jvp around a gradient, would be lost in silence. And where a compiler traces, a change in place
    without recording counts as one made under ``no_grad``. So make this before, and enter it inside.
    """

    def __init__(self) -> None:
        self._modes = torch.is_grad_enabled(), _fwd_grad_enabled()

    def forward_mode(self) -> Any:
        """Context for a function's jvp, which torch, too, runs without recording what other levels are about."""
        return torch.autograd.forward_ad._set_fwd_grad_enabled(self._modes[1])

    def __enter__(self) -> None:
        grad, forward = self._modes
        self._contexts = [below_autograd()]
        if transforms() or dispatch_modes():
            self._contexts += [torch.set_grad_enabled(grad), torch.autograd.forward_ad._set_fwd_grad_enabled(forward)]
        for each in self._contexts:
            each.__enter__()

    def __exit__(self, *error: Any) -> None:
        for each in reversed(self._contexts):
            each.__exit__(*error)


def without_key(name: str) -> Any:
    """Context that keeps the dispatcher from a key."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)))


def destroy(library: torch.library.Library, names: Sequence[str]) -> None:
    """Take a library's operators out of torch's registry, and all that torch keeps under their names.

    Where an interrupt came while torch wrote it down, it may not know all of that itself.
    """
    known = getattr(library, "_op_defs", None)
    if known is not None:
        known.update(names)
    library._destroy()
    implementations = getattr(torch.library, "_impls", set())
    for key in tuple(implementations):  # namespace/name.overload/key
        if key.rpartition("/")[0].partition(".")[0].replace("/", "::") in names:
            implementations.discard(key)


def exchange_functions() -> tuple[int, ...]:
    """The five functions of DLPack's C exchange API; the fourth fills a DLTensor, the fifth tells a stream."""
    capsule = _get("Tensor.__dlpack_c_exchange_api__")
    if capsule is None:
        raise UnsupportedError(f"torch {torch.__version__} has no __dlpack_c_exchange_api__; rawkern needs torch 2.10")
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    # The version as two words of 32 bits, an older version of the same, then the functions.
    return tuple((ctypes.c_uint64 * 7).from_address(pointer(capsule, b"dlpack_exchange_api")))[2:]


#: C++ functions of libtorch and what it links with, by the names that native code has for them.
FUNCTIONS = {
    # How many dispatch modes are active, and how many function modes: int64 ().
    "dispatch_modes": "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv",
    "function_modes": "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",
    # Pointers to a word that says whether torch.jit.trace is recording; that is 0 before a thread's first transform.
    "tracing_state": "_ZN5torch3jit6tracer15getTracingStateEv",
    "transform_state": "_ZN2at9functorch20functorchTLSAccessorEv",
    # Whether grad mode is on: bool (). Whether a tensor requires grad: bool (implementation).
    "grad_enabled": "_ZN3c108GradMode10is_enabledEv",
    "requires_grad": "_ZNK3c1010TensorImpl13requires_gradEv",
    # Threads that a program allows torch: int ().
    "thread_count": "_ZN2at15get_num_threadsEv",
    # Count a change: void (address of the pointer to the implementation). It throws for tensors of inference mode.
    "bump": "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE",
}


def function(name: str) -> int:
    """The address of one of `FUNCTIONS`; UnsupportedError if this torch has it no more."""
    found = _address(FUNCTIONS[name])
    if not found:
        raise UnsupportedError(
            f"torch {torch.__version__} has no {FUNCTIONS[name]}, which rawkern calls; install another release of torch"
        )
    return found


def autocast_function() -> int:
    """The address of a function that tells whether autocast is on for a kind of device; 0 where there is none."""
    return _address("_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE")


def openmp() -> int:
    """The address of ``GOMP_parallel`` in the OpenMP runtime that torch uses; 0 where it has none."""
    return _address("GOMP_parallel")


@cache
def _address(symbol: str) -> int:
    """Where libtorch or what it links with has a function; 0 for nowhere."""
    try:
        return exported(_library(), symbol)
    except (ValueError, OSError):
        return 0


@cache
def _library() -> ctypes.CDLL:
    suffix = "dylib" if sys.platform == "darwin" else "so"
    return ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", f"libtorch_cpu.{suffix}"))


def keys_of(t: torch.Tensor) -> int:
    """The dispatch keys of a tensor as torch keeps them: a set of bits that tells what kind of tensor it is."""
    return torch._C._dispatch_keys(t).raw_repr()


def tensor_layout() -> tuple[int, int, int]:
    """Where a tensor has the address of its implementation, and where that has the dispatch keys and its storage.

    They are found by comparing tensors of several kinds with what torch says of them.
    """
    with plain_tensors():
        plain = torch.empty(3, device="cpu")
        kinds = (
            plain,
            _get("_neg_view")(plain),
            torch.empty(2, dtype=torch.complex64).conj(),
            torch.empty(1, device="meta"),
        )

    def places(address: Callable[[Any], int], value: Callable[[Any], int], most: int) -> set[int]:
        found = set(range(0, most, 8))
        for t in kinds:
            words = (ctypes.c_uint64 * (most // 8)).from_address(address(t))
            found &= {8 * k for k, word in enumerate(words) if word == value(t)}
        return found

    impl = places(id, lambda t: t._cdata, torch.Tensor.__basicsize__)
    keys = places(lambda t: t._cdata, keys_of, 192)  # an implementation has more bytes than that
    storage = places(lambda t: t._cdata, lambda t: t.untyped_storage()._cdata, 192)
    if any(len(found) != 1 for found in (impl, keys, storage)):
        raise UnsupportedError(f"torch {torch.__version__} stores the dispatch keys of tensors at an unknown offset")
    return impl.pop(), keys.pop(), storage.pop()


def storage_layout() -> tuple[int, int]:
    """Where the implementation of a storage has the address of its memory, and its bytes; found the same way."""
    kept = bytearray(24)
    with plain_tensors():
        kinds = torch.empty(3, device="cpu"), torch.frombuffer(kept, dtype=torch.uint8), torch.empty(7, device="meta")
    found = {"data_ptr": set(range(0, 64, 8)), "nbytes": set(range(0, 64, 8))}  # an implementation has more bytes
    for storage in (t.untyped_storage() for t in kinds):
        words = (ctypes.c_uint64 * 8).from_address(storage._cdata)
        for name, places in found.items():
            places &= {8 * k for k, word in enumerate(words) if word == getattr(storage, name)()}
    if any(len(places) != 1 for places in found.values()):
        raise UnsupportedError(f"torch {torch.__version__} stores the memory of storages at an unknown offset")
    return found["data_ptr"].pop(), found["nbytes"].pop()


def dispatch_mode_name() -> str:
    """The class name of the innermost active dispatch mode."""
    try:
        from torch.utils._python_dispatch import _get_current_dispatch_mode

        mode = _get_current_dispatch_mode()
        return type(mode).__name__ if mode is not None else "a torch dispatch mode"
    except (ImportError, AttributeError):
        return "a torch dispatch mode"


def stream_capturing() -> bool:
    """Whether torch's current CUDA stream is being captured into a graph."""
    # Asking whether there is a GPU would start the driver, and a process in which that has started cannot be forked.
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def called_operators(run: Callable[[], Any]) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Run something, and say which operators it calls that are not torch's own, with copies of their arguments."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map_only

    found: dict[Any, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}

    def copied(t: torch.Tensor) -> torch.Tensor:
        return t.detach().clone().requires_grad_(t.requires_grad)

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func.namespace not in ("aten", "prim", "prims") and func not in found:
                found[func] = func, *tree_map_only(torch.Tensor, copied, (args, kwargs))
            return func(*args, **kwargs)

    with Listen():
        run()
    return list(found.values())


def detached(values: Any) -> Any:
    """Nested lists, tuples and dicts with their tensors detached."""
    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, torch.Tensor.detach, values)


def schema_of(op: Any) -> Any:
    """The schema of a torch operator: of rawkern.op, torch.library.custom_op or torch.ops; None for functions."""
    overload = getattr(op, "overload", op)
    return getattr(getattr(overload, "_opoverload", overload), "_schema", None)


def written_arguments(op: Any) -> list[str]:
    """The names of the arguments that a torch operator writes to, by its schema."""
    schema = schema_of(op)
    arguments = schema.arguments if schema is not None else ()
    return [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]


def sleep_on_gpu(cycles: int) -> None:
    """Keep the current CUDA stream busy for that many clock cycles."""
    sleep = _get("cuda._sleep")
    if sleep is not None:
        sleep(cycles)
        return
    a = torch.ones(4096, 4096, device="cuda")
    for _ in range(max(1, cycles // 5_000_000)):
        a = a @ a


def has_dispatch(t: torch.Tensor) -> bool:
    """Whether a tensor subclass has a `__torch_dispatch__` of its own, so that its memory may be elsewhere."""
    own = getattr(type(t), "__torch_dispatch__", None)
    return own is not None and own is not _no_dispatch and own is not _get("Tensor.__torch_dispatch__")


def _never(t: torch.Tensor) -> bool:
    return False


is_functional: Callable[[torch.Tensor], bool] = _get("_is_functional_tensor") or _never
is_batched: Callable[[torch.Tensor], bool] = _get("_C._functorch.is_batchedtensor") or _never
is_grad_tracking: Callable[[torch.Tensor], bool] = _get("_C._functorch.is_gradtrackingtensor") or _never
is_functorch: Callable[[torch.Tensor], bool] = _get("_C._functorch.is_functorch_wrapped_tensor") or _never
# The tensor inside a wrapper of functorch that has outlived its transform; others as they are.
unwrap_if_dead: Callable[[torch.Tensor], torch.Tensor] = _get("_C._functorch.unwrap_if_dead") or (lambda t: t)
is_zero: Callable[[torch.Tensor], bool] = _get("Tensor._is_zerotensor") or _never
_no_dispatch = _get("_C._disabled_torch_dispatch_impl")


def wrapper_kind(t: torch.Tensor) -> str | None:
    """What kind of memoryless tensor `t` is, or None for one that holds memory.

    Returns "fake", "functional", "vmap", "grad", "zero" or None.
    """
    if has_memory(t):
        return None
    if any(kind.__name__ == "FakeTensor" for kind in type(t).__mro__):
        return "fake"
    if type(t).__name__ == "FunctionalTensor" or is_functional(t):
        return "functional"
    if is_batched(t):
        return "vmap"
    if is_grad_tracking(t):
        return "grad"
    if is_functorch(t):
        return "functorch"
    try:
        return "zero" if is_zero(t) else None
    except ValueError:  # an uninitialized parameter answers no question
        return None


def has_memory(t: torch.Tensor) -> bool:
    """Whether `t` is of a plain class and has an address; false for empty tensors too."""
    try:
        return type(t) in PLAIN and t.data_ptr() != 0
    except (RuntimeError, ValueError):  # functorch wrappers, uninitialized parameters
        return False
