"""The language of `rawkern run`'s arguments: what it makes, and that it runs nothing else."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rawkern.base import ctype
from rawkern.cli.expressions import POISON, Maker, dtypes_behind, number, value
from rawkern.cli.summary import summary, to_numpy
from rawkern.cli.text import CommandError

CPU = torch.device("cpu")


def make(text: str, *dtypes: torch.dtype, seed: int = 0, **numbers: Any) -> Any:
    return value(text, Maker(dtypes, torch.Generator().manual_seed(seed), CPU, numbers))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1000", 1000), ("-2.5", -2.5), ("1e-3", 1e-3), ("True", True), ("None", None), ("2j", 2j), ("0x10", 16),
        ("(n + 255) // 256", 4), ("1 << 20", 1 << 20), ("2**10 - 1", 1023), ("-n % 7", -1000 % 7), ("~0", -1), ("n / 8", 125.0),
        ("int(1e6)", 10**6), ("float(3)", 3.0), ("max(n, 2)", 1000), ("min(1, 2.5)", 1), ("-inf", -math.inf), ("pi", math.pi),
        ("(1, 2, 3)", (1, 2, 3)), ("4,2", (4, 2)), ("[1, [2]]", [1, [2]]), ("{'a': 1, 'b': (n, 2)}", {"a": 1, "b": (1000, 2)}),
    ],
)  # fmt: skip
def test_numbers(text: str, expected: Any) -> None:
    found = make(text, n=1000)
    assert found == expected and type(found) is type(expected)


def test_nan() -> None:
    assert math.isnan(make("nan"))


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "().__class__", "open('x')", "x.y", "n[0]", "lambda: 1", "[i for i in (1,)]",
        "1 if n else 2", "print(1)", "f'{n}'", "'text'", "n := 2", "n == 1", "eval('1')", "randn.__globals__", "*n",
        "randn(**{})", "{1: 2}", "...", "not n", "n and 1", "import os", "1;2", "", "randn(", "zeros(*n)", "await n",
    ],
)  # fmt: skip
def test_nothing_else_is_evaluated(text: str) -> None:
    with pytest.raises(CommandError):
        make(text, torch.float32, n=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m + 1", r"unknown name m in 'm \+ 1'; choose from inf, nan, pi, n"),
        ("sin(1)", r"unknown function sin\(\) in 'sin\(1\)'; choose from randn, rand"),
        ("2 ** 100000", r"the right operand of \*\* and << is at most 1024"),
        ("1 << 5000", "at most 1024"),
        ("1 // 0", "cannot be evaluated: integer division or modulo by zero"),
        ("1.5 << 2", "cannot be evaluated: unsupported operand"),
        ("randn(3) + 1", r"randn\(3\) in 'randn\(3\) \+ 1' is not a number; arithmetic works only on numbers"),
        ("zeros(-1)", "-1 is not a shape"), ("zeros(2.0)", "2.0 is not a shape"), ("ones(True)", "True is not a shape"),
        ("zeros(10, dtype=float33)", "float33 is not a dtype of torch"),
        ("zeros(10, size=3)", "is dtype=NAME"), ("zeros(10, dtype='float16')", "is dtype=NAME"),
        ("full(10)", "takes a shape and a value"), ("randint(5)", "takes the lowest number, the highest plus one"),
        ("arange()", "arange\\(\\) takes an end"), ("tensor(1, 2)", "takes one number or list"),
        ("tensor([[1, 2], [3]])", "cannot be evaluated: expected sequence of length 2"),
        ("tensor([1, 1e39])", r"1e\+39 does not fit torch.float32"),
        ("randint(5, 5, 10)", "cannot be evaluated: "), ("load(1)", "takes the name of a file"),
        ("@/nowhere/x.npy", "the file /nowhere/x.npy does not exist"), ("load('a', 'b')", "takes the name of a file"),
        ("full(3, 1e39)", r"1e\+39 does not fit torch.float32"),
    ],
)  # fmt: skip
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        make(text, torch.float32, n=3)


def test_a_tensor_needs_a_dtype() -> None:
    with pytest.raises(
        CommandError, match=r"does not determine the dtype; add dtype=NAME, such as zeros\(10, dtype=float32\)"
    ):
        make("zeros(3)")
    assert make("zeros(3, dtype=bfloat16)").dtype == torch.bfloat16
    with pytest.raises(CommandError, match="is a tensor; pass a number"):
        number("zeros(3, dtype=float32)", {})


def test_random_numbers_follow_the_seed() -> None:
    first, again, other = (make("randn(50, 20)", torch.float32, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.shape == (50, 20) and abs(first.mean()) < 0.2 and 0.8 < first.std() < 1.2
    uniform = make("rand((1000,))", torch.float64)
    assert 0 <= uniform.min() < 0.05 and 0.95 < uniform.max() < 1
    ints = make("randint(-2, 3, 1000)", torch.int16)
    assert ints.dtype == torch.int16 and set(ints.tolist()) == {-2, -1, 0, 1, 2}
    assert make("randn(8)", torch.complex64).imag.any()
    with pytest.raises(
        CommandError, match=r"randn\(\) makes real numbers, but the parameter takes torch.int32; use randint"
    ):
        make("randn(3)", torch.int32)


def test_filled_and_counted() -> None:
    assert make("full(2, 3, 2.5)", torch.float16).tolist() == [[2.5] * 3] * 2
    assert make("full((2,), -7)", torch.int64).tolist() == [-7, -7]
    assert make("ones(3)", torch.bool).tolist() == [True] * 3
    assert make("arange(2, 8, 3)", torch.uint8).tolist() == [2, 5]
    assert make("arange(0, 1, 0.25)", torch.float32).tolist() == [0, 0.25, 0.5, 0.75]
    assert make("zeros()", torch.float32).shape == () and make("zeros(0, 3)", torch.int32).shape == (0, 3)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [("full(3, 300)", torch.uint8), ("arange(300)", torch.int8), ("full(3, -1)", torch.uint32), ("full(3, 2.5)", torch.int32),
     ("full(3, nan)", torch.int32), ("full(3, 1e5)", torch.float16), ("randint(0, 10, 100)", torch.bool)],
)  # fmt: skip
def test_numbers_that_do_not_fit_are_rejected(text: str, dtype: torch.dtype) -> None:
    with pytest.raises(CommandError, match=f"does not fit {dtype}"):
        make(text, dtype)
    assert make("full(3, inf)", torch.float16).isinf().all()


DTYPES = sorted({name for row in ctype._TABLE.values() for name in row.dtypes})


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_that_a_kernel_takes(name: str) -> None:
    dtype = getattr(torch, name)
    zeros, poisoned = make("zeros(3, 2)", dtype), make("empty(3, 2)", dtype)
    assert zeros.dtype == poisoned.dtype == dtype and zeros.shape == poisoned.shape == (3, 2)
    if (dtype.is_floating_point and dtype.itemsize > 1) or dtype.is_complex:
        assert np.isnan(to_numpy(poisoned)).all()
    elif dtype != torch.bool:
        assert set(poisoned.view(torch.uint8).reshape(-1).tolist()) == {POISON}
    found = summary("x", poisoned, zeros)
    changed = 0 if dtype == torch.bool else 6
    assert (found["dtype"], found["shape"], found["changed"]) == (name, (3, 2), changed) and len(found["first"]) == 4
    assert make("empty()", dtype).shape == () and make("empty(0)", dtype).shape == (0,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("const float*", [torch.float32]), ("double&", [torch.float64]), ("float4*", [torch.float32]),
        ("char*", [torch.int8, torch.uint8, torch.bool]), ("void*", []), ("int", []), ("float* const*", [torch.float32]),
        ("ns::Params*", [torch.uint8]), ("__half*", [torch.float16]), ("float (*) [32]", [torch.float32]),
    ],
)  # fmt: skip
def test_dtypes_come_from_the_parameter(text: str, expected: list[torch.dtype]) -> None:
    assert list(dtypes_behind(ctype.parse(text))) == expected


def test_files(tmp_path: Path) -> None:
    array = np.array([[1.5, -0.0], [np.nan, 3]])
    np.save(tmp_path / "x.npy", array)
    found = make(f"@{tmp_path}/x.npy", torch.float64)
    assert found.dtype == torch.float64 and np.array_equal(found.numpy(), array, equal_nan=True)
    with pytest.raises(
        CommandError, match=r"x.npy holds torch.float64, but the parameter takes torch.float32; write load\('"
    ):
        make(f"@{tmp_path}/x.npy", torch.float32)
    converted = make(f"load('{tmp_path}/x.npy', dtype=float32)", torch.float32)
    assert converted.dtype == torch.float32 and converted[0, 0] == 1.5
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(CommandError, match=r"objects.npy cannot be read as an .npy file: .* holds Python objects"):
        make(f"@{tmp_path}/objects.npy", torch.float32)
    np.savez(tmp_path / "two.npz", a=array, b=array)
    with pytest.raises(CommandError, match="holds several arrays"):
        make(f"@{tmp_path}/two.npz", torch.float64)


def test_tensors_of_given_values() -> None:
    made = make("tensor([[1, n], [-0.5, inf]])", torch.float16, n=3)
    assert made.dtype == torch.float16 and made.tolist() == [[1, 3], [-0.5, math.inf]]
    assert make("tensor([2**62 + 1])", torch.int64).tolist() == [2**62 + 1]  # all digits
    assert make("tensor([0.1])", torch.float64).item() == 0.1
    assert make("tensor([1+2j])", torch.complex64).item() == 1 + 2j
    assert make("tensor(True)", torch.bool).item() is True
    with pytest.raises(CommandError, match=r"1.5 does not fit torch.int32"):
        make("tensor([1, 1.5])", torch.int32)
    with pytest.raises(CommandError, match=r"300 does not fit torch.uint8"):
        make("tensor([300])", torch.uint8)
