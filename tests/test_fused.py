"""Functions for repeated launches: they launch exactly what the checks one by one would let through."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rawkern import fused
from rawkern.ctype import Member, StructLayout
from rawkern.signature import Signature, make_signature
from rawkern.tensors import inside_op

PARAMS = StructLayout(24, 8, (Member("n", "int", 0), Member("x", "float const*", 8), Member("y", "float*", 16)))


def make(*params: str) -> Signature:
    return make_signature(SimpleNamespace(name="k", params=params), (), lambda name: PARAMS)


class Repeated:
    """The function for repeated launches of a signature, with what it launched and what it handed over."""

    def __init__(self, signature: Signature, **options: Any) -> None:
        self._state = self
        self.launched: list[tuple[Any, ...]] = []
        self.others: list[tuple[Any, ...]] = []
        inline = fused.Inline((), (), ("run(({values},))",), {"run": self.launched.append})
        options = {"strided": False, "watched": False, "nulls": ()} | options
        self.make = make = signature.maker(inline, **options)
        if make is not None:
            self.go = make(self, self, self.changed, self.other, -1, run=self.launched.append)
        self.has_changed = False

    def changed(self) -> bool:
        return self.has_changed

    def other(self, go: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert go is self.go
        self.others.append((args, kwargs))

    def takes(self, *args: Any, **kwargs: Any) -> bool:
        """Whether it launched."""
        before = len(self.launched), len(self.others)
        self.go(*args, **kwargs)
        after = len(self.launched), len(self.others)
        assert after in ((before[0] + 1, before[1]), (before[0], before[1] + 1))
        return after[0] > before[0]


@pytest.fixture(params=["guard", "no guard"])
def guards(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With torch's guard of tensors and without."""
    if request.param == "no guard":
        monkeypatch.setattr(fused, "_guards", None)
    return request.param == "guard"


def guard_in(repeated: Repeated) -> Any:
    go = repeated.go
    return dict(zip(go.__code__.co_freevars, go.__closure__, strict=True))["guard"].cell_contents


def warmed(signature: Signature, *args: Any, **options: Any) -> Repeated:
    repeated = Repeated(signature, **options)
    for _ in range(3):
        assert repeated.takes(*args)
    return repeated


def test_torch_has_the_guard() -> None:
    assert fused._guards is not None, f"torch {torch.__version__} has no TensorGuards: find its successor"


def test_repeated_launches(guards: bool) -> None:
    x, y = torch.ones(4), torch.ones(4)
    repeated = Repeated(make("int", "float", "float const*", "float*"))
    before = x._version, y._version
    for count in range(1, 6):
        assert repeated.takes(4, 2.0, x, y)
        assert repeated.launched[-1] == (4, 2.0, x.data_ptr(), y.data_ptr())
        assert (x._version, y._version) == (before[0], before[1] + count)
        if guards:
            assert guard_in(repeated)(x, y) is True
    other = torch.ones(4)
    assert repeated.takes(-(2**31), 3, other, y) and repeated.launched[-1][1:3] == (3, other.data_ptr())
    assert repeated.takes(4, 2.0, x[1:3], torch.ones(5)) and repeated.takes(4, 2.0, x[0], torch.ones(2, 3, 4))
    assert repeated.takes(4, 2.0, torch.nn.Parameter(x), y) and repeated.takes(4, 2.0, y, y)
    assert not repeated.others


def test_what_repeated_launches_hand_over(guards: bool) -> None:
    x, y = torch.ones(4), torch.ones(4)
    repeated = warmed(make("int", "float", "float const*", "float*"), 4, 2.0, x, y)
    version = y._version
    for args in ((), (4, 2.0, x), (4, 2.0, x, y, y), (4, 2.0, x, None), (4, 2.0, [x], y), (4, 2.0, x.numpy(), y)):
        assert not repeated.takes(*args)
    assert not repeated.takes(4, 2.0, x, y=y)
    for n in (2**31, -(2**31) - 1, True, 4.0, np.int32(4), torch.tensor(4), None):
        assert not repeated.takes(n, 2.0, x, y)
    for a in (1e39, 2**60, True, None, np.float32(1), float("nan")):
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
    repeated._state = object()  # type: ignore[assignment]  # another build
    assert not repeated.takes(4, 2.0, x, y)


