"""Calls through function pointers of random types: correct ones against Python, wrong ones raise errors, none does harm."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

import rawkern

#: C++ types of values, with how many numbers of which type they hold and PTX's kind: an array of bytes or not, its size.
SCALARS = {"signed char": 4, "unsigned short": 4, "int": 4, "float": 4, "long long": 8, "double": 8, "unsigned": 4}
SIZES = {"signed char": 1, "unsigned short": 2, "int": 4, "float": 4, "long long": 8, "double": 8, "unsigned": 4}
VECTORS = {"float2": ("float", 2), "int4": ("int", 4), "double2": ("double", 2), "short3": ("short", 3)}


@dataclass(frozen=True)
class Type:
    name: str
    element: str
    count: int

    @property
    def kind(self) -> tuple[bool, int]:
        if self.name in SCALARS:
            return False, SCALARS[self.name]
        return True, self.count * ({"short": 2} | SIZES)[self.element]

    @property
    def declared(self) -> str:
        return f"struct {self.name} {{ {self.element} v[{self.count}]; }};" if self.name.startswith("T") else ""

    def part(self, value: str, k: int) -> str:
        if self.name in SCALARS:
            return value
        return f"{value}.v[{k}]" if self.name.startswith("T") else f"{value}.{'xyzw'[k]}"


@dataclass(frozen=True)
class Signature:
    number: int
    params: tuple[Type, ...]
    result: Type | None
    waits: bool

    @property
    def kind(self) -> tuple:
        return tuple(p.kind for p in self.params), self.result and self.result.kind

    @property
    def pointer(self) -> str:
        types = ", ".join(p.name for p in self.params)
        return f"typedef {self.result.name if self.result else 'void'} (*F{self.number})({types});"

    @property
    def text(self) -> str:
        params = ", ".join(f"{p.name} a{k}" for k, p in enumerate(self.params))
        parts = [p.part(f"a{k}", j) for k, p in enumerate(self.params) for j in range(p.count)]
        total = " + ".join(["0", *(f"{k + 1} * (int){part}" for k, part in enumerate(parts))])
        body = f"int h = {total};"
        if self.waits:
            body += " __syncwarp(); h += __shfl_sync(~0u, h, 3) - __shfl_sync(~0u, h, 3);"
        if self.result is None:
            body += " side[threadIdx.x] = h % 100;"
        else:
            r = self.result
            sets = (f"{r.part('r', j)} = (h + {j}) % 100;" for j in range(r.count))
            body += f" {r.name} r; {' '.join(sets)} return r;"
        name = self.result.name if self.result else "void"
        return f"__device__ __noinline__ {name} f{self.number}({params}) {{ {body} }}"

    def call(self, function: str) -> str:
        """Code that calls a function, and adds to ``sum`` what it gives."""
        lines, n = [], 0
        for k, p in enumerate(self.params):
            sets = " ".join(f"{p.part(f'a{k}', j)} = (t * 7 + {n + j} * 13) % 50;" for j in range(p.count))
            lines.append(f"{p.name} a{k}; {sets}")
            n += p.count
        args = ", ".join(f"a{k}" for k in range(len(self.params)))
        if self.result is None:
            lines.append(f"{function}({args}); sum += side[threadIdx.x];")
        else:
            parts = (f"{j + 1} * (int){self.result.part('r', j)}" for j in range(self.result.count))
            lines.append(f"{self.result.name} r = {function}({args}); sum += {' + '.join(parts)};")
        return f"{{ {' '.join(lines)} }}"

    def expected(self, t: int) -> int:
        count = sum(p.count for p in self.params)
        h = sum((k + 1) * ((t * 7 + k * 13) % 50) for k in range(count))
        if self.result is None:
            return h % 100
        return sum((j + 1) * ((h + j) % 100) for j in range(self.result.count))


def _signatures(r: random.Random) -> list[Signature]:
    structs = [Type(f"T{k}", r.choice(list(SIZES)), r.choice((1, 2, 3, 5, 9, 40))) for k in range(4)]
    types = [*structs, *(Type(s, s, 1) for s in SCALARS), *(Type(v, *of) for v, of in VECTORS.items())]
    return [
        Signature(
            k, tuple(r.choice(types) for _ in range(r.randrange(5))), r.choice([None, *types]), waits=r.random() < 0.2
        )
        for k in range(8)
    ]


def _source(r: random.Random, signatures: list[Signature]) -> str:
    structs = dict.fromkeys(t.declared for s in signatures for t in (*s.params, s.result) if t is not None)
    right = "\n".join(f"case {s.number}: {s.call(f'((F{s.number})p)')} break;" for s in signatures)
    direct = "\n".join(f"case {s.number}: {s.call(f'f{s.number}')} break;" for s in signatures)
    return f"""__device__ int side[32];
{" ".join(structs)}
{" ".join(s.pointer for s in signatures)}
{" ".join(s.text for s in signatures)}
__device__ void* held(int which) {{
    switch (which) {{ {" ".join(f"case {s.number}: return (void*)f{s.number};" for s in signatures)} }}
    return nullptr;
}}
extern "C" __global__ void called(const int* which, const int* as, int* x) {{
    int t = threadIdx.x, sum = 0;
    void* p = held(which[t]);
    switch (as[t]) {{ {right} }}
    x[t] = sum;
}}
extern "C" __global__ void named(const int* which, int* x) {{
    int t = threadIdx.x, sum = 0;
    switch (which[t]) {{ {direct} }}
    x[t] = sum;
}}"""


@pytest.mark.parametrize("seed", range(2))
def test_random_types(seed: int) -> None:
    r = random.Random(seed)
    signatures = _signatures(r)
    module = rawkern.RawModule(_source(r, signatures))
    called, named = module.get_function("called"), module.get_function("named")
    waits = {s.number for s in signatures if s.waits}
    for trial in range(30):
        if trial % 2 or not waits:  # all threads the same one, as those that wait have to
            one = r.randrange(len(signatures))
            chosen = [one] * 32
        else:
            chosen = [r.choice([s.number for s in signatures if not s.waits]) for _ in range(32)]
        which, x, y = torch.tensor(chosen, dtype=torch.int32), *torch.zeros(2, 32, dtype=torch.int32)
        called[1, 32](which, which, x)
        named[1, 32](which, y)
        expected = torch.tensor([signatures[n].expected(t) for t, n in enumerate(chosen)], dtype=torch.int32)
        assert torch.equal(x, expected) and torch.equal(y, expected), signatures
    for held in signatures:
        for cast in signatures:
            which, x = torch.full((32,), held.number, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
            if held.kind == cast.kind:
                called[1, 32](which, torch.full_like(which, cast.number), x)
                continue
            with pytest.raises(
                rawkern.LaunchError, match=r"calls a function (through a pointer|pointer that does not hold)"
            ):
                called[1, 32](which, torch.full_like(which, cast.number), x)


def test_the_thread_and_the_line_are_named() -> None:
    kernel = rawkern.RawKernel(r"""
struct Big { int v[500]; };
__device__ __noinline__ Big make(int n) { Big b; for (int i = 0; i < 500; i++) b.v[i] = n + i; return b; }
__device__ __noinline__ int plain(int n) { return n + 1; }
extern "C" __global__ void k(int* x) {
    void* f = threadIdx.x < 20 ? (void*)plain : (void*)make;
    x[threadIdx.x] = ((int (*)(int))f)(x[threadIdx.x]);
}""")
    x = torch.zeros(32, dtype=torch.int32)
    for level in ("off", "bounds", "full"):
        with (
            rawkern.check(level=level),
            pytest.raises(
                rawkern.LaunchError, match=r"line 7: thread \(20,0,0\) .* a pointer to functions of another type"
            ),
        ):
            kernel[1, 32](x)
    kernel[1, 16](x)
    assert x[:16].ge(1).all()
