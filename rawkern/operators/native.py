"""What operators do in machine code: whether anything watches a call, and whole calls of kernels over plain tensors."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rawkern.arguments.memory import dtype_name
from rawkern.arguments.rules import DTYPES
from rawkern.base import operator_state
from rawkern.base import torch_private as private
from rawkern.base.llvm import LoadedObject, stored_object
from rawkern.base.records import CPU, CUDA, DONE, TARGET, UNFINISHED, Filled, Record, block_size, filled
from rawkern.base.table import TABLE, TYPE_OFFSET, keep, preamble, python_function, table
from rawkern.errors import LaunchError, UnsupportedError
from rawkern.kernel import RawKernel
from rawkern.launch.native import PLAN

MOST = 16  # parameters of a kernel that a `Map` calls
#: What all of them have in common. A dict is followed by a name in it.
WATCH = Record(
    "Watch",
    tuple(
        (name, "ptr")
        for name in (
            "table", "transforms", "forward_mode", "forward_level", "no_level", "profiler", "profiling",
            "torch", "empty_like", "finish", "save_for_backward", "materialize_grads", "mark_non_differentiable",
            "about", "saved_tensors", "needs_input_grad", "with_saved", "autocast", "autocast_enabled",
            "PyDict_GetItem", "PyObject_GetAttr", "PyObject_SetAttr", "PyObject_VectorcallMethod",
            "PyErr_ExceptionMatches", "launch_error", "size_type", "not_implemented",
        )
    ),
)  # fmt: skip
#: A kernel for a dtype and a kind of device, with the elements that a thread does; `ones` has a bit for each input that
#: is one element for all. `empty_strided` makes tensors there in half the time of torch.empty_like, or is 0.
ROW = Record(
    "Row",
    (
        ("dtype", "i32"), ("kind", "i32"), ("ones", "i64"), ("width", "i64"), ("plan", "ptr"), ("next", "ptr"),
        ("empty_strided", "ptr"), ("torch_dtype", "ptr"),
    ),
)  # fmt: skip
#: A callable; `numbers` has a bit for each input that is not a tensor, `rows` is where the first row's address is.
#: `apply` is an autograd function's, or 0, and `run` its first argument.
MAP = Record(
    "Map",
    (
        ("watch", "ptr"), ("slow_path", "ptr"), ("inputs", "i64"), ("outputs", "i64"), ("numbers", "i64"),
        ("rows", "ptr"), ("apply", "ptr"), ("run", "ptr"),
    ),
)  # fmt: skip
#: The forward of an autograd function that calls `run` and saves inputs and outputs, by so many places among both.
FORWARD = Record(
    "Forward",
    (
        ("watch", "ptr"), ("python", "ptr"), ("run", "ptr"), ("inputs", "i64"), ("outputs", "i64"), ("saves", "i64"),
        ("places", "ptr"),
    ),
)  # fmt: skip
#: An argument of a call that is known: a value, or the layout of a tensor, which begins as a DLTensor does.
ARGUMENT = Record(
    "Argument",
    (
        ("data", "ptr"), ("kind", "i32"), ("index", "i32"), ("ndim", "i32"), ("dtype", "i32"), ("shape", "ptr"),
        ("strides", "ptr"), ("offset", "i64"), ("object", "ptr"), ("alignment", "i64"),
    ),
)  # fmt: skip
#: How memory is allocated; the first that a view is given is the tensor at the place `base`, which is -1 for others.
MAKE = Record("Make", (("function", "ptr"), ("count", "i64"), ("given", "ptr"), ("base", "i64")))
#: A launch with its arguments: for each a place among those of the call and memory, or -1 and an object.
STEP = Record("Step", (("launcher", "ptr"), ("count", "i64"), ("places", "ptr")))
#: A call that is known; it lives as long as its owner. Its memories are -1 where it does more than launches. `about` is
#: what the autograd function keeps of such a call besides tensors, or None.
ENTRY = Record(
    "Entry",
    (
        ("next", "ptr"), ("owner", "ptr"), ("arguments", "ptr"), ("memories", "i64"), ("makes", "ptr"),
        ("launches", "i64"), ("steps", "ptr"), ("returned", "i64"), ("results", "ptr"), ("about", "ptr"),
    ),
)  # fmt: skip
CALLS = Record("Calls", (("watch", "ptr"), ("count", "i64"), ("cells", "ptr")))
#: Calls of an operator's users and the forward of its autograd function, which is `apply(run, ...)` with the arguments
#: in an `order`. It saves so many inputs and outputs, by their places among both; the last outputs are hidden.
USERS = Record(
    "Users",
    (
        ("watch", "ptr"), ("calls", "ptr"), ("python", "ptr"), ("run", "ptr"), ("apply", "ptr"), ("order", "ptr"),
        ("outputs", "i64"), ("hidden", "i64"), ("saves", "i64"), ("places", "ptr"),
    ),
)  # fmt: skip
#: The backward of an autograd function: it is given so many gradients, of which the first are those of visible outputs,
#: and returns None for each of `offset` arguments before the tensors. `described`: whether ctx has an `about`.
BACKWARD = Record(
    "Backward",
    (
        ("watch", "ptr"), ("calls", "ptr"), ("python", "ptr"), ("grads", "i64"), ("given", "i64"),
        ("described", "i64"), ("offset", "i64"), ("tensors", "i64"),
    ),
)  # fmt: skip
ROWS = 64  # lists of calls, by what `_mixed` makes of their shapes
LONGEST = 32  # arguments of a call, memories that it allocates, arguments of a launch
ALIGNMENT = 32  # bytes; what lies alike with respect to it is launched alike


@cache
def _watch() -> Filled:
    found = Filled(WATCH, table=table())
    module, level = private.forward_level
    profiler, profiling = private.profiler_flag
    objects = {
        "transforms": private.transforms, "forward_mode": vars(module), "forward_level": level, "no_level": -1,
        "profiler": vars(profiler), "profiling": profiling,
        "torch": vars(torch), "empty_like": "empty_like", "finish": lambda plan, address: plan.finish(address),
        **{name: name for name in (
            "save_for_backward", "materialize_grads", "mark_non_differentiable", "about", "saved_tensors",
            "needs_input_grad",
        )},
        "with_saved": ("saved",), "autocast_enabled": private.autocast_enabled, "launch_error": LaunchError,
        "size_type": torch.Size, "not_implemented": NotImplemented,
    }  # fmt: skip
    for name, value in objects.items():
        keep(value)
        found.set(**{name: id(value)})
    for name in (name for name, _ in WATCH.fields if name.startswith("Py")):
        found.set(**{name: python_function(name)})
    found.set(autocast=private.autocast_function())
    keep(found)
    return found


@cache
def _code() -> LoadedObject:
    records = (WATCH, ROW, MAP, FORWARD, ARGUMENT, MAKE, STEP, ENTRY, CALLS, USERS, BACKWARD, PLAN, TARGET, TABLE)
    parts = {"bytes_offset": bytes.__basicsize__ - 1, "MOST": MOST, "WORDS": block_size(8 * MOST) // 8, "DONE": DONE}
    parts |= {"UNFINISHED": UNFINISHED, "CPU": CPU, "type_offset": TYPE_OFFSET}
    parts |= {"TWICE": 2 * LONGEST, "LONGEST": LONGEST, "ROWS_MASK": ROWS - 1, "ALIGNMENT_MASK": ALIGNMENT - 1}
    text = filled(Path(__file__).with_name("native.ll").read_text(), records, parts)
    loaded = LoadedObject(stored_object("\n".join([*(record.llvm for record in records[:-2]), preamble(), text])))
    keep(loaded)
    return loaded


class _Method(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


_FASTCALL, _KEYWORDS = 0x80, 0x2  # METH_*


def _builtin(name: str, record: Filled) -> Callable[..., Any]:
    """A function of Python's that runs ``rk_op_NAME`` with a record."""
    method = _Method(name.encode(), _code().address(f"rk_op_{name}"), _FASTCALL | _KEYWORDS, None)
    keep((method, record))
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return make(ctypes.addressof(method), record.address.to_bytes(8, "little"), None)