def test_repeated_launches_without_some_pointers(guards: bool) -> None:
    x, y = torch.ones(4), torch.ones(4)
    signature = make("float const*", "int", "float*", "float*")
    repeated = warmed(signature, None, 4, x, None, nulls=(0, 3))
    assert repeated.launched[-1] == (0, 4, x.data_ptr(), 0)
    version = x._version
    for args in (
        (x, 4, y, None),
        (None, 4, y, x),
        (None, 4, None, None),
        (None, None, y, None),
        (None, 4, y.double(), None),
    ):
        assert not repeated.takes(*args)
    assert x._version == version
    assert repeated.takes(None, 4, y, None) and repeated.launched[-1] == (0, 4, y.data_ptr(), 0)
    full = warmed(signature, x, 4, y, y)
    for args in ((None, 4, y, y), (x, 4, None, y), (x, 4, y, None)):
        assert not full.takes(*args)
    assert Repeated(make("float*", "float*"), nulls=(0, 1)).make is None


def test_repeated_launches_with_empty_tensors(guards: bool) -> None:
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


def test_repeated_launches_see_lazy_bits(guards: bool) -> None:
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


def test_repeated_launches_and_autograd(guards: bool) -> None:
    x, y = torch.ones(4), torch.ones(4)
    leaf = torch.ones(4, requires_grad=True)
    signature = make("float const*", "float*")
    repeated = warmed(signature, x, y)
    assert not repeated.takes(x, leaf) and not repeated.takes(x, leaf * 2)
    assert repeated.takes(leaf, y)
    with torch.no_grad():
        quiet = warmed(signature, x, leaf)
        assert repeated.takes(x, leaf)
    with inside_op():
        inside = warmed(signature, x, leaf)
    for one_ in (repeated, quiet, inside):
        for _ in range(70):
            assert not one_.takes(x, leaf)
        assert one_.takes(x, y)


def test_repeated_launches_and_tracing(guards: bool) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    x, y = torch.ones(4), torch.ones(4)
    signature = make("float const*", "float*")
    repeated = warmed(signature, x, y)
    with Watch(), inside_op():
        inside = warmed(signature, x, y)  # an operator's implementation may launch here, what follows may not
    seen = []

    def launch(t: torch.Tensor) -> torch.Tensor:
        seen.append(repeated.takes(t, y) or repeated.takes(x, y) or inside.takes(x, y))
        return t * 2

    for mode in (Watch(), FakeTensorMode(allow_non_fake_inputs=True)):
        with mode:
            launch(x)
            with inside_op():
                assert repeated.takes(x, y)
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
    assert repeated.takes(x, y) and inside.takes(x, y)
    with torch.inference_mode():
        assert repeated.takes(torch.ones(4), torch.ones(4))


def test_repeated_launches_in_a_fake_implementation(guards: bool) -> None:
    x = torch.ones(4)
    repeated = warmed(make("__nv_bfloat16", "float*"), 1.5, x)
    assert repeated.launched[-1] == (0x3FC0, x.data_ptr())
    with inside_op(fake=True):
        assert not repeated.takes(1.5, x)
    with pytest.raises(OverflowError, match="out of range for __nv_bfloat16"):
        repeated.takes(1e39, x)


def test_repeated_launches_of_other_kinds() -> None:
    y, block = torch.ones(3), bytes(range(24))
    structs = warmed(make("ns::Params", "bool", "float*"), block, True, y)
    assert not structs.takes(block[1:], True, y) and not structs.takes(block, 1, y)
    strided = warmed(make("float const*", "float*"), torch.ones(8)[::2], y, strided=True)
    assert not strided.takes(y, torch.ones(1).expand(4)) and strided.takes(torch.ones(1).expand(4), y)
    watched = warmed(make("float*"), y, watched=True)
    watched.has_changed = True
    assert not watched.takes(y)
    for signature in (make(), make("int"), make("ns::Params*"), make("float**")):
        assert Repeated(signature).make is None


def test_guards_become_rare_where_sizes_change(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = fused.guard_of
    monkeypatch.setattr(fused, "guard_of", lambda *args: made.append(1) or real(*args))
    repeated = Repeated(make("float*"))
    for n in range(1, 300):
        assert repeated.takes(torch.ones(n))
    assert len(made) <= 9 + 299 // 64
    for _ in range(100):
        assert repeated.takes(torch.ones(7))
    assert guard_in(repeated)(torch.ones(7)) is True
