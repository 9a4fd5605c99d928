"""C++'s integers: division, limits, signs, promotions. The expected values are those of g++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.extensions.kit import load

MAX, MIN = 2**31 - 1, -(2**31)
CASES: list[tuple[str, str, list[tuple[tuple[Any, ...], Any]]]] = [
    # the function's head and body, arguments with what it returns; None where rawkern raises
    ("int f(int a, int b)", "return a / b;", [((7, 2), 3), ((-7, 2), -3), ((7, -2), -3), ((-1, 256), 0)]),
    ("int f(int a, int b)", "return a % b;", [((7, 3), 1), ((-7, 3), -1), ((7, -3), 1), ((MIN, -1), None), ((MIN, 3), -2)]),
    ("int64_t f(int64_t a, int64_t b)", "return a % b;", [((-(2**63), -1), None), ((-7, 2), -1)]),
    ("int f(int n)", "return (n + 255) / 256;", [((1,), 1), ((-300,), 0), ((MAX,), None)]),
    ("int f(int a, int b)", "return a * b;", [((MAX, 2), None), ((46340, 46340), 2147395600), ((3, -4), -12)]),
    ("int64_t f(int a, int b)", "return a * b;", [((1 << 20, 1 << 20), None), ((5, 6), 30)]),
    ("int64_t f(int a, int64_t b)", "return a * b;", [((1 << 20, 1 << 20), 1 << 40)]),
    ("unsigned f(unsigned a, unsigned b)", "return a - b;", [((1, 2), 2**32 - 1), ((5, 3), 2)]),
    ("size_t f(size_t a)", "return a - 1;", [((0,), 2**64 - 1)]),
    ("bool f(int a, unsigned b)", "return a < b;", [((-1, 1), False), ((0, 1), True)]),
    ("bool f(int a, std::vector<int64_t> v)", "return a < v.size();", [((-1, [1]), False), ((0, [1]), True)]),
    ("int f(uint8_t a, uint8_t b)", "return a + b;", [((255, 255), 510)]),
    ("int f(int a)", "uint8_t b = a; return b;", [((300,), 44), ((-1,), 255)]),
    ("int f(int64_t a)", "int b = a; return b;", [((2**40,), None), ((-5,), -5)]),
    ("int f(double x)", "return (int)x;", [((2.9,), 2), ((-2.9,), -2)]),
    ("int f(int a)", "return -a;", [((MIN,), None), ((4,), -4)]),
    ("int f(int a)", "return ~a;", [((0,), -1), ((5,), -6)]),
    ("unsigned f(unsigned a)", "return ~a;", [((0,), 2**32 - 1)]),
    ("int f(int a)", "return a >> 1;", [((-3,), -2), ((6,), 3)]),
    ("int f(int a)", "return 1 << a;", [((30,), 1 << 30), ((31,), None), ((32,), None), ((-1,), None)]),
    ("int f(int a)", "return -1 + a;", [((5,), 4)]),
    ("int f(int a)", "return a ? 1 : -1;", [((5,), 1), ((0,), -1)]),
    ("int f(int a, int b)", "return std::max(a, b) - std::min(a, b);", [((5, -2), 7)]),
    ("int64_t f(int64_t a)", "return a + INT64_C(3) + UINT32_C(1);", [((2,), 6)]),
    ("size_t f(float a)", "return a;", [((2.5,), 2), ((-1.0,), None)]),
    ("size_t f(int a, int b)", "size_t n; int m; std::tie(n, m) = std::make_tuple(a, b); return n + m;",
     [((-1, 3), 2), ((4, 5), 9)]),
    ("int64_t f(int a)", "return std::abs(a);", [((-5,), 5), ((MIN,), None)]),
    ("int f(float a)", "const int& b = a; return b * 2;", [((2.7,), 4)]),
    ("int f(std::vector<float> v)", "int s = 0; for (const int& k : v) s += k * 2; return s;", [(([1.5, 2.5],), 6)]),
    ("float f(float a)", "return std::ceil(a);", [((-0.5,), -0.0), ((1.2,), 2.0)]),
    ("float f(float a)", "return a * 3;", [((0.1,), 0.30000001192092896)]),
    ("float f(float a, int n)", "return a / n;", [((1.0, 3), 0.3333333432674408), ((1.0, 0), float("inf"))]),
    ("double f(double a, double b)", "return a / b;", [((1.0, 3.0), 1 / 3), ((-1.0, 0.0), float("-inf"))]),
    ("double f(int a, int b)", "return a / b * 1.0;", [((7, 2), 3.0)]),
    ("int f(int n)", "int s = 0; for (int i = n; i > 0; i -= 2) { if (i == 3) continue; s += i; } return s;",
     [((5,), 6), ((0,), 0)]),
    ("int f(int n)", "int s = 0, i = 0; while (true) { if (i++ >= n) break; s += i; } return s;", [((4,), 10)]),
    ("int f(int n)", "int s = 0; for (int i = 0; i < n; i++) { if (i == 2) n = 4; s += 1; } return s;", [((9,), 4)]),
    ("int f(int n)", "int r = 0; do { r += n; n--; } while (n > 0); return r;", [((3,), 6), ((-2,), -2)]),
    ("int f(int n)", "switch (n) { case 1: case 2: return 10; case 3: { n = 7; break; } default: n = -1; } return n;",
     [((2,), 10), ((3,), 7), ((9,), -1)]),
    ("int f(int n)", "int x = 1; { int x = 5; n += x; } return n + x;", [((0,), 6)]),
    ("int f(int n)", "auto g = [&](int k) { n += k; return n; }; g(2); return g(3);", [((1,), 6)]),
    ("int f(int n)", "int v[4] = {1, 2}; v[2] = n; int i = 0; v[i++] = 9; return v[0] + v[1] + v[2] + v[3] + i;",
     [((5,), 17)]),
]  # fmt: skip


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    source = "".join(f"{head.replace('f(', f'f{k}(', 1)} {{ {body} }}\n" for k, (head, body, _) in enumerate(CASES))
    return load(tmp_path_factory.mktemp("numbers"), source)


@pytest.mark.parametrize("k", range(len(CASES)), ids=[f"{head} {body}"[:60] for head, body, _ in CASES])
def test_numbers_are_those_of_cpp(k: int, functions: Any) -> None:
    f = getattr(functions, f"f{k}")
    for arguments, expected in CASES[k][2]:
        if expected is None:
            with pytest.raises(OverflowError):
                f(*arguments)
        else:
            found = f(*arguments)
            assert repr(found) == repr(expected), (arguments, found)


def test_a_remainder_that_is_known_is_still_one_of_a_division_by_zero(tmp_path: Path) -> None:
    e = load(tmp_path, "bool f(bool a, int b) { bool c = b % a; return c; }")
    assert e.f(True, 3) is False
    with pytest.raises(ZeroDivisionError):
        e.f(False, 3)


def test_numbers_of_a_types_parameter_are_of_that_type(tmp_path: Path) -> None:
    source = """
    template <typename T> T up(T n, T by) { return (n + by - 1) / by; }
    int64_t f(int64_t n) { return up<int64_t>(n, 256); }
    unsigned g(unsigned n) { return up(n, 256u); }
    float h(float n) { return up<float>(n, 2); }
    """
    e = load(tmp_path, source)
    assert e.f(257) == 2 and e.f(-300) == 0
    assert e.g(2**32 - 1) == 0  # it wraps
    assert e.h(2.0) == 1.5
