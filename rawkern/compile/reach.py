"""Which declarations of a source are for the device: those that are marked, and what they reach by name.

Names are words: a word of a kept declaration keeps whatever is declared under it, in any namespace. So what stays may
be too much, and is too little for nothing but names that macros paste together.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from rawkern.compile.chunks import Chunk, Parts, members, parts
from rawkern.compile.signs import MARK

_WORD = re.compile(r"\.?\d[\w.]*|([A-Za-z_]\w*)")  # numbers have letters, too
_DEFINE = re.compile(r"[ \t]*#[ \t]*define[ \t]+(\w+)(.*)", re.S)
#: Types of the system and of libraries for the host, whose headers the compiler does not get
_OF_SYSTEM = (
    r"dirent|fopen|glob_t|pid_t|pthread_\w+|rusage|sem_t|sockaddr\w*|termios|timeval|utsname"
    r"|cufftHandle|curandGenerator_t|cusolver\w+|MPI_\w+|nccl\w+|nvtx\w+|GL(?:u?int|enum|float|sizei?)|GLFW\w+"
)
#: What only code for the host has; names of torch that the device has, too, are not among them
_HOST = re.compile(
    r"<<<|\bpybind11\b|\b(?:py|caffe2?|nlohmann|fmt|Eigen)\s*::|\b(?:throw|try|catch)\b|\bcuda(?!Stream_t\b|Error_t\b)[A-Z]\w*\s*\("
    r"|\bstd\s*::\s*(?:vector|w?string\w*|\w*stream|cout|cerr|endl|(?:unordered_)?(?:multi)?(?:map|set)|list|deque|queue"
    r"|\w+_ptr|make_(?:unique|shared)|function|thread|mutex|once_flag|call_once|lock_guard|unique_lock|\w+_error"
    r"|exception|chrono|getenv|sort|to_string|ofstream|filesystem|random_device|mt19937\w*|any|hash)\b"
    r"|\b(?:AT_DISPATCH_\w+|AT_ERROR|AT_ASSERTM?|fprintf|getenv|exit|malloc|cublas\w+|cudnn\w+|cusparse\w+)\b"
    r"|\bTensor\b(?!\s*<)|\b(?:TensorOptions|IntArrayRef|TensorIterator\w*|TensorList|PyObject|CUDAGuard)\b"
    r"|\.\s*(?:data_ptr|scalar_type|packed_accessor\w*|contiguous|options|device_index)\b"
    rf"|\b(?:{_OF_SYSTEM})\b|\bFILE\s*\*\s*[A-Za-z_]"
)
#: Types that it has by their bare names where `using` says that these are std's, and who says so
_BARE = {
    **dict.fromkeys(("vector", "deque", "map", "multimap", "unordered_map", "unordered_set"), r"\s*<"),
    **dict.fromkeys(
        ("string", "ifstream", "ofstream", "fstream", "stringstream", "ostringstream"), r"\s*[&>]|\s+[A-Za-z_]"
    ),
}
_FROM_STD = re.compile(r"\busing\s+(?:namespace\s+(std)\s*;|std\s*::\s*(\w+)\s*;)")
_SUSPICIOUS = re.compile(
    r"(?:py|pybind11|caffe2?|nlohmann|fmt|Eigen|throw|try|catch|std|at|c10|torch|AT_\w+|fprintf|getenv|exit|malloc|cu[a-z]+[A-Z]\w*"
    r"|Tensor\w*|IntArrayRef|PyObject|CUDAGuard|data_ptr|scalar_type|packed_accessor\w*|contiguous|options"
    rf"|device_index|FILE|{_OF_SYSTEM})\Z"
)
_OF_TORCH = re.compile(r"\b(?:at|c10|torch)\s*::\s*((?:\w+\s*::\s*)*\w+)")
_BINDING = re.compile(r"PYBIND11_|TORCH_|STABLE_TORCH|PyInit_|REGISTER_|AT_|C10_(?!LAUNCH|HOST|DEVICE|ALWAYS)")
_HEADERS = Path(__file__).parent / "headers" / "rawkern"


@dataclass
class Unit:
    """One declaration with what is known of it."""

    chunk: Chunk
    code: str
    words: frozenset[str]
    marked: bool
    host: bool  # it has what only the host has
    kept: bool = False


@dataclass
class Words:
    """The macros of all files, and what words mean through them."""

    bodies: dict[str, str]
    markers: Set[str] = frozenset()  # macros that mark what is the device's
    of_host: Set[str] = frozenset()  # macros that only host code has
    within: dict[str, frozenset[str]] = field(default_factory=dict)  # the words of a macro's text, through others
    suspicious: Set[str] = frozenset()  # words that may be the host's
    bare: Set[str] = frozenset()  # those of `_BARE` that `using` names

    def expanded(self, words: Iterable[str]) -> frozenset[str]:
        """Words with those of the macros among them."""
        words = frozenset(words)
        return words.union(*(self.within[word] for word in words & self.within.keys()))

    def of_host_alone(self, head: Iterable[str]) -> bool:
        """Whether a function whose head, with these words, does not mark it for the device is for the host.

        Device code may use what a constexpr function returns.
        """
        words = self.expanded(head)
        return "__host__" in words and "constexpr" not in words

    def are_host(self, code: str, words: Set[str]) -> bool:
        """Whether code, of these words, has what only the host has."""
        if "<<<" in code or words & self.of_host:
            return True
        if not words & self.suspicious:
            return False
        if any(re.search(rf"(?<![\w.:]){name}(?:{_BARE[name]})", code) for name in words & self.bare):
            return True
        known = _torch()[0]
        names = (match[1] for match in _OF_TORCH.finditer(code))
        of_torch = (name.rpartition("::")[2].strip() not in known or "indexing" in name for name in names)
        return any(of_torch) or _HOST.search(code) is not None


@functools.cache
def _torch() -> tuple[frozenset[str], dict[str, str]]:
    """Names that the stand-in for torch's headers declares, and its macros."""
    found = parts("\n".join(path.read_text() for path in sorted(_HEADERS.glob("torch*.h"))))
    names = {chunk.name for chunk in found.chunks} | {part for chunk in found.chunks for part in chunk.scopes}
    names |= set(re.findall(r"\busing\s+(?:\w+::)*(\w+)", found.code))
    return frozenset(names - {"", "Tensor"}), _bodies([found])


