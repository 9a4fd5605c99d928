"""Random kernels of C's integers: narrow, unsigned and 64-bit ones, guards by them, side effects, switches, odd loops."""

from __future__ import annotations

import random

from tests.gradients.random_kernels import arguments

TYPES = ("int", "unsigned", "short", "unsigned char", "signed char", "long long", "unsigned short", "bool")


class Corners:
    """One random kernel, by its seed. Each expression changes at most one variable, which it does not use besides."""

    shared_mem = 0

    def __init__(self, seed: int) -> None:
        self.seed, self.r = seed, random.Random(seed)
        self.block, self.grid = (self.r.choice([4, 8, 16]), 1, 1), (self.r.choice([1, 2, 3]), 1, 1)
        self.integers, self.floats = ["i", "t", "m"], ["x[i]", "w[t % 7]", "0.7f"]
        self.count, self.free = 0, True  # whether it may change variables here
        lines = [
            "int t = threadIdx.x, i = blockIdx.x * blockDim.x + t, q = 3;",
            *self._statements(self.r.randint(3, 6)),
        ]
        where = self.r.choice(["i", "i", "119 - i", "i ^ 1", "i + 3u", "(long long)i + 7", "(short)(i + 1)"])
        lines += self._guarded([f"y[{where}] = {self._value(2)};"])
        lines += self._row() if self.r.random() < 0.5 else []
        head = 'extern "C" __global__ void program(const float* x, const float* w, const int* at, float* y, float* z, int n, int m)'
        self.source = "\n".join([f"{head} {{", *("    " + line for line in lines), "}\n"])

    def arguments(self) -> tuple:
        *rest, _ = arguments(self.seed)
        return (*rest, (12, 5, 1, 0, -1, -3, -11)[self.seed // 3 % 7])

    def _fresh(self, hint: str) -> str:
        self.count += 1
        return f"{hint}{self.count}"

    # Integers, which stay so small that those with a sign do not overflow ------------------------------------------

    def _integer(self, depth: int) -> str:
        r = self.r
        if depth == 0 or r.random() < 0.1:
            return r.choice([*self.integers, *self.integers, "at[i]", str(r.randint(-9, 9)), f"{r.randint(1, 9)}u"])
        a, b, by = self._integer(depth - 1), self._integer(depth - 1), r.choice(["3", "7", "-4", "5u", "16"])
        found = r.choice([
            f"({a} + {b})", f"({a} - {b})", f"{a} * {r.randint(-3, 3)}", f"({a}) / {by}", f"({a}) % {by}",
            f"(({a}) >> {r.randint(1, 3)})", f"(({a}) & {r.choice(['7', '12', '0xF0u'])})", f"(({a}) ^ {r.randint(1, 20)})",
            f"(({a}) | 1)", f"({a} > 3 ? {a} : {b})", f"({r.choice(TYPES)})({a})", f"({a} < {b})", f"!({a})",
            f"~({a})", f"-({a})", f"abs((int)({a}))", f"(({a}) << 1)",
        ])  # fmt: skip
        return f"(({found}) % 50)"

    def _index(self, most: int = 120) -> str:
        a, r = self._integer(self.r.randint(0, 2)), self.r
        return r.choice(
            [
                f"(unsigned)({a}) % {most}u",
                f"abs((int)(({a}) % {most}))",
                f"(({a}) & 3)",
                f"(unsigned char)({a}) % {most}",
            ]
        )

    def _changes(self) -> str:
        """An integer that is changed as it is read, once in an expression."""
        self.free = False
        return self.r.choice(["q++", "q--", "++q", "--q", "(q += 2)", "(q -= t)"])

    def _test(self, depth: int) -> str:
        r = self.r
        if depth == 0:
            sign = r.choice(["<", "<=", ">", ">=", "==", "!="])
            a = self._changes() if self.free and r.random() < 0.2 else self._integer(1)
            return r.choice(
                [
                    f"{a} {sign} {self._integer(1)}",
                    f"{a} {sign} {self._integer(0)}",
                    f"x[{self._index()}] > 0.1f",
                    f"{a} {sign} n",
                ]
            )
        a, b = self._test(depth - 1), self._test(depth - 1)
        return r.choice([f"({a} && {b})", f"({a} || {b})", f"!({a})", a])

    # Floats ---------------------------------------------------------------------------------------------------------

    def _value(self, depth: int) -> str:
        r = self.r
        if depth == 0:
            index = f"{self._changes()} & 63" if self.free and r.random() < 0.1 else self._index()
            return r.choice(
                [*self.floats[-4:], *self.floats[-2:], f"x[{index}]", f"x[{self._index()}]", f"w[{self._index(7)}]"]
            )
        a, b = self._value(depth - 1), self._value(depth - 1)
        return r.choice([f"({a} + {b})", f"{a} * {b}", f"sinf({a}) * {b}", f"{a} * ({self._integer(1)})", f"({self._test(1)} ? {a} : {b})",
                         f"fmaxf({a}, {b})", f"({a} - (float)({self._integer(1)}) * 0.1f)"])  # fmt: skip

    # Statements -----------------------------------------------------------------------------------------------------

    def _statements(self, n: int, inner: bool = False) -> list[str]:
        lines, integers, floats = [], list(self.integers), list(self.floats)
        for _ in range(n):
            self.free = True
            lines += self.r.choice(
                [
                    self._declare,
                    self._compound,
                    self._assign,
                    self._branch,
                    self._switch,
                    self._loop,
                    self._add,
                    self._count,
                ]
            )()
        if inner:
            self.integers, self.floats = integers, floats
        self.free = True
        return lines

    def _declare(self) -> list[str]:
        if self.r.random() < 0.5:
            text, name = self._value(2), self._fresh("v")
            self.floats.append(name)
            return [f"float {name} = {text};"]
        a = self._changes() if self.r.random() < 0.3 else self._integer(2)
        name = self._fresh("j")
        self.integers.append(name)
        return [f"{self.r.choice(TYPES[:-1])} {name} = {a};"]

    def _named(self, names: list[str], letter: str) -> str | None:
        own = [n for n in names if n.startswith(letter)]
        return self.r.choice(own) if own else None

    def _compound(self) -> list[str]:
        name = self._named(self.integers, "j")
        if name is None:
            return self._declare()
        r = self.r
        return [
            r.choice(
                [
                    f"{name} {r.choice(['+=', '-=', '=', '^='])} {self._integer(1)};",
                    f"{name}++;",
                    f"--{name};",
                    f"{name} >>= 1;",
                    f"{name} %= 5;",
                ]
            )
        ]

    def _assign(self) -> list[str]:
        name = self._named(self.floats, "v")
        return (
            self._declare()
            if name is None
            else [f"{name} {self.r.choice(['=', '+=', '-=', '*='])} sinf({self._value(1)});"]
        )

    def _add(self) -> list[str]:
        return [f"atomicAdd(&z[{self._index(5)}], {self._value(1)});"]

    def _branch(self) -> list[str]:
        lines = [f"if ({self._test(2)}) {{", *self._statements(self.r.randint(1, 2), True)]
        return [*lines, *(["} else {", *self._statements(1, True)] if self.r.random() < 0.5 else []), "}"]

    def _switch(self) -> list[str]:
        lines = [f"switch (({self._integer(1)}) & 3) {{"]
        for label in self.r.sample(["case 0:", "case 1:", "case 2: case 3:", "default:"], self.r.randint(1, 4)):
            lines += [label, "{", *self._statements(1, True), "}", "break;"]
        return [*lines, "}"]

    def _count(self) -> list[str]:
        """A loop of which nothing but a number is wanted."""
        r, name, end = self.r, self._fresh("j"), self._integer(1)
        by = r.randint(1, 4)
        self.integers.append(name)
        return r.choice([
            [f"int {name} = {r.randint(-3, 3)};", f"while ({name} < (int)({end})) {name} += {by};"],
            [f"int {name} = (int)({end});", f"for (; {name} > {by}; {name} -= {by}) {{ }}"],
            [f"int {name} = 1;", f"while ({name} * {name} < (int)({end})) ++{name};"],
            [f"unsigned {name} = (unsigned)({end}) & 63;", f"do {{ {name} /= 2; }} while ({name} > {by});"],
        ])  # fmt: skip

    def _loop(self) -> list[str]:
        r, k, name = self.r, self._fresh("k"), self._fresh("v")
        start, times = r.choice(["0.2f", self._value(1)]), r.randint(0, 5)
        before, head, after = r.choice([
            ("", f"for (int {k} = 0; {k} < {times}; ++{k}) {{", "}"), ("", f"for (unsigned {k} = {times}; {k}-- > 0;) {{", "}"),
            (f"int {k} = {times};", f"while ({k}-- > 0) {{", "}"), (f"int {k} = -1;", f"while (++{k} < {times}) {{", "}"),
            (f"unsigned char {k} = 0;", "do {", f"}} while (++{k} < {times});"), ("", f"for (int {k} = {times}; {k}; --{k}) {{", "}"),
            ("", f"for (int {k} = t % 3; {k} < {times}; {k} += 2) {{", "}"), (f"int {k} = 0;", f"for (; {k} != {times}; ++{k}) {{", "}"),
            ("", f"for (short {k} = {times}; {k} >= 0; {k} -= 2) {{", "}"), ("", f"for (unsigned {k} = t; {k} < 20u; {k} += 6) {{", "}"),
            ("", f"for (int {k} = t - 2; {k} < {r.choice(['5u', '(unsigned)(m & 7)', '4ull', 'm'])}; {k} += 2) {{", "}"),
            ("", f"for (int {k} = t; {k} < m; {k} += 4) {{", "}"), ("", f"for (unsigned {k} = t & 3; {k} < (unsigned)(m & 15); {k} += 4) {{", "}"),
        ])  # fmt: skip
        outer_integers, outer_floats = list(self.integers), list(self.floats)
        self.integers.append(k)
        body = self._statements(1, True) if r.random() < 0.3 else []
        leave = r.choice(["", "", "", f"if ({self._test(1)}) continue;", f"if ({self._test(1)}) break;"])
        self.free = True
        step = r.choice([f"{name} += {self._value(1)};", f"{name} -= {self._value(2)};", f"{name} = {name} * 0.5f + {self._value(1)};", f"{name} = sinf({name} * 0.5f + {self._value(1)});",
                         f"{name} = fmaxf({name}, {self._value(1)});", f"if ({self._test(1)}) {name} += {self._value(1)};"])  # fmt: skip
        self.integers, self.floats = outer_integers, [*outer_floats, name]
        return [
            f"float {name} = {start};",
            *([before] if before else []),
            head,
            *([leave] if leave else []),
            *body,
            step,
            after,
        ]

    def _guarded(self, lines: list[str]) -> list[str]:
        test = self.r.choice(
            ["", "", "i < n", "i != 3", "t < m", "(unsigned)t < (unsigned)m", "threadIdx.x < m", "i % 3 || t == 6"]
        )
        return [f"if ({test}) {{", *lines, "}"] if test else lines

    def _row(self) -> list[str]:
        """Rows whose length may be negative, by guards that may not say so."""
        r = self.r
        guard = r.choice(["t < m", "threadIdx.x < m", "t < (unsigned)m", "threadIdx.x <= m", "t != m", "(long long)t < m",
                          "(unsigned char)t < m", "t < 20 % m", "t < m || t == 2", "!(threadIdx.x >= m)", "t < m / 2", "t < 8u"])  # fmt: skip
        guard = guard if "%" not in guard or self.arguments()[-1] else "t < m"
        index = r.choice(
            ["60 + (int)blockIdx.x * m + t", "60 + (int)(blockIdx.x * m + threadIdx.x)", "60 - (int)blockIdx.x * m - t"]
        )
        return [f"if ({guard}) {{", f"int g = {index};", f"atomicAdd(&z[t % 5], x[g] * {self._value(1)});", "}"]
