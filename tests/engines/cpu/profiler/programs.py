"""Random kernels of accesses to memory, with the requests that their warps make, found in plain Python.

``python -m tests.engines.cpu.profiler.programs --count 500`` compares so many with what profiles count.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

import rawkern
from tests.engines.cpu.profiler.formulas import ARRAY, Request, summed, touched

BYTES = 4096  # of each array and of shared memory; indices are taken modulo their elements
ARRAYS = 3
BLOCKS = ((32, 1), (96, 1), (40, 1), (16, 6), (8, 12), (5, 7), (64, 2))
_REGISTERS = {1: ("u8", "h"), 2: ("u16", "h"), 4: ("u32", "r"), 8: ("u64", "l"), 16: ("v4.u32", "r")}
_TYPES = {1: "short", 2: "short", 4: "int", 8: "long long", 16: "int4"}


@dataclass
class Access:
    """One access to an array or, with array -1, to shared memory; of atomics `size` is 4."""

    op: str  # "ld", "st", "red", "atom"
    array: int
    size: int
    index: str

    def text(self) -> str:
        where = f"({self.index}) % {BYTES // self.size} * {self.size}"
        if self.array < 0:
            space, address = "shared", f'"r"(shared + {where})'
        else:
            space, address = "global", f'"l"(__cvta_generic_to_global(a{self.array} + {where}))'
        if self.op == "red":
            return f'asm volatile("red.{space}.add.u32 [%0], %1;" :: {address}, "r"(v4.x) : "memory");'
        if self.op == "atom":  # whose result is looked at: else it is a "red"
            asm = f'asm volatile("atom.{space}.add.u32 %0, [%1], %2;" : "=r"(v4.x) : {address}, "r"(7) : "memory");'
            return f"{asm} v4.y += v4.x;"
        kind, register = _REGISTERS[self.size]
        values = [f"v{self.size}.{c}" for c in "xyzw"] if self.size == 16 else [f"v{self.size}"]
        if self.size == 4:
            values = ["v4.x"]
        count = len(values)
        if self.op == "ld":
            listed = ", ".join(f"%{k}" for k in range(count))
            listed = f"{{{listed}}}" if count > 1 else listed
            outputs = ", ".join(f'"={register}"({value})' for value in values)
            return f'asm volatile("ld.{space}.{kind} {listed}, [%{count}];" : {outputs} : {address} : "memory");'
        listed = ", ".join(f"%{k + 1}" for k in range(count))
        listed = f"{{{listed}}}" if count > 1 else listed
        inputs = ", ".join(f'"{register}"({value})' for value in values)
        return f'asm volatile("st.{space}.{kind} [%0], {listed};" :: {address}, {inputs} : "memory");'

    def requests(self, lanes: list[dict[str, int]]) -> Iterator[Request]:
        taken = {
            at["lane"]: evaluated(self.index, at) % (BYTES // self.size) * self.size + max(self.array, 0) * ARRAY
            for at in lanes
        }
        if taken:
            yield self.op, "shared" if self.array < 0 else "global", self.size, taken


@dataclass
class Branch:
    """Statements that some lanes make, and others that the rest makes."""

    condition: str
    body: list[Any]
    rest: list[Any]

    def text(self) -> str:
        other = f" else {{\n{joined(self.rest)}\n}}" if self.rest else ""
        return f"if ({self.condition}) {{\n{joined(self.body)}\n}}{other}"

    def requests(self, lanes: list[dict[str, int]]) -> Iterator[Request]:
        holds = [bool(evaluated(self.condition, at)) for at in lanes]
        yield from walked(self.body, [at for at, yes in zip(lanes, holds, strict=True) if yes])
        yield from walked(self.rest, [at for at, yes in zip(lanes, holds, strict=True) if not yes])


@dataclass
class Loop:
    """Statements that each lane makes so many times."""

    name: str
    times: str
    body: list[Any]

    def text(self) -> str:
        head = f"for (int {self.name} = 0; {self.name} < {self.times}; {self.name}++)"
        return f"#pragma unroll 1\n{head} {{\n{joined(self.body)}\n}}"

    def requests(self, lanes: list[dict[str, int]]) -> Iterator[Request]:
        k = 0
        while left := [at | {self.name: k} for at in lanes if k < evaluated(self.times, at)]:
            yield from walked(self.body, left)
            k += 1


def joined(statements: list[Any]) -> str:
    return "\n".join(each.text() for each in statements)


def walked(statements: list[Any], lanes: list[dict[str, int]]) -> Iterator[Request]:
    for each in statements:
        yield from each.requests(lanes)


def evaluated(text: str, at: dict[str, int]) -> int:
    """The value of an expression of numbers that are not negative, as C has it."""
    return int(eval(text.replace("/", "//"), {}, at))


class Program:
    """A random kernel of one shape of block."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.block, self.blocks = self.draw.choice(BLOCKS), self.draw.randint(1, 3)
        last = Access("st", 0, 16, "t")  # of what atomics have found
        self.body = [*self._statements(3, ["x", "y", "t", "b", "n"]), last]

    @property
    def source(self) -> str:
        arrays = ", ".join(f"char* a{k}" for k in range(ARRAYS))
        values = " ".join(f"{kind} v{size} = {{}};" for size, kind in _TYPES.items() if size != 4)
        return (
            f'extern "C" __global__ void k({arrays}, int n) {{\n'
            f"__shared__ __align__(128) char room[{BYTES}];\n"
            "const unsigned shared = __cvta_generic_to_shared(room);\n"
            "const int x = threadIdx.x, y = threadIdx.y, b = blockIdx.x, t = x + y * blockDim.x;\n"
            f"{values} int4 v4 = {{}};\n{joined(self.body[:-1])}\nv16 = v4;\n{self.body[-1].text()}\n}}\n"
        )

    def expected(self, n: int) -> list[Request]:
        threads, found = self.block[0] * self.block[1], []
        for b in range(self.blocks):
            for first in range(0, threads, 32):
                lanes = [
                    {"lane": t % 32, "x": t % self.block[0], "y": t // self.block[0], "t": t, "b": b, "n": n}
                    for t in range(first, min(first + 32, threads))
                ]
                found += walked(self.body, lanes)
        return found

    def _statements(self, depth: int, names: list[str]) -> list[Any]:
        return [self._statement(depth, names) for _ in range(self.draw.randint(2, 5))]

    def _statement(self, depth: int, names: list[str]) -> Any:
        kind = self.draw.random()
        if depth and kind < 0.2:
            rest = self._statements(depth - 1, names) if self.draw.random() < 0.5 else []
            return Branch(self._condition(names), self._statements(depth - 1, names), rest)
        if depth and kind < 0.35:
            name = f"k{depth}"
            times = self.draw.choice(["2", "n", "t % 3", "(x + b) % 4", "y % 2 + 1"])
            return Loop(name, times, self._statements(depth - 1, [*names, name]))
        op = self.draw.choice(["ld", "ld", "st", "st", "red", "atom"])
        size = self.draw.choice([1, 2, 4, 4, 8, 16]) if op in ("ld", "st") else 4
        return Access(op, self.draw.randrange(-2, ARRAYS), size, self._index(2, names))

    def _condition(self, names: list[str]) -> str:
        left, right = self._index(1, names), self.draw.choice([2, 3, 5, 8, 16])
        return f"({left}) % {right} {self.draw.choice(['<', '>=', '==', '!='])} {self.draw.randrange(right)}"

    def _index(self, depth: int, names: list[str]) -> str:
        name, number = (
            self.draw.choice(["t", "t", "x", *names]),
            self.draw.choice([1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33]),
        )
        forms = [
            name,
            f"{name} * {number}",
            f"({name} ^ {number})",
            f"{name} / {number}",
            f"{name} % {number}",
            str(number),
        ]
        left = self.draw.choice(forms)
        if not depth or self.draw.random() < 0.4:
            return left
        right = self._index(depth - 1, names)
        return self.draw.choice([f"{left} + {right}", f"({left} + {right}) * {number}", f"(({left}) ^ ({right}))"])


def difference(seed: int) -> str:
    """What a profile counts of a random kernel other than plain Python; empty if nothing."""
    program, n = Program(seed), 3
    arrays = [torch.zeros(BYTES, dtype=torch.uint8) for _ in range(ARRAYS)]
    with rawkern.profile() as report:
        rawkern.RawKernel(program.source)[program.blocks, program.block](*arrays, n)
    launch, requests = report.as_dict()["launches"][0], program.expected(n)
    found = {k: v for k, v in launch["counters"].items() if re.search("global|shared|atomic_conflicts", k) and v}
    expected: dict[str, Any] = summed(requests)
    distinct = {f"a{array}": count for array, count in touched(requests).items()}
    if found == expected and launch["distinct_sectors"] == distinct:
        return ""
    names = [name for name in {**found, **expected} if found.get(name) != expected.get(name)]
    lines = [f"{name}: {found.get(name)} counted, {expected.get(name)} expected" for name in names]
    return "\n".join([*lines, f"{launch['distinct_sectors']} counted, {distinct} expected", program.source])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    for seed in range(options.first, options.first + options.count):
        if text := difference(seed):
            raise SystemExit(f"program {seed}\n{text}")
    print(f"{options.count} programs: no difference")


if __name__ == "__main__":
    main()
