"""Zero-copy exchange, streams, and the private torch names binding leans on."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from rawkern.arguments.slow_path import bind
from rawkern.base import torch_private as private
from rawkern.base.operator_state import in_fake_op, inside_op
from rawkern.base.streams import current_stream, record, stream_handle
from rawkern.errors import MissingDependencyError, UnsupportedError
from rawkern.interop import from_torch, to_torch

ML = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
DTYPES = [
    *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", *ML),
]


def sample(name: str) -> torch.Tensor:
    values = torch.tensor([[0.0, 1.0, 2.0], [4.0, 0.5, 1.0]])
    return values.to(getattr(torch, name))


@pytest.mark.parametrize("name", DTYPES)
def test_round_trip_on_the_cpu(name: str) -> None:
    t = sample(name)
    a = from_torch(t)
    assert isinstance(a, np.ndarray)
    assert a.dtype == (np.dtype(getattr(ml_dtypes, name)) if name in ML else np.dtype(name))
    assert a.ctypes.data == t.data_ptr() and a.shape == t.shape
    assert a.astype(np.complex128).tolist() == t.to(torch.complex128).tolist()
    back = to_torch(a)
    assert back.data_ptr() == t.data_ptr() and back.dtype == t.dtype and back.shape == t.shape
    for view in (t.t(), t[:, 1:], t[1, 2], t[:0], t[:, ::2]):
        b = from_torch(view)
        assert tuple(s // t.element_size() for s in b.strides) == view.stride() or view.numel() == 0
        assert b.shape == tuple(view.shape)
        if view.numel():
            assert b.ctypes.data == view.data_ptr() == to_torch(b).data_ptr()
            assert to_torch(b).stride() == view.stride()
        assert to_torch(b).shape == view.shape


def test_memory_is_shared_and_outlives_the_source() -> None:
    a = from_torch(torch.arange(4.0))
    a[0] = 9
    t = to_torch(a)
    del a
    assert t.tolist() == [9, 1, 2, 3]


def test_requires_grad_is_detached() -> None:
    leaf = torch.ones(3, requires_grad=True)
    for t in (leaf, leaf * 2, torch.nn.Parameter(torch.ones(3))):
        assert from_torch(t).ctypes.data == t.data_ptr()
        assert not to_torch(from_torch(t)).requires_grad


def test_from_torch_rejects() -> None:
    z = torch.ones(3, dtype=torch.complex64)
    cases: list[tuple[Any, type[Exception], str]] = [
        (z.conj(), ValueError, "from_torch: the tensor has torch's lazy conj bit; pass t.resolve_conj()"),
        (z.conj().imag, ValueError, "from_torch: the tensor has torch's lazy neg bit; pass t.resolve_neg()"),
        (torch.eye(2).to_sparse(), TypeError, "from_torch: the tensor has layout sparse_coo; pass t.to_dense()"),
        (
            torch.empty(2, device="meta"),
            TypeError,
            "from_torch: a meta tensor has no memory; wrap this in rawkern.op",
        ),
        (torch._efficientzerotensor(2), TypeError, "from_torch: the tensor has no memory of its own; pass t.clone()"),
        (
            torch.ones(2, dtype=torch.complex32),
            TypeError,
            "from_torch: NumPy has no dtype for complex32; pass t.view(torch.uint8)",
        ),
        (
            torch.nested.nested_tensor([torch.ones(2)]),
            TypeError,
            "from_torch: the tensor is a nested tensor; pass t.values()",
        ),
        (np.ones(2), TypeError, "from_torch: got ndarray; pass a torch tensor"),
    ]
    for value, error, message in cases:
        with pytest.raises(error) as caught:
            from_torch(value)
        assert str(caught.value) == message
    assert from_torch(z.conj().imag.resolve_neg()).tolist() == [0, 0, 0]

    def inside(t: torch.Tensor) -> torch.Tensor:
        with pytest.raises(TypeError, match=r"from_torch: a vmap tensor has no memory; wrap this in rawkern\.op"):
            from_torch(t)
        return t

    torch.func.vmap(inside)(torch.ones(2, 2))


def test_to_torch_rejects() -> None:
    a = np.arange(6.0)
    frozen = a.copy()
    frozen.flags.writeable = False
    pairs = np.zeros(3, [("a", "i4"), ("b", "f4"), ("c", "i1")])
    cases: list[tuple[Any, type[Exception], str]] = [
        (frozen, ValueError, "the array is read-only, and torch would allow writing to it; pass a.copy()"),
        (a[::-1], ValueError, "the array has a negative stride, which torch cannot hold; pass a.copy()"),
        (
            a.astype(">f8"),
            TypeError,
            "the array has a foreign byte order (>f8); pass a.astype(a.dtype.newbyteorder('='))",
        ),
        (pairs, TypeError, "torch has no dtype for structured; pass a.view(numpy.uint8) for the bytes"),
        (pairs["b"], ValueError, "a stride is not a multiple of the element size; pass a.copy()"),
        (np.array([None]), TypeError, "torch has no dtype for object; pass a.view(numpy.uint8) for the bytes"),
        ([1, 2], TypeError, "got list; pass a NumPy or CuPy array, or an object with __dlpack__"),
    ]
    for value, error, message in cases:
        with pytest.raises(error) as caught:
            to_torch(value)
        assert str(caught.value) == f"to_torch: {message}"


class Producer:
    """An object with `__dlpack__` and nothing else."""

    def __init__(self, a: np.ndarray) -> None:
        self.a = a

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.a.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.a.__dlpack__(**options)


def test_to_torch_of_dlpack_objects() -> None:
    a = np.arange(4.0)
    assert to_torch(Producer(a)).data_ptr() == a.ctypes.data
    with pytest.raises(ValueError, match="has a negative stride"):
        to_torch(Producer(a[::-1]))
    a.flags.writeable = False
    with pytest.raises(ValueError, match="the array is read-only"):
        to_torch(Producer(a))
    t = torch.ones(2)
    assert to_torch(t) is t


def test_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(MissingDependencyError, match=r"bfloat16 needs ml_dtypes: pip install ml_dtypes \(or pass t.vi"):
        from_torch(torch.ones(2, dtype=torch.bfloat16))
    assert from_torch(torch.ones(2)).tolist() == [1, 1]


# --- streams and state ----------------------------------------------------------------------------------------------


def test_stream_handles() -> None:
    assert stream_handle(SimpleNamespace(cuda_stream=7)) == 7
    assert stream_handle(SimpleNamespace(ptr=8)) == 8
    assert stream_handle(SimpleNamespace(__cuda_stream__=lambda: (0, 9))) == 9
    with pytest.raises(TypeError) as caught:
        stream_handle(5)
    assert str(caught.value) == "stream is the integer 5; pass torch.cuda.ExternalStream(5)"
    with pytest.raises(TypeError, match="stream is a str; pass a torch or CuPy stream"):
        stream_handle("default")
    record((torch.ones(3),), 5)  # CPU tensors need no recording


def test_state_nests() -> None:
    assert not in_fake_op()
    with inside_op(fake=True):
        assert in_fake_op()
        with inside_op():
            assert not in_fake_op()
        assert in_fake_op()
    assert not in_fake_op()


# --- private torch names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "_C._len_torch_dispatch_stack",
        "_C._is_tracing",
        "_C._increment_version",
        "_C._disabled_torch_dispatch_impl",
        "_C._functorch.is_batchedtensor",
        "_C._functorch.is_gradtrackingtensor",
        "_C._functorch.is_functorch_wrapped_tensor",
        "_is_functional_tensor",
        "Tensor._is_zerotensor",
        "cuda._sleep",
    ],
)
def test_private_names_are_there(path: str) -> None:
    assert private._get(path) is not None, f"torch {torch.__version__} has no torch.{path}: find its successor"


@pytest.mark.parametrize("name", private.FUNCTIONS)
def test_functions_of_libtorch_are_there(name: str) -> None:
    assert private.function(name)


def test_a_function_that_torch_has_lost_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(private.FUNCTIONS, "bump", "_ZN7nothingEv")
    with pytest.raises(UnsupportedError, match="has no _ZN7nothingEv"):
        private.function("bump")


def test_fallbacks_agree() -> None:
    assert private._mode_stack_length() == private.dispatch_modes() == 0
    t = torch.ones(2)
    private._increment_version((t,))
    private.increment_version((t,))
    assert t._version == 2


# --- on a GPU -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", DTYPES)
def test_round_trip_on_the_gpu(name: str) -> None:
    cupy = pytest.importorskip("cupy")
    t = sample(name).cuda()
    a = from_torch(t)
    assert isinstance(a, cupy.ndarray) and a.data.ptr == t.data_ptr() and a.shape == t.shape
    back = to_torch(a)
    if name.startswith("float8"):  # CuPy has no float8: the bytes arrive
        assert a.dtype == np.uint8
        back = back.view(t.dtype)
    assert back.data_ptr() == t.data_ptr() and back.dtype == t.dtype
    for view in (t.t(), t[:, 1:], t[1, 2], t[:0]):
        b = from_torch(view)
        assert b.shape == tuple(view.shape) and to_torch(b).shape == view.shape
        if view.numel():
            assert b.data.ptr == view.data_ptr() == to_torch(b).data_ptr()
            assert to_torch(b).stride() == view.stride()


@pytest.mark.gpu
def test_gpu_exchange_follows_torchs_stream() -> None:
    cupy = pytest.importorskip("cupy")
    side = torch.cuda.Stream()
    big = torch.zeros(1 << 26, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(20):
            big += 1
        a = from_torch(big)
    assert float(a.min()) == 20.0  # on CuPy's stream, which waited
    mine = cupy.cuda.Stream(non_blocking=True)
    with mine:
        b = cupy.zeros(1 << 26, dtype=cupy.float32)
        for _ in range(20):
            b += 1
        t = to_torch(b)
    assert float(t.min()) == 20.0


@pytest.mark.gpu
def test_gpu_arguments_bind() -> None:
    cupy = pytest.importorskip("cupy")
    from rawkern.arguments.signature import make_signature

    signature = make_signature(SimpleNamespace(name="k", params=("float const*", "float*")), ("x", "y"))
    t, a = torch.ones(8, device="cuda"), cupy.zeros(8, dtype=cupy.float32)
    bound = bind(signature, (t, a))
    assert bound.values == (t.data_ptr(), a.data.ptr) and bound.index == 0 and bound.device == t.device
    assert bind(signature, (a, t)).written == (t,)
    assert bind(signature, (t, t)).device == t.device
    with pytest.raises(ValueError, match=r"'y' is on cpu, argument 1 'x' is on cuda:0; .*: pass y.to\('cuda:0'\)"):
        bind(signature, (t, torch.ones(8)))
    value = make_signature(SimpleNamespace(name="k", params=("float",)), ("a",))
    with pytest.raises(TypeError) as caught:
        bind(value, (t[0],))
    assert str(caught.value) == (
        "k: argument 1 'a' is a tensor on cuda:0, the kernel takes float by value; "
        "pass a.item(), which waits for the GPU"
    )
    with pytest.raises(TypeError, match=r"pass a.item\(\), which waits for the GPU"):
        bind(value, (a[0],))
    table = bind(make_signature(SimpleNamespace(name="k", params=("float const* const*",)), ("xs",)), ([t, a, None],))
    assert table.fresh and table.keep[-1].tolist() == [t.data_ptr(), a.data.ptr, 0]


@pytest.mark.gpu
def test_gpu_arguments_follow_cupys_stream() -> None:
    cupy = pytest.importorskip("cupy")
    from rawkern.arguments.signature import make_signature

    signature = make_signature(SimpleNamespace(name="k", params=("float const*",)), ("x",))
    for mine in (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null):
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        with mine:
            a = cupy.zeros(1 << 26, dtype=cupy.float32)
            for _ in range(50):
                a += 1
            with torch.cuda.stream(side):
                bind(signature, (a,))
                assert float(to_torch(a).max()) == 50.0


@pytest.mark.gpu
def test_gpu_dtypes_and_strides() -> None:
    cupy = pytest.importorskip("cupy")
    from rawkern.arguments.signature import make_signature

    signature = make_signature(SimpleNamespace(name="k", params=("float const*",)), ("x",))
    a = cupy.zeros((4, 6), dtype=cupy.float32)
    with pytest.raises(ValueError, match=r"'x' is not contiguous, the kernel reads const float\*; pass x.copy\(\)"):
        bind(signature, (a.T,))
    assert bind(signature, (a.T,), strided=True).values == (a.data.ptr,)
    with pytest.raises(
        TypeError, match=r"'x' is float64, the kernel reads const float\*; pass x.astype\(numpy.float32\)"
    ):
        bind(signature, (a.astype("d"),))
    with pytest.raises(ValueError, match="negative stride"):
        to_torch(a[::-1])


@pytest.mark.gpu
def test_gpu_streams() -> None:
    cupy = pytest.importorskip("cupy")
    side = torch.cuda.Stream()
    assert current_stream(0) == 0 and current_stream(torch.device("cuda")) == 0
    with torch.cuda.stream(side):
        assert current_stream(0) == current_stream(torch.device("cuda", 0)) == side.cuda_stream == stream_handle(side)
        assert private._raw_stream(0) == private.raw_stream(0)
    assert private.current_device() == torch.cuda.current_device() == 0
    mine = cupy.cuda.Stream()
    assert stream_handle(mine) == mine.ptr
    record((torch.ones(3, device="cuda"),), mine)
    record((torch.ones(3, device="cuda"),), side)
