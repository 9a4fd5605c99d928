"""The native function: it launches exactly what the slow path would, and hands over everything else."""

from __future__ import annotations

import contextlib
import ctypes
import struct
import sys
import threading
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch

import rawkern
from rawkern.arguments.dlpack import DTYPES
from rawkern.arguments.signature import Signature, make_signature
from rawkern.arguments.slow_path import bind
from rawkern.arguments.structs import Members
from rawkern.arguments.tensor_map import tensor_map
from rawkern.base import table
from rawkern.base.ctype import Member, StructLayout
from rawkern.base.forking import Lock
from rawkern.base.operator_state import inside_op
from rawkern.base.records import CPU, DECLINED, DONE, TARGET, block_size, extents_at
from rawkern.launch import intercept, native
from rawkern.launch.launcher import Plan

PARAMS = StructLayout(24, 8, (Member("n", "int", 0), Member("x", "float const*", 8), Member("y", "float*", 16)))
FOREVER = (1 << 63) - 1


def make(*params: str) -> Signature:
    return make_signature(SimpleNamespace(name="k", params=params), (), lambda name: PARAMS)


class Handed(Exception):
    """The native function has called the slow path."""


class Repeated:
    """A launcher that is ready for native launches, with what it launched."""

    busy, linked = False, False

    def __init__(self, signature: Signature, strided: bool = False) -> None:
        self.signature, self.strided = signature, strided
        self.launched: list[tuple[Any, ...]] = []
        self.answer = DONE

        def go(target: int, x: int, y: int, z: int, params: int, pointers: int) -> int:
            if self.answer == DONE:
                self.block = ctypes.string_at(params, block_size(signature.size))
                self.launched.append(struct.unpack(signature.format, ctypes.string_at(params, signature.size)))
            return self.answer

        self._go = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_int] * 3, *[ctypes.c_void_p] * 2)(go)
        address = ctypes.cast(self._go, ctypes.c_void_p).value
        self._record = ctypes.create_string_buffer(struct.pack(TARGET.format("device", "block"), CPU, 0, address, 32))
        self.address = ctypes.addressof(self._record)
        self.until = ctypes.c_int64(FOREVER)
        self.build = SimpleNamespace(until=self.until)
        self.name, self.unit = "k", SimpleNamespace(lock=Lock())
        plan = Plan(self, (32, 1, 1), 0, False)  # type: ignore[arg-type]
        plan.built = self, {torch.device("cpu"): self}  # type: ignore[assignment]
        plan.record.set(until=ctypes.addressof(self.until), strided=int(strided))
        plan._ready(self, self)  # type: ignore[arg-type]
        self.go = plan.grid(1, 32)

    def current(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise Handed

    def takes(self, *args: Any, **kwargs: Any) -> bool:
        """Whether it launched."""
        before = len(self.launched)
        with contextlib.suppress(Handed):
            self.go(*args, **kwargs)
            assert len(self.launched) == before + 1
            return True
        assert len(self.launched) == before
        return False


def warmed(signature: Signature, *args: Any, **options: Any) -> Repeated:
    repeated = Repeated(signature, **options)
    for _ in range(3):
        assert repeated.takes(*args)
    return repeated


def test_this_torch_can_be_read() -> None:
    assert native.function(make("float*")) is not None, f"torch {torch.__version__} is not one that native code knows"


def test_machine_code_is_made_while_launches_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a new list of types: no launch waits for it, and one after it is there takes it."""
    monkeypatch.setattr(native, "in_background", True)
    signature, begin = make("float*, " + ", ".join(["short", "char", "double"] * 3)), threading.Event()
    made = native.stored_object
    monkeypatch.setattr(native, "stored_object", lambda text, *more: (begin.wait(60), made(text, *more))[1])
    assert not native.ready(signature) and not native.ready(signature) and not native.known(signature)
    (thread,) = (t for t in threading.enumerate() if isinstance(t, native.Making))
    begin.set()
    thread.join()
    assert native.ready(signature) and native.function(signature) and native.known(signature)


def test_dtypes_are_dlpacks() -> None:
    """The numbers in the table are those that torch's DLPack has."""
    read = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(table.table() and table.field("dltensor"))
    for name, (kind, bits, lanes) in DTYPES.items():
        if (dtype := getattr(torch, name, None)) is not None:
            tensor = (ctypes.c_char * 48)()
            assert read(torch.empty(2, dtype=dtype), ctypes.addressof(tensor)) == 0, name
            assert struct.unpack_from("=BBH", tensor, 20) == (kind, bits, lanes), name


def test_repeated_launches() -> None:
    x, y = torch.ones(4), torch.ones(4)
    repeated = Repeated(make("int", "float", "float const*", "float*"))
    before = x._version, y._version
    for count in range(1, 6):
        assert repeated.takes(4, 2.0, x, y)
        assert repeated.launched[-1] == (4, 2.0, x.data_ptr(), y.data_ptr())
        assert (x._version, y._version) == (before[0], before[1] + count)
    other = torch.ones(4)
    assert repeated.takes(-(2**31), 3, other, y) and repeated.launched[-1][1:3] == (3, other.data_ptr())
    assert repeated.takes(4, 2.0, x[1:3], torch.ones(5)) and repeated.takes(4, 2.0, x[0], torch.ones(2, 3, 4))
    assert repeated.takes(4, 2.0, torch.nn.Parameter(x), y) and repeated.takes(4, 2.0, y, y)


PACKED = "at::GenericPackedTensorAccessor<{}, {}ul, at::RestrictPtrTraits, {}>"
INFO = "at::cuda::detail::TensorInfo<{}, {}>"
ACCESSORS = {  # and the size of each
    PACKED.format("float const", 2, "int"): 24,
    PACKED.format("float", 3, "long"): 56,
    PACKED.format("long", 1, "unsigned int"): 16,
    PACKED.format("float", 1, "unsigned long"): 24,
    INFO.format("float", "int"): 216,
    INFO.format("float const", "unsigned long"): 416,
}


@pytest.mark.parametrize("index", range(len(ACCESSORS)))
def test_accessors(index: int) -> None:
    """Of whatever strides: the bytes, extents aside, are those of the slow path, and what that rejects is handed over."""
    ctype, size = list(ACCESSORS.items())[index]
    packed, dims = "Packed" in ctype, int(ctype.split(", ")[1][0]) if "Packed" in ctype else 3
    signature = make_signature(
        SimpleNamespace(name="k", params=("float*", ctype)), (), lambda name: StructLayout(size, 8, ())
    )
    dtype = torch.int64 if "<long" in ctype else torch.float32
    y, given = torch.ones(4), torch.ones((6, 5, 4)[:dims], dtype=dtype)
    repeated = warmed(signature, y, given)
    kinds = [given, given[1::2], given.transpose(0, -1), given[:0], torch.ones((1,) * dims, dtype=dtype)]
    kinds += [] if packed else [torch.ones(()), torch.ones(4), torch.ones((2,) * 25)]
    expanded = torch.ones((1,) * dims, dtype=dtype).expand((3,) * dims)
    kinds += [expanded] if "const" in ctype else []
    for tensor in kinds:
        before = tensor._version
        assert repeated.takes(y, tensor)
        assert repeated.launched[-1] == bind(signature, (y, tensor)).values
        assert tensor._version == before + 2 * ("const" not in ctype)  # `bind` counts one, too
    rejected = [
        given.double(),
        torch.ones((2,) * (dims + 1 if packed else 26), dtype=dtype),
        None,
        given.numpy(),
        3,
        b"",
    ]
    rejected += [given.to("meta"), given.to_sparse()] + ([] if "const" in ctype else [expanded])
    bits = {"int": 31, "unsigned int": 32}.get(ctype.rstrip(">").split(", ")[-1])
    if bits:
        rejected.append(torch.empty(0, dtype=dtype).as_strided((0,) * dims, (1 << bits,) * dims))
        if dims > 1:
            huge = (3, *(1,) * (dims - 2), 0), ((1 << bits - 1) + 1, *(1,) * (dims - 1))
            rejected.append(torch.empty(0, dtype=dtype).as_strided(*huge))
    for value in rejected:
        assert not repeated.takes(y, value), value


def test_what_repeated_launches_pass() -> None:
    x, y = torch.ones(4), torch.ones(4)
    repeated = warmed(make("int", "float", "float const*", "float*"), 4, 2.0, x, y)
    version = y._version
    for args in ((), (4, 2.0, x), (4, 2.0, x, y, y), (4, 2.0, [x], y), (4, 2.0, x.numpy(), y)):
        assert not repeated.takes(*args)
    assert not repeated.takes(4, 2.0, x, y=y)
    for n in (2**31, -(2**31) - 1, 4.0, np.int32(4), torch.tensor(4), None):
        assert not repeated.takes(n, 2.0, x, y)
    for a in (1e39, 2**64, None, np.float32(1), 1j):
        assert not repeated.takes(4, a, x, y)
    for bad in (x.double(), torch.ones(8)[::2], torch.ones(4, device="meta"), torch._efficientzerotensor(4)):
        assert not repeated.takes(4, 2.0, bad, y)
        assert not repeated.takes(4, 2.0, x, bad)
    nested = torch.nested.nested_tensor([torch.ones(4)])  # torch's guard ends the process at its strides
    assert not repeated.takes(4, 2.0, nested, y)
    assert not repeated.takes(4, 2.0, x, nested)
    for bad in (torch.eye(2).to_sparse(), torch.nn.UninitializedParameter(requires_grad=False)):
        assert not repeated.takes(4, 2.0, bad, y)
    odd = torch.frombuffer(bytearray(17), dtype=torch.uint8)[1:].view(torch.uint8)
    assert not repeated.takes(4, 2.0, torch.frombuffer(bytearray(17), dtype=torch.float32, offset=1), y)
    assert not repeated.takes(4, 2.0, odd, y)
    assert not repeated.takes(4, 2.0, x.as_subclass(type("Own", (torch.Tensor,), {})), y)
    assert y._version == version


def test_repeated_launches_without_some_pointers() -> None:
    x, y = torch.ones(4), torch.ones(4)
    signature = make("float const*", "int", "float*", "float*")
    repeated = warmed(signature, None, 4, x, None)
    assert repeated.launched[-1] == (0, 4, x.data_ptr(), 0)
    version = x._version
    assert repeated.takes(x, 4, y, None) and repeated.takes(None, 4, y, x)
    assert (x._version, y._version) == (version + 1, 2)
    version = x._version
    for args in ((None, None, y, None), (None, 4, y.double(), None)):
        assert not repeated.takes(*args)
    nowhere = bool(table.field("default_device"))  # once it is known that there is no GPU
    assert repeated.takes(None, 4, None, None) == nowhere
    assert x._version == version
    assert repeated.takes(None, 4, y, None) and repeated.launched[-1] == (0, 4, y.data_ptr(), 0)
    none = Repeated(make("float*", "float*"))
    assert none.takes(None, None) == nowhere


def test_repeated_launches_with_empty_tensors() -> None:
    x, none = torch.ones(4), torch.ones(0, 3)
    signature = make("float4 const*", "float*")
    repeated = warmed(signature, none, x)
    assert repeated.launched[-1] == (0, x.data_ptr())
    assert repeated.takes(x, x) and repeated.takes(torch.ones(0), none) and repeated.takes(x, none)
    others = warmed(signature, x, x)
    for bad in (torch._to_functional_tensor(none), torch._efficientzerotensor(0), none.double(), none.to("meta")):
        for one in (repeated, others):
            assert not one.takes(bad, x) and not one.takes(x, bad)
    under: list[bool] = []
    torch.func.vmap(lambda t: (under.append(repeated.takes(t, x)), t)[1])(torch.ones(4, 0))
    assert under == [False]


def test_repeated_launches_see_lazy_bits() -> None:
    x, y = torch.ones(4), torch.ones(4)
    repeated = warmed(make("float const*", "float*"), x, y)
    single = warmed(make("float const*", "float*"), x[:1], y)
    z = torch.ones(1, dtype=torch.complex64).conj()
    for _ in range(70):
        assert not repeated.takes(torch._neg_view(x), y) and not repeated.takes(x, torch._neg_view(y))
        assert z.imag.is_contiguous() and not single.takes(z.imag, y)
        with torch.inference_mode():
            assert not single.takes(torch.ones(1, dtype=torch.complex64).conj().imag, y)
    pairs = torch.ones(4, dtype=torch.complex64)
    complex_ = warmed(make("float2 const*", "float2*"), pairs, pairs.clone())
    assert not complex_.takes(pairs.conj(), pairs) and not complex_.takes(pairs.clone(), pairs.conj())


def test_repeated_launches_and_autograd() -> None:
    x, y = torch.ones(4), torch.ones(4)
    leaf = torch.ones(4, requires_grad=True)
    signature = make("float const*", "float*")
    repeated = warmed(signature, x, y)
    assert not repeated.takes(x, leaf) and not repeated.takes(x, leaf * 2)
    assert repeated.takes(leaf, y)
    with torch.no_grad():
        quiet = warmed(signature, x, leaf)
        assert repeated.takes(x, leaf)
    with inside_op():  # the slow path knows that this may be
        assert not repeated.takes(x, leaf)
    for one_ in (repeated, quiet):
        assert not one_.takes(x, leaf)
        assert one_.takes(x, y)


def test_repeated_launches_and_tracing() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    x, y = torch.ones(4), torch.ones(4)
    signature = make("float const*", "float*")
    repeated = warmed(signature, x, y)
    seen = []

    def launch(t: torch.Tensor) -> torch.Tensor:
        seen.append(repeated.takes(t, y) or repeated.takes(x, y))
        return t * 2

    for mode in (Watch(), FakeTensorMode(allow_non_fake_inputs=True)):
        with mode:
            launch(x)
    for tracing in ("real", "fake", "symbolic"):
        make_fx(launch, tracing_mode=tracing)(x)
    torch.jit.trace(launch, (x,), check_trace=False)
    assert len(seen) >= 6 and not any(seen)
    for wrapped in (torch._to_functional_tensor(x), FakeTensorMode().from_tensor(x)):
        assert not repeated.takes(wrapped, y)
    under: list[bool] = []
    torch.func.vmap(lambda t: (under.append(repeated.takes(t, y)), t)[1])(torch.ones(4, 4))
    torch.func.grad(lambda t: (under.append(repeated.takes(t, y)), t.sum())[1])(x)
    assert under == [False, False]
    assert repeated.takes(x, y)
    with torch.inference_mode():
        assert repeated.takes(torch.ones(4), torch.ones(4))


def test_repeated_launches_in_a_fake_implementation() -> None:
    x = torch.ones(4)
    repeated = warmed(make("__nv_bfloat16", "float*"), 1.5, x)
    assert repeated.launched[-1] == (0x3FC0, x.data_ptr())
    with inside_op(fake=True):
        assert not repeated.takes(1.5, x)
    assert repeated.takes(1.5, x) and not repeated.takes(1e39, x)


def test_repeated_launches_of_other_kinds() -> None:
    y, block = torch.ones(3), bytes(range(24))
    structs = warmed(make("ns::Params", "bool", "float*"), block, True, y)
    assert not structs.takes(block[1:], True, y) and not structs.takes(block, 1, y)
    strided = warmed(make("float const*", "float*"), torch.ones(8)[::2], y, strided=True)
    assert not strided.takes(y, torch.ones(1).expand(4)) and strided.takes(torch.ones(1).expand(4), y)


@pytest.mark.parametrize("known", [False, True])
def test_launches_without_tensors(known: bool) -> None:
    """They are made where the default device is known for good: the CPU, without a GPU."""
    table.table()
    before = table.field("default_device")
    try:
        table.field("default_device", CPU if known else 0)
        assert Repeated(make()).takes() == known and Repeated(make("int")).takes(3) == known
    finally:
        table.field("default_device", before)


def test_structs_of_dicts() -> None:
    """Members as parameters of their types are; without elements a tensor of the CPU tells the slow path more."""
    y, empty = torch.ones(3), torch.ones(3)[:0]
    structs = warmed(make("ns::Params", "float*"), {"n": 7, "x": None, "y": None}, y)
    assert structs.launched[-1][0] == struct.pack("<i4xQQ", 7, 0, 0)
    assert structs.takes({"y": None, "x": None, "n": -1}, y)
    version = y._version
    assert structs.takes({"n": 7, "x": y, "y": None}, y) and y._version == version + 1
    assert structs.takes({"n": 7, "x": y, "y": y}, y) and y._version == version + 3
    assert structs.launched[-1][0] == struct.pack("<i4xQQ", 7, y.data_ptr(), y.data_ptr())
    for bad in (
        {"n": 7, "x": None}, {"n": 7, "x": None, "z": None}, {"n": 7, "x": None, "y": None, "_": 0},
        {"n": 7.5, "x": None, "y": None}, {"n": 1 << 31, "x": None, "y": None}, {"n": 7, "x": 0, "y": None},
        {"n": 7, "x": empty, "y": None}, {"n": 7, "x": None, "y": y.double()}, {}, [7, None, None],
        OrderedDict(n=7, x=None, y=None),
    ):  # fmt: skip
        assert not structs.takes(bad, y), bad


def test_extents_of_dicts_are_those_of_the_slow_path() -> None:
    """After the parameters each word of them has two numbers of bytes, those of members as well."""
    members = (Member("at", "float const* [2]", 8), Member("y", "float*", 24), Member("n", "int", 0))
    signature = make_signature(
        SimpleNamespace(name="k", params=("char", "S", "int", "float*")), (), lambda name: StructLayout(32, 8, members)
    )
    x, y = torch.ones(3), torch.ones(5)
    args = (1, {"at": [x, None], "y": y, "n": 2}, 3, y[1:])
    structs, size = warmed(signature, *args), block_size(signature.size)
    for given in (args, (1, {"at": [y, x], "y": None, "n": 2}, 3, None)):
        assert structs.takes(*given)
        found = struct.unpack(
            f"<{(size - extents_at(signature.size)) // 8}Q", structs.block[extents_at(signature.size) :]
        )
        assert found == (*bind(signature, given).extents, 0) and sum(found)


def test_packed_structs_with_pointers_take_the_slow_path() -> None:
    """A word that is not at a multiple of 8 has no extents."""
    members = (Member("n", "int", 0), Member("x", "float*", 4))
    signature = make_signature(
        SimpleNamespace(name="k", params=("S", "float*")), (), lambda name: StructLayout(12, 4, members)
    )
    x = torch.ones(3)
    assert not warmed(signature, bytes(12), x).takes({"n": 1, "x": x}, x)
    assert not any(bind(signature, ({"n": 1, "x": x}, x)).extents[:4])


def test_structs_of_objects_with_members() -> None:
    """As dicts of their attributes; a class that has members under other names goes the slow path."""

    class Params(Members):
        def __init__(self, **members: Any) -> None:
            self.__dict__.update(members)

        __getitem__, __iter__ = (lambda self, name: vars(self)[name]), (lambda self: iter(vars(self)))
        __len__ = lambda self: len(vars(self))  # noqa: E731

    class Slotted(Members):
        __slots__ = ("n",)
        __getitem__ = __iter__ = __len__ = None  # type: ignore[assignment]

    y, given = torch.ones(3), Params(n=7, x=None, y=None)
    structs = warmed(make("ns::Params", "float*"), given, y)
    assert structs.launched[-1][0] == struct.pack("<i4xQQ", 7, 0, 0)
    before = sys.getrefcount(vars(given))
    for _ in range(9):
        assert structs.takes(given, y)
    after = sys.getrefcount(vars(given))
    assert after == before
    given.n = -1
    assert structs.takes(given, y) and structs.launched[-1][0] == struct.pack("<i4xQQ", -1, 0, 0)
    for bad in (Params(n=7, x=None, y_=None), Params(n=7, x=None), Params(n=7, x=y, y=3), Params(), Slotted()):
        assert not structs.takes(bad, y)


def test_arrays_in_structs_of_dicts() -> None:
    members = (Member("size", "int [3]", 0), Member("at", "float* [2]", 16), Member("rows", "short [2][2]", 32))
    signature = make_signature(
        SimpleNamespace(name="k", params=("Sizes", "float*")), (), lambda name: StructLayout(40, 8, members)
    )
    y = torch.ones(3)
    structs = warmed(signature, {"size": [1, 2, 3], "at": (None, None), "rows": [[4, 5], (6, 7)]}, y)
    assert structs.launched[-1][0] == struct.pack("<3i4xQQ4h", 1, 2, 3, 0, 0, 4, 5, 6, 7)
    assert structs.takes({"size": [1, 2, 3], "at": (None, y), "rows": [[4, 5], (6, 7)]}, y)
    assert structs.launched[-1][0] == struct.pack("<3i4xQQ4h", 1, 2, 3, 0, y.data_ptr(), 4, 5, 6, 7)
    for name, bad in (("size", (1, 2)), ("size", "123"), ("at", [None, 5]), ("rows", [[4, 5], 6]), ("rows", None)):
        good: dict[str, Any] = {"size": [1, 2, 3], "at": (None, None), "rows": [[4, 5], (6, 7)]}
        assert not structs.takes(good | {name: bad}, y), (name, bad)


def test_structs_of_dicts_take_the_slow_path_for_what_shares_bytes() -> None:
    for member in (Member("f", "int", 4, bits=(32, 3)), Member("f", "int", 4, choices=((0, 1),)), Member("f", "S", 4)):
        layout = StructLayout(8, 4, (Member("n", "int", 0), member))
        signature = make_signature(
            SimpleNamespace(name="k", params=("S", "float*")), (), lambda name, found=layout: found
        )
        structs, y = warmed(signature, bytes(8), torch.ones(1)), torch.ones(1)
        assert not structs.takes({"n": 1, "f": 1}, y)


def test_tensor_maps() -> None:
    """As long as the tensor is what its map was made for; what may be written is counted.

    On the CPU a map for reads takes the slow path, which tells the engine so.
    """
    layout = StructLayout(128, 64, (Member("opaque", "unsigned long long [16]", 0),))
    signature = make_signature(SimpleNamespace(name="k", params=("CUtensorMap", "int")), (), lambda name: layout)
    x = torch.zeros(8, 64)
    map_, reading = tensor_map(x, (8, 32)), tensor_map(x, (8, 32), read_only=True)
    maps = warmed(signature, map_, 3)
    assert maps.launched[-1] == (map_.encoded(), 3)
    version = x._version
    assert maps.takes(map_, 1) and x._version == version + 1
    assert not maps.takes(reading, 1) and x._version == version + 1
    assert maps.takes(bytes(128), 1) == bool(table.field("default_device"))
    assert not maps.takes(bytes(127), 1) and not maps.takes(x, 1) and not maps.takes(None, 1)
    for other in (torch.ones(8, 64), torch.ones(4, 64), torch.ones(16, 128)[::2, :64], torch.ones(8, 64).t()):
        x.data = other
        assert not maps.takes(map_, 1)
        if other.stride(1) == 1:
            map_.encoded()
            assert maps.takes(map_, 1) and maps.launched[-1][0] == map_.encoded()
    x.data = torch.ones(8, 64)
    map_.encoded()
    x.requires_grad_()
    assert not maps.takes(map_, 1)
    with torch.no_grad():
        assert maps.takes(map_, 1)
    map_.tensor = torch._neg_view(torch.zeros(8, 64))
    assert not maps.takes(map_, 1)
    map_.tensor = None  # type: ignore[assignment]
    assert not maps.takes(map_, 1)
    del map_.tensor
    assert not maps.takes(map_, 1)


def test_tensor_maps_and_other_tensors() -> None:
    """Of one element alone the stride means nothing; all are on one device."""
    layout = StructLayout(128, 64, ())
    signature = make_signature(SimpleNamespace(name="k", params=("CUtensorMap", "float*")), (), lambda name: layout)
    y = torch.zeros(1)
    map_ = tensor_map(torch.zeros(1, 8), (1, 8))
    maps = warmed(signature, map_, y)
    assert maps.launched[-1] == (map_.encoded(), y.data_ptr())
    map_.tensor = map_.tensor.as_strided((1, 8), (999, 1))
    assert maps.takes(map_, y) and not maps.takes(map_, y.to("meta"))


def test_tuples_of_other_classes_are_sizes() -> None:
    """Named tuples and torch's sizes are; not what iterates in its own way."""

    class Size(NamedTuple):
        x: int
        y: int = 1

    class Twice(tuple[int, ...]):
        def __iter__(self) -> Any:
            return (2 * size for size in super().__iter__())

    grid = Repeated(make("float*")).go.plan.grid
    for good, size in ((Size(3, 2), (3, 2, 1)), (torch.Size((4, 5, 6)), (4, 5, 6))):
        made = grid(good, (32, 1, 1))
        assert (made.grid_x, made.grid_y, made.grid_z) == size
    for bad in (Twice((2, 3)), [2, 3], Size(0), Size(2, 1.0), {2: 3}, range(2), None, object, True):  # type: ignore
        assert grid(bad, 32) is None, bad


@pytest.mark.parametrize(
    ("type_", "good", "handed"),
    [
        ("signed char", (-128, 127, True, False), (-129, 128, 1.0, None, np.int8(3))),
        ("unsigned char", (0, 255), (-1, 256)),
        ("short", (-(2**15), 2**15 - 1), (2**15,)),
        ("unsigned int", (0, 2**32 - 1), (-1, 2**32, 2**64, "1")),
        ("long long", (-(2**63), 2**63 - 1), (2**63, -(2**63) - 1)),
        ("unsigned long long", (0, 2**63, 2**64 - 1), (-1, 2**64, -(2**70))),
        ("bool", (True, False), (0, 1, None)),
        ("double", (0.1, -0.0, float("inf"), 3, 2**53 + 1, True), (2**64, None, "x", np.float32(1))),
        ("float", (0.1, -1e-46, 3.4028235e38, float("-inf"), 2**50 + 1), (3.5e38, -1e39, 2**60 + 1, 2**64, 1j)),
    ],
)
def test_numbers(type_: str, good: tuple[Any, ...], handed: tuple[Any, ...]) -> None:
    x, signature = torch.ones(1), make(type_, "float const*")
    repeated = Repeated(signature)
    for value in good:
        assert repeated.takes(value, x), value
        want = bind(signature, (value, x)).values
        assert struct.pack(signature.format, *repeated.launched[-1]) == struct.pack(signature.format, *want), value
    for value in handed:
        assert not repeated.takes(value, x), value


def test_wide_integers() -> None:
    x = torch.ones(1)
    for type_, good, handed in (
        ("__int128", (-5, 2**63 - 1, -(2**63)), (2**63, 2**130)),
        ("unsigned __int128", (0, 2**63 - 1), (-1, 2**64)),
    ):
        signature = make(type_, "float const*")
        repeated = Repeated(signature)
        for value in good:
            assert repeated.takes(value, x) and repeated.launched[-1] == bind(signature, (value, x)).values
        for value in handed:
            assert not repeated.takes(value, x)


@pytest.mark.parametrize("type_", ["float", "__nv_bfloat16"])
def test_ints_that_a_double_rounds_take_the_slow_path(type_: str) -> None:
    signature, x = make(type_, "float const*"), torch.ones(1)
    repeated = Repeated(signature)
    for value in (2**53 - 1, 1 - 2**53, 2.0**60):
        want = struct.pack(signature.format, *bind(signature, (value, x)).values)
        assert repeated.takes(value, x) and struct.pack(signature.format, *repeated.launched[-1]) == want
    for value in (2**53 + 1, -(2**53) - 1, 2**60 + 2**36 + 1, 2**63 - 1, -(2**63)):
        assert not repeated.takes(value, x)


@pytest.mark.parametrize(("type_", "dtype"), [("__half", np.float16), ("__nv_bfloat16", ml_dtypes.bfloat16)])
def test_small_floats_are_rounded_once(type_: str, dtype: Any) -> None:
    signature, x = make(type_, "float const*"), torch.ones(1)
    repeated = Repeated(signature)
    bits = np.arange(0, 2**16, 7, dtype=np.uint16)
    exact = bits.view(dtype).astype(np.float64)
    exact = exact[np.isfinite(exact)]
    middle = (exact[:-1] + exact[1:]) / 2
    near = np.concatenate([exact, middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf), exact * 1.0001])
    values = [*near[:: len(near) // 4000].tolist(), 0.0, -0.0, float("inf"), float("-inf"), 5e-324, -1e-300]
    for value in values:
        try:
            want = bind(signature, (value, x)).values
        except OverflowError:
            assert not repeated.takes(value, x), value
            continue
        assert repeated.takes(value, x), value
        assert struct.pack(signature.format, *repeated.launched[-1]) == struct.pack(signature.format, *want), value
    assert repeated.takes(float("nan"), x)
    assert np.isnan(np.frombuffer(struct.pack(signature.format, *repeated.launched[-1])[:2], dtype)[0])
    assert not repeated.takes(1e39, x) and not repeated.takes(-1e300, x)


def test_vectors_and_complex_numbers() -> None:
    x = torch.ones(1)
    for type_, good, handed in (
        ("float4", ((1, 2.5, -0.0, True),), ((1, 2, 3), [1, 2, 3, 4], (1, 2, 3, 1e39), (1, 2, 3, None))),
        ("uchar2", ((0, 255),), ((0, 256), (0, 1.0))),
        ("__half2", ((0.1, -7),), ((0.1, 1e6),)),
        ("cuda::std::complex<float>", (1 - 2.5j, 0j), (1, 1e39j, "1")),
        ("cuda::std::complex<double>", (1e300 + 1j,), (None,)),
    ):
        signature = make(type_, "float const*")
        repeated = Repeated(signature)
        for value in good:
            assert repeated.takes(value, x) and repeated.launched[-1] == bind(signature, (value, x)).values
        for value in handed:
            assert not repeated.takes(value, x), value


def test_strides_and_references() -> None:
    y = torch.ones(2, 3)
    dense = Repeated(make("float const*"))
    for t in (y, y[:1, :], y[1:], torch.ones(3, 1)[:, :1], torch.ones(2, 1, 3).expand(2, 1, 3), y[:0], torch.ones(())):
        assert t.is_contiguous() and dense.takes(t)
    for t in (y.t(), y[:, :2], torch.ones(1).expand(4), torch.ones(2, 3, 4).permute(0, 2, 1)):
        assert not t.is_contiguous() and not dense.takes(t)
    loose = Repeated(make("float*"), strided=True)
    assert loose.takes(y.t()) and loose.takes(torch.ones(1).expand(1)) and not loose.takes(torch.ones(1).expand(2))
    reference = Repeated(make("float&"))
    assert reference.takes(torch.ones(1)) and reference.takes(torch.ones(())) and reference.takes(torch.ones(1, 1))
    assert not reference.takes(y) and not reference.takes(y[:0]) and not reference.takes(None)


def test_pointers_of_other_kinds() -> None:
    any_ = Repeated(make("void const*"))
    for name in DTYPES:
        if (dtype := getattr(torch, name, None)) is not None:
            assert any_.takes(torch.empty(3, dtype=dtype)), name
    table_ = Repeated(make("float* const*"))
    assert table_.takes(torch.zeros(2, dtype=torch.int64)) and table_.takes([torch.ones(1)])
    assert not table_.takes([]) and not table_.takes([torch.ones(1, dtype=torch.int64)])
    assert not table_.takes(torch.ones(2)) and not Repeated(make("ns::Params*")).takes(
        torch.zeros(24, dtype=torch.uint8)
    )
    bytes_ = Repeated(make("unsigned char*"))
    assert bytes_.takes(torch.zeros(2, dtype=torch.float8_e5m2)) and not bytes_.takes(torch.zeros(2, dtype=torch.int8))


def test_a_declined_launch_has_changed_nothing() -> None:
    y = torch.ones(2)
    repeated = Repeated(make("float*"))
    repeated.answer = DECLINED
    assert not repeated.takes(y) and y._version == 0
    repeated.answer = DONE
    assert repeated.takes(y) and y._version == 1


def test_a_copy_on_write_tensor_is_made_a_copy() -> None:
    x = torch.ones(4)
    repeated, lazy = Repeated(make("float*")), torch._lazy_clone(x)
    assert repeated.takes(lazy)
    assert repeated.launched[-1] == (lazy.data_ptr(),) and lazy.data_ptr() != x.data_ptr()


def test_attention_sends_every_launch_to_the_slow_path() -> None:
    repeated, x = Repeated(make("float*")), torch.ones(1)
    table.attend(repeated, True)
    try:
        assert not repeated.takes(x)
    finally:
        table.attend(repeated, False)
    assert repeated.takes(x)
    repeated.until.value = 0  # the source has changed, or was not checked for long
    assert not repeated.takes(x)


def test_launchers_leave_no_references() -> None:
    import sys

    repeated, x, n = Repeated(make("float*", "int", "unsigned long long")), torch.ones(1), 10**6
    for _ in range(100):
        assert repeated.takes(x, n, 2**63 + 1)
    before = [sys.getrefcount(one) for one in (x, n, None, repeated.go.plan)]
    for _ in range(1000):
        repeated.takes(x, n, 2**63 + 1)
        repeated.takes(x, -1, -1)
        repeated.go.plan.cover(5)
        repeated.go.plan.grid((2, 1), 32)
    after = [sys.getrefcount(one) for one in (x, n, None, repeated.go.plan)]
    assert all(abs(b - a) < 100 for a, b in zip(before, after, strict=True))


@pytest.mark.gpu
def test_structs_and_maps_of_a_gpus_tensors_are_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions are counted, and a tensor elsewhere is an error."""
    source = """struct P { int n; const float* x; float* y[2]; };
    struct alignas(64) M { unsigned long long words[16]; };
    extern "C" __global__ void add(P p, const __grid_constant__ M map, unsigned long long* words) {
        for (int i = threadIdx.x; i < p.n; i += blockDim.x) p.y[0][i] = p.y[1][i] = p.x[i] + 1;
        if (threadIdx.x < 16) words[threadIdx.x] = map.words[threadIdx.x];
    }"""
    x, words = torch.rand(100, device="cuda"), torch.zeros(16, dtype=torch.int64, device="cuda")
    y, z, tile = torch.zeros_like(x), torch.zeros_like(x), torch.zeros(8, 64, device="cuda")
    map_, launch = tensor_map(tile, (8, 32)), rawkern.RawKernel(source)[1, 32]
    given = {"n": 100, "x": x, "y": [y, z]}
    for _ in range(3):
        launch(given, map_, words)
        native.wait()
    monkeypatch.setattr(intercept, "start", lambda *args: pytest.fail("the slow path"))
    y.zero_()
    words.zero_()
    versions = [t._version for t in (x, y, z, tile)]
    launch(given, map_, words)
    assert [t._version for t in (x, y, z, tile)] == [
        version + k for version, k in zip(versions, (0, 1, 1, 1), strict=True)
    ]
    assert torch.equal(y, x + 1) and torch.equal(z, x + 1)
    assert words.cpu().numpy().tobytes() == map_.encoded()
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"argument 1 'p.x' is on cpu|argument 1 'p.y\[0\]' is on cuda:0"):
        launch(given | {"x": x.cpu()}, map_, words)
