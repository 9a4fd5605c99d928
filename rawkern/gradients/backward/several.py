"""Several elements a thread, for backwards whose threads have nothing to do with one another.

A thread that reads and writes a few bytes leaves a GPU's memory waiting: too few bytes are on their way. So a block
does the work of several blocks of the forward. Where no condition fails for any thread of those, none is asked, so
that all loads can be on their way at once, and a thread has elements beside one another; in other blocks they are a
block apart, under their conditions.

Conditions that compare sums of products of integers, linear in a thread's place, hold for all places between two if
they hold for both.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.analysis.gather import places
from rawkern.gradients.analysis.ownership import Poly, add, multiply
from rawkern.gradients.ir import Kernel
from rawkern.gradients.layout import Group, bare, rendered

BYTES = 16  # of one array, that a thread reads or writes
MOST = 4  # elements
FEW = 1 << 20
LINES, READS = 60, 24  # of a thread: more has enough on its way, or needs too many registers
TOGETHER = re.compile(r"__sync|__shfl|__ballot|__any|__all|__activemask|\b(warp_\w+|block_sum|lane|take|curand\w*)\(")
_DEFINED = re.compile(r"const ((?:unsigned |long )*(?:int|long|size_t)) (\w+) = (.*);")
_CAST = re.compile(r"\((unsigned int|unsigned long long|size_t|unsigned|long long|int)\)(?=[\w(])")
_MODULO = re.compile(r"unsigned|size_t|\b\d+[uU]|\(int\)\(|(?<!\(int\))\b(gridDim|blockDim|blockIdx|threadIdx)\.")
_COMPARED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


@dataclass(frozen=True)
class Several:
    """The lines, and names of what they need: how many elements a thread has, and the forward's blocks."""

    lines: list[Any]
    each: str
    blocks: str
    most: int


