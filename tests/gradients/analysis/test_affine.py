"""Indices that are said to tell threads apart do, by counting."""

from __future__ import annotations

import itertools
import random

import pytest

from rawkern.gradients.derive import derive
from rawkern.gradients.reading.reader import Launched
from rawkern.gradients.reading.syntax import Where

BLOCK, BLOCKS = 24, 3


def alone(index: str, condition: str, group: int) -> bool:
    """Whether the derived text says that each element is set by one thread."""
    source = (
        'extern "C" __global__ void f(const float* x, float* y) {\n'
        f"    int t = threadIdx.x, b = blockIdx.x, q = t / {group}, r = t % {group};\n"
        f"    int i = b * blockDim.x + t, w = i / {group}, l = i % {group};\n"
        f"    if ({condition}) y[{index}] = x[{index}] * x[{index}];\n}}"
    )
    launched = Launched((BLOCK, 1, 1), (False, True, True))
    text = derive(source, "f", where=Where("f.cu", "f", str), launched=launched, assume=False)
    return "take(" not in text.source and not text.atomics


def apart(index: str, condition: str, group: int, blocks: int) -> bool:
    """The same, by counting."""
    places = []
    for b, t in itertools.product(range(blocks), range(BLOCK)):
        i = b * BLOCK + t
        names = {"t": t, "b": b, "q": t // group, "r": t % group, "w": i // group, "l": i % group}
        if eval(condition.replace("&&", "and"), names):
            places.append(eval(index, names))
    return len(places) == len(set(places))


@pytest.mark.parametrize("group", [4, 8])
def test_groups_of_a_block(group) -> None:
    r = random.Random(group)
    claimed = 0
    for _ in range(75):
        sizes = {"q": BLOCK // group, "r": group} if r.random() < 0.7 else {"t": BLOCK}
        condition = r.choice(["t >= 0", "t >= 0", "t >= 0", "r == 0", "q == 1", "t == 5", "r < 2", "r == 1 && q < 2"])
        step, parts = 1, []
        for d in r.sample(sorted(sizes), len(sizes)):
            if f"{d} == " not in condition or r.random() < 0.3:
                step *= r.choice([1, 1, 2])
                parts.append(f"{step} * {d}")
                step = max(1, step * sizes[d] - r.choice([0, 0, 0, 1]))  # too little now and then
        index = " + ".join([*parts, f"{max(1, step - r.choice([0, 0, 1]))} * b", str(r.randint(0, 3))])
        if alone(index, condition, group):
            claimed += 1
            assert all(apart(index, condition, group, blocks) for blocks in (1, 2, 5, 40)), (index, condition)
    assert claimed > 15


@pytest.mark.parametrize("group", [4, 5, 8, 24])
def test_groups_of_a_launch(group) -> None:
    """As of a warp for each row; blocks that groups do not divide evenly tell nothing."""
    r = random.Random(group)
    claimed = 0
    for _ in range(60):
        a, b = r.choice([(group, 1), (group + 1, 1), (group - 1, 1), (1, 50), (1, 0), (2, 1)])
        other, place = r.choice(["w", "w", "q", "b"]), r.choice(["l", "l", "r", "t"])
        index, condition = f"{a} * {other} + {b} * {place}", r.choice(["t >= 0", "w < 9", "l == 0", "r < 3"])
        if alone(index, condition, group):
            claimed += 1
            assert all(apart(index, condition, group, blocks) for blocks in (1, 2, 5, 40)), (index, condition)
    assert claimed > 3 or BLOCK % group


@pytest.mark.parametrize(
    "index, condition",
    [("24 * b + t", "t >= 0"), ("24 * b + 8 * q + r", "t >= 0"), ("24 * b + 3 * r + q", "t >= 0"),
     ("8 * w + l", "t >= 0"), ("w", "l == 0"), ("10 * w + r", "w < 7"), ("24 * b + 8 * q + l", "t >= 0"),
     ("3 * b + q", "r == 0"), ("b", "t == 0"), ("8 * b + r", "q == 2"), ("b * 48 + t + 24", "r < 4")],
)  # fmt: skip
def test_groups_that_are_told_apart(index, condition) -> None:
    assert alone(index, condition, 8)


def test_axes_of_the_grid_that_the_kernel_does_not_mention() -> None:
    square = 'extern "C" __global__ void f(const float* x, float* y) { int i = %s; y[i] = x[i] * x[i]; }\n'
    other = "template <class T> __global__ void other(T* x) { x[blockIdx.y * blockDim.x + threadIdx.x] = 0; }\n"
    called = "__device__ int place(int i) { return gridDim.y == 1 ? i : 0; }\n"

    def axes(source: str) -> tuple[bool, bool, bool]:
        launched = Launched((32, 1, 1))
        return derive(source, "f", where=Where("f.cu", "f", str), launched=launched, assume=False).unit_axes

    plain = square % "blockIdx.x * blockDim.x + threadIdx.x"
    assert axes(plain) == axes(other + plain) == axes(plain + other) == (False, True, True)
    assert axes(called + square % "place(blockIdx.x * blockDim.x + threadIdx.x)") == (False, False, True)
    assert axes(other + square % "threadIdx.x") == (True, True, True)


def test_nothing_is_assumed_that_no_launch_has() -> None:
    loop = "for (int c = 0; c < n; c += 32) y[blockIdx.x * n + c + threadIdx.x] = x[blockIdx.x * n + c + threadIdx.x];"
    source = f'extern "C" __global__ void f(const float* x, float* y, int n) {{ {loop} }}\n'
    text = derive(source, "f", where=Where("f.cu", "f", str), launched=Launched((32, 1, 1)))
    assert "__trap" not in text.source and "take(" in text.source  # a row's last part may lead into the next row


def flat(body: str, assume: bool = True) -> tuple[bool, tuple[str, ...]]:
    """Whether each element of y is set, and its x read, by one thread alone; and what that assumes of a launch."""
    head = 'extern "C" __global__ void f(const float* x, float* y, int n, int C, int H, int W)'
    source = f"{head} {{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; {body} }}\n"
    text = derive(source, "f", where=Where("f.cu", "f", str), launched=Launched((24, 1, 1)), assume=assume)
    alone = "take(" not in text.source and not text.atomics
    return alone, tuple(
        sorted(str(high[0][0]) for _, high in ((low, list(high)) for low, high in text.assumed) if high[0])
    )


def same(index: str) -> str:
    return f"y[{index}] = x[{index}] * x[{index}];"


@pytest.mark.parametrize(
    "body, assumed",
    [
        ("int q = i / W, r = i % W; " + same("q * W + r"), ("W",)),
        ("int q = i / W, r = i - q * W; " + same("q * W + r"), ()),
        ("int q = i / 5, r = i % 5; " + same("q * 5 + r"), ()),
        ("int q = i / 5, r = i % 5; " + same("q * 7 + r"), ()),
        ("int q = i >> 2, r = i & 3; " + same("q * 4 + r + 3"), ()),
        ("int q = i / W, r = i % W; if (q < H) " + same("r * H + q"), ("W",)),
        ("int c = i / (H * W), r = i % (H * W); int h = r / W, w = r % W; " + same("(c * W + w) * H + h"), ("H", "W")),
        ("int b = i / W / H / C, c = i / (W * H) % C, h = i / W % H, w = i % W; " + same("((b * H + h) * W + w) * C + c"),
         ("C", "H", "W")),
        ("int b = i / W, w = i % W; for (int c = 0; c < C; ++c) " + same("(b * C + c) * W + w"), ("W",)),
    ],
)  # fmt: skip
def test_rows_and_columns_of_a_number(body, assumed) -> None:
    assert flat(body) == (True, assumed)
    assert flat(body, assume=False)[0] == (not assumed)


@pytest.mark.parametrize(
    "body",
    [
        same("i / W"), same("i % W"), "int q = i / W, r = i % W; " + same("r * H + q"),
        "int q = i / W, r = i % H; " + same("q * W + r"), "int q = i / 5, r = i % 4; " + same("q * 5 + r"),
        "int q = i / 5, r = i % 5; " + same("q * 4 + r"), "int q = i / W, r = i % W; " + same("q * H + r"),
        "int c = i / (H * W), h = i / W % C, w = i % W; " + same("(c * C + h) * W + w"),
        "int b = i / W, w = i % W; for (int c = 0; c < C; ++c) " + same("(b * H + c) * W + w"),
        "int q = (i - 7) / W, r = (i - 7) % W; if (i > 7) " + same("q * W + r + W"),
    ],
)  # fmt: skip
def test_other_parts_of_a_number_do_not_tell_it(body) -> None:
    assert not flat(body)[0]
