"""The IR as text, for people: one line an item, values by numbers in the order in which they appear."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rawkern.gradients.ir.nodes import Barrier, Block, Exit, Function, If, Kernel, Loop, Place, Store, Value

ATOMS = ("const", "param", "special")  # printed where they are used


def printed(kernel: Kernel) -> str:
    """A kernel as text.

    ``%3: float i = binary + %1 %2`` defines a value, with the user's variable where it has one; ``loop`` lists its
    carried variables as phi = init, next -> result, ``if`` its results.
    """
    text = _Text()
    lines = [f"kernel {kernel.name} block={kernel.block} grid={kernel.grid}"]
    for name, kind, pointer in kernel.params:
        lines.append(f"  param {name}: {_type(kind)}{'*' if pointer else ''}")
    lines += [f"  shared {a.name}: {_type(a.type)}{list(a.sizes) if a.sizes else ''}" for a in kernel.shared]
    lines += [f"  before {name}: {of} as it was" for name, of in kernel.before.items()]
    for function in kernel.functions.values():
        lines += text.function(function)
    return "\n".join([*lines, *text.block(kernel.body, "  "), ""])


class _Text:
    def __init__(self) -> None:
        self.numbers: dict[Value, int] = {}

    def function(self, function: Function) -> Iterator[str]:
        yield f"  function {function.name}: {function.type}, of {', '.join(f'{k} {n}' for n, k in function.params)}"
        yield from self.block(function.body, "    ")

    def block(self, block: Block, indent: str) -> Iterator[str]:
        for item in block.items:
            yield from (indent + line for line in self._item(item))

    def _item(self, item: Any) -> Iterator[str]:
        if isinstance(item, Value):
            if item.op not in ATOMS:
                yield self._definition(item)
        elif isinstance(item, Store):
            how = {"": "store", "plain": "add", "atomic": "atomic add"}[item.adds]
            yield f"{how} {self._element(item.place, item.index)} = {self._use(item.value)}"
        elif isinstance(item, Barrier):
            yield f"barrier {item.text}"
        elif isinstance(item, Exit):
            yield f"exit if {self._use(item.condition)}"
        elif isinstance(item, If):
            yield f"if {self._use(item.condition)}"
            yield from self.block(item.then, "  ")
            if item.other.items:
                yield "else"
                yield from self.block(item.other, "  ")
            for result, then, other in item.results:
                yield f"-> {self._use(result)} = {self._use(then)}, {self._use(other)}"
        elif isinstance(item, Loop):
            yield "loop"
            for c in item.carried:
                yield f"  {self._named(c.phi)} = phi {self._use(c.init)}, {self._use(c.next)} -> {self._use(c.result)}"
            yield from self.block(item.test, "  ")
            yield f"while {self._use(item.condition)}"
            yield from self.block(item.body, "  ")

    def _definition(self, v: Value) -> str:
        if v.op == "load":
            taped = "" if v.tape is None else f" taped {', '.join(map(self._use, v.tape))}".rstrip()
            return f"{self._named(v)} = load {self._element(v.attr, v.args)}{taped}"
        if v.op in ("phi", "result"):
            return f"{self._named(v)} = {v.op}"
        attr = v.attr[1] if isinstance(v.attr, tuple) else v.attr  # a call has its rule before its name
        return " ".join([self._named(v), "=", v.op, *([str(attr)] if attr else []), *map(self._use, v.args)])

    def _named(self, v: Value) -> str:
        return f"{self._use(v)}: {v.type}{f' {v.name}' if v.name else ''}"

    def _use(self, v: Value) -> str:
        if v.op in ATOMS:
            return str(v.attr)
        return f"%{self.numbers.setdefault(v, len(self.numbers) + 1)}"

    def _element(self, place: Place, index: tuple[Value, ...]) -> str:
        region = f"#{place.array.region}" if place.array.region else ""
        return f"{place.array.name}{region}{''.join(f'[{self._use(i)}]' for i in index)}{place.suffix}"


def _type(kind: Any) -> str:
    return kind if isinstance(kind, str) else kind.name
