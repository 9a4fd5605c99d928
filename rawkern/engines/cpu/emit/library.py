"""The runtime library of kernels: helpers out of line that are compiled once for a CPU, not again with each kernel.

Such a helper is complete in itself. Its symbol tells its text, so that one stored object file serves all kernels whose
helper is the same.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from rawkern.base.llvm import ALLOWED_SYMBOLS, declaration
from rawkern.engines.cpu.ir import Module

#: Branches that are hardly ever taken, loads of what never changes, and branches that are nearly always taken.
METADATA = """!0 = !{!"branch_weights", i32 1, i32 4095}
!1 = !{}
!2 = !{!"branch_weights", i32 64, i32 1}"""
_HEAD = re.compile(r"define internal (?P<result>.+?) @(?P<name>[\w.$]+)\((?P<params>.*)\) noinline(?P<more>[^{]*) \{")
_NAME = re.compile(r"@([\w.$]+)")
_WRITES = re.compile(
    r"\b(store|atomicrmw|cmpxchg|fence|asm|alloca|volatile)\b|@llvm\.(masked\.(store|scatter)|mem|x86)"
)
_CALL = re.compile(r"\bcall [^@]*@([\w.$]+)")


@dataclass(frozen=True)
class Library:
    """The text of a module without the helpers that it shares, and of each of those, what it calls itself first."""

    text: str
    functions: dict[str, str]  # LLVM IR of a module by the symbol that it defines


def split(module: Module, target: str = "") -> Library:
    """Take the helpers that call nothing but others like them out of a module, which declares them then.

    Symbols differ by `target`, the CPU: it decides how vectors are passed.
    """
    shared = _complete(module)
    declared: dict[str, str] = {}
    functions: dict[str, str] = {}
    symbols: dict[str, str] = {}

    def renamed(text: str) -> str:
        return _NAME.sub(lambda found: f"@{symbols.get(found[1], found[1])}", text)

    def add(name: str) -> None:
        if name in symbols:
            return
        text = module.helpers[name]
        callees = [other for other in dict.fromkeys(_NAME.findall(text)) if other in shared and other != name]
        for other in callees:
            add(other)
        used = [module.declarations[other] for other in module.declarations if f"@{other}" in text]
        parts = [*used, *(declared[other] for other in callees), renamed(text)]
        symbols[name] = f"{name}_{hashlib.sha256(chr(10).join([target, *parts]).encode()).hexdigest()[:16]}"
        head = _HEAD.match(text)
        assert head is not None
        declared[name] = declaration(head["result"], symbols[name], head["params"]) + _effects(text, head["more"])
        whole = renamed("\n".join(parts)).replace("define internal", "define", 1)
        functions[symbols[name]] = f"{whole}\n{METADATA}"

    for name in shared:
        add(name)
    own = [text for name, text in module.helpers.items() if name not in shared]
    rest = renamed("\n".join([*module.declarations.values(), *own, *module.functions]))
    return Library("\n".join([*declared.values(), rest, METADATA]), functions)


def _complete(module: Module) -> list[str]:
    """The helpers that call intrinsics, the C library and one another alone, in no circle."""
    calls = {}
    for name, text in module.helpers.items():
        if _HEAD.match(text):
            calls[name] = set(_NAME.findall(text)) - {name}
    found: list[str] = []
    while True:  # those whose callees are known to be complete; what is in a circle never is
        more = [
            name
            for name, callees in calls.items()
            if name not in found and all(_known(other, module) or other in found for other in callees)
        ]
        if not more:
            return found
        found += more


def _known(name: str, module: Module) -> bool:
    return name.startswith("llvm.") or name in ALLOWED_SYMBOLS or " global " in module.declarations.get(name, "")


def _effects(text: str, more: str) -> str:
    """What LLVM would find out of a helper if it saw its text: that it does not write, or has no effect at all."""
    callees = _CALL.findall(text)
    if more.strip() or _WRITES.search(text) or not all(name.startswith("llvm.") for name in callees):
        return ""
    reads = " load " in text or any(name.startswith("llvm.masked.") for name in callees)
    return f" memory({'read' if reads else 'none'}) nounwind willreturn"
