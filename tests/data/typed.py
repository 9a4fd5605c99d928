"""What type checkers say of a program that uses rawkern: errors where a line says so, and types that are asserted."""

from collections.abc import Sequence
from typing import assert_type

import torch
from torch import Tensor

import rawkern

rawkern.sofmax(torch.ones(3))  # error: sofmax
rawkern.nn.SoftMax(1)  # error: SoftMax
assert_type(rawkern.softmax(torch.ones(3), 0), Tensor)
rawkern.softmax(torch.ones(3), "0")  # error: dim
assert_type(rawkern.square(torch.ones(3)), Tensor)
rawkern.rms_norm(torch.ones(3), 3, epsilon=1e-5)  # error: epsilon


@rawkern.op("typed::scaled", save=("a",))
def scaled(a: Tensor, factor: float, *, times: int = 1) -> Tensor:
    return a * factor * times


@rawkern.op("typed::split", hidden=("seed",))
def split(a: Tensor) -> tuple[Tensor, Tensor]:
    return a + 1, a + 2


@rawkern.op("typed::both")
def both(a: Tensor, rest: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    return a + 1, a + 2


@rawkern.op("typed::add_", mutates_args=("a",))
def add_(a: Tensor, b: Tensor | None = None) -> None:
    a += 1 if b is None else b


@scaled.backward
def scaled_backward(ctx: object, grad: Tensor) -> Tensor:
    return grad


a = torch.ones(3)
assert_type(scaled(a, 2.0, times=3), Tensor)
scaled(a)  # error: factor
scaled(a, "2")  # error: '2'
scaled(a, 2.0, 3)  # error: positional
scaled(a, 2.0, time=3)  # error: time
scaled.backwards()  # error: backwards
assert_type(scaled_backward(None, a), Tensor)
assert_type(both(a, [a]), tuple[Tensor, Tensor])
both(a, a.tolist)  # error: Sequence
split(a).sum()  # what is left of the tuple is not told
add_(a).sum()
add_(b=a)  # error: "a"


@rawkern.op("typed::derived", backward="derive", max_iterations=64, verify=True)
def derived(a: Tensor) -> Tensor:
    return a


assert_type(derived(a), Tensor)
derived(a, a)  # error: 1 positional


@rawkern.op("typed::scaled", saved=("a",))  # error: "op"
def misspelled(a: Tensor) -> Tensor:
    return a


silu = rawkern.elementwise("T x", "T y", "y = x / (1 + exp(-x))", "silu")
silu(a, 1, 2.0, True, out=a, size=3).sum()
silu("x")  # error: 'x'
silu(a).sums()  # error: sums
silu(a, outs=a)  # error: outs
first, second = silu(a)
assert_type(silu.in_place(a), Tensor)
norm = rawkern.reduction("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
norm(a, axis=(0, 1), keepdims=True).sum()
norm(a, axis="0")  # error: axis
print(norm.sources)  # error: sources

module = rawkern.load("typed.cu")
module.halve.forall(3)(a, 3)
module.halve[1, 256](a, 3)
module.halve(1, 256, (a, 3), shared_mem=0)
module.halve.forall("3")  # error: "n"
module.get_function("axpy", torch.float32, 4).compile()
print(module.halve.attribute)  # error: attribute
assert_type(module.get_global("table"), Tensor)
assert_type(module.kernels, tuple[str, ...])
rawkern.load(3)  # error: path
tuned = rawkern.autotune(module.halve, {"block": [64, 128]}, keys=("n",))  # error: keys
tuned = rawkern.autotune(module.halve, {"block": [64, 128]})
tuned.forall(3)(a, 3)
assert_type(tuned.tunings[0].trials[0].seconds, float | None)
