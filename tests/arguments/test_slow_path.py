"""Numbers and names of arguments, traps, and signatures of compiled kernels."""

from __future__ import annotations

import re
import struct
import threading
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import rawkern
from rawkern.arguments import addresses
from rawkern.arguments.signature import Signature, make_signature
from rawkern.arguments.slow_path import bind
from rawkern.base.ctype import parse
from rawkern.base.operator_state import inside_op
from rawkern.errors import LaunchError
from tests.arguments.kit import SAXPY, make, one, rejects


def test_keywords() -> None:
    x, y = torch.ones(4), torch.ones(4)
    want = bind(SAXPY, (4, 2.0, x, y)).values
    assert bind(SAXPY, (), {"n": 4, "a": 2.0, "x": x, "y": y}).values == want
    assert bind(SAXPY, (4, 2.0), {"y": y, "x": x}).values == want
    assert bind(SAXPY, [4, 2.0, x, y]).values == want


@pytest.mark.parametrize(
    ("args", "kwargs", "message", "got"),
    [
        ((), {}, "saxpy takes 4 arguments, 0 were given: ", ""),
        ((1, 2.0, 3), {}, "saxpy takes 4 arguments, 3 were given: ", "; got (int, float, int)"),
        ((torch.ones(1),), {}, "saxpy takes 4 arguments, 1 was given: ", "; got (Tensor)"),
        ((1, 2, 3, 4, None), {}, "saxpy takes 4 arguments, 5 were given: ", "; got (int, int, int, int, NoneType)"),
        (
            (1, 2, 3, 4, 5),
            {"n": 1},
            "saxpy takes 4 arguments, 6 were given: ",
            "; got (int, int, int, int, int, n=...)",
        ),
        ((1, 2), {"z": 1}, "saxpy has no parameter 'z': ", ""),
        ((1, 2), {"a": 1}, "saxpy: argument 2 'a' is given by position and by keyword: ", ""),
        ((1, 2), {"y": 1}, "saxpy: argument 3 'x' is missing: ", ""),
    ],
)
def test_wrong_number_prints_the_signature(args: tuple, kwargs: dict[str, Any], message: str, got: str) -> None:
    with pytest.raises(TypeError) as caught:
        bind(SAXPY, args, kwargs)
    assert str(caught.value) == message + str(SAXPY) + got


def test_kernel_without_parameters() -> None:
    assert bind(make(), ()) == (None, (), (), (), (), (), (), -1, False)
    with pytest.raises(TypeError, match=re.escape("k takes 0 arguments, 1 was given: void k()")):
        bind(make(), (1,))


def test_tensors_without_memory() -> None:
    zero = torch._efficientzerotensor(3)
    assert type(zero) is torch.Tensor and zero.data_ptr() == 0
    bound = one("float const*", zero)  # readable: it is made
    assert bound.values == (bound.keep[0].data_ptr(),) and bound.keep[0].tolist() == [0, 0, 0] and bound.fresh
    rejects("float*", zero, "is a zero tensor without memory, the kernel writes float*; pass x.clone()")
    rest = ", and a raw launch is not recorded there; wrap this in rawkern.op"
    rejects("float*", torch._to_functional_tensor(torch.ones(3)), f"is a functional tensor{rest}", LaunchError)
    rejects("float const*", torch.empty(3, device="meta"), f"is a meta tensor{rest}", LaunchError)
    rejects("float const*", torch.empty(0, device="meta"), f"is a meta tensor{rest}", LaunchError)
    rejects(
        "float const*",
        torch.eye(3).to_sparse(),
        "has layout sparse_coo, the kernel takes const float*; pass x.to_dense()",
    )
    rejects(
        "float const*",
        torch.eye(3).to_sparse_csr(),
        "has layout sparse_csr, the kernel takes const float*; pass x.to_dense()",
    )
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([torch.ones(3)], layout=layout)
        rejects("float const*", nested, "is a nested tensor, the kernel takes const float*; pass x.values()")
        one("float const*", nested.values())
    with pytest.raises(TypeError, match="has layout _mkldnn"):
        one("float const*", torch.eye(3).to_mkldnn())
    with pytest.raises(TypeError, match="is a UninitializedParameter without readable memory"):
        one("float const*", torch.nn.UninitializedParameter(requires_grad=False))


