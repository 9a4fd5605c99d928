"""Values and references of C++: what is copied and what is the same thing. The expected values are those of g++."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch

from rawkern.extensions.cpp import memset
from tests.extensions.kit import load

CASES: list[tuple[str, str, str, list[tuple[tuple[Any, ...], Any]]]] = [
    # what stands before the function, its head and body, arguments with what it returns
    (
        "",
        "int64_t f(Vec a)",
        "Vec k = {9, 8, 7, 6, 1, 0}; std::sort(a.begin(), a.end(), [&k](int64_t x, int64_t y) { return k[x] < k[y]; }); "
        "return a[0] * 10 + a.back();",
        [(([3, 1, 2],), 31), (([5],), 55)],
    ),
    (
        "void lay(int d, int* b, int* t) { (*t) = 64; if (d < (*t)) (*t) = d; (*b) = d / (*t); if (d % (*t) > 0) (*b)++; }",
        "int f(int a)",
        "int b, t; lay(a * 50, &b, &t); int c = 0; lay(7, &c, &t); return b * 1000 + t * 10 + c;",
        [((1,), 1071), ((4,), 4071)],
    ),
    (
        "typedef enum { OK = 0, BAD = 3, WORSE } status_t; status_t go(int a) { if (a > 2) return WORSE; return OK; }",
        "int f(int a)",
        "status_t s = go(a); return s == OK ? 1 : (int)s;",
        [((1,), 1), ((4,), 4)],
    ),
    (
        "",
        "Vec f(Vec a)",
        "auto b = a; b.push_back(9); b[0] = 100; a.insert(a.end(), b.begin(), b.end()); return a;",
        [(([3, 1, 2],), [3, 1, 2, 100, 1, 2, 9]), (([5],), [5, 100, 9])],
    ),
    (
        "",
        "Vec f(Vec a)",
        "const auto& b = a; a.push_back(1); return b;",
        [(([3, 1, 2],), [3, 1, 2, 1]), (([5],), [5, 1])],
    ),
    ("", "Vec f(Vec a)", "auto& b = a; b.push_back(1); return a;", [(([3, 1, 2],), [3, 1, 2, 1]), (([5],), [5, 1])]),
    (
        "",
        "Vec f(Vec a)",
        "std::vector<Vec> m; m.push_back(a); a[0] = 55; return m[0];",
        [(([3, 1, 2],), [3, 1, 2]), (([5],), [5])],
    ),
    (
        "",
        "Vec f(Vec a)",
        "std::vector<Vec> m(3, a); m[0][0] = 55; return m[1];",
        [(([3, 1, 2],), [3, 1, 2]), (([5],), [5])],
    ),
    (
        "",
        "Vec f(Vec a)",
        "std::vector<Vec> m(2); m[0] = a; a[0]=66; m[1] = m[0]; m[1][0] = 77; return m[0];",
        [(([3, 1, 2],), [3, 1, 2]), (([5],), [5])],
    ),
    (
        "",
        "Vec f(Vec a)",
        "std::vector<Vec> m = {a, a}; auto n = m; n[0][0] = 5; return m[0];",
        [(([3, 1, 2],), [3, 1, 2]), (([5],), [5])],
    ),
    (
        "",
        "Vec f(Vec a)",
        "std::vector<Vec> m = {a, a}; auto r = m[0]; r[0] = 5; return m[0];",
        [(([3, 1, 2],), [3, 1, 2]), (([5],), [5])],
    ),
    (
        "",
        "Vec f(Vec a)",
        "std::vector<Vec> m = {a, a}; auto& r = m[0]; r[0] = 5; return m[0];",
        [(([3, 1, 2],), [5, 1, 2]), (([5],), [5])],
    ),
    (
        "",
        "Vec f(Vec a)",
        "std::vector<Vec> m = {a, a}; for (auto r : m) r[0] = 5; return m[0];",
        [(([3, 1, 2],), [3, 1, 2]), (([5],), [5])],
    ),
    (
        "",
        "Vec f(Vec a)",
        "std::vector<Vec> m = {a, a}; for (auto& r : m) r[0] = 5; return m[0];",
        [(([3, 1, 2],), [5, 1, 2]), (([5],), [5])],
    ),
    ("", "Vec f(Vec a)", "for (auto e : a) e = 5; return a;", [(([3, 1, 2],), [3, 1, 2]), (([5],), [5])]),
    ("", "Vec f(Vec a)", "for (auto& e : a) e += 5; return a;", [(([3, 1, 2],), [8, 6, 7]), (([5],), [10])]),
    (
        "",
        "Vec f(Vec a)",
        "std::vector<Vec> m = {a, a}; m.resize(4, a); m[3][0] = 9; return m[2];",
        [(([3, 1, 2],), [3, 1, 2]), (([5],), [5])],
    ),
    ("void g(Vec v) { v[0] = 99; }", "Vec f(Vec a)", "g(a); return a;", [(([3, 1, 2],), [3, 1, 2]), (([5],), [5])]),
    (
        "void g(Vec& v) { v[0] = 99; v.push_back(4); }",
        "Vec f(Vec a)",
        "g(a); return a;",
        [(([3, 1, 2],), [99, 1, 2, 4]), (([5],), [99, 4])],
    ),
    (
        "Vec g(const Vec& v) { return v; }",
        "Vec f(Vec a)",
        "auto b = g(a); b[0] = 3; return a;",
        [(([3, 1, 2],), [3, 1, 2]), (([5],), [5])],
    ),
    (
        "Vec g(Vec& v) { auto w = v; return w; }",
        "Vec f(Vec a)",
        "auto b = g(a); b[0] = 3; return a;",
        [(([3, 1, 2],), [3, 1, 2]), (([5],), [5])],
    ),
    (
        "Vec& g(Vec& v) { return v; }",
        "Vec f(Vec a)",
        "auto b = g(a); b[0] = 3; return a;",
        [(([3, 1, 2],), [3, 1, 2]), (([5],), [5])],
    ),
    (
        "",
        "Vec f(Vec a)",
        "auto f = [=]() { return a; }; a[0] = 1; return f();",
        [(([3, 1, 2],), [3, 1, 2]), (([5],), [5])],
    ),
    (
        "",
        "Vec f(Vec a)",
        "auto f = [&]() { return a; }; a[0] = 1; return f();",
        [(([3, 1, 2],), [1, 1, 2]), (([5],), [1])],
    ),
    ("", "int f(int a)", "auto f = [a]() { return a; }; a += 2; return f();", [((1,), 1), ((4,), 4)]),
    ("", "int f(int a)", "auto f = [=](int k) { return a + k; }; a += 2; return f(1);", [((1,), 2), ((4,), 5)]),
    (
        "",
        "int f(int a)",
        "int b = 3; auto f = [&, b](int k) { return a + b + k; }; a += 2; b = 10; return f(1);",
        [((1,), 7), ((4,), 10)],
    ),
    (
        "struct P { int a; float b = 2; };",
        "int f(int a)",
        "P p; p.a = a; P q = p; q.a = 9; return p.a * 10 + q.a;",
        [((1,), 19), ((4,), 49)],
    ),
    (
        "struct P { int a; float b; };",
        "int f(int a)",
        "P p{a, 2}; P& q = p; q.a = 9; return p.a;",
        [((1,), 9), ((4,), 9)],
    ),
    (
        "struct P { int a; float b; };",
        "int f(int a)",
        "P p{a, 2}; P* q = &p; q->a = 9; return p.a;",
        [((1,), 9), ((4,), 9)],
    ),
    (
        "struct P { int a; float b; }; struct Q { P p; int k[3]; };",
        "int f(int a)",
        "Q q; q.k[1] = a; Q r = q; r.k[1] = 5; return q.k[1];",
        [((1,), 1), ((4,), 4)],
    ),
    (
        "struct P { int a = 1; float b; };",
        "int f(int a)",
        "P arr[2]; arr[0].a = a; arr[1] = arr[0]; arr[1].a = 5; return arr[0].a;",
        [((1,), 1), ((4,), 4)],
    ),
    (
        "",
        "int f(int a)",
        "std::array<int, 3> x = {1, 2, 3}; auto y = x; y[0] = a; return x[0];",
        [((1,), 1), ((4,), 1)],
    ),
    (
        "",
        "int f(int a)",
        "std::tuple<int, Vec> t = std::make_tuple(a, Vec{1, 2}); auto v = std::get<1>(t); v[0] = 9; return std::get<1>(t)[0];",
        [((1,), 1), ((4,), 1)],
    ),
    (
        "",
        "int f(int a)",
        "std::map<int, int> m; m[a] += 3; m[a]++; return m[a] + (int)m.size() + m[99];",
        [((1,), 5), ((4,), 5)],
    ),
    ("", "int64_t f(Vec a)", "return a.size() - 10;", [(([3, 1, 2],), -7), (([5],), -9)]),
    (
        "",
        "double f(Vec a)",
        "double x = a.size() - 10; return x;",
        [(([3, 1, 2],), 1.8446744073709552e19), (([5],), 1.8446744073709552e19)],
    ),
    ("", "Vec f(Vec a)", "std::sort(a.begin(), a.end()); return a;", [(([3, 1, 2],), [1, 2, 3]), (([5],), [5])]),
    ("", "Vec f(Vec a)", "std::reverse(a.begin(), a.end()); return a;", [(([3, 1, 2],), [2, 1, 3]), (([5],), [5])]),
    ("", "Vec f(Vec a)", "std::fill(a.begin(), a.end(), 4); return a;", [(([3, 1, 2],), [4, 4, 4]), (([5],), [4])]),
    (
        "",
        "Vec f(Vec a)",
        "Vec b(a.size()); std::copy(a.begin(), a.end(), b.begin()); return b;",
        [(([3, 1, 2],), [3, 1, 2]), (([5],), [5])],
    ),
    (
        "",
        "int f(Vec a)",
        "return std::all_of(a.begin(), a.end(), [](int64_t x) { return x > 2; });",
        [(([3, 1, 2],), 0), (([5],), 1)],
    ),
    ("", "int f(int a)", "int s = 0; for (unsigned i = a; i-- > 0;) s += i; return s;", [((1,), 0), ((4,), 6)]),
    (
        "",
        "int f(int a)",
        "int s = 0; for (uint8_t i = 250; i != 2; i++) s += i; return s + a;",
        [((1,), 1517), ((4,), 1520)],
    ),
    (
        "",
        "int f(int a)",
        "int r = 0; switch (a) { case 1: r = 1; case 4: r += 2; break; default: r = 9; } return r;",
        [((1,), 3), ((4,), 2)],
    ),
    ("", "int f(int a)", "int arr[2][3] = {{1, 2, 3}, {4, 5, 6}}; return arr[1][a % 3];", [((1,), 5), ((4,), 5)]),
    (
        "",
        "int f(int a)",
        "int arr[2][3]; for (int i = 0; i < 2; i++) for (int j = 0; j < 3; j++) arr[i][j] = i * 10 + j; auto& row = arr[1]; row[0] = a; return arr[1][0] + arr[1][2];",
        [((1,), 13), ((4,), 16)],
    ),
    ("", "int f(int a)", "if (int b = a - 1) return b; else return -1;", [((1,), -1), ((4,), 3)]),
    ("", "int f(int a)", "if (int b = a * 2; b > 3) return b; return 0;", [((1,), 0), ((4,), 8)]),
    ("", "int64_t f(size_t a)", "return (int)(a - 3) / 2;", [((0,), -1), ((9,), 3)]),
    ("", "int64_t f(size_t a)", "int64_t d = a - 3; return d / 2;", [((0,), -1), ((9,), 3)]),
    ("", "int64_t f(Vec a)", "auto& n = a[0]; n = 7; return a[0] + n;", [(([3, 1, 2],), 14), (([5],), 14)]),
    ("", "int64_t f(Vec a)", "const auto& n = a[0]; a[0] = 70; return n;", [(([3, 1, 2],), 70), (([5],), 70)]),
    ("", "int64_t f(Vec a)", "int64_t* p = a.data(); p[0] = 4; return a[0];", [(([3, 1, 2],), 4), (([5],), 4)]),
    ("void g(Vec& v) { v[0] = 99; } void h(Vec v) { g(v); }", "Vec f(Vec a)", "h(a); return a;", [(([5],), [5])]),
    (
        "",
        "int f(int n)",
        "switch (n) { case 1: n = 5; case 2: n += 1; break; default: n = 0; } return n;",
        [((1,), 6), ((2,), 3), ((3,), 0)],
    ),
    (
        "",
        "int64_t f(Vec a)",
        "int64_t* p = &a[0] + 1; p[1] += 5; const int64_t* q = p + 1; return p[0] * 1000 + *q * 10 + a[2];",
        [(([3, 1, 2],), 1077)],
    ),
    (
        "",
        "double f(double x)",
        "return std::atan2(x, 2.0) + std::fmod(x, 0.75) + std::lround(x) + std::hypot(x, 1.0);",
        [((2.5,), 6.8386377881385965)],
    ),
]


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    source = "#include <algorithm>\nusing Vec = std::vector<int64_t>;\n"
    for k, (before, head, body, _) in enumerate(CASES):
        text = f"{before}\n{head.replace('f(', f'f{k}(', 1)} {{ {body} }}\n"
        source += re.sub(r"\b([ghPQ])\b", rf"\g<1>_{k}", text)
    return load(tmp_path_factory.mktemp("values"), source)


@pytest.mark.parametrize("k", range(len(CASES)), ids=[body[:60] for _, _, body, _ in CASES])
def test_what_is_copied_is_what_cpp_copies(k: int, functions: Any) -> None:
    for arguments, expected in CASES[k][3]:
        assert getattr(functions, f"f{k}")(*copy.deepcopy(arguments)) == expected, arguments


def test_constants_that_are_made_of_others(tmp_path: Any) -> None:
    source = """#include <map>