def _words(code: str) -> frozenset[str]:
    return frozenset(_WORD.findall(code)) - {""}


def _bodies(files: Iterable[Parts]) -> dict[str, str]:
    """The texts of macros, of one with several all of them."""
    bodies: dict[str, str] = {}
    for found in files:
        for one in found.directives:
            if match := _DEFINE.match(one.text):
                bodies[match[1]] = bodies.get(match[1], "") + " " + match[2]
    return bodies


def macros(files: Sequence[Parts]) -> Words:
    """The macros of texts and of torch's headers, and what their words may mean."""
    bodies = {**_torch()[1], **_bodies(files)}
    words = Words(bodies)
    direct = {name: _words(body) for name, body in bodies.items()}
    for name in bodies:
        seen, todo = set(direct[name]), [word for word in direct[name] if word in direct]
        while todo:
            for word in direct[todo.pop()] - seen:
                seen.add(word)
                if word in direct:
                    todo.append(word)
        words.within[name] = frozenset(seen)
    there = frozenset().union(*direct.values(), *(_words(found.code) for found in files))
    of_std = {match[1] or match[2] for one in files for match in _FROM_STD.finditer(one.code)}
    own = {chunk.name for one in files for chunk in one.chunks if chunk.kind in ("type", "alias")}
    words.bare = frozenset(name for name in _BARE if of_std & {"std", name} and name not in own) & there
    words.suspicious = frozenset(filter(_SUSPICIOUS.match, there)) | words.bare
    plain = {name for name, body in bodies.items() if MARK.search(body)}
    words.markers = frozenset(n for n in bodies if n in plain or words.within[n] & plain)
    host = {name for name, body in bodies.items() if words.are_host(body, direct[name])}
    words.of_host = frozenset(n for n in bodies if n in host or words.within[n] & host)
    return words


