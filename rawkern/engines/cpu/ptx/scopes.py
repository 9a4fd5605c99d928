"""Names that a PTX function declares in nested scopes (inline assembly, call sequences), made unique.

Later stages see one flat function.
"""

from __future__ import annotations

from rawkern.engines.cpu.ptx.data import Function, Part, Reg, Special, Sym, Vec
from rawkern.engines.cpu.ptx.tokens import is_name, shown, split
from rawkern.errors import UnsupportedError

_COMPONENTS = ("xyzw", "rgba")
_VECTORS = {".v2": 2, ".v4": 4}
_PARTS = {"b0": (0, 8), "b1": (8, 8), "b2": (16, 8), "b3": (24, 8), "h0": (0, 16), "h1": (16, 16)}


class Scopes:
    """The scopes that are open, with what they declare; registers are entered into `function`."""

    def __init__(self, function: Function):
        self.function = function
        self.scopes: list[dict[str, str]] = [{}]  # declared name -> unique name
        self.prefixes: list[dict[str, tuple[str, str, int]]] = [{}]  # %r -> (unique prefix, type, count)
        self.vectors: dict[str, int] = {}  # unique name of a register of several parts -> their number
        self.count = 0

    @property
    def nested(self) -> bool:
        return len(self.scopes) > 1

    def open(self) -> None:
        self.scopes.append({})
        self.prefixes.append({})

    def close(self) -> None:
        self.scopes.pop()
        self.prefixes.pop()

    def declare(self, name: str) -> str:
        if not self.nested:
            unique = name
        elif name in self.scopes[-1]:  # a label, declared ahead
            return self.scopes[-1][name]
        else:
            unique = self.unique(name)
        self.scopes[-1][name] = unique
        return unique

    def unique(self, name: str) -> str:
        self.count += 1
        return f"{name}@{self.count}"

    def registers(self, statement: list[str]) -> None:
        """``.reg .b32 a, b<4>`` or ``.reg .v4 .f32 v``."""
        at = 2 if statement[1] in _VECTORS else 1
        kind, parts = statement[at].lstrip("."), _VECTORS.get(statement[1], 0)
        for item in split(statement[at + 1 :]):
            name = item[0]
            if not is_name(name):
                raise _unknown(statement)
            if len(item) == 1:
                unique = self.declare(name)
                if parts:
                    self.vectors[unique] = parts
                    self.function.regs |= {f"{unique}.{part}": kind for part in _COMPONENTS[0][:parts]}
                else:
                    self.function.regs[unique] = kind
            elif len(item) == 4 and (item[1], item[3]) == ("<", ">") and item[2].isdigit() and not parts:
                unique = f"{self.unique(name)}." if self.nested else name
                self.prefixes[-1][name] = (unique, kind, int(item[2]))
            else:
                raise _unknown(statement)

    def find(self, name: str) -> Reg | Vec | Part | Special | Sym:
        """What a name means here."""
        found = self._declared(name)
        if found is not None:
            return found
        if "." in name:
            base, part = name.rsplit(".", 1)
            vector = self._declared(base)
            if isinstance(vector, Reg) and part in _PARTS:
                return Part(vector, *_PARTS[part])
            index = next((c.index(part) for c in _COMPONENTS if len(part) == 1 and part in c), None)
            if isinstance(vector, Vec) and index is not None and index < len(vector.items):
                return vector.items[index]
        return Special(name) if name[0] == "%" else Sym(name)

    def _declared(self, name: str) -> Reg | Vec | Sym | None:
        prefix = name.rstrip("0123456789")
        number = name[len(prefix) :]
        for scope, prefixes in zip(reversed(self.scopes), reversed(self.prefixes), strict=True):
            if name in scope:
                unique = scope[name]
                if unique in self.vectors:
                    return Vec(tuple(Reg(f"{unique}.{part}") for part in _COMPONENTS[0][: self.vectors[unique]]))
                return Reg(unique) if unique in self.function.regs else Sym(unique)
            if number and prefix in prefixes and number == str(int(number)) and int(number) < prefixes[prefix][2]:
                unique, kind, _ = prefixes[prefix]
                self.function.regs[unique + number] = kind
                return Reg(unique + number)
        return None


def _unknown(statement: list[str]) -> UnsupportedError:
    return UnsupportedError(f"PTX registers not understood: {shown(statement)!r}")