enum Mode { ADD = 3, MUL = 5 };
const std::map<std::string, Mode> modes = {{"add", ADD}, {"mul", MUL}};
static int last = MUL;
int f(std::string name) { last += 1; return modes.at(name) * 10 + last; }
"""
    found = load(tmp_path, source)
    assert [found.f("add"), found.f("mul")] == [36, 57]


REJECTED = {
    "int n = a; auto f = [n]() mutable { return ++n; }; return f() + f();": "its own copy of n",
    "int n = a; step(n, n); return n;": "n by two references",
    "Vec v{a}; int64_t* p = v.data(); return *(p - 1);": "a pointer to an element of a vector",
    "auto f = [m = a + 1] { return m; }; return f();": "a variable among what it captures",
}


def test_what_would_differ_raises(tmp_path: Any) -> None:
    source = "using Vec = std::vector<int64_t>;\nvoid step(int& x, int& y) { x += 1; y += x; }\n"
    found = load(tmp_path, source + "".join(f"int f{k}(int a) {{ {body} }}\n" for k, body in enumerate(REJECTED)))
    for k, what in enumerate(REJECTED.values()):
        assert what in found.untranslated[f"f{k}"]


@pytest.mark.parametrize("value", [0, 256, 1, -1])
def test_memset(value: int) -> None:
    """Of all of a tensor, of its beginning, from an element on, and of a view that is not contiguous."""
    for view in (slice(None), slice(2, None)):
        for size in (24, 16, 5, 0):
            x = torch.full((6,), 3, dtype=torch.int32)
            expected = bytearray(x.numpy().tobytes())
            first = 8 if view.start else 0
            expected[first : first + size] = bytes([value & 255]) * min(size, 24 - first)
            if size > 24 - first:
                continue
            memset(x[view], value, size)
            assert x.numpy().tobytes() == bytes(expected)
    every_other = torch.full((2, 4), 3, dtype=torch.int32)
    memset(every_other[:, :2], value, 16)
    assert every_other.numpy().tobytes()[:16] == bytes([value & 255]) * 16 and (every_other[1] == 3).all()
    leaf = torch.ones(3, requires_grad=True)
    memset(leaf, 0, 12)
    assert not leaf.any() and leaf._version == 1
