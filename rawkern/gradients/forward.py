"""What of a kernel's text is computed again, and its printing as CUDA C.

A `Frame` is one copy of a block: the kernel's own, an iteration of a backward loop, a branch. What the copy's reverse
asks for by `use` is printed, with all that it is computed from, in the order of the text; nothing else is.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rawkern.gradients import types
from rawkern.gradients.ir import (
    Array,
    Barrier,
    Block,
    Carried,
    Exit,
    If,
    Loop,
    Place,
    Store,
    Value,
    children,
    inside,
    operands,
    walk,
)  # fmt: skip
from rawkern.gradients.ownership import induction, plain

TRIVIAL = ("const", "param", "special")


@dataclass
class Group:
    """Lines between a head and the brace that closes it."""

    head: str
    body: list[Any] = field(default_factory=list)
    other: list[Any] = field(default_factory=list)  # behind "} else {"


WIDTH = 120


def wrapped(line: str) -> list[str]:
    """A line of C in as many as the width asks for; broken at blanks."""
    found, indent = [], " " * (len(line) - len(line.lstrip()) + 4)
    while len(line) > WIDTH and " " in line[len(indent) + 20 : WIDTH]:
        at = line.rindex(" ", 0, WIDTH)
        found.append(line[:at])
        line = indent + line[at + 1 :]
    return [*found, line]


def rendered(lines: list[Any], depth: int = 1) -> list[str]:
    """Lines of text, indented."""
    return [part for line in _indented(lines, depth) for part in wrapped(line)]


def _indented(lines: list[Any], depth: int) -> list[str]:
    found: list[str] = []
    for line in lines:
        if isinstance(line, str):
            text = "    " * depth + line
            if not (line.startswith("__sync") and found and found[-1] == text):  # one barrier does what two do
                found.append(text)
            continue
        found += ["    " * depth + line.head, *_indented(line.body, depth + 1)]
        if line.other:
            found += ["    " * depth + "} else {", *_indented(line.other, depth + 1)]
        found.append("    " * depth + "}")
    return found


class Names:
    """Names for values: the user's own where they have one, each once in a kernel."""

    def __init__(self, taken: set[str], double: bool) -> None:
        self._taken = set(taken)
        self._of: dict[Any, str] = {}
        self.double = double  # whether every float is a double

    def fresh(self, hint: str) -> str:
        name, k = hint, 2
        while name in self._taken:
            name, k = f"{hint}_{k}", k + 1
        self._taken.add(name)
        return name

    def of(self, value: Any, hint: str = "t") -> str:
        if value not in self._of:
            self._of[value] = self.fresh(hint)
        return self._of[value]

    def type(self, kind: str) -> str:
        return "double" if self.double and kind == "float" else kind


