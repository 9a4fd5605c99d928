"""Programs as trees of templates: what the generator makes, the reducer shrinks and compilers read as text.

A template is text in which ``$0``, ``$1`` ... stand for expressions and ``@0``, ``@1`` ... for blocks of statements. Each
template is defined for all operands of their types (it masks shift amounts, bounds loops, keeps divisors from zero), so
any operand may be replaced by any other of its type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path

#: C types by short name; "bool" is what conditions have.
C_TYPES = {
    "s8": "signed char", "u8": "unsigned char", "s16": "short", "u16": "unsigned short", "s32": "int", "u32": "unsigned",
    "s64": "long long", "u64": "unsigned long long", "f32": "float", "f64": "double", "bool": "bool",
}  # fmt: skip
INTEGERS = tuple(t for t in C_TYPES if t[0] in "su")
DIVERGENT, PER_WARP, PER_BLOCK = range(3)  # ranks: over which lanes a value is the same
HOLE = re.compile(r"([$@])(\d)")


@dataclass(frozen=True)
class Expr:
    """An expression; ``rank`` says over which lanes it is the same."""

    type: str
    form: str
    args: tuple[Expr, ...] = ()
    rank: int = DIVERGENT

    def text(self) -> str:
        return HOLE.sub(lambda hole: self.args[int(hole[2])].text(), self.form)


@dataclass
class Stmt:
    """A statement with its operands and blocks; ``kind`` is the generator's name for it."""

    kind: str
    form: str
    args: list[Expr] = field(default_factory=list)
    bodies: list[list[Stmt]] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        for line in self.form.splitlines():
            if line.strip()[:1] == "@":
                yield from indented(self.bodies[int(line.strip()[1])], line[: len(line) - len(line.lstrip())])
            else:
                yield HOLE.sub(lambda hole: self.args[int(hole[2])].text(), line)


def indented(body: list[Stmt], indent: str = "    ") -> Iterator[str]:
    for statement in body:
        for line in statement.lines():
            yield indent + line


@dataclass
class Function:
    """A device function: all up to its brace, declarations, statements, and the value that it ends with."""

    name: str
    head: str
    declarations: list[Stmt]
    body: list[Stmt]
    result: Stmt

    def text(self) -> str:
        if not self.result.form:  # no function, but a declaration
            return self.head
        lines = [f"{self.head} {{", *indented(self.declarations), *indented(self.body), *indented([self.result])]
        return "\n".join([*lines, "}"])


@dataclass(frozen=True)
class Listing:
    """A program as text, with how it is launched: what compilers and engines take, and what files hold."""

    seed: int
    options: tuple[str, ...]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    p: int
    q: int
    rows: int  # of results, each of which has one for each thread
    text: str

    @property
    def threads(self) -> int:
        return prod(self.block)

    @property
    def total(self) -> int:
        return self.threads * prod(self.grid)

    @property
    def name(self) -> str:
        """The kernel's."""
        return f"k{self.seed}"

    def write(self, path: Path) -> None:
        """To a file of CUDA C, whose first line says how it is launched."""
        head = {key: value for key, value in asdict(self).items() if key != "text"}
        path.write_text(f"// {json.dumps(head)}\n{self.text}")

    @classmethod
    def read(cls, path: Path) -> Listing:
        head, text = path.read_text().split("\n", 1)
        values = json.loads(head.removeprefix("// "))
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}, text=text)


@dataclass
class Program:
    """One kernel with what it needs, and how it is launched."""

    seed: int
    options: tuple[str, ...]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    p: int
    q: int
    parts: list[str] = field(default_factory=list)  # types and constants
    functions: list[Function] = field(default_factory=list)
    declarations: list[Stmt] = field(default_factory=list)
    body: list[Stmt] = field(default_factory=list)
    ending: list[Stmt] = field(default_factory=list)  # stores of results

    def listing(self) -> Listing:
        head = (
            f'extern "C" __global__ void k{self.seed}(const int* in, const float* fin, long long* out, int* own, '
            "unsigned* acc, unsigned long long* wide, int p, int q) {"
        )
        lines = [*self.parts, *(f.text() for f in self.functions), head]
        for body in (self.declarations, self.body, self.ending):
            lines += indented(body)
        text, rows = _numbered("\n".join([*lines, "}"]).replace("THREADS", str(prod(self.block))))
        text = f"namespace n{self.seed} {{\n{text}\n}}\n"
        return Listing(self.seed, self.options, self.grid, self.block, self.p, self.q, max(rows, 1), text)


def _numbered(text: str) -> tuple[str, int]:
    """The text with rows of results in the places of ROW and of ROW4 (which takes four), and their number."""
    parts, row = re.split(r"\bROW(\d*)", text), 0
    for k in range(1, len(parts), 2):
        parts[k], row = str(row), row + int(parts[k] or 1)
    return "".join(parts), row