def _method(function: Callable[..., Any]) -> Any:
    """A builtin function that binds as those of Python do."""
    make = ctypes.pythonapi.PyInstanceMethod_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.py_object,)
    return make(function)


class _Watching:
    """What native code tells, made at the first call: most programs that define operators launch no kernel yet."""

    def quiet(self) -> bool:
        """Whether nothing but autograd watches torch's calls on this thread; not for code that Dynamo traces."""
        self._make()
        return self.quiet()

    def look(self, *tensors: torch.Tensor | None) -> bool | None:
        """Whether autograd has to know of a call with these tensors; None unless they are plain, on one device, there.

        It is None, too, while anything else watches or makes launches take the slow path.
        """
        self._make()
        return self.look(*tensors)

    def fit(self, *pairs: torch.Tensor | None) -> bool:
        """Whether the first of each two is None, or both are plain tensors of one dtype, device and shape."""
        self._make()
        return self.fit(*pairs)

    def fresh(self, results: Any, *inputs: torch.Tensor | None) -> bool:
        """Whether a result, or each of a tuple, is a plain tensor that shares no memory with another or an input.

        False, too, where that cannot be told quickly.
        """
        self._make()
        return self.fresh(results, *inputs)

    def _make(self) -> None:
        try:
            found = {name: _builtin(name, _watch()) for name in ("quiet", "look", "fit", "fresh")}
        except UnsupportedError:  # this torch is not one that native code can read
            found = {"quiet": _quiet, "look": _look, "fit": _fit, "fresh": lambda *_: False}
        vars(self).update(found)


