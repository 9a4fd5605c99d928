"""curand's counter generator: a draw is a function of seed, sequence and position, and so computed again."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import text_of
from rawkern.gradients.ir import Value
from rawkern.gradients.reading.groups import Groups
from rawkern.gradients.reading.places import Var
from rawkern.gradients.types import PHILOX, VECTORS

WIDE = "unsigned long long"
#: What each draws: the helper's name, the type of the result, how many numbers of the generator that takes.
DRAWS = {
    "curand_uniform": ("philox_uniform", "float", 1), "curand_uniform4": ("philox_uniform4", VECTORS["float4"], 4),
    "curand_normal2": ("philox_normal", VECTORS["float2"], 2),
    "curand_normal4": ("philox_normal", VECTORS["float4"], 4),
    "curand": ("philox_bits", "unsigned int", 1),
}  # fmt: skip


class Philox(Groups):
    """Calls of <curand_kernel.h>."""

    def curand_call(self, node: Any, name: str, arguments: list[Any]) -> tuple[Any] | None:
        """What such a call returns, in a tuple; None for other calls."""
        if name in self.file.functions:
            return None
        if name == "curand_init" and len(arguments) == 4:
            state = self._state(node, arguments[3])
            for field, each in zip(("seed", "sequence", "at"), arguments[:3], strict=True):
                state.fields[field].value = self.converted(node, self.scalar(each), WIDE)
            state.fields["second"].value = self.value(node, "bool", "const", attr="false", const=0)
            return (None,)
        if name == "curand_normal" and len(arguments) == 1:
            return (self._normal(node, self._state(node, arguments[0])),)
        if name in DRAWS and len(arguments) == 1:
            helper, kind, count = DRAWS[name]
            state = self._state(node, arguments[0])
            parts = [self._drawn(node, state, helper, "float" if count > 1 else str(kind), k) for k in range(count)]
            self._advance(node, state, count)
            if isinstance(kind, str):
                return (parts[0],)
            left = iter(parts)
            return (self.aggregate(name, kind, lambda *_: next(left)),)
        if name.startswith("curand"):
            raise self.refuse(
                node,
                f"{name} is not replayed",
                "use curand_uniform or curand_normal (2, 4) of curandStatePhilox4_32_10_t",
            )
        return None

    def _state(self, node: Any, argument: Any) -> Var:
        found = self.expression(argument)
        if not isinstance(found, Var) or found.type != PHILOX:
            raise self.refuse(
                node,
                f"{text_of(argument)!r} is no generator of the kernel's own",
                "use a variable curandStatePhilox4_32_10_t, with curand_init(seed, sequence, offset, &state)",
            )
        return found

    def _drawn(self, node: Any, state: Var, helper: str, kind: str, behind: int) -> Value:
        """The number so far behind the state's position."""
        parts = {f: self.read(node, v) for f, v in state.fields.items()}
        args, at = [parts["seed"], parts["sequence"]], parts["at"]
        if helper == "philox_uniform4":  # calls that differ in the number alone, so the compiler draws once
            return self.value(node, kind, "call", (*args, at, self.integer(node, behind)), helper)
        normal = helper == "philox_normal"
        start = behind - behind % 2 if normal else behind
        if start:
            at = self.binary(node, "+" if start > 0 else "-", at, self._count(node, abs(start)))
        args.append(at)
        if normal:
            odd = behind % 2
            args.append(self.value(node, "bool", "const", attr="true" if odd else "false", const=odd))
        return self.value(node, kind, "call", tuple(args), helper)

    def _count(self, node: Any, number: int) -> Value:
        return self.value(node, WIDE, "const", attr=f"{number}ULL", const=number)

    def _advance(self, node: Any, state: Var, by: int) -> None:
        at = state.fields["at"]
        at.value = self.binary(node, "+", self.read(node, at), self._count(node, by))

    def _normal(self, node: Any, state: Var) -> Value:
        """One of a pair: the second of the pair drawn before, where there is one."""
        second = self.read(node, state.fields["second"])
        if second.const is None:
            raise self.refuse(
                node, "curand_normal, which keeps a second number, in a loop or branch", "use curand_normal2 or 4"
            )
        known: bool = bool(second.const)
        found = self._drawn(node, state, "philox_normal", "float", -1 if known else 0)
        if not known:
            self._advance(node, state, 2)
        flag = "false" if known else "true"
        state.fields["second"].value = self.value(node, "bool", "const", attr=flag, const=int(not known))
        return found
