"""What a PTX instruction takes of a multiprocessor: machine instructions by the pipe that executes them, and latency.

ptxas makes one machine instruction of most; those with several follow what it expands them to for compute capabilities
7.0 to 9.0. Latencies are those of dependent instructions that published microbenchmarks of Volta to Hopper found (Jia
et al. 2018, "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking"; Luo et al. 2024, "Benchmarking and
Dissecting the Nvidia Hopper GPU Architecture").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

#: Pipes, with the names of Nsight Compute where it has one; "free" takes nothing.
PIPES = ("fma", "imad", "alu", "xu", "fp64", "lsu", "branch")


@dataclass(frozen=True)
class Cost:
    """Machine instructions by pipe, and cycles until a result can be read; those of memory are added from elsewhere."""

    pipes: tuple[tuple[str, float], ...]
    latency: float
    stalls: bool = False  # the warp issues nothing else meanwhile: there is a branch for rare operands inside

    @property
    def free(self) -> bool:
        return not self.pipes

    @property
    def issues(self) -> float:
        return sum(count for _, count in self.pipes)


def _cost(latency: float, **pipes: float) -> Cost:
    return Cost(tuple(pipes.items()), latency, "branch" in pipes and len(pipes) > 1)


FREE = _cost(0)
FMA, IMAD, ALU, BRANCH = _cost(4, fma=1), _cost(4, imad=1), _cost(4.5, alu=1), _cost(4, branch=1)
LSU = _cost(0, lsu=1)
_XU = 18.0  # cycles until a result of the transcendental unit is there

_FREE = frozenset(
    ("mov", "cvta", "pragma", "fence", "membar", "isspacep", "neg", "abs", "not", "activemask", "griddepcontrol")
)
_LOGIC = frozenset(
    ("and", "or", "xor", "lop3", "shl", "shr", "shf", "bfe", "bfi", "prmt", "setp", "set", "selp", "slct", "min", "max",
     "cnot", "testp", "copysign", "szext", "bmsk", "fns", "vote", "dp4a", "dp2a", "sad")
)  # fmt: skip
#: Instructions that were not measured: matrix instructions, copies by the tensor memory accelerator, sleeps.
UNKNOWN = ("mma", "wmma", "wgmma", "tcgen05", "cp.async.bulk", "cp.reduce", "ldmatrix", "stmatrix", "nanosleep")


#: Pairs of which ptxas makes one machine instruction (IMAD.WIDE, LEA, IADD3, LOP3), or two of 64 bits (LEA.HI): what
#: they cost then, and whether the first is done again for each that follows.
_JOINS = {
    ("wide product", "add 64"): (IMAD, True),
    ("shl 64", "add 64"): (_cost(7, alu=2), True),
    ("shl 32", "add 32"): (ALU, True),
    ("add 32", "add 32"): (ALU, False),
    ("logic 32", "logic 32"): (ALU, False),
}


@cache
def cost(text: str) -> Cost:
    """The cost of an instruction by its mnemonic, such as ``"fma.rn.f32"``."""
    words = text.split(".")
    base, types, ftz = words[0], words[1:], "ftz" in words
    wide, last = any(w in ("s64", "u64", "b64") for w in types), types[-1] if types else ""
    double, exact = last == "f64", any(w in ("rn", "rz", "rm", "rp") for w in types)
    if base in _FREE or (base == "ld" and "param" in types) or (base == "st" and "param" in types):
        return FREE
    if last == "pred" and base in ("and", "or"):
        return FREE  # a comparison's machine instruction takes a predicate as well
    if base in ("ld", "ldu", "st", "atom", "red", "cp", "prefetch", "shfl", "tex", "suld", "sust"):
        return _cost(23, lsu=1) if base == "shfl" else LSU
    if base in ("bra", "brx", "ret", "exit", "call"):
        return BRANCH
    if base in ("bar", "barrier", "mbarrier"):
        return _cost(20, branch=1)
    if base in ("match", "redux"):
        return _cost(25, xu=1)
    if base in ("popc", "clz", "brev", "bfind"):
        return _cost(_XU, xu=2 if wide else 1)
    if double:
        return _double(base, types)
    if base in ("add", "sub", "mul", "fma", "mad") and last in ("f32", "f16", "f16x2", "bf16", "bf16x2"):
        return FMA
    if base == "div":
        if last == "f32":
            return _cost(65, fma=6, xu=1, alu=2, branch=1) if exact else _cost(_XU + 12, fma=3 if ftz else 5, xu=1)
        return _cost(320, imad=16, alu=34, xu=3, branch=5) if wide else _cost(115, imad=7, alu=10, xu=3)
    if base == "rem":
        return _cost(330, imad=18, alu=34, xu=3, branch=5) if wide else _cost(120, imad=8, alu=10, xu=3)
    if base in ("rcp", "sqrt") and exact:
        return _cost(55, fma=5, xu=1, alu=2, branch=1)
    if base in ("rcp", "rsqrt", "sqrt", "ex2", "lg2", "tanh", "sin", "cos"):
        if base in ("sin", "cos"):
            return _cost(_XU + 4, fma=1, xu=1)
        return _cost(_XU, xu=1) if ftz or base == "tanh" or last != "f32" else _cost(_XU + 12, fma=2, alu=1, xu=1)
    if base == "cvt":
        return _conversion(types)
    if base in ("mul", "mad", "mad24", "mul24"):
        if wide and "lo" in types:
            return _cost(14, imad=3)
        return _cost(8, imad=2) if "hi" in types else IMAD
    if base in ("add", "sub", "addc", "subc") or base in _LOGIC:
        return _cost(7, alu=2) if wide and base not in ("setp", "selp") and base != "add" else ALU
    return ALU


def costs(blocks: Sequence[Mapping[str, Any]]) -> list[list[Cost]]:
    """The cost of each instruction of a kernel's blocks of code, where two of them that ptxas makes one count once."""
    reads: Counter[str] = Counter()
    for block in blocks:
        reads.update(name for _, read in block["registers"] for name in {*read})
        reads.update(source for _, source in block["carried"])
    return [_joined(block, reads) for block in blocks]


