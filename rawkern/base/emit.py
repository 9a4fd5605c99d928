"""IR text of native functions, value by value."""

from __future__ import annotations

from rawkern.base.table import TABLE, TYPE_OFFSET

SLOW_PATH = "slow_path"  # where to go when an argument is not plain


class Emit:
    """The body of one function; ``%table`` is `rawkern.base.table`'s."""

    def __init__(self, prefix: str = "v") -> None:
        self.lines: list[str] = []
        self.constants: list[str] = []  # of the module
        self._prefix = prefix  # of its values' and labels' names
        self._count = 0

    def do(self, text: str) -> None:
        """An instruction without a value."""
        self.lines.append(f"  {text}")

    def value(self, text: str) -> str:
        """An instruction's value."""
        self._count += 1
        name = f"%{self._prefix}{self._count}"
        self.do(f"{name} = {text}")
        return name

    def label(self, hint: str = "then") -> str:
        """A label for later."""
        self._count += 1
        return f"{self._prefix}{hint}{self._count}"

    def place(self, label: str) -> None:
        """Go on at a label."""
        if self.lines and not self.lines[-1].lstrip().startswith(("br ", "ret ", "switch ")):
            self.do(f"br label %{label}")
        self.lines.append(f"{label}:")

    def unless(self, condition: str, target: str = SLOW_PATH) -> None:
        """Leave for a label where a condition does not hold."""
        here = self.label()
        self.do(f"br i1 {condition}, label %{here}, label %{target}")
        self.place(here)

    def ask(self, function: str, *given: str | int, **numbers: int) -> None:
        """Leave where a function says no: of addresses, then these numbers of 64 bits, then numbers of 32."""
        pointers = [f"ptr {one}" for one in given if isinstance(one, str)]
        longs = [f"i64 {one}" for one in numbers.values()]
        ints = [f"i32 {one}" for one in given if isinstance(one, int)]
        self.unless(self.value(f"call i1 @{function}({', '.join((*pointers, *longs, *ints))})"))

    def row(self, name: str) -> str:
        """A row of the table, an address."""
        at = self.value(f"getelementptr %Table, ptr %table, i32 0, i32 {TABLE.index(name)}")
        return self.value(f"load ptr, ptr {at}")

    def text(self, text: str) -> str:
        """The address of a text that ends with a zero."""
        data = text.encode()
        self._count += 1
        name = f"@{self._prefix}text{self._count}"
        escaped = "".join(f"\\{byte:02X}" for byte in (*data, 0))
        self.constants.append(f'{name} = private unnamed_addr constant [{len(data) + 1} x i8] c"{escaped}"')
        return name

    def either(self, condition: str) -> str:
        """Go on where a condition holds; returns the label, to be placed, of where it does not."""
        here, other = self.label(), self.label("else")
        self.do(f"br i1 {condition}, label %{here}, label %{other}")
        self.place(here)
        return other

    def is_a(self, value: str, row: str) -> str:
        """Whether an object is of the class in a row of the table, and of no subclass."""
        return self.value(f"icmp eq ptr {self.load('ptr', value, TYPE_OFFSET)}, {self.row(row)}")

    def load(self, ty: str, pointer: str, offset: int = 0) -> str:
        """The place at an offset in bytes from an address."""
        at = self.value(f"getelementptr i8, ptr {pointer}, i64 {offset}") if offset else pointer
        return self.value(f"load {ty}, ptr {at}, align 1")