watching = _Watching()


def _quiet() -> bool:
    return not (
        private.dispatch_modes()
        or private.function_modes()
        or private.transforms()
        or private.jit_tracing()
        or private.forward_mode()
        or private.profiling()
    )


def _look(*tensors: torch.Tensor | None) -> bool | None:
    there = [t for t in tensors if t is not None]
    plain = all(type(t) in private.PLAIN and t.layout is torch.strided and not t.is_nested for t in there)
    if not (_quiet() and plain and len({t.device for t in there}) == 1) or there[0].is_meta:
        return None
    if operator_state.state.level > operator_state.IMPLEMENTATION:
        return None
    return torch.is_grad_enabled() and any(t.requires_grad for t in there)


def _fit(*pairs: torch.Tensor | None) -> bool:
    return all(
        a is None or (type(a) in private.PLAIN and b is not None and a.shape == b.shape and a.dtype is b.dtype)
        for a, b in zip(pairs[::2], pairs[1::2], strict=True)
    )


class Map:
    """Calls of a kernel ``(inputs..., outputs..., long long n)`` with new outputs like the first input.

    They are native where all tensors are plain and of one dtype and shape, each is contiguous or one element that is
    expanded (not all of them), nothing watches and nothing is recorded; a call of users that only autograd has to know
    of goes straight to the operator's autograd function. Everything else goes to Python functions: to `slow_path` from
    `run`, which is for code inside operators, and to `public` from `call`, which is for users. They are attributes;
    before the first kernel is known they are those functions themselves.

    Parameters
    ----------
    slow_path : callable
        What makes any call inside an operator; it tells of each kernel that it finds with `learn`.
    inputs, outputs : int
        How many there are.
    numbers : sequence of int
        Which inputs are a double of the kernel, and no tensor.
    """

    __slots__ = ("_recorded", "_rows", "_shape", "call", "known", "public", "run", "slow_path")

    def __init__(
        self, slow_path: Callable[..., Any], inputs: int, outputs: int = 1, numbers: Sequence[int] = ()
    ) -> None:
        self.run = self.slow_path = slow_path
        self.call = self.public = slow_path
        self.known: dict[tuple[torch.dtype, bool, int], int] = {}  # how often kernels were found
        self._recorded: tuple[Any, Any, tuple[int, ...] | None] | None = None
        self._rows = ctypes.c_uint64(0)
        self._shape = {"inputs": inputs, "outputs": outputs, "numbers": sum(1 << k for k in numbers)}

    def for_users(
        self, public: Callable[..., Any], recorded: tuple[Any, Any, tuple[int, ...] | None] | None = None
    ) -> None:
        """Say what makes the calls of users that are not plain, and how autograd is told (`Operator.recorded`)."""
        self.call = self.public = public
        self._recorded = recorded

    def learn(
        self, kernel: RawKernel, width: int, dtype: torch.dtype, on_gpu: bool, expanded: Sequence[int] = ()
    ) -> None:
        """Make calls with a dtype on a kind of device native, if this is the second time that it is asked.

        The kernel's threads do `width` elements each, and take one element for all of those inputs that are `expanded`.
        """
        ones = sum(1 << k for k in expanded)
        times = self.known[dtype, on_gpu, ones] = self.known.get((dtype, on_gpu, ones), 0) + 1
        if times != 2 or self._shape["inputs"] + self._shape["outputs"] >= MOST:
            return
        try:
            watch = _watch()
            kind, bits, lanes = DTYPES[dtype_name(dtype)]
            plan = kernel.forall(0).plan
            make = None if on_gpu else private.empty_strided
            row = Filled(
                ROW, dtype=kind | bits << 8 | lanes << 16, kind=CUDA if on_gpu else CPU, ones=ones, width=width,
                plan=plan.record.address, next=self._rows.value,
                empty_strided=id(make) if make else 0, torch_dtype=id(dtype),
            )  # fmt: skip
            keep((plan, row, dtype, make))
            self._rows.value = row.address
            if self.run is self.slow_path:
                common = {"watch": watch.address, "rows": ctypes.addressof(self._rows), **self._shape}
                self.run = _builtin("map", Filled(MAP, slow_path=id(self.slow_path), **common))
                users = Filled(MAP, slow_path=id(self.public), **common)
                if self._recorded is not None and not self._shape["numbers"]:
                    self._record(users, *self._recorded)
                self.call = _builtin("map", users)
                keep(self)
        except UnsupportedError:  # this torch is not one that native code can read
            pass

    def _record(self, users: Filled, function: Any, run: Any, places: tuple[int, ...] | None) -> None:
        """Have calls of users go through an autograd function; its forward is native if it saves `places` alone."""
        if places is not None:
            memory, python, run = (ctypes.c_int64 * max(len(places), 1))(*places), function.forward, self.run
            shape = {"inputs": self._shape["inputs"], "outputs": self._shape["outputs"], "saves": len(places)}
            addresses = {"watch": _watch().address, "places": ctypes.addressof(memory)}
            forward = Filled(FORWARD, python=id(python), run=id(run), **addresses, **shape)
            function.forward = _builtin("forward", forward)
            keep((memory, python))
        apply = function.apply
        users.set(apply=id(apply), run=id(run))
        keep((apply, run))


