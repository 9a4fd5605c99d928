"""PTX mnemonics taken apart, each once: opcode, types, and what its modifiers say."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache

from rawkern.engines.cpu.ptx.facts import FACTS, UNKNOWN, Facts


@dataclass(frozen=True, slots=True)
class DType:
    """A PTX type: width in bits, kind (``u s b f p``), and for packed types the element and how many of it."""

    name: str
    bits: int
    kind: str
    element: str = ""
    count: int = 1

    @property
    def int(self) -> str:
        return f"i{self.bits}"

    @property
    def signed(self) -> bool:
        return self.kind == "s"

    @property
    def fp(self) -> str:
        """The LLVM type in which values of this format are computed."""
        return "double" if self.name == "f64" else "float"


DTYPES = {
    d.name: d
    for d in (
        *(DType(f"{kind}{bits}", bits, kind) for kind in "usb" for bits in (8, 16, 32, 64)),
        *(DType(f"{kind}{bits}", bits, kind) for kind in "us" for bits in (2, 4)),
        DType("b1", 1, "b"),
        DType("pred", 1, "p"),
        DType("f16", 16, "f"),
        DType("bf16", 16, "f"),
        DType("f32", 32, "f"),
        DType("f64", 64, "f"),
        DType("tf32", 32, "f"),
        DType("b128", 128, "b"),
        DType("u16x2", 32, "u", "u16", 2),
        DType("s16x2", 32, "s", "s16", 2),
        DType("f16x2", 32, "f", "f16", 2),
        DType("bf16x2", 32, "f", "bf16", 2),
        DType("e4m3", 8, "f"),
        DType("e5m2", 8, "f"),
        DType("e4m3x2", 16, "f", "e4m3", 2),
        DType("e5m2x2", 16, "f", "e5m2", 2),
    )
}
ROUNDINGS = ("rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi")
SPACES = ("global", "shared", "local", "const", "param")
_RELAXED = frozenset(("relaxed", "volatile", "mmio", "cv"))


@dataclass(frozen=True, slots=True)
class Op:
    """One decoded mnemonic; two are the same if their text is.

    `base` is the first word, `name` the opcode: the row of `facts`, or else the first word. `mods` are the other words
    in order but for the `types`. `space` is that of the memory, or "generic"; `order` how strong an access is:
    "relaxed" (volatile ones too), "acquire", "release", "acq_rel", or empty for a plain one. A load or store has
    `count` values for each lane. `collective` is as in `facts`, for this form of the instruction.
    """

    text: str
    base: str = field(compare=False)
    name: str = field(compare=False)
    facts: Facts = field(compare=False)
    mods: tuple[str, ...] = field(compare=False)
    types: tuple[DType, ...] = field(compare=False)
    space: str = field(compare=False)
    order: str = field(compare=False)
    count: int = field(compare=False)
    collective: str = field(compare=False)

    def __str__(self) -> str:
        return self.text

    @property
    def type(self) -> DType:
        return self.types[0]

    @property
    def rounding(self) -> str:
        return next((m for m in self.mods if m in ROUNDINGS), "rn")

    @property
    def reads(self) -> bool:
        return "r" in self.facts.memory

    @property
    def writes(self) -> bool:
        return "w" in self.facts.memory

    @property
    def observes(self) -> bool:
        """As in `facts`; a load does where it is more than a plain one."""
        return self.facts.observes or (self.base == "ld" and self.order != "")

    def has(self, mod: str) -> bool:
        return mod in self.mods

    def width(self, source: int) -> int:
        """Bits of an operand after the destination, where it is not a predicate."""
        if source in self.facts.words:
            return 32
        bits = self.types[0 if self.base == "slct" else -1].bits if self.types else 32
        return 2 * bits if source == 2 and self.base == "mad" and "wide" in self.mods else bits


_WINDOW = re.compile("::(?:cta|cluster)$")  # shared memory of the block, or of its cluster, which is one block


@cache
def decode(text: str) -> Op:
    """Take a mnemonic apart, whether it is supported or not."""
    text = text.replace(".param::entry", ".param").replace(".param::func", ".param")
    words = text.split(".")
    names = (".".join(words[:n]) for n in range(len(words), 0, -1))
    name = next((n for n in names if n in FACTS), words[0])
    facts = FACTS.get(name, UNKNOWN)
    mods = tuple(w for w in words[1:] if w not in DTYPES)
    order = next((m for m in mods if m in ("acquire", "release", "acq_rel")), "")
    return Op(
        text,
        words[0],
        name,
        facts,
        mods,
        types=tuple(DTYPES[w] for w in words[1:] if w in DTYPES),
        space=next((s for m in mods if (s := _WINDOW.sub("", m)) in SPACES), "generic"),
        order=order or ("" if _RELAXED.isdisjoint(mods) else "relaxed"),
        count=next((int(m[1:]) for m in mods if m in ("v2", "v4", "v8")), 1),
        collective="" if facts.collective == "mask" and "sync" not in mods else facts.collective,
    )