def units(found: Parts, words: Words) -> list[Unit]:
    """The declarations of a text, classified, as far as `#if` does not leave them out for the device."""
    text = found.code
    for start, end in found.dead:
        text = text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]
    result = []
    for chunk in found.chunks:
        code = text[chunk.start : chunk.end]
        own = _words(code)
        used = own
        if chunk.kind == "type":  # what only its members for the host name, the device does without
            used = _words(_without(code, _host_members(code, words, frozenset()))) | {chunk.name}
        head = code if chunk.kind in ("type", "macro") else code[: chunk.head - chunk.start]
        if chunk.kind == "variable":
            head = head.partition("=")[0]
        of_head = _words(head)
        marked = bool(MARK.search(head) or words.markers & of_head)
        binding = chunk.kind == "macro" and not marked and _BINDING.match(chunk.name)
        undefined = chunk.kind == "macro" and not marked and chunk.name not in {"static_assert", *words.bodies}
        callable_ = chunk.kind in ("function", "declaration")
        only = callable_ and not marked and words.of_host_alone(of_head)
        host = bool(binding or undefined or only or words.are_host(code, own))
        if marked and host and callable_:
            # For both, with types of the host: device code cannot call it.
            marked = "__host__" not in words.expanded(of_head) or not words.are_host(head, of_head)
        result.append(Unit(chunk, code, words.expanded(used), marked, host))
    return result


_NEUTRAL = ("type", "alias", "using")


def settle(found: Sequence[Unit]) -> None:
    """Decide for each declaration whether it is kept."""
    _spread(found)
    by_name: dict[str, list[Unit]] = {}
    for unit in found:
        by_name.setdefault(_owner(unit), []).append(unit)
    _reach([unit for unit in found if unit.marked], by_name, ("type",))
    _reach([unit for unit in found if not unit.host and _is_neutral(unit)], by_name, ())
    _follow(found, by_name)


def _reach(todo: list[Unit], by_name: dict[str, list[Unit]], even: tuple[str, ...]) -> None:
    """Keep declarations and what they name, of the host only what is of kinds that may be, too: device code knows."""
    for unit in todo:
        unit.kept = True
    while todo:
        unit = todo.pop()
        for word in unit.words & by_name.keys():
            for other in by_name[word]:
                left = other.chunk.kind in ("macro", "instantiation") or (other.host and other.chunk.kind not in even)
                if not other.kept and not left:
                    other.kept = True
                    todo.append(other)


_ARGUMENTS = r"(?:<[^()<>]*(?:<[^()<>]*>[^()<>]*)*>)"


def _owner(unit: Unit) -> str:
    """The name under which a declaration is reached."""
    return _class_of(unit) or unit.chunk.name


def _class_of(unit: Unit) -> str:
    """The class of a member that is defined outside it, or of which this is a specialization; "" for others."""
    head = unit.code[: unit.chunk.head - unit.chunk.start]
    name = re.escape(unit.chunk.name)
    if unit.chunk.kind in ("function", "variable", "declaration"):
        match = re.search(rf"\b(?!template\b)(\w+)\s*{_ARGUMENTS}?\s*::\s*~?{name}\s*[(=;\[]", head)
        if match and match[1] not in unit.chunk.scopes:
            return match[1]
    if unit.chunk.kind == "type" and re.search(rf"\b(?:class|struct|union)\s[^()]*?\b{name}\s*<", head):
        return unit.chunk.name
    return ""


def _is_neutral(unit: Unit) -> bool:
    """Whether a declaration stays where nothing of the host is in it: it makes no code of its own."""
    if unit.chunk.kind == "variable":
        head = unit.code.partition("=")[0]
        return bool(re.search(r"\bconstexpr\b", head)) or (
            bool(re.search(r"\bconst\b", head)) and "(" not in unit.code and "*" not in head
        )
    return unit.chunk.kind in _NEUTRAL or unit.code.startswith("static_assert")