def _joined(block: Mapping[str, Any], reads: Mapping[str, int]) -> list[Cost]:
    texts = [text for text, _, _ in block["instructions"]]
    found = [cost(text) for text in texts]
    maker: dict[str, int] = {}
    joined: set[int] = set()
    for k, (made, read) in enumerate(block["registers"]):
        for name in (name for name in read if name in maker):
            first = maker[name]
            both, copied = _JOINS.get((_kind(texts[first]), _kind(texts[k])), (None, False))
            if both is not None and (copied or (reads[name] == 1 and first not in joined)):
                found[first], found[k] = FREE, both
                joined.add(k)
                break
        maker |= dict.fromkeys(made, k)
    return found


def _kind(text: str) -> str:
    """A name of `_JOINS` for an instruction."""
    words = text.split(".")
    base, bits = words[0], words[-1][1:]
    if base == "mul" and "wide" in words:
        return "wide product"
    if base in ("and", "or", "xor"):
        return f"logic {bits}"
    return f"{base} {bits}" if base in ("add", "shl") and words[-1][0] in "sub" else ""


def _double(base: str, types: list[str]) -> Cost:
    if base in ("add", "sub", "mul", "fma", "mad"):
        return _cost(8, fp64=1)
    if base in ("div", "rcp", "sqrt", "rsqrt"):
        return _cost(120, fp64=9, xu=1, alu=6, branch=2)
    if base == "cvt":
        return _cost(_XU, xu=1)
    return _cost(9, fp64=1) if base in ("setp", "min", "max") else _cost(5, alu=2)


def _conversion(types: list[str]) -> Cost:
    kinds = [w for w in types if w[0] in "sufb" and w[1:].rstrip("x2").isdigit()]
    floats = [w[0] == "f" or w.startswith("bf") for w in kinds]
    if not any(floats):
        return FREE if any(w.endswith("64") for w in kinds) else ALU
    if all(floats) and not any(w == "f64" for w in kinds):
        return FMA if kinds[0] == kinds[-1] else ALU
    return _cost(_XU, xu=1)
