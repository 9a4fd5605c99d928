"""Structs and classes with methods. The expected values are those of g++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import rawkern
from tests.extensions.kit import load

A = """
struct A {
  int n;
  std::vector<int64_t> v;
  A(int n, int k = 2) : n(n), v(k, n) {}
  int sum() const { int s = 0; for (auto e : v) s += e; return s + n; }
  void add(int k) { n += k; v.push_back(k); }
  A& me() { return *this; }
};
"""
CASES: list[tuple[str, str, str, str, tuple[float, float]]] = [
    # name, what stands before the function, what it returns, its body, its values for 1 and 4
    (
        "constructors",
        "struct Five { int n; Five() { n = 5; } }; struct Empty { int n; Empty() {} }; struct Derived : Five { int m; }; "
        "struct Parts { Five p[2]; int k; }; struct Both { int n = 3; Both() : n(4) {} };",
        "int64_t",
        "Five x; Empty q; q.n = a; Derived r; Parts s; Both t; "
        "return x.n + q.n * 10 + r.n * 100 + s.p[1].n * 1000 + t.n * 10000;",
        (45515, 45545),
    ),
    (
        "copy",
        "",
        "int64_t",
        "A x(a); A y = x; y.add(5); x.n = 9; return x.sum() * 100 + y.sum();",
        (1113, 1722),
    ),
    (
        "ref",
        "",
        "int64_t",
        "A x(a); A& y = x; y.add(5); return x.sum() * 100 + y.sum();",
        (1313, 2222),
    ),
    (
        "ptr",
        "",
        "int64_t",
        "A x(a); A* y = &x; y->add(5); x = A(1, 1); return x.sum() * 100 + y->sum();",
        (202, 202),
    ),
    (
        "star",
        "",
        "int64_t",
        "A x(a), y(3); A* p = &x; *p = y; y.add(1); return x.sum() * 100 + p->sum() + y.n;",
        (913, 913),
    ),
    (
        "byvalue",
        "int byvalue_g(A x) { x.add(4); return x.sum(); } int byvalue_h(A& x) { x.add(4); "
        "return x.sum(); } void byvalue_s(A& x) { x = A(7); }",
        "int64_t",
        "A x(a); int r = byvalue_g(x); r = r * 10 + byvalue_h(x); byvalue_s(x); return r * 100 + x.sum();",
        (12121, 22021),
    ),
    (
        "conv",
        "int conv_g(const A& x) { return x.sum(); } int conv_g2(A x) { return x.sum(); }",
        "int64_t",
        "return conv_g(a) * 100 + conv_g2(a + 1);",
        (306, 1215),
    ),
    (
        "chain",
        "",
        "int64_t",
        "A x(a); x.me().add(3); auto y = x.me(); y.add(1); auto& z = x.me(); z.add(10); "
        "return x.sum() * 100 + y.sum();",
        (2911, 3820),
    ),
    (
        "vector",
        "",
        "int64_t",
        "std::vector<A> v; v.push_back(A(a)); v.emplace_back(A(2, 3)); A x = v[0]; x.add(1); "
        "v[1].add(2); v[0] = v[1]; v[1].add(100); auto& r = v[0]; r.n++; int s = 0; "
        "for (auto& e : v) { e.n++; s += e.sum(); } for (auto e : v) e.add(1000); "
        "return s * 10 + x.sum() + v[0].n;",
        (2281, 2290),
    ),
    (
        "nsdmi",
        "struct B { int k{3}; std::vector<int64_t> w = {1, 2}; int m = k + 1; }; struct D { B b; B c[2]; int z = 1; };",
        "int64_t",
        "D x, y; x.b.w.push_back(a); y.c[1].w[0] = 50; D q = y; q.c[1].w[0] = 1; "
        "return x.b.w.size() * 1000 + y.b.w.size() * 100 + y.c[1].w[0] + q.c[0].w[0] + y.b.m;",
        (3255, 3255),
    ),
    (
        "overload",
        "struct O { int n = 0; O() = default; explicit O(int k) : n(k) {} "
        "O(double d) : n((int)(d * 10)) {} O(int a, int b) : O(a * b) { n += 1; } int get() { "
        "return n; } int get(int k) { return n + k; } int get(double d) { return n + (int)(d * 2); } "
        "};",
        "int64_t",
        "O x, y(a), z(2.5), w(a, 3), q{4}; return x.get() + y.get() * 3 + z.get(1) * 5 + w.get(1.5) * 7 + q.n * 1000;",
        (4182, 4254),
    ),
    (
        "static",
        "struct S { static constexpr int N = 4; static const int M = N + 2; static int twice(int x) { "
        "return x * 2; } int k = N; int go(int a) { return twice(a) + M + k; } };",
        "int64_t",
        "S s; return s.go(a) + S::twice(a) * 100 + S::N * 1000;",
        (4212, 4818),
    ),
    (
        "operators",
        "struct V { double x, y; V operator+(const V& o) const { return {x + o.x, y + o.y}; } "
        "V operator*(double s) const { return V{x * s, y * s}; } bool operator==(const V& o) const { "
        "return x == o.x && y == o.y; } V operator-() const { return {-x, -y}; } "
        "V& operator+=(const V& o) { x += o.x; y += o.y; return *this; } "
        "double operator[](int i) const { return i == 0 ? x : y; } double operator()(double a) { "
        "return x * a + y; } }; V operator-(const V& a, const V& b) { return a + (-b); }",
        "double",
        "V p{1.0 * a, 2}, q{3, 4}; V r = p + q * 2; r += p; V s = r - q; "
        "return s[0] * 100 + s[1] + s(0.5) + (p == p) * 1000 + (p == q) * 5;",
        (1518.5, 2121.5),
    ),
    (
        "outside",
        "struct T { T(int n); int next(); int peek(int by = 3) const; int n_; private: int step_ = 2; "
        "}; T::T(int n) : n_(n * 2) { step_ += n; } int T::next() { n_ += step_; return n_; } "
        "int T::peek(int by) const { return n_ * by; }",
        "int64_t",
        "T t(a); t.next(); t.next(); return t.peek() * 10 + t.peek(1);",
        (248, 620),
    ),
    (
        "inherit",
        "struct B0 { int a = 1; B0(int k) : a(k) {} virtual int val() const { return a; } "
        "int twice() const { return val() * 2; } int plain() { return 1; } virtual ~B0() {} }; "
        "struct D0 : public B0 { int b; D0(int k) : B0(k + 1), b(k * 10) {} int val() const override { "
        "return b; } int plain() { return 2; } int both() { return B0::val() + val(); } };",
        "int64_t",
        "D0 d(a); B0* p = &d; B0& r = d; "
        "return d.twice() + p->val() * 3 + r.plain() * 1000 + d.plain() * 10000 + d.both() * 7 + p->twice();",
        (21154, 21595),
    ),
    (
        "shared",
        "",
        "int64_t",
        "auto p = std::make_shared<A>(a); std::shared_ptr<A> q = p; q->add(5); "
        "std::unique_ptr<A> u(new A(1)); u->add(1); A* raw = p.get(); raw->n += 100; "
        "bool same = p == q; A c = *p; c.add(1); "
        "return p->sum() * 100 + u->sum() + same + (u ? 1 : 0) + c.n;",
        (11414, 12317),
    ),
    (
        "pointers",
        "struct H { A* a; std::shared_ptr<A> s; std::vector<std::shared_ptr<A>> all; int k; };",
        "int64_t",
        "A x(a); H h{&x, std::make_shared<A>(2), {}, 1}; h.all.push_back(h.s); H g = h; g.a->add(1); "
        "g.s->add(1); g.k = 5; g.all[0]->n = 70; g.all.push_back(h.s); "
        "return x.sum() + h.s->sum() * 10 + h.k * 1000 + h.all.size() * 10000;",
        (11755, 11764),
    ),
    (
        "member",
        "struct M { A a; std::vector<A> l; M() : a(1), l(2, A(3)) {} void set(const A& x) { a = x; "
        "l[0] = x; } A get() { return a; } A& ref() { return a; } };",
        "int64_t",
        "M m; A x(a); m.set(x); x.add(50); auto g = m.get(); g.add(7); m.ref().add(2); "
        "auto& r = m.ref(); m.a = A(5, 5); M n = m; n.a.add(1000); "
        "return r.sum() + g.sum() * 10 + m.l[0].sum() * 100 + m.l[1].sum() * 10000;",
        (90500, 91490),
    ),
    (
        "loop",
        "struct Q_loop { int n = 5; std::vector<int64_t> d; void pop() { n--; } int run() { int c = 0; "
        "for (int i = 0; i < n; i++) { pop(); c++; } return c; } };",
        "int64_t",
        "Q_loop q; int c = 0; for (int i = 0; i < q.n; i++) { if (i % 2) q.pop(); c++; } Q_loop r; "
        "return c * 100 + r.run() + r.n * 10 + a;",
        (424, 427),
    ),
    (
        "refmember",
        "struct Q_refmember { int n = 5; int& at() { return n; } void inc() { n++; } };",
        "int64_t",
        "Q_refmember q; int& r = q.n; q.inc(); r += a; q.inc(); return q.n * 10 + r;",
        (88, 121),
    ),
    (
        "template",
        "template <typename T> struct P { T x; int n; P(T x, int n) : x(x), n(n) {} T times() const { "
        "return x * n; } template <typename U> U cast() const { return (U)x; } };",
        "double",
        "P<float> p(1.5f, a); P<int> q(a, 2); auto r = p; r.n = 10; "
        "return p.times() * 100 + q.times() + r.times() * 1000 + p.cast<int>();",
        (15153, 15609),
    ),
    (
        "lambda",
        "",
        "int64_t",
        "A x(a); auto g = [&](int k) { x.add(k); return x.n; }; g(3); auto h = [=]() { return x.n; }; "
        "x.add(10); return g(1) * 100 + h();",
        (1504, 1807),
    ),
    (
        "thislambda",
        "struct L { int n = 1; int go(int k) { auto g = [&](int j) { n += j; return n; }; "
        "auto h = [this]() { return n * 2; }; g(k); g(k); return h(); } };",
        "int64_t",
        "L l; return l.go(a) * 10 + l.n;",
        (63, 189),
    ),
    (
        "nested",
        "struct N { struct In { int q = 2; int w() const { return q * 3; } }; enum E { X = 4, Y }; "
        "In in; int go(E e) { return in.w() + e; } };",
        "int64_t",
        "N n; n.in.q = a; N::In i; return n.go(N::Y) * 10 + i.w();",
        (86, 176),
    ),
    (
        "rebind",
        "struct W { int n = 1; void out(int& x, std::vector<int64_t>& v) { x = n + 5; v.push_back(x); n++; } };",
        "int64_t",
        "W w; std::vector<int64_t> v; w.out(a, v); w.out(a, v); return a * 100 + v.size() * 10 + v[0];",
        (726, 726),
    ),
    (
        "ternary",
        "",
        "int64_t",
        "A x(a), y(9); const A& z = a > 2 ? x : y; A w = a > 2 ? x : y; w.add(1); return z.sum() * 100 + w.sum();",
        (2729, 1214),
    ),
    (
        "unsigned",
        "struct U { unsigned n = 0; uint8_t b = 255; void dec() { n--; b++; } };",
        "int64_t",
        "U u; u.dec(); return (int64_t)u.n + u.b + a;",
        (4294967296, 4294967299),
    ),
    (
        "swap",
        "",
        "int64_t",
        "A x(a), y(9); std::swap(x, y); x.add(1); return x.sum() * 100 + y.sum();",
        (2903, 2912),
    ),
    (
        "retref",
        "struct G_retref { std::vector<int64_t> v = {1, 2, 3}; std::vector<int64_t>& all() { return v; "
        "} std::vector<int64_t> copy() { return v; } int64_t& first() { return v[0]; } };",
        "int64_t",
        "G_retref g; g.all().push_back(a); auto c = g.copy(); c[0] = 50; auto& r = g.all(); r[1] = 20; "
        "auto d = g.all(); d[2] = 90; return g.v.size() * 1000 + g.v[0] + g.v[1] * 10 + g.v[2];",
        (4204, 4204),
    ),
    (
        "stale",
        "struct G_stale { int n = 1; std::vector<int64_t> v = {1}; void reset() { v = {7, 8, 9}; } };",
        "int64_t",
        "G_stale g; auto& r = g.v; g.reset(); r.push_back(a); return g.v.size() * 100 + r.size();",
        (404, 404),
    ),
    (
        "listoflists",
        "struct Y { std::vector<std::vector<int64_t>> v; Y() : v(2) {} void put(int k) { v[k % 2].push_back(k); } };",
        "int64_t",
        "Y y; y.put(a); y.put(1); Y z = y; z.put(1); return y.v[1].size() * 10 + z.v[1].size() + y.v[0].size() * 100;",
        (23, 112),
    ),
    (
        "aggregate",
        "struct Z { int a; double b; int s() const { return a + (int)b; } };",
        "int64_t",
        "Z z = {a, 2.5}; Z y{1}; std::vector<Z> v = {z, y, {7, 1.0}}; v[0].a = 50; Z arr[2]; "
        "arr[0] = z; arr[1] = arr[0]; arr[1].a = 3; "
        "return z.s() + v[0].s() * 10 + v[2].s() * 100 + arr[0].a * 1000 + y.s();",
        (2324, 5327),
    ),
    (
        "shadow",
        "struct H2 { int n = 3; int go(int n) { int m = n; { int n = 100; m += n; } "
        "return m + this->n; } int other() { int n = 7; n++; return n + this->n; } };",
        "int64_t",
        "H2 h; return h.go(a) * 100 + h.other() + h.n;",
        (10414, 10714),
    ),
    (
        "arrays",
        "struct AR { int d[3] = {0}; double m[2][2]; int at(int i) const { return d[i]; } };",
        "int64_t",
        "AR x; x.d[1] = a; x.m[1][0] = 2.5; AR y = x; y.d[1] = 9; "
        "return x.at(1) * 10 + y.at(1) + (int)y.m[1][0] + x.d[2];",
        (21, 51),
    ),
    (
        "friend",
        "class F2 { int n; public: F2(int n) : n(n) {} friend int peek(const F2& f); }; "
        "int peek(const F2& f) { return f.n * 2; }",
        "int64_t",
        "F2 x(a); return peek(x) + peek(5);",
        (12, 18),
    ),
    (
        "counter",
        "struct Cn { int n = 0; int operator()() { return ++n; } int post() { return n++; } };",
        "int64_t",
        "Cn c; c(); c(); int p = c.post(); Cn d = c; d(); return c.n * 100 + d.n * 10 + p;",
        (342, 342),
    ),
    (
        "bool",
        "struct Bo { bool on = false; int k = 0; bool flip() { on = !on; k += on; return on; } };",
        "int64_t",
        "Bo b; int s = 0; for (int i = 0; i < a + 3; i++) if (b.flip()) s += 10; while (b.k < 10) { "
        "b.flip(); s++; } return s;",
        (35, 52),
    ),
    (
        "return_struct",
        "struct R2 { int a, b; }; R2 make(int k) { R2 r; r.a = k; r.b = k * 2; return r; } "
        "R2 keep(const R2& r) { return r; }",
        "int64_t",
        "R2 x = make(a); R2 y = keep(x); y.a = 77; auto z = make(3); "
        "auto [p, q] = std::make_tuple(x.a, z.b); return x.a * 1000 + y.a + z.b + p + q;",
        (1090, 4093),
    ),
    (
        "inc_member",
        "struct IM { int i = 0; int64_t t = 0; void go() { i++; --i; i += 3; t = i--; } };",
        "int64_t",
        "IM m; m.go(); m.i++; return m.i * 10 + m.t;",
        (33, 33),
    ),
    (
        "this_ptr",
        "struct TP; struct TP { int n = 2; TP* next = nullptr; TP* self() { return this; } int len() { "
        "int k = 0; for (TP* p = this; p != nullptr; p = p->next) k += p->n; return k; } };",
        "int64_t",
        "TP x, y, z; x.next = &y; y.next = &z; y.n = a; x.self()->n = 5; TP c = x; c.n = 50; z.n = 1; "
        "return x.len() * 100 + c.len();",
        (752, 1055),
    ),
    (
        "init_order",
        "struct IO { int a; int b; int c; IO(int k) : c(k), a(k + 1), b(a * 2) { c += b; } };",
        "int64_t",
        "IO x(a); return x.a * 100 + x.b * 10 + x.c;",
        (245, 614),
    ),
    (
        "float_member",
        "struct FM { float x; double y; FM(double v) : x(v), y(v) {} float sum() { return x + y; } };",
        "double",
        "FM m(0.1 * a); m.x += 0.1; return m.sum() + m.x;",
        (0.5, 1.399999976158142),
    ),
    (
        "param_copy",
        "struct PC { std::vector<int64_t> v; PC(std::vector<int64_t> x) : v(std::move(x)) {} "
        "void set(std::vector<int64_t> x) { v = x; x.push_back(1); } };",
        "int64_t",
        "std::vector<int64_t> q = {1, 2}; PC p(q); q[0] = 9; p.v.push_back(5); PC r(q); r.set(q); "
        "q[1] = 70; r.v[0] = 3; return p.v[0] * 1000 + p.v.size() * 100 + r.v[1] * 10 + q[0];",
        (1329, 1329),
    ),
    (
        "two_same",
        "struct DS { std::vector<int64_t> a, b; DS(std::vector<int64_t>& x) : a(x), b(x) {} };",
        "int64_t",
        "std::vector<int64_t> q = {1, 2}; DS d(q); d.a[0] = 5; d.b.push_back(1); q[1] = 8; "
        "return d.a[0] * 100 + d.b[0] * 10 + d.b.size() + d.a[1] + q.size();",
        (517, 517),
    ),
    (
        "ret_member_struct",
        "struct X1 { A a; X1() : a(2) {} const A& get() const { return a; } A* p() { return &a; } };",
        "int64_t",
        "X1 x; A c = x.get(); c.add(5); x.p()->add(1); A* q = x.p(); x.a = A(9, 1); "
        "return c.sum() * 100 + x.get().sum() + q->sum() * 7;",
        (1744, 1744),
    ),
    (
        "default_args",
        "struct DA { int go(int a, int b = 2, double c = 0.5) { "
        "return a * 100 + b * 10 + (int)(c * 2); } }; int default_args_g(int x, DA d = DA()) { "
        "return d.go(x); }",
        "int64_t",
        "DA d; return d.go(a) + d.go(a, 5) * 3 + d.go(a, 1, 3.0) + default_args_g(4);",
        (1111, 2611),
    ),
    (
        "using_base",
        "struct UB { using T = int64_t; T n = 4; T get() { return n; } }; struct UD : UB { int k = 1; "
        "T all() { return get() + n * k; } };",
        "int64_t",
        "UD u; u.n = a; UD v = u; v.n = 100; return u.all() * 10 + v.get();",
        (120, 180),
    ),
    (
        "switch_enum",
        "enum class Mode { A, B = 5 }; struct SE { Mode m; SE(Mode m) : m(m) {} int go() { "
        "switch (m) { case Mode::A: return 1; case Mode::B: return 2; } return 0; } };",
        "int64_t",
        "SE s(a > 2 ? Mode::B : Mode::A); return s.go() * 10 + (s.m == Mode::B) + static_cast<int>(s.m);",
        (10, 26),
    ),
]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    source = A + "".join(f"{before}\n{of} f_{name}(int a) {{ {body} }}\n" for name, before, of, body, _ in CASES)
    return load(tmp_path_factory.mktemp("classes"), source)


@pytest.mark.parametrize("name", [one[0] for one in CASES])
def test_objects_mean_what_they_mean_in_cpp(name: str, classes: Any) -> None:
    expected = next(one[-1] for one in CASES if one[0] == name)
    f = getattr(classes, f"f_{name}")
    assert (f(1), f(4)) == pytest.approx(expected, rel=1e-12)


REJECTED = {
    "copied": ("struct C { int n; C(const C& o) : n(o.n + 1) {} C() {} };", "C c;", "says itself how it is copied"),
    "destroyed": ("struct D { int* n; ~D() { (*n)++; } };", "D d;", "has a destructor that does something"),
    "sliced": ("struct B { int n = 1; }; struct E : B { int m = 2; };", "E e; B b = e;", "a copy of the part of E"),
    "reference": ("struct R { int& n; R(int& n) : n(n) {} };", "int k = 1; R r(k);", "the member n"),
    "bases": ("struct L { int a; }; struct M { int b; }; struct N : L, M {};", "N n;", "has several bases"),
    "mutex": (
        "struct U { std::mutex m; int n = 2; void go() { m.lock(); } };",
        "U u; u.go();",
        "the unknown name m",
    ),
    "const": (
        "struct K { int n = 1; int& at() { n += 1; return n; } const int& at() const { return n; } };",
        "K k; k.at();",
        "several functions K::at fit",
    ),
    "namesake": (
        "namespace p { struct Same { int n = 1; }; } namespace q { struct Same { int n = 2; }; }",
        "q::Same s;",
        "has the name of another one",
    ),
}


def test_what_is_not_understood_raises_in_its_function_alone(tmp_path: Path) -> None:
    source = "".join(f"{before}\nvoid f_{name}() {{ {body} }}\n" for name, (before, body, _) in REJECTED.items())
    e = load(tmp_path, source + "int fine() { U u; return u.n; }\n")
    assert e.fine() == 2
    for name, (_, _, what) in REJECTED.items():
        with pytest.raises(rawkern.UnsupportedError, match=what):
            getattr(e, f"f_{name}")()


BOUND = """
__global__ void shift(const float* x, float* y, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + by;
}
class Shifter {
 public:
  Shifter(double by, int64_t times) : by_(by), times(times) {}
  Shifter(double by) : Shifter(by, 1) {}
  torch::Tensor forward(const torch::Tensor& x) {
    calls++;
    auto y = torch::empty_like(x);
    shift<<<(x.numel() + 127) / 128, 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), by_ * times, x.numel());
    return y;
  }
  int add(int n) { times += n; return times; }
  int add(std::vector<int64_t> all) { for (auto one : all) times += one; return times; }
  static int twice(int n) { return 2 * n; }
  void untranslated() { std::ifstream file("x"); }
  int calls = 0;
  int64_t times;
 private:
  double by_;
};
std::shared_ptr<Shifter> make(double by) { return std::make_shared<Shifter>(by, 3); }
torch::Tensor run(Shifter& s, torch::Tensor x) { return s.forward(x); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::class_<Shifter, std::shared_ptr<Shifter>>(m, "Shifter", "Shifts.")
      .def(py::init<double, int64_t>(), py::arg("by"), py::arg("times") = 2)
      .def(py::init<double>())
      .def("forward", &Shifter::forward, "Adds.")
      .def("__call__", [](Shifter& s, torch::Tensor x) { return s.forward(x); })
      .def("add", py::overload_cast<int>(&Shifter::add))
      .def("add", py::overload_cast<std::vector<int64_t>>(&Shifter::add))
      .def_static("twice", &Shifter::twice)
      .def("untranslated", &Shifter::untranslated)
      .def_readwrite("count", &Shifter::times)
      .def_readonly("calls", &Shifter::calls);
  m.def("make", &make);
  m.def("run", &run);
}
TORCH_LIBRARY(rawkern_test_classes, m) {
  m.class_<Shifter>("Shifter").def(torch::init<double>()).def("forward", &Shifter::forward);
}
"""


def test_bound_classes(tmp_path: Path, device: torch.device) -> None:
    e = load(tmp_path, BOUND)
    x = torch.randn(300, device=device)
    s = e.Shifter(0.5)
    assert torch.equal(s.forward(x), x + 1) and torch.equal(s(x), x + 1) and (s.calls, s.count) == (2, 2)
    assert s.add(3) == 5 and s.add([1, 1]) == 7 and e.Shifter.twice(4) == 8 and isinstance(e.make(1.0), e.Shifter)
    s.count = 4
    assert torch.equal(e.run(s, x), x + 2) and torch.equal(e.Shifter(by=1, times=5)(x), x + 5)
    assert s.calls == 3 and s.forward.__doc__ == "Adds."
    with pytest.raises(TypeError, match="C\\+\\+ takes a number"):
        e.Shifter("half")
    with pytest.raises(rawkern.UnsupportedError, match="Shifter::untranslated is not translated"):
        s.untranslated()
    of_torch = torch.classes.rawkern_test_classes.Shifter(2.0)
    assert torch.equal(of_torch.forward(x), x + 2)


AUTOGRAD = """
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
__global__ void square(const float* x, float* y, float s, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * x[i] * s;
}
class Square : public torch::autograd::Function<Square> {
 public:
  static torch::Tensor forward(AutogradContext* ctx, double s, torch::Tensor x, c10::optional<int64_t> unused) {
    auto y = torch::empty_like(x);
    square<<<(x.numel() + 127) / 128, 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), s, x.numel());
    ctx->save_for_backward({x});
    ctx->saved_data["s"] = s;
    ctx->saved_data["sizes"] = x.sizes().vec();
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto x = ctx->get_saved_variables()[0];
    TORCH_CHECK((int64_t)ctx->saved_data["sizes"].toIntVector().size() == x.dim());
    return {torch::Tensor(), 2 * ctx->saved_data["s"].toDouble() * x * grads[0], torch::Tensor()};
  }
};
struct Both : torch::autograd::Function<Both> {
  static variable_list forward(AutogradContext* ctx, const torch::Tensor& a, double s, const torch::Tensor& b) {
    variable_list kept = {a, b};
    ctx->save_for_backward(kept);
    auto mask = a.gt(b);
    ctx->mark_non_differentiable({mask});
    return {a * b, a + b, mask};
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& saved = ctx->get_saved_variables();
    variable_list out(3);
    out[0] = grads[0] * saved[1] + grads[1];
    if (ctx->needs_input_grad(1)) out[2] = grads[0] * saved[0] + grads[1];
    return out;
  }
};
torch::Tensor square_(torch::Tensor x, double s) { return Square::apply(s, x, c10::nullopt); }
variable_list both(torch::Tensor a, torch::Tensor b) { auto r = Both::apply(a, 1.5, b); return {r[0], r[1], r[2]}; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("square", &square_); m.def("both", &both); }
TORCH_LIBRARY(rawkern_test_autograd, m) { m.def("square", square_); }
"""


def test_autograd_functions(tmp_path: Path, device: torch.device) -> None:
    e = load(tmp_path, AUTOGRAD)
    for square in (e.square, torch.ops.rawkern_test_autograd.square):
        x = torch.randn(300, device=device, requires_grad=True)
        y = square(x, 1.5)
        assert torch.equal(y.detach(), x.detach() * x.detach() * 1.5)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(gradient, 3 * x.detach())
    a, b = (torch.randn(5, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda a, b: tuple(e.both(a, b)[:2]), (a, b))
    assert not e.both(a, b)[2].requires_grad
    (gradient,) = torch.autograd.grad(e.both(a, b.detach())[0].sum(), a)
    assert torch.equal(gradient, b.detach())


def test_enumerations_that_are_bound(tmp_path: Path) -> None:
    source = """
