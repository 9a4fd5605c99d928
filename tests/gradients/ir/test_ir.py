"""The IR is copied whole, printed, and verified."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import rawkern
from rawkern.gradients import ir
from rawkern.gradients.passes import pipeline

SOURCE = """
__device__ __forceinline__ float twice(float v) { return v > 0.f ? v + v : v; }
extern "C" __global__ void f(const float* x, const float* w, float* y, int n) {
    __shared__ float s[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    s[threadIdx.x] = i < n ? twice(x[i]) : 0.f;
    __syncthreads();
    float sum = 0.f;
    for (int k = 0; k < 64; ++k) {
        if (w[k] > 0.5f) sum += s[k] * w[k];
        else sum -= w[k];
    }
    if (i >= n) return;
    y[i] = sum;
}"""


def read() -> ir.Kernel:
    """The kernel as it was read."""
    found: list[ir.Kernel] = []
    with pipeline.watched(lambda name, kernel: found.append(ir.clone(kernel)) if name == "read" else None):
        rawkern.RawKernel(SOURCE, "f").derive(block=64)
    return found[-1]


def test_a_copy_is_equal_and_shares_no_item() -> None:
    kernel = read()
    copy = ir.clone(kernel)
    assert ir.printed(copy) == ir.printed(kernel)
    assert {*ir.walk(copy.body)}.isdisjoint(ir.walk(kernel.body))
    assert {v for i in ir.walk(copy.body) for v in ir.operands(i)}.isdisjoint(
        v for i in ir.walk(kernel.body) for v in ir.operands(i)
    )
    before = ir.printed(kernel)
    copy.body.items.clear()
    assert ir.printed(kernel) == before


def test_printed() -> None:
    text = ir.printed(read())
    for line in (
        "kernel f block=(64, 1, 1) grid=(None, 1, 1)",
        "  param x: float*",
        "  shared s: float[64]",
        "  function twice: float, of float v",
        "  barrier __syncthreads()",
    ):
        assert line in text.splitlines()
    assert ": float sum = phi " in text
    assert "load w[" in text and "store y[" in text and "\n  else\n" in text


def loop(kernel: ir.Kernel) -> ir.Loop:
    return next(i for i in ir.walk(kernel.body) if isinstance(i, ir.Loop))


def store(kernel: ir.Kernel) -> ir.Store:
    return next(i for i in ir.walk(kernel.body) if isinstance(i, ir.Store) and i.place.array.name == "y")


def in_two_places(kernel: ir.Kernel) -> None:
    store(kernel).block.items.append(store(kernel))


def of_another_block(kernel: ir.Kernel) -> None:
    store(kernel).block = loop(kernel).body


def without_its_parent(kernel: ir.Kernel) -> None:
    loop(kernel).body.parent = None


def out_of_order(kernel: ir.Kernel) -> None:
    kernel.body.items[-1].order = 0


def used_behind_its_block(kernel: ir.Kernel) -> None:
    store(kernel).value = loop(kernel).carried[0].next


def used_before_it_is_computed(kernel: ir.Kernel) -> None:
    first = next(i for i in ir.walk(kernel.body) if isinstance(i, ir.Value) and i.args and i.op == "binary")
    first.args = (store(kernel).value, first.args[1])


def with_a_foreign_array(kernel: ir.Kernel) -> None:
    store(kernel).place = ir.Place(ir.Array("z", "float"))


def with_too_many_operands(kernel: ir.Kernel) -> None:
    value = next(i for i in ir.walk(kernel.body) if isinstance(i, ir.Value) and i.op == "binary")
    value.args = (*value.args, value.args[0])


def of_an_unknown_kind(kernel: ir.Kernel) -> None:
    next(i for i in ir.walk(kernel.body) if isinstance(i, ir.Value) and i.op == "binary").op = "ternary"


def with_another_s_phi(kernel: ir.Kernel) -> None:
    loop(kernel).carried[0].phi.attr = None


def ends_too_early(kernel: ir.Kernel) -> None:
    loop(kernel).last = 0


def result_of_nothing(kernel: ir.Kernel) -> None:
    carried = loop(kernel).carried[0]
    carried.result = carried.init


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (in_two_places, "the store of y of line 14 is in two places"),
        (of_another_block, "the store of y of line 14 names another block"),
        (without_its_parent, "has another parent"),
        (out_of_order, "has the order 0"),
        (used_behind_its_block, "the store of y of line 14 uses .* which was not computed before"),
        (used_before_it_is_computed, "which was not computed before"),
        (with_a_foreign_array, "is of z, which the kernel does not have"),
        (with_too_many_operands, "has 3 operands, not 2"),
        (of_an_unknown_kind, "a 'ternary', which the IR does not have"),
        (with_another_s_phi, "not a phi of it"),
        (ends_too_early, "ends at 0, before its last item"),
        (result_of_nothing, "is not a result of what it names"),
    ],
)
def test_what_is_malformed_is_found(broken: Callable[[ir.Kernel], None], message: str) -> None:
    kernel = read()
    ir.verify(kernel)
    broken(kernel)
    with pytest.raises(ir.MalformedError, match=message):
        ir.verify(kernel)