def test_subclasses() -> None:
    class Plain(torch.Tensor):
        pass

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner: torch.Tensor) -> Wrapper:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise NotImplementedError

    t = torch.ones(3)
    assert one("float*", t.as_subclass(Plain)).values == (t.data_ptr(),)
    for plain in (torch.nn.Parameter(t, requires_grad=False), torch.nn.Buffer(t)):
        assert one("float*", plain).values == (plain.data_ptr(),)
    rejects(
        "float*",
        Wrapper(t),
        "is a Wrapper, a tensor subclass that keeps its memory elsewhere; pass the plain "
        "tensor inside it, or wrap this in rawkern.op",
    )


def test_modes_do_not_see_the_search_for_an_address() -> None:
    """Subclasses that are asked for their layout tell modes of it, such as one that records an operator's launches."""

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner: torch.Tensor) -> Wrapper:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, dispatch_layout=True)

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return torch.strided

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen: list[Any] = []
    alive, t = Wrapper(torch.ones(3)), torch.ones(3)
    with Mode():
        assert alive.layout is torch.strided and seen.pop()
        assert addresses.live("cpu")[t.data_ptr()][2] is not None
    assert not seen


def test_dtensor() -> None:
    distributed = pytest.importorskip("torch.distributed.tensor")
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
        t = distributed.DTensor.from_local(torch.ones(3), mesh)
        rejects("float const*", t, "is a DTensor, a tensor subclass that keeps its memory elsewhere; pass x.to_local()")
    finally:
        torch.distributed.destroy_process_group()


def test_torch_func() -> None:
    seen: list[str] = []

    def launch(t: torch.Tensor) -> torch.Tensor:
        with pytest.raises(LaunchError) as caught:
            one("float const*", t)
        seen.append(str(caught.value).split(",")[0])
        return t.sum()

    torch.func.vmap(launch)(torch.ones(2, 3))
    torch.func.grad(launch)(torch.ones(3))
    torch.func.vmap(torch.func.grad(launch))(torch.ones(2, 3))
    assert seen == [
        "k: argument 1 'x' is a tensor under vmap",
        "k: argument 1 'x' is a tensor under torch.func.grad",
        "k: argument 1 'x' is a tensor under torch.func.grad",
    ]


def test_tracing() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    x = torch.ones(3)
    with FakeTensorMode():
        fake = torch.ones(3)
        with pytest.raises(LaunchError, match=r"a torch dispatch mode is active \(FakeTensorMode\)"):
            one("float*", fake)
    rejects(
        "float*", fake, "is a FakeTensor, and a raw launch is not recorded there; wrap this in rawkern.op", LaunchError
    )
    with Watch():
        for signature, args in ((make("float*"), (x,)), (make("int"), (1,)), (make(), ())):
            with pytest.raises(LaunchError) as caught:
                bind(signature, args)
            assert str(caught.value) == (
                "k: a torch dispatch mode is active (Watch), and a raw launch is not recorded there; "
                "wrap this in rawkern.op"
            )
        with inside_op():
            assert one("float*", x).values == (x.data_ptr(),)

    def traced(t: torch.Tensor) -> torch.Tensor:
        one("float*", t)
        return t

    for mode in ("real", "fake", "symbolic"):
        with pytest.raises(LaunchError, match=r"wrap this in rawkern\.op"):
            make_fx(traced, tracing_mode=mode)(x)
    with pytest.raises(LaunchError, match=r"torch\.jit\.trace is active"):
        torch.jit.trace(traced, (x,))


