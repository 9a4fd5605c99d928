"""What native functions use of Python and torch, by address: one table for the process.

torch's tensors are read where torch keeps them: `torch_private.tensor_layout` finds the places by comparing tensors
with what torch says of them, so with a torch that keeps them elsewhere launches take the slow path.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

from rawkern.base import torch_private as private
from rawkern.base.forking import Lock
from rawkern.base.records import CPU, CUDA, TARGET, Record, exported, filled, start_of

_PYTHON = (
    "PyBytes_AsString", "PyBytes_Size", "PyComplex_ImagAsDouble", "PyComplex_RealAsDouble", "PyDict_GetItemString",
    "PyDict_Size", "PyErr_Clear", "PyErr_Fetch", "PyErr_Occurred", "PyErr_Restore", "PyFloat_AsDouble",
    "PyList_AsTuple", "PyList_GetItem", "PyList_Size", "PyLong_AsLongLongAndOverflow", "PyLong_AsUnsignedLongLong",
    "PyLong_FromLongLong", "PyLong_FromVoidPtr", "PyObject_Free", "PyObject_GenericGetDict", "PyObject_Vectorcall",
    "PyTuple_GetItem", "PyTuple_New", "PyTuple_SetItem", "PyTuple_Size", "PyType_GenericAlloc", "PyType_GetSlot",
    "PyType_IsSubtype", "PyWeakref_GetObject", "Py_DecRef", "Py_IncRef",
)  # fmt: skip
#: `attention` counts what every launch has to take the slow path for. `keys_*` are the dispatch keys of plain tensors.
#: `mode`: what is added to the CPU (`engines.cpu.mode.Mode.word`). `default_device`: where launches without tensors
#: run, as DLPack has it, 0 where that is not known or may change. `tuple_iter`: how tuples are iterated, and subclasses
#: that leave it as it is. `slow_path`, `finish`, `abandon`, `forward`, `relay`, `launcher_type`, `map_type` and
#: `members_type` are `rawkern.launch.launcher`'s.
TABLE = Record(
    "Table",
    (
        ("attention", "i64"), ("keys_cpu", "i64"), ("keys_cpu_inference", "i64"), ("keys_cuda", "i64"),
        ("keys_cuda_inference", "i64"), ("mode", "i64"), ("default_device", "i64"),
        *((name, "ptr") for name in (
            "none", "true", "false", "int_type", "bool_type", "float_type", "complex_type", "tuple_type",
            "bytes_type", "dict_type", "list_type", "tensor_type", "parameter_type", "tuple_iter", "dltensor",
            "work_stream", *private.FUNCTIONS, "clock", "slow_path", "finish", "abandon", "forward", "relay",
            "launcher_type", "map_type", "members_type", *_PYTHON,
        )),
    ),
)  # fmt: skip
#: Offset of an object's type: the last word of the head that all objects have.
TYPE_OFFSET = object.__basicsize__ - 8
ITER = 62  # Py_tp_iter, for PyType_GetSlot
_plain_keys: set[int] = set()  # those in the table
_memory = bytearray(TABLE.size)
_python = ctypes.pythonapi
_lock = Lock()
_python.Py_IncRef.argtypes, _python.Py_IncRef.restype = (ctypes.py_object,), None


def keep(value: object) -> None:
    """Keep an object to the very end of the process: native code has its address."""
    _python.Py_IncRef(value)


keep(_memory)


def address_of(function: Any) -> int:
    """The address of a function that ctypes knows."""
    return ctypes.c_void_p.from_buffer(function).value or 0


def python_function(name: str) -> int:
    """The address of a function of Python's, or of the C library's."""
    return exported(_python, name)


def native_function(address: int, result: Any, *params: Any) -> Any:
    """A function at an address that Python calls with its lock held.

    Without a class for its types, which takes as long to make as a hundred calls.
    """
    found = type(_python.Py_IncRef)(address)
    found.argtypes, found.restype = params, result
    return found


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


_reasons: set[int] = set()


def attend(reason: object, there: bool) -> None:
    """Add or remove a reason, by its identity, for every launch to take the slow path."""
    with _lock:
        (_reasons.add if there else _reasons.discard)(id(reason))
        field("attention", len(_reasons))


def slot_offset(cls: type, name: str) -> int:
    """Where in an object of a class one of its ``__slots__`` is, in bytes."""
    one, mark = object.__new__(cls), object()
    setattr(one, name, mark)
    words = (ctypes.c_uint64 * (cls.__basicsize__ // 8)).from_address(id(one))
    return 8 * list(words).index(id(mark))


@cache
def table() -> int:
    """The table's address; UnsupportedError if this torch lacks something that native launches need."""
    objects = {
        "none": None, "true": True, "false": False, "int_type": int, "bool_type": bool, "float_type": float,
        "complex_type": complex, "tuple_type": tuple, "bytes_type": bytes, "dict_type": dict, "list_type": list,
        "tensor_type": torch.Tensor, "parameter_type": torch.nn.Parameter,
    }  # fmt: skip
    for name, value in objects.items():
        kept(name, value)
    for name in _PYTHON:
        field(name, python_function(name))
    field("clock", python_function("clock_gettime"))
    slot = native_function(python_function("PyType_GetSlot"), ctypes.c_void_p, ctypes.py_object, ctypes.c_int)
    field("tuple_iter", slot(tuple, ITER))
    for name in private.FUNCTIONS:
        field(name, private.function(name))
    exchange = private.exchange_functions()
    field("dltensor", exchange[3])
    field("work_stream", exchange[4])
    _learn_keys("cpu")
    return start_of(_memory)


@cache
def learn_cuda() -> None:
    """Enter the dispatch keys of plain tensors on GPUs, of which there has to be one."""
    _learn_keys("cuda")


def _learn_keys(device: str) -> None:
    with private.plain_tensors():
        for inference in (False, True):
            with torch.inference_mode(inference):
                keys = private.keys_of(torch.empty(0, device=device))
            field(f"keys_{device}{'_inference' * inference}", keys)
            _plain_keys.add(keys)


def is_plain(t: torch.Tensor) -> bool:
    """Whether a tensor is known to be one that native code takes: its elements lie in its own memory as they are."""
    return type(t) in (torch.Tensor, torch.nn.Parameter) and private.keys_of(t) in _plain_keys


@cache
def preamble() -> str:
    """IR text of what native functions have in common; UnsupportedError if torch keeps what a tensor is elsewhere."""
    return f"{TABLE.llvm}\n{TARGET.llvm}\n{readings(Path(__file__).with_name('native.ll'))}"


@cache
def readings(file: Path, records: tuple[Record, ...] = ()) -> str:
    """IR text of functions that read objects of Python and torch; `records`: others that it names."""
    impl, keys, storage = private.tensor_layout()
    text = file.read_text()
    offsets = {"type_offset": TYPE_OFFSET, "impl_offset": impl, "keys_offset": keys, "storage_offset": storage}
    values = {**offsets, "CPU": CPU, "CUDA": CUDA}
    return filled(text, (TABLE, TARGET, *records), values)