class Place(int):
    """Where something is among the arguments of a call and, after those, what it allocates."""


class Make(NamedTuple):
    """Memory that a call allocates, contiguous."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class View(NamedTuple):
    """A contiguous part of what a call has allocated."""

    base: Place
    offset: int  # elements
    shape: tuple[int, ...]


class Step(NamedTuple):
    """A launch of a call; a `Place` among its arguments stands for one of the call's, or memory."""

    launcher: Any
    arguments: tuple[Any, ...]


class Launches(NamedTuple):
    """All that a call does; `results` are places of what it returns, -1 for None."""

    makes: Sequence[Make | View]
    steps: Sequence[Step]
    results: Sequence[Place]


class Calls:
    """Calls of a function that are native, once they are known to be allocations and launches, and no more than that.

    A call is known by the layouts of its tensors (shapes, strides, dtypes, devices, alignment) and its other arguments.
    `call` returns what the function would, or None for calls that are not known, or NotImplemented for those that are
    known to be more. All tensors have to be plain, nothing may watch, autocast is off and autograd need not know.
    `users` does the same, and tells autograd where that has to know.

    Parameters
    ----------
    count : int
        Its arguments.
    """

    __slots__ = ("_cells", "_prepare", "_record", "call", "count", "owners", "users")

    def __init__(self, count: int) -> None:
        self.count = count
        self.call: Callable[..., Any] = lambda *args: None
        self.users = self.call
        self._cells = (ctypes.c_uint64 * ROWS)()
        self._record: Filled | None = None  # once a call is known
        self._prepare: list[Callable[[Filled], None]] = []  # what is native then
        self.owners: list[Any] = []  # the owners of those that are known

    def for_users(
        self, function: Any, run: Any, order: Sequence[int], outputs: int, hidden: int, places: Sequence[int] | None
    ) -> None:
        """Say how autograd is told: by ``function.apply(run, ...)`` with the arguments in an order.

        The forward of that autograd function is native if it saves inputs and outputs by `places` alone.
        """

        def prepare(calls: Filled) -> None:
            words: list[Any] = []
            record = Filled(
                USERS, watch=_watch().address, calls=calls.address, python=id(function.forward), run=id(run),
                apply=id(apply := function.apply), order=_words(words, order), outputs=outputs, hidden=hidden,
                saves=len(places or ()), places=_words(words, places or ()),
            )  # fmt: skip
            keep((words, function, function.forward, run, apply))
            self.users = _builtin("users", record)
            if places is not None:
                function.forward = _builtin("kept_forward", record)

        self._prepare.append(prepare)

    def for_backward(self, function: Any, grads: int, given: int, described: bool, offset: int, tensors: int) -> None:
        """Say that they are the backward of an autograd function, which autograd then calls as a native one."""

        def prepare(calls: Filled) -> None:
            python = function.backward
            record = Filled(
                BACKWARD, watch=_watch().address, calls=calls.address, python=id(python), grads=grads, given=given,
                described=described, offset=offset, tensors=tensors,
            )  # fmt: skip
            keep(python)
            private.called_straight(function, _method(_builtin("backward", record)))

        self._prepare.append(prepare)

    def learn(self, args: Sequence[Any], what: Launches | None, about: Any = None) -> None:
        """Have calls with such arguments known: what they launch, or None where they do more than that.

        `about` is what the autograd function then keeps on ctx.
        """
        what = what or Launches((), (), ())
        most = max(self.count, len(what.makes), *(len(step.arguments) for step in what.steps))
        if most > LONGEST:
            return
        try:
            if self._record is None:
                record = Filled(CALLS, watch=_watch().address, count=self.count, cells=ctypes.addressof(self._cells))
                keep((self._cells, record))
                self.call = self.users = _builtin("calls", record)
                for prepare in self._prepare:
                    prepare(record)
                self._record, self._prepare = record, []
            row = functools.reduce(_mixed, (t.shape for t in args if isinstance(t, torch.Tensor)), 0) % ROWS
            owner: list[Any] = [about]
            entry = Filled(
                ENTRY, next=self._cells[row], owner=id(owner),
                arguments=_words(owner, [_argument(owner, a) for a in args]),
                memories=len(what.makes) if what.results else -1,
                makes=_words(owner, [_making(owner, m) for m in what.makes]),
                launches=len(what.steps), steps=_words(owner, [_step(owner, s) for s in what.steps]),
                returned=len(what.results), results=_words(owner, what.results), about=id(about),
            )  # fmt: skip
            owner.append(entry)
            self.owners.append(owner)
            self._cells[row] = entry.address
        except UnsupportedError:  # this torch is not one that native code can read
            pass

    def forget(self) -> None:
        """Forget all calls that are known."""
        for row in range(ROWS):
            self._cells[row] = 0
        self.owners = []