def _is_forward(unit: Unit) -> bool:
    return unit.chunk.kind == "type" and "{" not in unit.code


def _spread(found: Sequence[Unit]) -> None:
    """Find what is for the host because it uses what is: types of the host everywhere, its functions in functions."""
    while True:
        only: dict[str, bool] = {}
        types: set[str] = set()
        for unit in found:
            if unit.chunk.kind != "using" and unit.chunk.name and not _is_forward(unit) and not _class_of(unit):
                only[unit.chunk.name] = only.get(unit.chunk.name, True) and unit.host and not unit.marked
                if unit.chunk.kind in ("type", "alias"):
                    types.add(unit.chunk.name)
        names = {name for name, host in only.items() if host}
        changed = [
            unit
            for unit in found
            if not unit.host and not unit.marked
            and (unit.words - {unit.chunk.name} | {_class_of(unit)})
            & (names & types if unit.chunk.kind in _NEUTRAL else names)
        ]  # fmt: skip
        if not changed:
            return
        for unit in changed:
            unit.host = True


def _without(code: str, spans: Iterable[tuple[int, int]]) -> str:
    """Code with spaces over parts of it."""
    for start, end in spans:
        code = code[:start] + " " * (end - start) + code[end:]
    return code


_USING = re.compile(r"using\s+(namespace\s+)?(?:::\s*)?((?:\w+\s*::\s*)*)(\w+)\s*;")


def _names_gone(unit: Unit, scopes: Set[str], left: Set[str], gone: Set[str]) -> bool:
    """Whether a using directive or declaration names what is gone: of `scopes` are `left` those with declarations."""
    match = _USING.match(unit.code)
    if match is None:
        return False
    last = (match[3] if match[1] else match[2]).rstrip(": \n\t").rpartition("::")[2].strip()
    return (not match[1] and last in scopes and match[3] in gone) or (last in scopes and last not in left)


def _follow(found: Sequence[Unit], by_name: dict[str, list[Unit]]) -> None:
    """Macros and instantiations stay where all that they name does, using declarations where what they name does."""
    kept = lambda unit: unit.kept and unit.chunk.kind != "using"  # noqa: E731
    used = {unit.chunk.name for unit in found if unit.chunk.kind == "macro"}  # macros themselves are not declared
    gone = {name for name, those in by_name.items() if not any(map(kept, those))} - used
    scopes = {scope for unit in found for scope in unit.chunk.scopes}
    left = {scope for unit in found if kept(unit) for scope in unit.chunk.scopes}
    for unit in found:
        if unit.chunk.kind == "using" and unit.kept:
            unit.kept = not _names_gone(unit, scopes, left, gone)
        if unit.chunk.kind == "macro" and not unit.kept:
            unit.kept = not unit.host and not unit.words & gone
        elif unit.chunk.kind == "instantiation" and not unit.kept:
            there = any(other.kept for other in by_name.get(unit.chunk.name, ()) if other is not unit)
            unit.kept = there and not unit.host and not unit.words & gone


def host_members(unit: Unit, words: Words, gone: Set[str]) -> list[tuple[int, int]]:
    """The members of a class that is kept which are for the host, as places in its code."""
    return _host_members(unit.code, words, gone) if unit.chunk.kind == "type" else []


def _host_members(text: str, words: Words, gone: Set[str]) -> list[tuple[int, int]]:
    at = text.find("{")
    if at < 0 or re.search(r"\benum\b", text[:at]):
        return []
    found = []
    for member in members(text, at, text.rindex("}") + 1):
        code = text[member.start : member.end]
        head = code[: member.head - member.start]
        own, of_head = _words(code), _words(head)
        host = bool(own & gone) or words.are_host(code, own)
        if MARK.search(head) or words.markers & of_head:
            host = "__host__" in words.expanded(of_head) and words.are_host(head, of_head)
        elif words.of_host_alone(of_head):
            host = True
        if host and member.kind != "variable":
            found.append((member.start, member.end))
    return found