def test_version_bump() -> None:
    x, y = torch.ones(3), torch.ones(3)
    before = x._version, y._version
    bind(SAXPY, (3, 1.0, x, y))
    assert (x._version, y._version) == (before[0], before[1] + 1)
    with pytest.raises(TypeError):
        bind(make("float*", "int"), (y, 0.5))
    assert y._version == before[1] + 1  # nothing happens before everything is checked
    leaf = torch.ones(3, requires_grad=True)
    squared = leaf * leaf
    saved = squared.detach()
    result = (squared * squared).sum()
    one("float*", saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_writing_where_autograd_would_not_know() -> None:
    leaf = torch.ones(4, requires_grad=True)
    message = "requires grad, the kernel writes float* and autograd would not know; use torch.no_grad() or rawkern.op"
    with torch.no_grad():
        quiet_view = leaf[1:]
    for t in (leaf, leaf[1:], leaf * 2, torch.nn.Parameter(torch.ones(3)), quiet_view):
        rejects("float*", t, message, LaunchError)
        assert one("float const*", t).values
        with torch.no_grad():
            assert one("float*", t).written[0] is t
        with inside_op():
            assert one("float*", t).written[0] is t
        assert one("float*", t.detach()).values


def test_inside_op_is_the_threads_own() -> None:
    leaf, errors = torch.ones(4, requires_grad=True), []

    def other() -> None:
        try:
            one("float*", leaf)
        except LaunchError as error:
            errors.append(error)

    with inside_op():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with inside_op():
            pass
        assert one("float*", leaf).values
    assert len(errors) == 1
    with pytest.raises(LaunchError):
        one("float*", leaf)


def test_inference_tensors() -> None:
    with torch.inference_mode():
        t = torch.ones(3)
        assert one("float*", t).written == (t,)
    assert one("float*", t).values == (t.data_ptr(),)


def test_values_are_each_calls_own() -> None:
    signature = make("long long", "double", "float*")
    wrong = []

    def work(seed: int) -> None:
        t = torch.zeros(2)
        for i in range(3000):
            values = bind(signature, (seed * 10000 + i, i / 3, t)).values
            if values != (seed * 10000 + i, i / 3, t.data_ptr()):
                wrong.append(values)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_fake_implementations_check_kinds_only() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv()
    real = torch.ones(5, 3)
    with FakeTensorMode(shape_env=env, static_shapes=False) as mode:
        x = mode.from_tensor(real)
        with inside_op(fake=True):
            for size in (x.shape[0], x.numel()):
                assert isinstance(size, torch.SymInt)
                bound = bind(SAXPY, (size, 2.0, x, x.t()))
                assert bound.device == torch.device("meta") and bound.values == ()
            bind(SAXPY, (), {"n": x.shape[0], "a": x.shape[0], "x": x, "y": x})
            bind(make("int2", "ns::Params"), ((x.shape[0], 3), {}))
            with pytest.raises(TypeError, match=r"saxpy: argument 3 'x' is float64, the kernel reads const float\*"):
                bind(SAXPY, (1, 2.0, x.double(), x))
            with pytest.raises(TypeError, match="argument 1 'n' is a SymFloat, the kernel takes int"):
                bind(SAXPY, (x.shape[0] * 0.5, 2.0, x, x))
            with pytest.raises(TypeError, match=r"is the float 1\.5, the kernel takes int by value"):
                bind(SAXPY, (1.5, 2.0, x, x))
            with pytest.raises(TypeError, match="saxpy takes 4 arguments, 1 was given"):
                bind(SAXPY, (1,))
        assert not env.guards
    with inside_op(fake=True):
        meta = torch.empty(3, device="meta")
        assert bind(SAXPY, (1, 2.0, meta, meta)).device == torch.device("meta")
    with pytest.raises(LaunchError, match="is a SymInt, and a raw launch is not recorded there"):
        bind(make("int"), (x.shape[0],))


def compile_signatures(text: str, *instances: str) -> dict[str, tuple[Signature, bytes]]:
    pytest.importorskip("cupy")
    from rawkern.compile import programs, source

    program = programs.compile_program(source.from_text(text, ("--device-int128",), ()), source.CPU_ARCH, instances)
    return {
        entry.name: (
            make_signature(
                entry,
                programs.parameter_names(program, entry),
                lambda name: programs.struct_layout(program, name),
            ),
            program.code,
        )
        for entry in program.entries
    }


def test_sizes_and_alignments_are_the_compilers() -> None:
    from rawkern.base import ctype

    skipped = {"void", "__nv_fp4x2_e2m1", "__nv_fp8_e8m0", "char8_t"}  # newer headers, or C++20
    kinds = [
        t
        for t in ctype._TABLE.values()
        if t.name not in skipped and not t.name.endswith(("_16a", "_32a")) and not t.name.startswith("cutlass::")
    ]  # CUTLASS's headers are an extra
    kinds += [parse(f"cuda::std::complex<{name}>") for name in ("float", "double")]
    headers = ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cuda/std/complex", "c10/util/Float8_e4m3fn.h")
    includes = "".join(f"#include <{h}>\n" for h in headers)
    text = includes + "".join(f"__global__ void k{i}({t.name} v) {{}}\n" for i, t in enumerate(kinds))
    found = compile_signatures(text)
    assert len(found) == len(kinds)
    for i, kind in enumerate(kinds):
        signature, code = found[f"k{i}"]
        compiled = signature.params[0].ctype
        assert (compiled.kind, compiled.size, compiled.align) == (kind.kind, kind.size, kind.align), kind.name
        line = re.search(rf"\.param ([^\n]*) _Z\d+k{i}\w*_param_0(?:\[(\d+)\])?".encode(), code)
        assert line is not None, kind.name
        if line.group(2):
            align = int(re.search(rb"\.align (\d+)", line.group(1)).group(1))  # type: ignore[union-attr]
            assert (int(line.group(2)), align) == (kind.size, kind.align), kind.name
        else:
            assert int(re.sub(rb"\D", b"", line.group(1))) == max(8 * kind.size, 8), kind.name


def test_compiled_signatures() -> None:
    found = compile_signatures(
        """
        #include <cuda_fp16.h>
        namespace ns { struct In { short s[3]; }; struct P { const float* x; double* y; int n; In in; }; }
        enum Mode : unsigned char { A, B };
        typedef const float* const __restrict__ floats;
        struct Later;
        template <class T, int N> __global__ void axpy(T a, const T* x, T* y) {}
        extern "C" __global__ void plain(const ns::P p, ns::P* ps, floats f, Mode m, Later* l, __half h) {}
        """,
        "axpy<float, 4>",
    )
    signature, _ = found["plain"]
    assert str(signature) == (
        "void plain(ns::P p, ns::P *ps, const float *f, " + str(signature.params[3]) + ", Later *l, __half h)"
    )
    assert signature.params[3].ctype.size == 1
    x, y = torch.ones(2), torch.ones(2, dtype=torch.float64)
    raw = torch.zeros(64, dtype=torch.uint8)
    value = {"x": x, "y": y, "n": 2, "in": {"s": [1, 2, -3]}}
    bound = bind(signature, (value, raw, x, 1, raw[:3], 0.5))
    at = [t.data_ptr() for t in (x, y, raw, x, raw)]
    want = struct.pack("<QQi3h6xQQB7xQe", at[0], at[1], 2, 1, 2, -3, at[2], at[3], 1, at[4], 0.5)
    assert struct.pack(signature.format, *bound.values) == want
    assert bound.written == (y, raw, bound.written[2])
    assert str(found["axpy<float, 4>"][0]) == "void axpy<float, 4>(float a, const float *x, float *y)"


def test_pointers_to_arrays_take_rows() -> None:
    """A `T (*)[N]` was taken for an array by value."""
    kernel = rawkern.RawKernel(
        'extern "C" __global__ void rows(unsigned (*d)[4], const float (&f)[2], int n) { d[1][threadIdx.x] = n * f[1]; }'
    )
    x = torch.zeros(3, 4, dtype=torch.int32)
    kernel[1, 4](x, torch.tensor([0.0, 2.0]), 7)
    assert x.tolist() == [[0] * 4, [14] * 4, [0] * 4]
    with pytest.raises(TypeError, match="argument 1 'd' is float32"):
        kernel[1, 4](x.float(), torch.tensor([0.0, 2.0]), 7)
