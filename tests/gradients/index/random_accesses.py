"""Random kernels whose indices, guards and loops are of many forms; some tell threads apart, and some nearly do."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """The source of a kernel, and the shape of its blocks."""

    source: str
    block: tuple[int, int, int]


def accesses(seed: int) -> Kernel:
    """A kernel that reads and sets global memory."""
    r = random.Random(seed)
    x, y = r.choice([4, 8, 12, 24, 32]), r.choice([1, 1, 1, 3, 4])
    kind = r.choice(["int", "int", "int", "unsigned", "long long"])
    lines = ["int t = threadIdx.x, u = threadIdx.y, b = blockIdx.x, c = blockIdx.y;", f"{kind} i = {_place(r)};"]
    digits = r.choice(_digits(r, x, y))
    loop = r.choice(["", "", f"for (int k = 0; k < {r.choice(['3', '5', 'm', 'w'])}; ++k)",
                     f"for (int k = t; k < {r.choice(['w', 'n', 'w - 1'])}; k += {r.choice([x, x, 1, 2 * x])})",
                     f"for (int k = {r.choice(['i', 'b'])}; k < n; k += gridDim.x * {r.choice([x, 1])})",
                     "for (int k = 7; k >= 0; --k)"])  # fmt: skip
    if loop:
        digits = r.choice(
            [digits, [*digits, ("k", r.choice([3, 5, "w", None]))], [("k", "w"), *digits[-1:]], [("k", None)]]
        )
    lines += [_guard(r, x) for _ in range(r.choice([0, 0, 1, 1, 2]))]
    first, second = _index(r, digits), _index(r, digits)
    beside = f"{first} + {r.choice(['1', '2', 'w', str(x), 'm'])}"
    body = f"y[{first}] = x[{second}] + x[{r.choice([first, beside])}];"
    for _ in range(r.choice([0, 1, 1])):
        body = f"if ({_condition(r, x, 'k' if loop else 't')}) {{ {body} }}"
    lines.append(f"{loop} {body}")
    number = r.choice(["int", "int", "unsigned"])
    head = f'extern "C" __global__ void f(const float* x, float* y, {number} n, int m, int w)'
    return Kernel("\n    ".join([f"{head} {{", *lines]) + "\n}\n", (x, y, 1))


def _place(r: random.Random) -> str:
    return r.choice(["b * blockDim.x + t", "blockIdx.x * blockDim.x + threadIdx.x", "b * blockDim.x + t",
                     "(b * blockDim.y + u) * blockDim.x + t", "b * 2 * blockDim.x + t"])  # fmt: skip


def _digits(r: random.Random, x: int, y: int) -> list[list[tuple[str, int | str | None]]]:
    """Expressions that together may tell threads apart, from the smallest digit, with what each is below."""
    g = r.choice([2, 3, 4, 8])
    top: list[tuple[str, int | str | None]] = [("b", "gridDim.x"), ("c", None)]
    return [
        [("i", None)],
        [("i", "n"), ("c", None)],
        [("i % w", "w"), ("i / w", None)],
        [(f"i % {g}", g), (f"i / {g}", None)],
        [("i % m", "m"), ("i / m % w", "w"), ("i / (m * w)", None)],
        [("t", x), ("u", y), *top],
        [("u", y), ("t", x), *top],
        [("i", None), (f"i % {g}", 1)],
        [(f"t % {g}", g), (f"t / {g}", -(-x // g)), ("u", y), *top],
        [("t", "w"), *top],
        [("t", x), ("b", None)],
        [("i", "w"), ("u", y), ("c", None)],
        [("(i - i / w * w)", "w"), ("i / w", None)],
    ]


def _index(r: random.Random, digits: list[tuple[str, int | str | None]]) -> str:
    """A sum of digits, each times what those before count up to; at times with another factor, or one left out."""
    chosen = list(digits)
    if r.random() < 0.25:
        r.shuffle(chosen)
    if len(chosen) > 1 and r.random() < 0.15:
        chosen.pop(r.randrange(len(chosen)))
    parts, factor, product = [], r.choice([1, 1, 1, 2, 3]), ""
    for name, size in chosen:
        times = max(1, factor + r.choice([0, 0, 0, 0, 0, 1, -1]))
        parts.append(f"{name if name.isidentifier() else f'({name})'}{product}{f' * {times}' if times > 1 else ''}")
        if isinstance(size, str):
            product += f" * {size}"
        factor *= size if isinstance(size, int) else 1
    r.shuffle(parts)
    text = " + ".join(parts)
    text = r.choice([text, text, text, f"{text} + {r.randint(0, 5)}", f"n - 1 - ({text})", f"{text} - m"])
    return text


def _guard(r: random.Random, x: int) -> str:
    return f"if ({r.choice(['i >= n', 'i >= n', 'i >= n / 2', 't >= w', f't >= {x - 2}', 'i >= m * w', 'n - 1 < i', 'u > 1', 'c >= m'])}) return;"


def _condition(r: random.Random, x: int, k: str) -> str:
    one = [f"{k} < w", f"{k} < n", "t < w", "i < n", "t < w && i < n", f"t < {r.randint(1, x)}", f"t == {r.randrange(x)}", "t % 2 == 0",
           "i < n / 2", "i < min(n, w)", "u == 0", f"i + {k} < n", "i < n - 1", f"{k} > 0", f"t <= {x - 2}", "i % 4 == 0", "m <= w",
           f"{k} < w - 3", "!(t >= w)", "t / 4 == 1", "t > 0 && t < w - 1", "i < w * m", "m > 0"]  # fmt: skip
    return r.choice(one)


def tiles(seed: int) -> Kernel:
    """A kernel that sets a shared array in a loop under conditions, and reads it."""
    r = random.Random(seed)
    x, y = r.choice([8, 16, 32]), r.choice([1, 1, 1, 4])
    size = x * r.choice([1, 1, 2, 4])
    many = size // x if r.random() < 0.6 else 1
    whose = (
        r.choice([f"t * {many} + q", f"q * {x} + t", f"t * {many} + q"])
        if many > 1
        else r.choice(["t", "t", f"{x - 1} - t", "t + 1"])
    )
    loop = f"for (int q = 0; q < {many}; ++q) " if many > 1 else ""
    load = r.choice(["if (k + t < n) ", "if (t < n - k) ", "", "if (t < w) ", f"if (t < min({x}, n - k)) ", "if (k + t < n && w > 0) ",
                     "if (t < (unsigned)n) ", "if (u == 0) ", f"if (t < {x - 1}) "])  # fmt: skip
    bound = r.choice([str(x), f"min({x}, n - k)", str(x - 1), "w", "n - k", f"min(w, {x})"])
    inner = (
        r.choice([f"j * {many} + p", f"p * {x} + j"])
        if many > 1
        else r.choice(["j", "j", "j + 1", "t", "t ^ 1", "t + j"])
    )
    more = f"for (int p = 0; p < {r.choice([many, many, max(1, many - 1)])}; ++p) " if many > 1 else ""
    test = r.choice(["", "", "if (k + j < n) ", "if (j < w) ", "if (t < w) "])
    source = f"""extern "C" __global__ void f(const float* x, float* y, int n, int m, int w) {{
    __shared__ float s[{size}];
    int t = threadIdx.x, u = threadIdx.y;
    float sum = 0.0f;
    for (int k = 0; k < n; k += {x}) {{
        {loop}{load}s[{whose}] = x[k + t];
        __syncthreads();
        for (int j = 0; j < {bound}; ++j) {more}{test}sum += s[{inner}];
        {r.choice(["", f"sum += s[t] * s[t + {r.choice([1, 4, x])}];"])}
        __syncthreads();
    }}
    y[blockIdx.x * {x * y} + u * {x} + t] = sum;
}}
"""
    return Kernel(source, (x, y, 1))