@dataclass(eq=False)
class Frame:
    """One copy of a block."""

    block: Block
    outer: Frame | None
    names: Names
    after: set[Array] = field(default_factory=set)  # shared arrays that are read after the copy, by others in it
    needed: dict[Value, None] = field(default_factory=dict)
    named: set[Value] = field(default_factory=set)
    uses: Counter[Value] = field(default_factory=Counter)
    loads: set[Array] = field(default_factory=set)  # shared arrays whose values the copy reads itself
    stores_all: bool = False  # whether what is written to global memory is kept
    skip: set[Any] = field(default_factory=set)  # branches that are copied elsewhere as a whole
    kept: set[Any] = field(default_factory=set)
    syncs: bool = False
    loop: Loop | None = None  # the loop of which this is an iteration
    hoisted: set[Value] = field(default_factory=set)

    def owner(self, value: Value) -> Frame:
        frame: Frame | None = self
        while frame is not None and not frame.covers(value.block):
            frame = frame.outer
        assert frame is not None, f"line {value.line}: {value.op} is used outside of its block"
        return frame

    def covers(self, block: Block) -> bool:
        return inside(block, self.block) or (self.loop is not None and inside(block, self.loop.test))

    # What is needed -----------------------------------------------------------------------------------------------

    def use(self, value: Value) -> str:
        """The value's name, for the reverse or a copy within this one."""
        if value.op in TRIVIAL or (value.op == "cast" and value.args[0].op in TRIVIAL and value.name is None):
            return self._trivial(value)
        owner = self.owner(value)
        owner.needed[value] = None
        owner.named.add(value)
        return self.name(value)

    def name(self, value: Value) -> str:
        if value.op == "result" and isinstance(value.attr, Loop):  # one variable before, in and after the loop
            value = next(c.phi for c in value.attr.carried if c.result is value)
        hint = value.name or (value.attr.array.name + "_value" if value.op == "load" else "t")
        return self.names.of(value, re.sub(r"\W", "_", hint))

    def _demand(self, value: Value) -> None:
        if value.op in TRIVIAL:
            return
        owner = self.owner(value)
        owner.needed[value] = None
        if owner is not self:
            owner.named.add(value)

    def settle(self) -> None:
        """Find all that is needed, from what has been asked for."""
        before = -1
        while before != len(self.needed) + len(self.kept):
            before = len(self.needed) + len(self.kept)
            live = set(self.after)
            self._mark(self.block, live)
            self._mark(self.block, live)  # what an iteration reads may be written at the end of the one before
        self.syncs = any(_shared(i) for i in self.kept)
        self.uses = Counter(v for item in walk(self.block) for v in self._read(item))

    def settle_loop(self, loop: Loop) -> None:
        """`settle` for a copy that runs as the loop did, with the variables that are needed carried on."""
        steps, before = induction(loop), -1
        while before != len(self.needed):
            before = len(self.needed)
            for each in (loop.condition, *loop.test.items):
                self._demand(each)
            self._mark(loop.test, set())
            for c in loop.carried:
                if c.phi in self.needed:
                    self._demand(c.init)
                    self._step(c, steps, loop)
            self.settle()
        self.uses.update(v for item in loop.test.items for v in item.args)
        self.uses.update(c.next for c in loop.carried if c.phi in self.needed and c.phi not in steps)

    def express(self, value: Value, depth: int = 0) -> str:
        """The value as an expression of what has a name, for the reverse."""
        if value.op in TRIVIAL or value.name or value.op not in ("binary", "unary", "cast") or depth > 6:
            return self.use(value)
        args = [self.express(a, depth + 1) for a in value.args]
        args = [a if re.fullmatch(r"[\w.]+", a) else f"({a})" for a in args]
        if value.op == "binary":
            return f"{args[0]} {value.attr} {args[1]}"
        return f"{value.attr}{args[0]}" if value.op == "unary" else self._cast(value, args[0])

    def outside(self, value: Value, loop: Loop) -> str:
        """What is the same in all iterations, in terms of what is there before the loop."""
        if not (inside(value.block, loop.body) or inside(value.block, loop.test)):
            return self.express(value)
        if value.op in TRIVIAL:
            return self.text(value)
        args = [self.outside(a, loop) for a in value.args]
        args = [a if re.fullmatch(r"[\w.]+", a) else f"({a})" for a in args]
        if value.op == "binary":
            return f"{args[0]} {value.attr} {args[1]}"
        if value.op == "select":
            return f"{args[0]} ? {args[1]} : {args[2]}"
        return f"{value.attr}{args[0]}" if value.op == "unary" else self._cast(value, args[0])

    def _read(self, item: Any) -> tuple[Value, ...]:
        """The values that the printed text of an item reads."""
        if isinstance(item, Value):
            return item.args if item in self.needed and item.op not in ("phi", "result") else ()
        if isinstance(item, If) and item in self.kept:
            return (item.condition, *(v for r, a, b in item.results if r in self.needed for v in (a, b)))
        if isinstance(item, Loop) and item in self.kept:
            steps = induction(item)
            kept = [c for c in item.carried if c.phi in self.needed]
            return (item.condition, *(v for c in kept for v in (c.init, *(() if c.phi in steps else (c.next,)))))
        return operands(item) if item in self.kept or isinstance(item, Exit) else ()

    def _mark(self, block: Block, live: set[Array]) -> None:
        for item in reversed(block.items):
            if item in self.skip:
                continue
            if isinstance(item, Value):
                self._mark_value(item, live)
            elif isinstance(item, Store):
                if item.place.array in live or (self.stores_all and not item.place.array.shared):
                    self.kept.add(item)
                    for each in (*item.index, item.value):
                        self._demand(each)
            elif isinstance(item, Exit):
                self._demand(item.condition)
            elif isinstance(item, If):
                self._mark_if(item, live)
            elif isinstance(item, Loop):
                self._mark_loop(item, live)

    def _step(self, c: Carried, steps: dict[Value, Any], loop: Loop) -> None:
        """What the next value of a variable is computed from."""
        if c.phi in steps:
            self.outside(steps[c.phi][1], loop)
            return
        self._demand(c.next)

    def _mark_value(self, item: Value, live: set[Array]) -> None:
        if item not in self.needed or item.op in ("phi", "result"):
            return
        for each in item.args:
            self._demand(each)
        if item.op == "shfl":
            self.kept.add(item)
        if item.op == "load" and item.attr.array.shared:
            live.add(item.attr.array)
            self.loads.add(item.attr.array)
            self.kept.add(item)

    def _mark_if(self, item: If, live: set[Array]) -> None:
        wanted = [(a, b) for r, a, b in item.results if r in self.needed]
        for a, b in wanted:
            self._demand(a)
            self._demand(b)
        before = set(live)
        self._mark(item.then, live)
        self._mark(item.other, before)
        live |= before
        if wanted or any(i in self.needed or i in self.kept for block in children(item) for i in walk(block)):
            self.kept.add(item)
            self._demand(item.condition)

    def _mark_loop(self, item: Loop, live: set[Array]) -> None:
        stores = any(
            isinstance(i, Store) and (i.place.array in live or (self.stores_all and not i.place.array.shared))
            for i in walk(item.body)
        )
        if not stores and not any(c.result in self.needed or c.phi in self.needed for c in item.carried):
            return
        self.kept.add(item)
        steps = induction(item)
        before = -1
        while before != len(self.needed):
            before = len(self.needed)
            for c in item.carried:
                if c.result in self.needed:
                    self.needed[c.phi] = None
                if c.phi in self.needed:
                    self._demand(c.init)
                    self._step(c, steps, item)
            self._mark(item.body, live)
            self._demand(item.condition)
            self._mark(item.test, live)

    def _trivial(self, value: Value) -> str:
        return self._cast(value, self.text(value.args[0])) if value.op == "cast" else self.text(value)

    # Printing -----------------------------------------------------------------------------------------------------

    def text(self, value: Value) -> str:
        """An expression for a value."""
        if value.op == "const":
            if value.type == "float" and self.names.double:
                return value.attr.rstrip("fF") if value.attr[-1] in "fF" else value.attr
            return value.attr
        if value.op in ("param", "special"):
            return value.attr
        if self._is_named(value):
            return self.name(value)
        return self.right(value)

    def _is_named(self, value: Value) -> bool:
        if value.op in ("shfl", "phi", "result"):
            return True
        if isinstance(value.block.parent, Loop) and value.block is value.block.parent.test:
            return False  # a condition is computed anew each time
        if value.op == "cast" and value.args[0].op in TRIVIAL and value.name is None:
            return False
        owner = self.owner(value)
        return value.op == "load" or value in owner.named or owner.uses[value] > 1 or owner is not self

    def right(self, value: Value) -> str:
        """What a value is computed by."""
        if value.op == "binary":
            left, right = self._operands(value)
            return f"{left} {value.attr} {right}"
        args = [self._inner(a) for a in value.args]
        if value.op == "unary":
            return f"{value.attr}{args[0]}"
        if value.op == "cast":
            return self._cast(value, args[0])
        if value.op == "select":
            return f"{args[0]} ? {args[1]} : {args[2]}"
        plain = [bare(a) for a in args]
        if value.op == "call":
            return f"{self._function(value)}({', '.join(plain)})"
        if value.op == "shfl":
            suffix = "" if value.attr == "idx" else f"_{value.attr}"
            return f"__shfl{suffix}_sync(0xffffffff, {', '.join(plain)})"
        if value.op == "load":
            return self.element(value.attr, value.args)
        return value.attr

    def _function(self, value: Value) -> str:
        if isinstance(value.attr, str):
            return value.attr
        rule, name = value.attr
        from rawkern.gradients.rules import spelled

        return spelled(rule, "double") if self.names.double and value.type == "float" else name

    def _cast(self, value: Value, arg: str) -> str:
        kind = self.names.type(value.type)
        source = value.args[0]
        return arg if self.names.type(source.type) == kind else f"({kind}){arg}"

    def _operands(self, value: Value) -> list[str]:
        """The operands of a binary operator, without conversions that C makes by itself."""
        found = list(value.args)
        if value.attr not in ("<<", ">>"):
            for k, a in enumerate(value.args):
                implied = a.op == "cast" and not self._is_named(a) and types.common(a.args[0].type, a.type) == a.type
                if implied and found[1 - k].op != "cast" and (k == 0 or found[0] is value.args[0]):
                    found[k] = a.args[0]
        return [self._inner(a) for a in found]

    def _inner(self, value: Value) -> str:
        text = self.text(value)
        simple = re.fullmatch(r"[\w.]+|[\w.]+\([^()]*\)|[\w.]+(\[[^\[\]]*\])+[\w.]*", text)
        return text if simple else f"({text})"

    def element(self, place: Place, index: tuple[Value, ...], name: str | None = None) -> str:
        inner = "".join(f"[{self.text(i)}]" for i in index)
        return f"{name or place.array.name}{inner}{place.suffix}"

    def used(self, place: Place, index: tuple[Value, ...], name: str) -> str:
        """An element, for the reverse."""
        inner = "".join(f"[{bare(self.express(i))}]" for i in index)
        return f"{name}{inner}{place.suffix}"

    def printed(self) -> list[Any]:
        """The lines of the copy; after `settle`."""
        return self.lines(self.block)

    def lines(self, block: Block) -> list[Any]:
        out: list[Any] = []
        for item in block.items:
            if item in self.skip:
                continue
            if isinstance(item, Value):
                if item in self.needed and item.op not in (*TRIVIAL, "phi", "result") and self._is_named(item):
                    kind = "" if item in self.hoisted else f"const {self.names.type(item.type)} "
                    # A declaration converts by itself.
                    right = self.text(item.args[0]) if item.op == "cast" else self.right(item)
                    out.append(f"{kind}{self.name(item)} = {bare(right)};")
            elif isinstance(item, Store) and item in self.kept:
                target, value = self.element(item.place, item.index), self.text(item.value)
                out.append(
                    f"atomicAdd(&{target}, {value});"
                    if item.adds == "atomic"
                    else f"{target} {'+=' if item.adds else '='} {value};"
                )
            elif isinstance(item, Barrier) and self.syncs:
                out.append(f"{item.text};")
            elif isinstance(item, Exit):
                out.append(f"if ({bare(self.text(item.condition))}) return;")
            elif isinstance(item, If | Loop) and item in self.kept:
                out += self._if(item) if isinstance(item, If) else self.loop_lines(item)
            elif (
                isinstance(item, If | Loop)
                and self.syncs
                and any(isinstance(i, Barrier) for b in children(item) for i in walk(b))
            ):
                out.append("__syncthreads();")
        return out

    def _if(self, item: If) -> list[Any]:
        out: list[Any] = []
        for block in children(item):
            for each in walk(block):
                wanted = isinstance(each, Value) and each in self.named and each.op not in ("phi", *TRIVIAL)
                if wanted and each not in self.hoisted and not _in_loop(each.block, block):
                    self.hoisted.add(each)
                    out.append(f"{self.names.type(each.type)} {self.name(each)};")
        group = Group(f"if ({bare(self.text(item.condition))}) {{")
        then, other = self.lines(item.then), self.lines(item.other)
        for r, a, b in item.results:
            if r not in self.needed:
                continue
            kind = "" if r in self.hoisted else f"{self.names.type(r.type)} "
            name = self.name(r)
            if not inside(b.block, item.other) and not inside(b.block, item.then):
                out.append(f"{kind}{name} = {self.text(b)};")
                then.append(f"{name} = {self.text(a)};")
            else:
                out += [f"{kind}{name};"] if kind else []
                then.append(f"{name} = {self.text(a)};")
                other.append(f"{name} = {self.text(b)};")
        group.body, group.other = then, other
        if not then and other:
            group = Group(f"if (!({bare(self.text(item.condition))})) {{", other)
        return [*out, group] if then or other else out

    def loop_lines(self, item: Loop, first: list[Any] | None = None, last: list[Any] | None = None) -> list[Any]:
        """A loop as it was, with what is kept of its body, and lines before and after that in each iteration."""
        out: list[Any] = []
        steps = induction(item)
        carried = [c for c in item.carried if c.phi in self.needed]
        header = header_of(item, carried, steps)
        for c in carried:
            kind = "" if c.result in self.hoisted else f"{self.names.type(c.phi.type)} "
            if c is not header or c.result in self.needed:
                out.append(f"{kind}{self.name(c.phi)} = {self.text(c.init)};")
        group = Group("", [*(first or []), *self.lines(item.body), *(last or [])])
        condition = bare(self.text(item.condition))
        if header is not None:
            name = self.name(header.phi)
            start = "" if header.result in self.needed else f"{header.phi.type} {name} = {self.text(header.init)}"
            group.head = f"for ({start}; {condition}; {step_text(name, self.outside(steps[header.phi][1], item))}) {{"
        else:
            group.head = f"while ({condition}) {{"
        group.body += self._advance([c for c in carried if c is not header])
        return [*out, group]

    def _next(self, c: Carried) -> str:
        steps = induction(c.phi.attr)
        return (
            f"{self.name(c.phi)} + {self._paren(self.outside(steps[c.phi][1], c.phi.attr))}"
            if c.phi in steps
            else self.text(c.next)
        )

    @staticmethod
    def _paren(text: str) -> str:
        return text if re.fullmatch(r"[\w.]+", text) else f"({text})"

    def _advance(self, carried: list[Carried]) -> list[str]:
        """Assignments at the end of an iteration; through temporaries where one would overwrite what another reads."""
        pairs = [(self.name(c.phi), self._next(c), c.phi.type) for c in carried]
        pairs = [p for p in pairs if p[0] != p[1]]
        clash = any(re.search(rf"\b{a[0]}\b", b[1]) for k, a in enumerate(pairs) for b in pairs[k + 1 :])
        if not clash:
            return [_update(name, right) for name, right, _ in pairs]
        temporary = [(name, self.names.fresh(f"{name}_next"), right, kind) for name, right, kind in pairs]
        return [f"const {self.names.type(k)} {t} = {r};" for _, t, r, k in temporary] + [
            f"{n} = {t};" for n, t, _, _ in temporary
        ]