enum class Activation { ReLU, ELU = 5, Identity };
enum Mode { kSum, kMean };
int64_t of(Activation a) { return a == Activation::ELU ? 100 : static_cast<int64_t>(a); }
int64_t mode(Mode m) { return m == kMean ? 1 : 0; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::enum_<Activation>(m, "Act").value("ReLU", Activation::ReLU).value("ELU", Activation::ELU, "exp")
      .value("Identity", Activation::Identity);
  pybind11::enum_<Mode>(m, "Mode").value("Sum", kSum).value("Mean", Mode::kMean).export_values();
  m.def("of", &of); m.def("mode", &mode);
}
"""
    extension = load(tmp_path, source)
    assert [extension.of(one) for one in extension.Act] == [0, 100, 6]
    assert extension.Act.ELU.name == "ELU" and int(extension.Act.Identity) == 6
    assert extension.mode(extension.Mode.Mean) == 1 and extension.mode(extension.Sum) == 0
    assert set(dir(extension)) >= {"Act", "Mode", "Sum", "Mean", "of", "mode"}


def test_static_functions_of_templates_and_enumerators_as_their_arguments(tmp_path: Path, device: torch.device) -> None:
    source = r"""
enum Reduction { SUM, MIN };
template <typename T, Reduction R> struct Reducer {
  static inline __host__ __device__ T init() { return R == MIN ? std::numeric_limits<T>::max() : T(0); }
  static inline __host__ __device__ void update(T* to, T x) { if (R == SUM) *to += x; else if (x < *to) *to = x; }
};
#define DISPATCH(name, ...) [&] { \
  if (name == "sum") { static constexpr Reduction R = SUM; return __VA_ARGS__(); } \
  static constexpr Reduction R = MIN; return __VA_ARGS__(); }()
template <typename T, Reduction R> __global__ void k(const T* x, T* y, int n) {
  for (int i = 0; i < n; i++) Reducer<T, R>::update(y, x[i]);
}
torch::Tensor f(torch::Tensor x, std::string name) {
  auto y = torch::empty({1}, x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "f", [&] {
    DISPATCH(name, [&] {
      y.fill_(Reducer<scalar_t, R>::init());
      k<scalar_t, R><<<1, 1>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.numel());
    });
  });
  return y;
}
"""
    f = load(tmp_path, source).f
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([3.0, -2.0, 5.0], dtype=dtype, device=device)
        assert f(x, "sum").tolist() == [6] and f(x, "min").tolist() == [-2]
        assert f(x[:0], "min").item() == torch.finfo(dtype).max