def _mixed(before: int, shape: Sequence[int]) -> int:
    """Add sizes to a number that tells shapes apart (``rk_mixed``)."""
    for size in shape:
        before = before * 31 + size
    return before & 0xFFFFFFFF


def _words(owner: list[Any], values: Sequence[int]) -> int:
    """The address of words that live as long as the owner."""
    owner.append((ctypes.c_int64 * max(len(values), 1))(*values))
    return ctypes.addressof(owner[-1])


def _record(owner: list[Any], record: Record, **fields: int) -> int:
    owner.append(Filled(record, **fields))
    return owner[-1].address


def kept_value(value: Any) -> Any:
    """An argument that is not a tensor, as it is kept."""
    if type(value) is list:  # which the caller may change
        return list(value)
    return sys.intern(value) if type(value) is str else value  # native code compares the addresses of strings


def _argument(owner: list[Any], value: Any) -> int:
    if not isinstance(value, torch.Tensor):
        value = kept_value(value)
        owner.append(value)
        return _record(owner, ARGUMENT, object=id(value))
    kind, bits, lanes = DTYPES[dtype_name(value.dtype)]
    return _record(
        owner, ARGUMENT, kind=CUDA if value.is_cuda else CPU, index=value.device.index or 0, ndim=value.dim(),
        dtype=kind | bits << 8 | lanes << 16, shape=_words(owner, value.shape), strides=_words(owner, value.stride()),
        alignment=value.data_ptr() % ALIGNMENT,
    )  # fmt: skip


def _making(owner: list[Any], made: Make | View) -> int:
    strides = torch.empty(made.shape, device="meta").stride()
    function: Any = torch.Tensor.as_strided
    base, given = -1, [made.shape, strides]
    if isinstance(made, View):
        base, given = made.base, [None, *given, made.offset]
    elif made.device.type == "cpu" and private.empty_strided is not None:
        function, given = private.empty_strided, [*given, made.dtype]
    else:
        function = functools.partial(torch.empty_strided, dtype=made.dtype, device=made.device)
    owner += [function, given]
    words = _words(owner, [id(value) for value in given])
    return _record(owner, MAKE, function=id(function), count=len(given), given=words, base=base)


def _step(owner: list[Any], step: Step) -> int:
    owner.append(step)
    places = [word for a in step.arguments for word in ((int(a), 0) if isinstance(a, Place) else (-1, id(a)))]
    words = _words(owner, places)
    return _record(owner, STEP, launcher=id(step.launcher), count=len(step.arguments), places=words)
