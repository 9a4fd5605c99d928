"""Which parts of a text ``#if`` leaves out, as far as that is known without a preprocessor."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping

from rawkern.compile.declarations import Directive

#: Macros as nvcc has them when it compiles for the host; None for those that are not defined, -1 for some number.
HOST: Mapping[str, int | None] = {
    "__CUDACC__": 1, "__NVCC__": 1, "__cplusplus": 201703, "__linux__": 1, "__GNUC__": 11,
    **dict.fromkeys((
        "USE_ROCM", "__HIP__", "__HIPCC__", "__HIP_PLATFORM_AMD__", "__HIP_PLATFORM_HCC__", "__HIP_DEVICE_COMPILE__",
        "_WIN32", "_MSC_VER", "__APPLE__", "__CUDA_ARCH__", "__CUDACC_RTC__", "USE_MUSA", "USE_XPU",
    )),
}  # fmt: skip
#: The same for the device, as the compiler here has them.
DEVICE: Mapping[str, int | None] = {**HOST, "__CUDACC_RTC__": 1, "__CUDA_ARCH__": -1, "__GNUC__": None}
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(ifdef|ifndef|if|elifdef|elifndef|elif|else|endif|define|undef)\b(.*)", re.S)
_CONDITIONAL = re.compile(r"[ \t]*#[ \t]*if")
_DEFINED = re.compile(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))")
_ATOM = re.compile(r"0[xX][\da-fA-F]+|\d+|[A-Za-z_]\w*|\|\||&&|[<>=!]=|[-+*/%<>!()]")
_WORDS = {"&&": " and ", "||": " or ", "!": " not ", "true": "1", "false": "0", "/": "//"}


def left_out(directives: Iterable[Directive], known: Mapping[str, int | None]) -> list[tuple[int, int]]:
    """The spans of a text that its directives leave out; what depends on other macros than those known stays."""
    directives = tuple(directives)
    if not any(map(_CONDITIONAL.match, (one.text for one in directives))):
        return []
    known = {name: value for name, value in known.items() if name not in _own(directives)}
    dead: list[tuple[int, int]] = []
    # For each open #if: where the present branch began, whether it is taken (None: not known), and what came before.
    opened: list[tuple[int, bool | None, bool | None]] = []
    for one in directives:
        match = _DIRECTIVE.match(re.sub(r"//.*|/\*.*?\*/|\\\n", " ", one.text))
        if match is None or match[1] in ("define", "undef"):
            continue
        if match[1].startswith("if"):
            opened.append((one.end, _holds(match[1], match[2], known), False))
        elif opened:
            start, taken, before = opened.pop()
            if taken is False:
                dead.append((start, one.start))
            if match[1] != "endif":
                before = True if taken or before else None if taken is None or before is None else False
                now = True if match[1] == "else" else _holds(match[1][2:], match[2], known)
                opened.append((one.end, False if before else None if before is None and now else now, before))
    return dead


def _own(directives: Iterable[Directive]) -> set[str]:
    """Macros that the text defines or undefines itself."""
    matches = (re.match(r"[ \t]*#[ \t]*(?:define|undef)[ \t]+(\w+)", one.text) for one in directives)
    return {match[1] for match in matches if match}


def _holds(kind: str, text: str, known: Mapping[str, int | None]) -> bool | None:
    """Whether a condition holds; None where that is not known."""
    if kind in ("ifdef", "ifndef"):
        text = f"{'!' if kind == 'ifndef' else ''}defined({(text.split() or [''])[0]})"
    text = _DEFINED.sub(lambda found: _defined(found[1] or found[2], known), text)
    atoms = _ATOM.findall(text)
    if "".join(atoms) != re.sub(r"\s", "", re.sub(r"(?<=\d)[uUlL]+\b", "", text)) or ("*", "*") in itertools.pairwise(
        atoms
    ):
        return None
    atoms = [re.sub(r"^0+(?=\d)", "", atom) for atom in atoms]
    for at, atom in enumerate(atoms):
        if atom in known and known[atom] != -1:
            atoms[at] = str(known[atom] or 0)
    unknown = [atom for atom in dict.fromkeys(atoms) if re.match(r"[A-Za-z_]", atom) and atom not in _WORDS]
    if len(unknown) > 4 or any(a in unknown and b == "(" for a, b in itertools.pairwise(atoms)):  # a macro's use
        return None
    answers = set()
    for values in itertools.product(("0", "1", "1000000000"), repeat=len(unknown)):
        words = {**_WORDS, **dict(zip(unknown, values, strict=True))}
        try:
            answers.add(bool(eval("".join(words.get(atom, atom) for atom in atoms).strip(), {})))
        except (SyntaxError, ValueError, TypeError, ZeroDivisionError):
            return None
    return answers.pop() if len(answers) == 1 else None


def _defined(name: str, known: Mapping[str, int | None]) -> str:
    if name in known:
        return "0" if known[name] is None else "1"
    return f"__defined_{name}"