def several(kernel: Kernel, lines: list[Any], sizes: Set[str], fresh: Callable[[str], str]) -> Several | None:
    """Let a thread have several elements along x; None where threads have to do with one another, or it does not pay.

    `sizes`: names of integers that the backward is given beside the kernel's own.
    """
    code, whole = "\n".join(rendered(lines)), places(kernel)
    apart = not kernel.shared and not TOGETHER.search(code) and "x" in whole and kernel.grid[0] != 1
    if not apart or kernel.block[0] < 16:
        return None
    body = _Body(kernel, whole, sizes)
    most = min(MOST, BYTES // body.largest(code)) // (1 if len(whole) == 1 else 2)
    try:
        free = body.freed(lines)
    except _Unfit:
        return None
    inner = rendered(free)
    reads = sum(len(re.findall(r"\w\[", line)) for line in inner)
    if most < 2 or "x" not in body.place or len(inner) > LINES or reads > READS or "atomic" in "".join(inner):
        return None
    each, k, blocks = (fresh(n) for n in ("each", "k", "blocks_x"))
    here, threads = body.place["x"], kernel.block[0]
    others = [a for a in whole if a in body.place and a != "x"]
    kept = [line for line in lines if _place(line) not in body.place.values()]
    free = [line for line in free if _place(line) not in body.place.values()]
    if re.search(r"(threadIdx|blockIdx)\.x", "\n".join(rendered([*kept, *free]))):
        return None
    kind = body.kinds[here]
    wide = f"({kind})" if "long" in kind or kind == "size_t" else ""
    before = [f"const {body.kinds[body.place[a]]} {body.place[a]} = {body.spelled[body.place[a]]};" for a in others]
    ends = {name: (fresh(f"first_{name}"), fresh(f"last_{name}")) for name in body.place.values()}
    first, last = ends[here]
    before += [
        f"const {kind} {first} = {wide}blockIdx.x * ({threads} * {each});",
        f"const {kind} {last} = {wide}(blockIdx.x + 1) * ({threads} * {each}) - 1;",
    ]
    asked = body.asked(ends)
    for a in others:
        for end, text in zip(ends[body.place[a]], body.ends(a), strict=True):
            if re.search(rf"\b{end}\b", " ".join(asked)):
                before.append(f"const {body.kinds[body.place[a]]} {end} = {text};")
    tests = [f"(blockIdx.x + 1) * {each} <= {blocks}", *asked]
    loop = f"for (int {k} = 0; {k} < {each}; ++{k}) {{"
    beside = f"const {kind} {here} = {first} + threadIdx.x * {each} + {k};"
    behind = f"const {kind} {here} = {first} + threadIdx.x + {k} * {threads};"
    stop = f"if (blockIdx.x * {each} + {k} >= {blocks}) break;"
    found = [
        *before,
        Group(
            f"if ({' && '.join(tests)}) {{",
            ["#pragma unroll", Group(loop, [beside, *free])],
            [Group(loop, [stop, behind, *_continued(kept)])],
        ),
    ]
    return Several(_with_blocks(found, blocks), each, blocks, most)


class _Unfit(Exception):
    """Something that several elements a thread do not go with."""


class _Body:
    """What is known of the integers in lines, and which conditions were taken to hold."""

    def __init__(self, kernel: Kernel, whole: dict[str, Poly], sizes: Set[str]) -> None:
        self.kernel, self.whole = kernel, whole
        self.place: dict[str, str] = {}  # by axis: the name of a thread's place
        self.kinds: dict[str, str] = {}
        self.spelled: dict[str, str] = {}  # of constants in the lines, as they are defined
        self.polys: dict[str, Poly] = {}
        self.modulo = {n for n, kind, _ in kernel.params if str(kind).startswith("unsigned")}  # integers that wrap
        self.held: list[tuple[str, str, str, Poly]] = []  # left, operator, right; left less right
        numbers = {n: kind for n, kind, pointer in kernel.params if not pointer and isinstance(kind, str)}
        self.params = sizes | {n for n, kind in numbers.items() if not types.is_float(kind)}

    def largest(self, code: str) -> int:
        """Bytes of the largest element that is read or written."""
        used = [a for n, a in self.kernel.arrays.items() if re.search(rf"\b(grad_)?{n}\[", code)]
        return max((_bytes(a.type) for a in used), default=BYTES)

    # Lines --------------------------------------------------------------------------------------------------------

    def freed(self, lines: Sequence[Any]) -> list[Any]:
        """The lines without the conditions that hold for all of a block."""
        found: list[Any] = []
        for line in lines:
            if isinstance(line, Group):
                found += self._group(line)
                continue
            if exits := re.fullmatch(r"if \((.*)\) return;", line):
                if not self._fails(exits[1]):
                    raise _Unfit
                continue
            self._indices(line)
            if defined := _DEFINED.fullmatch(line):
                self._define(*defined.groups())
            found.append(line)
        return found

    def _group(self, group: Group) -> list[Any]:
        if group.head == "{":
            return self.freed(group.body)
        head = re.fullmatch(r"if \((.*)\) \{", group.head)
        if head is None:
            raise _Unfit
        rare = "gridDim" in group.head and "atomic" in "\n".join(rendered(group.body))
        if not group.other and self._fails(head[1], only_known=not rare):
            return []
        left = [] if group.other else [part for part in _parts(head[1], "&&") if not self._hold(part)]
        if group.other:
            left = [head[1]]
        self._indices(group.head)
        body, other = self.freed(group.body), self.freed(group.other)
        return [Group(f"if ({' && '.join(left)}) {{", body, other)] if left else body

    def _hold(self, condition: str, only_known: bool = False) -> bool:
        """Take a condition to hold, if it can be asked of a whole block."""
        found = self._comparison(condition)
        if found is None:
            return False
        if only_known:
            return any(_implies(held, found) for held in self.held)
        self.held.append(found)
        return True

    def _fails(self, condition: str, only_known: bool = False) -> bool:
        """Take each of some alternatives to fail, if they can be asked of a whole block."""
        parts = [_negated(part) for part in _parts(condition, "||")]
        if any(part is None for part in parts):
            return False
        known = all(self._comparison(part) is not None for part in parts if part)
        return known and all(self._hold(part, only_known) for part in parts if part)

    def _define(self, kind: str, name: str, text: str) -> None:
        try:
            p = self._poly(text)
        except _Unfit:
            return
        if kind == "int" and "long" in self._expanded(text):
            return  # what does not fit is cut off
        axis = next((a for a, whole in self.whole.items() if p == whole and a not in self.place), None)
        if axis is not None:
            self.place[axis] = name
        self.kinds[name], self.spelled[name], self.polys[name] = kind, text, p
        if kind != "int" or (axis is None and self._wraps(text) and self._shifted(p) is None):
            self.modulo.add(name)

    def ends(self, axis: str) -> tuple[str, str]:
        """The first and the last place of a block along an axis."""
        n = self.kernel.block["xyz".index(axis)]
        if self.kernel.grid["xyz".index(axis)] == 1:
            return "0", str(n - 1)
        first = f"blockIdx.{axis}" + (f" * {n}" if n > 1 else "")
        return first, f"{first} + {n - 1}" if n > 1 else first

    # Comparisons --------------------------------------------------------------------------------------------------

    def _comparison(self, text: str) -> tuple[str, str, str, Poly] | None:
        """A comparison of integers that depends on a thread's place and is linear in each axis."""
        split = _compared(bare(text.strip()))
        if split is None:
            return None
        left, operator, right = split
        try:
            sides = self._poly(left), self._poly(right)
        except _Unfit:
            return None
        p, places = add(sides[0], sides[1], -1), self._places()
        own = {s for key in p for s in key if s in places}
        linear = all(sum(s in own for s in key) == len({s for s in key if s in own}) for key in p)
        if (
            not own
            or not linear
            or (self._wraps(f"{left} {operator} {right}") and not _place_alone(sides, set(places)))
        ):
            return None
        return left, operator, right, p

    def _wraps(self, text: str) -> bool:
        """Whether some of it may be computed modulo 2^32."""
        return bool(_MODULO.search(text)) or not self.modulo.isdisjoint(re.findall(r"\w+", text))

    def _shifted(self, p: Poly) -> tuple[str, int] | None:
        """An integer as a place and a small number, which no wrapping around changes once it is an int."""
        shift, names = p.get((), 0), [s for s in self._places() if p.get((s,)) == 1]
        fits = len(names) == 1 and len(p) == 1 + (() in p) and abs(shift) < FEW
        return (self._places()[names[0]], shift) if fits else None

    def _places(self) -> dict[str, str]:
        """The symbols of places, and their names."""
        return {f"at {a}": n for a, n in self.place.items()}

    def asked(self, ends: dict[str, tuple[str, str]]) -> list[str]:
        """The conditions that were taken to hold, at the ends of a block's places."""
        found: list[str] = []
        self.held.sort(key=lambda held: max(map(len, held[3]), default=0))
        for k, (left, operator, right, p) in enumerate(self.held):  # products last: what bounds them comes before
            if any(
                _implies(other, self.held[k]) and (i < k or not _implies(self.held[k], other))
                for i, other in enumerate(self.held)
                if i != k
            ):
                continue
            lefts, rights = self._expanded(left), self._expanded(right)
            for corner in self._corners(operator, p):
                new = {self._places()[s]: ends[self._places()[s]][end] for s, end in corner.items()}
                found.append(f"{bare(_put(lefts, new))} {operator} {bare(_put(rights, new))}")
        return list(dict.fromkeys(found))

    def _corners(self, operator: str, p: Poly) -> Iterator[dict[str, int]]:
        """For which ends of the places a comparison is the hardest to meet: 0 for the first, 1 for the last."""
        choices: dict[str, tuple[int, ...]] = {}
        for s in self._places():
            keys = [key for key in p if s in key]
            if len(keys) == 1 and len(keys[0]) == 1:
                choices[s] = (int((p[keys[0]] > 0) == (operator in ("<", "<="))),)
            elif keys:
                choices[s] = (0, 1)
        for picked in itertools.product(*choices.values()):
            yield dict(zip(choices, picked, strict=True))

    def _expanded(self, text: str) -> str:
        """With constants of the lines by what they are, but for the places themselves."""

        def value(m: re.Match[str]) -> str:
            if m[0] in self.place.values() or m[0] not in self.spelled:
                return m[0]
            if shifted := self._shifted(self.polys[m[0]]):
                return (
                    f"({shifted[0]} {'+' if shifted[1] > 0 else '-'} {abs(shifted[1])})" if shifted[1] else shifted[0]
                )
            inner = self._expanded(self.spelled[m[0]])
            return inner if re.fullmatch(r"\w+", inner) else f"({inner})"

        return re.sub(r"(?<![\w.])[A-Za-z_]\w*", value, text)

    # Integers -----------------------------------------------------------------------------------------------------

    def _indices(self, line: str) -> None:
        """Elements have to lie beside one another where threads do, or be the same for all."""
        here = "at x"
        for index in _indexed(line):
            try:
                p = self._poly(index)
            except _Unfit:
                continue
            if any(here in key and (key != (here,) or v != 1) for key, v in p.items()):
                raise _Unfit

    def _poly(self, text: str) -> Poly:
        plain = re.sub(r"\b(\d+)(?:[uU]?[lL]{0,2})\b", r"\1", _CAST.sub("", text))
        try:
            return self._node(ast.parse(plain.strip(), mode="eval").body, plain.strip())
        except (SyntaxError, ValueError):
            raise _Unfit from None

    def _node(self, node: Any, text: str) -> Poly:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return {(): node.value} if node.value else {}
        if isinstance(node, ast.Name) and node.id in self.polys:
            axis = next((a for a, n in self.place.items() if n == node.id), None)
            return {(f"at {axis}",): 1} if axis else self.polys[node.id]
        if isinstance(node, ast.Name) and node.id in self.params:
            return {(node.id,): 1}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            k = "xyz".find(node.attr)
            extents = {"threadIdx": self.kernel.block, "blockIdx": self.kernel.grid}.get(node.value.id)
            if extents is not None and k >= 0:
                return {} if extents[k] == 1 else {(f"{node.value.id}.{node.attr}",): 1}
            if node.value.id == "blockDim":
                return {(): self.kernel.block[k]}
            if node.value.id == "gridDim":
                return {(f"gridDim.{node.attr}",): 1}
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return add({}, self._node(node.operand, text), -1)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            a, b = self._node(node.left, text), self._node(node.right, text)
            product = isinstance(node.op, ast.Mult)
            return multiply(a, b) if product else add(a, b, -1 if isinstance(node.op, ast.Sub) else 1)
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Mod) and names <= self.params:
            return {(ast.unparse(node),): 1}
        raise _Unfit


