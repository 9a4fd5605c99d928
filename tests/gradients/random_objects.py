"""Random kernels with objects: structs with methods and operators, lambdas, namespaces; returns and breaks in loops."""

from __future__ import annotations

from tests.gradients.random_kernels import FUNCTIONS, Program

OBJECTS = """
template <typename T> struct Pair {
    T a, b;
    int n = 1;
    __device__ Pair() : a(0.5f), b(0.25f) {}
    __device__ Pair(T a, T b) : a(a), b(b) {}
    __device__ explicit Pair(T v) : Pair(v, v * v) {}
    __device__ Pair& operator+=(const Pair& o) { a += o.a; b += o.b; n++; return *this; }
    __device__ Pair operator*(T s) const { return {a * s, b * s}; }
    __device__ Pair operator*(const Pair& o) const { return Pair(a * o.b, b - o.a); }
    __device__ T& operator[](int i) { return i == 0 ? a : b; }
    __device__ T mixed() const { return sinf(a) * b + n * 0.1f; }
    __device__ void turn(T s) { T t = a; a = a * cosf(s) - b * sinf(s); b = t * 0.5f + this->b * 0.5f; }
    __device__ T turned(int k) { T s = 0.f; for (int j = 0; j < k; ++j) { turn(0.3f * j); s += a; } return s; }
};
template <typename T> __device__ Pair<T> operator+(Pair<T> l, const Pair<T>& r) { l += r; return l; }
namespace inner {
__device__ float seek(const float* x, int c, int n, float least) {
    for (int j = 0; j < 5; ++j) {
        float v = x[(c + j) % n];
        if (v < -0.9f) continue;
        for (int l = 1; l < 3; ++l) if (v * l > least) return v * v + 0.1f * l;
        least = 0.5f * least + 0.1f * v;
    }
    return least;
}
__device__ void parts(float v, float* low, float* high) { *low = v < 0.1f ? v : 0.1f; *high = v - *low; *high *= *low + 1.0f; }
}
template <typename F> __device__ float apply(F f, float v) { return f(v) + f(0.5f * v); }
"""


class Objects(Program):
    """As `Program`, with these in addition."""

    functions = FUNCTIONS + OBJECTS

    def __init__(self, seed: int) -> None:
        self.structs: list[str] = []
        super().__init__(seed)

    def more(self) -> list:
        kinds = [self.object, self.lambdas, self.seek, self.found, self.parts, self.element]
        return kinds + ([self.stored, self.of_parts, self.votes] if self.uniform else [])

    def object(self) -> None:
        p, q, v = self.fresh("p"), self.fresh("q"), [self.value(1) for _ in range(4)]
        made = [f"{p}({v[0]}, {v[1]})", f"{p}{{{v[0]}, {v[1]}}}", f"{p}({v[0]})", f"{p} = {{{v[0]}, {v[1]}}}"]
        self.say(f"Pair<float> {self.r.choice(made[:3])}, {q};")
        steps = [f"{p} += {q} * ({v[2]});", f"{p} = {p} * {q} + {p};", f"{p}.turn({v[2]});", f"({p} += {q})[1] *= 0.5f;",
                 f"{q}[0] = {v[3]}; {p} = {q};", f"for (int l = 0; l < 3; ++l) {p}.turn(0.2f * l);",
                 f"for (int l = 0; l < 2; ++l) {q} += {p};", f"if ({v[2]} > 0.1f) {p} = {q}; else {q}.b = {v[3]};"]  # fmt: skip
        for _ in range(self.r.randint(1, 3)):
            self.say(self.r.choice(steps))
        self.declare(self.r.choice([f"{p}.mixed()", f"({p} + {q}).mixed()", f"{p}.a * {q}.b", f"{p}.turned(3)"]))

    def lambdas(self) -> None:
        f, k = self.fresh("f"), self.declare(self.value(1))
        capture, body = self.r.choice([("=", f"return v * {k};"), ("&", f"{k} += v; return {k};"),
                                       ("&", f"if (v > {k}) return v; return sinf(v) * {k};")])  # fmt: skip
        self.say(f"auto {f} = [{capture}](float v) {{ {body} }};")
        if self.r.random() < 0.5:
            self.say(f"{k} = sinf({k} * 2.0f);")
        if self.r.random() < 0.4:
            s = self.declare("0.0f")
            self.say(f"for (int l = 0; l < 3; ++l) {s} += 0.5f * {f}(0.3f * {s} + x[c]);")
        self.declare(self.r.choice([f"{f}({self.value(1)})", f"apply({f}, {self.value(0)})"]))

    def seek(self) -> None:
        self.declare(f"inner::seek(x, c, n, 0.5f * sinf({self.value(0)}))")

    def parts(self) -> None:
        low, high = self.fresh("low"), self.fresh("high")
        self.say(f"float {low}, {high};")
        self.say(f"inner::parts({self.value(1)}, &{low}, &{high});")
        self.names += [low, high]

    def found(self) -> None:
        """What a loop has found before it broke."""
        best, found, k = self.fresh("best"), self.fresh("found"), self.fresh("k")
        self.say(f"float {best};")
        self.say(f"bool {found} = false;")
        self.say(f"for (int {k} = 0; {k} < 4; ++{k}) {{")
        self.say(f"    float v = x[(c + {k}) % n] * {self.weight('2')};")
        self.say(f"    if (v > 0.1f) {{ {best} = v * {self.value(0)}; {found} = true; break; }}")
        self.say("}")
        self.declare(f"{found} ? {best} : {self.value(1)}")

    def element(self) -> None:
        a, k = self.fresh("a"), self.fresh("k")
        self.say(f"float {a}[3] = {{{self.value(1)}, {self.value(0)}}};")
        self.say(f"float* {a}p = {a} + 1; {a}p[1] = *{a}p * {a}[0]; *({a}p - 1) += 0.3f;")
        self.say(f"for (int {k} = 0; {k} < 3; ++{k}) {a}[{k}] *= {k} + 0.5f;")
        self.declare(f"{a}[0] + {a}[1] * {a}[2]")

    def stored(self) -> None:
        """Objects in shared memory."""
        s = self.fresh("s")
        self.structs.append(s)
        self.say(f"{s}[t] = Pair<float>({self.value(1)}, {self.value(0)});")
        if self.r.random() < 0.5:
            self.say(f"{s}[t].turn(0.5f);")
        self.say("__syncthreads();")
        self.declare(
            self.r.choice([f"{s}[63 - t].mixed()", f"{s}[t ^ 1].a * {s}[t].b", f"({s}[(t + 3) % 64] * 0.5f).b"])
        )
        self.say("__syncthreads();")

    def of_parts(self) -> None:
        v, width = self.value(1), self.r.choice([4, 8, 16])
        by = self.r.randrange(width)
        which = self.r.choice(["_down", "_up", "_xor", ""])
        self.declare(f"__shfl{which}_sync(0xffffffff, {v}, {by}, {width})")

    def votes(self) -> None:
        test = f"{self.value(0)} > {self.r.uniform(-0.5, 0.5):.2f}f"
        self.declare(self.r.choice([
            f"0.03f * __popc(__ballot_sync(0xffffffff, {test})) * {self.value(0)}",
            f"(__any_sync(0xffffffff, {test}) ? {self.value(1)} : 0.5f)", f"(__all_sync(0xffffffff, {test}) ? 0.1f : {self.value(1)})",
        ]))  # fmt: skip

    def declarations(self) -> str:
        return super().declarations() + "".join(f"    __shared__ Pair<float> {s}[64];\n" for s in self.structs)