def _update(name: str, right: str) -> str:
    found = re.fullmatch(rf"{re.escape(name)} ([-+*]) (.*)", right)
    if found and (found[1] == "+" or re.fullmatch(r"[\w.]+|\(.*\)", found[2])) and "?" not in found[2]:
        return f"{name} {found[1]}= {bare(found[2])};"
    return f"{name} = {right};"


def step_text(name: str, step: str) -> str:
    return f"++{name}" if step == "1" else f"{name} += {step}"


def header_of(loop: Loop, carried: list[Carried], steps: dict[Value, Any]) -> Carried | None:
    """The variable of a for: one that the condition compares, and that grows evenly."""
    used = {plain(v) for i in loop.test.items for v in operands(i)} | {loop.condition, *map(plain, loop.condition.args)}
    return next((c for c in carried if c.phi in steps and c.phi in used), None)


def _shared(item: Any) -> bool:
    return (isinstance(item, Store) and item.place.array.shared) or (isinstance(item, Value) and item.op == "load")


def _in_loop(block: Block | None, outer: Block) -> bool:
    """Whether a block lies in a loop within another."""
    while block is not None and block is not outer:
        if isinstance(block.parent, Loop):
            return True
        block = block.parent.block if block.parent is not None else None
    return False


def bare(text: str) -> str:
    """Without the parentheses around the whole."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and k < len(text) - 1:
            return text
    return text[1:-1]