def _place_alone(sides: tuple[Poly, Poly], places: Set[str]) -> bool:
    """Whether one side is a place, and perhaps a few more, and the other has none: nothing wraps in a block."""
    counts = [sum(s in places for key in p for s in key) for p in sides]
    side = sides[counts.index(max(counts))]
    few = all((key == () and 0 < v < FEW) or (len(key) == 1 and key[0] in places and v == 1) for key, v in side.items())
    return sorted(counts) == [0, 1] and few


def _implies(held: tuple[str, str, str, Poly], wanted: tuple[str, str, str, Poly]) -> bool:
    """Whether a comparison says at least what another does, of the same integers."""
    a, b = _at_most(held), _at_most(wanted)
    rest = add(a, b, -1)
    return all(key == () for key in rest) and rest.get((), 0) >= 0


def _at_most(c: tuple[str, str, str, Poly]) -> Poly:
    """A comparison as an integer that is at most 0."""
    p = add({}, c[3], 1 if c[1] in ("<", "<=") else -1)
    return add(p, {(): 1}) if c[1] in ("<", ">") else p


def _compared(text: str) -> tuple[str, str, str] | None:
    depth = 0
    for m in re.finditer(r"[()\[\]]|<=|>=|==|!=|<<|>>|[<>?&|]", text):
        depth += m[0] in "([" or -(m[0] in ")]")
        if depth == 0 and m[0] not in "()[]":
            known = m[0] in _COMPARED
            return (text[: m.start()].strip(), m[0], text[m.end() :].strip()) if known else None
    return None


