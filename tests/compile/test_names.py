"""Brackets of C++ names and types, read by one scanner."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from rawkern.compile.names import canonical_type, closing, outside, split_arguments, split_function
from rawkern.errors import RawkernError


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []), ("int", ["int"]), ("int, float*", ["int", "float*"]), ("A<int, 4>, B{1, 2}", ["A<int, 4>", "B{1, 2}"]),
        ("f(a < b, c), d", ["f(a < b, c)", "d"]), ("x[(a > b), 2], y", ["x[(a > b), 2]", "y"]), ("int,", ["int", ""]),
        ("(p->a, 1), A<decltype(p->b), 2>", ["(p->a, 1)", "A<decltype(p->b), 2>"]),
    ],
)  # fmt: skip
def test_arguments_are_split_outside_of_brackets(text: str, parts: list[str]) -> None:
    assert split_arguments(text) == parts


def test_what_stands_outside_of_brackets() -> None:
    assert "".join(c for _, c in outside("a<b(c)>d[e](f){g}h")) == "a<d[({h"
    assert "".join(c for _, c in outside("(anonymous namespace)::A<1>::b(2)")) == "A<::b("
    assert [at for at, c in outside("f(1)(2)") if c == "("] == [1, 4]
    assert closing("f(a(b) < c)", 1) == 10 and closing("f(a) + g(b)", 1) == 3 and closing("f(a", 1) == 2


def test_a_function_is_taken_apart() -> None:
    text = "void (anonymous namespace)::k<float, (int)3>(float const*, ns::S<int, 2>, int (*) [3])"
    name, params, instance = split_function(text)
    assert (name, instance) == ("(anonymous namespace)::k<float, (int)3>", True)
    assert params == ("const float*", "ns::S<int, 2>", "int (*) [3]")
    assert canonical_type("unsigned long long const volatile* const*") == "const volatile unsigned long long* const*"
    with pytest.raises(RawkernError, match="has no parameter list"):
        split_function("k")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles an allocator with gcc")
def test_names_are_freed_by_a_preloaded_allocator(tmp_path) -> None:
    allocator = tmp_path / "allocator.so"
    source = """
    void __libc_free(void*);
    static long count;
    long freed(void) { return count; }
    void free(void* memory) { count += memory != 0; __libc_free(memory); }
    """
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", allocator], input=source, text=True, check=True)
    code = f"""
import ctypes
from rawkern.compile.names import demangle
demangle("_Z1fv")
freed = ctypes.CDLL({str(allocator)!r}).freed
before = freed()
for _ in range(1000):
    demangle("_Z1fv")
print(freed() - before >= 1000)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_PRELOAD": str(allocator)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"
