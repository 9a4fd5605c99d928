"""The small part of Python that the checker is written in, as machine code."""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
import pytest

from rawkern.engines.cpu.checker.native import scalar
from rawkern.engines.cpu.records import Record

PAIR = Record("Pair", (("a", "i64"), ("b", "i32"), ("c", "i32"), ("items", "[4 x i64]")))
SOURCE = '''
def gcd(a, b):
    """Greatest common divisor."""
    while b != 0 and a:
        old = b
        b = a % b
        a = old
    return a

@inline
def between(x, low, high):
    return low <= x and not x > high

def grade(x):
    if x < LOW:
        return 0
    elif between(x, LOW, LOW * 2) or x == 77:
        x = x - LOW
    else:
        x ^= 5
    return x << 1 | 1

def first_above(p, limit):
    i = 0
    while 1:
        if PAIR.items[p, i] > limit:
            break
        i += 1
        if i >= 4:
            return 99
        continue
    PAIR.b[p] = i
    PAIR.c[p] += 3
    PAIR.a[p] = load8(p + 1) + lowest_bit(PAIR.items[p, i])
    return i
'''


@pytest.fixture(scope="module")
def functions():
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = scalar.compiled(SOURCE, {"LOW": 10, "PAIR": PAIR}).replace("define internal", "define")
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()

    def function(name: str, count: int):
        kind = ctypes.CFUNCTYPE(ctypes.c_uint64, *[ctypes.c_uint64] * count)
        call = kind(engine.get_function_address(name))
        call.engine = engine
        return call

    return function


def test_loops_and_conditions(functions):
    gcd, grade = functions("gcd", 2), functions("grade", 1)
    assert [gcd(48, 36), gcd(7, 0), gcd(0, 5), gcd(2**64 - 1, 3)] == [12, 7, 0, 3]
    assert [grade(x) for x in (9, 10, 20, 21, 77, 2**64 - 1)] == [0, 1, 21, 33, 135, (2**64 - 1 ^ 5) * 2 % 2**64 | 1]


def test_records(functions):
    find = functions("first_above", 2)
    memory = (ctypes.c_uint64 * 6)(0xFFFFFFFFFFFFABCD, 5 << 32, 3, 8, 2**63, 1)
    address = ctypes.addressof(memory)
    assert find(address, 7) == 1
    assert list(memory) == [0xAB + 3, 8 << 32 | 1, 3, 8, 2**63, 1]
    assert find(address, 8) == 2  # unsigned
    assert find(address, 2**63) == 99


@pytest.mark.parametrize("text", ["for i in x:\n        pass", "x = a.b", "return f(x)", "x = 1 if x else 2"])
def test_the_rest_of_python_raises(text):
    with pytest.raises((SyntaxError, KeyError)):
        scalar.compiled(f"def f(x):\n    {text.replace('f(x)', 'unknown(x)')}\n", {})
