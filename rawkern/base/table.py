"""What native functions use of Python and torch, by address: one table for the process.

torch's tensors are read where torch keeps them: `learn` finds the places by comparing tensors with what torch says of
them, so a torch that keeps them elsewhere is noticed, and one that has no such words makes launches go the careful way.
"""

from __future__ import annotations

import ctypes
import types
from functools import cache
from importlib import resources
from typing import Any

import torch

from rawkern.base import torch_private as private
from rawkern.base.forking import Lock
from rawkern.base.records import CPU, CUDA, TARGET, Record, linked
from rawkern.errors import UnsupportedError

_PYTHON = (
    "PyErr_Clear", "PyErr_Occurred", "PyEval_RestoreThread", "PyEval_SaveThread", "PyFloat_AsDouble",
    "PyBytes_AsString", "PyBytes_Size", "PyComplex_ImagAsDouble", "PyComplex_RealAsDouble", "PyLong_AsLong",
    "PyLong_AsLongLongAndOverflow", "PyLong_AsUnsignedLongLong", "PyLong_FromVoidPtr", "PyObject_Free",
    "PyObject_Vectorcall", "PyTuple_GetItem", "PyTuple_New", "PyTuple_SetItem", "PyTuple_Size",
    "PyType_GenericAlloc", "PyVectorcall_Call", "Py_DecRef", "Py_IncRef",
)  # fmt: skip
#: `attention` counts what every launch has to go the careful way for. `keys_*` are the dispatch keys of plain tensors.
#: `careful`, `finish`, `forward`, `relay` and `launcher_type` are `rawkern.launch.launcher`'s.
TABLE = Record(
    "Table",
    (
        ("attention", "i64"), ("keys_cpu", "i64"), ("keys_cpu_inference", "i64"), ("keys_cuda", "i64"),
        ("keys_cuda_inference", "i64"),
        *((name, "ptr") for name in (
            "none", "true", "false", "zero", "int_type", "bool_type", "float_type", "complex_type", "tuple_type",
            "bytes_type", "tensor_type", "parameter_type", "dltensor", "work_stream", "dispatch_modes", "tracing",
            "tracing_state", "grad_enabled", "bump", "requires_grad", "requires_grad_closure", "clock", "careful",
            "finish", "forward", "relay", "launcher_type", *_PYTHON,
        )),
    ),
)  # fmt: skip
#: Offset of an object's type: the last word of the head that all objects have.
TYPE_OFFSET = object.__basicsize__ - 8
_memory = ctypes.create_string_buffer(TABLE.size)
_python = ctypes.pythonapi
_lock = Lock()
_python.Py_IncRef.argtypes, _python.Py_IncRef.restype = (ctypes.py_object,), None


def keep(value: object) -> None:
    """Keep an object to the very end of the process: native code has its address."""
    _python.Py_IncRef(value)


keep(_memory)


def address_of(function: Any) -> int:
    """The address of a function that ctypes knows."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def function_of(builtin: Any, flags: int) -> int:
    """The C function behind a builtin that takes no arguments (flags 4) or one (8), and no self."""
    _python.PyCFunction_GetFunction.restype = ctypes.c_void_p
    _python.PyCFunction_GetFunction.argtypes = _python.PyCFunction_GetFlags.argtypes = (ctypes.py_object,)
    if type(builtin) is not type(len) or _python.PyCFunction_GetFlags(builtin) & 0xF != flags:
        raise UnsupportedError(f"{builtin!r} is no function of C with the arguments that rawkern knows")
    keep(builtin)
    return _python.PyCFunction_GetFunction(builtin)


def _getter_of(attribute: Any) -> tuple[int, int]:
    """The C function behind an attribute of a builtin class, and its second argument."""
    if type(attribute) is not types.GetSetDescriptorType:
        raise UnsupportedError(f"{attribute!r} is no attribute that C code gets")
    keep(attribute)
    # Behind the head: class, name, qualified name; then the definition: name, getter, setter, text, closure.
    definition = ctypes.c_uint64.from_address(id(attribute) + object.__basicsize__ + 24).value
    _, getter, _, _, closure = (ctypes.c_uint64 * 5).from_address(definition)
    return getter, closure


def field(name: str, value: int | None = None) -> int:
    """A row of the table; sets it first where there is a value."""
    word = ctypes.c_uint64.from_buffer(_memory, TABLE.offset(name))
    if value is not None:
        word.value = value
    return word.value


def kept(name: str, value: object) -> None:
    """Put an object's address into the table."""
    keep(value)
    field(name, id(value))


def attend(change: int) -> None:
    """Count one more reason (1), or one less (-1), for every launch to go the careful way."""
    with _lock:
        ctypes.c_int64.from_buffer(_memory, TABLE.offset("attention")).value += change


@cache
def table() -> int:
    """The table's address; UnsupportedError if this torch lacks something that native launches need."""
    objects = {
        "none": None, "true": True, "false": False, "zero": 0, "int_type": int, "bool_type": bool, "float_type": float,
        "complex_type": complex, "tuple_type": tuple, "bytes_type": bytes, "tensor_type": torch.Tensor,
        "parameter_type": torch.nn.Parameter, "tracing": private.jit_tracing,
    }  # fmt: skip
    for name, value in objects.items():
        kept(name, value)
    for name in _PYTHON:
        field(name, address_of(getattr(_python, name)))
    field("clock", address_of(ctypes.CDLL(None).clock_gettime))
    field("tracing_state", private.tracing_state())
    getter, closure = _getter_of(torch.Tensor.requires_grad)
    field("requires_grad", getter)
    field("requires_grad_closure", closure)
    field("dispatch_modes", function_of(private.dispatch_modes, 4))
    field("grad_enabled", function_of(torch.is_grad_enabled, 4))
    field("bump", function_of(private.increment_version, 8))
    exchange = private.exchange_functions()
    field("dltensor", exchange[3])
    field("work_stream", exchange[4])
    _learn_keys("cpu")
    return ctypes.addressof(_memory)


@cache
def learn_cuda() -> None:
    """Enter the dispatch keys of plain tensors on GPUs, of which there has to be one."""
    _learn_keys("cuda")


def _learn_keys(device: str) -> None:
    with torch.inference_mode(False):
        field(f"keys_{device}", private.keys_of(torch.empty(0, device=device)))
    with torch.inference_mode():
        field(f"keys_{device}_inference", private.keys_of(torch.empty(0, device=device)))


@cache
def preamble() -> str:
    """IR text of what native functions have in common; UnsupportedError if torch keeps what a tensor is elsewhere."""
    impl, keys = private.tensor_layout()
    text = resources.files("rawkern.base").joinpath("native.ll").read_text()
    values = {"type_offset": TYPE_OFFSET, "impl_offset": impl, "keys_offset": keys, "CPU": CPU, "CUDA": CUDA}
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return f"{TABLE.llvm}\n{TARGET.llvm}\n{linked(text, (TABLE, TARGET))}"