def _negated(text: str) -> str | None:
    text = bare(text.strip())
    if text.startswith("!(") and bare(text[1:]) != text[1:]:
        return bare(text[1:])
    found = _compared(text)
    return f"{found[0]} {_COMPARED[found[1]]} {found[2]}" if found else None


def _parts(text: str, by: str) -> list[str]:
    """The operands of && or ||, however they are grouped."""
    text, depth, start, found = bare(text.strip()), 0, 0, []
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and text.startswith("||" if by == "&&" else "&&", k):
            return [text]
        if depth == 0 and text.startswith(by, k):
            found.append(text[start:k])
            start = k + 2
    if not found:
        return [text]
    return [part for each in (*found, text[start:]) for part in _parts(each, by)]


def _indexed(line: str) -> Iterator[str]:
    """What stands between brackets."""
    for m in re.finditer(r"\w\[", line):
        depth, k = 1, m.end()
        while depth:
            depth += (line[k] == "[") - (line[k] == "]")
            k += 1
        yield line[m.end() : k - 1]


def _put(text: str, new: dict[str, str]) -> str:
    """A text with other names."""
    return re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda m: new.get(m[0], m[0]), text)


def _place(line: Any) -> str:
    defined = _DEFINED.fullmatch(line) if isinstance(line, str) else None
    return defined[2] if defined else ""


def _continued(lines: list[Any]) -> list[Any]:
    """The end of a thread's work is that of one of its elements."""
    return [
        Group(line.head, _continued(line.body), _continued(line.other)) if isinstance(line, Group)
        else re.sub(r"\) return;$", ") continue;", line)
        for line in lines
    ]  # fmt: skip


def _with_blocks(lines: list[Any], blocks: str) -> list[Any]:
    """The forward's blocks for those of the grid."""
    return [
        Group(line.head.replace("gridDim.x", blocks), _with_blocks(line.body, blocks), _with_blocks(line.other, blocks))
        if isinstance(line, Group)
        else line.replace("gridDim.x", blocks)
        for line in lines
    ]


def _bytes(kind: types.Type) -> int:
    return sum(types.size(scalar) for scalar in types.scalars(kind))
