"""What nvcc accepts and NVRTC rejects: recognized in NVRTC's log, and enabled in a second compilation.

Types and standard headers that nvcc includes by itself, or has from headers for the host; functions of <cmath> with
integers or numbers of two types; function objects of older CUBs; constexpr functions without ``__device__`` and generic
lambdas; compound literals of C; ``typeof``. Only what a failed compilation asked for is added, so a source that has
declarations of its own, whatever they are, compiles with these alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rawkern.compile import declarations, diagnostics, shims
from rawkern.compile.source import Source

HEADER = "rawkern/nvcc.h"  # the name under which the declarations are included before the source


# Functions that C++ has for integers, too, and for numbers of different types: it computes them in double.
_PROMOTED = {
    "T x": "acos acosh asin asinh atan atanh cbrt ceil cos cosh erf erfc exp exp2 expm1 fabs floor lgamma log log10 "
    "log1p log2 logb nearbyint rint round sin sinh sqrt tan tanh tgamma trunc",
    "T x, U y": "atan2 copysign fdim fmax fmin fmod hypot nextafter pow remainder",
    "T x, U y, V z": "fma",
}
_NUMBERS = (
    "bool", "char", "signed char", "unsigned char", "short", "unsigned short", "int", "unsigned int", "long",
    "unsigned long", "long long", "unsigned long long", "float", "double",
)  # fmt: skip
_NUMBER = "template <class T> struct __rawkern_number {};\n" + "".join(
    f"template <> struct __rawkern_number<{number}> {{ typedef double type; }};\n" for number in _NUMBERS
)


def _promoting(function: str) -> str:
    """Return the overload of a function for numbers of any types, "" for other functions."""
    for params, functions in _PROMOTED.items():
        if function in functions.split():
            types, values = re.findall("[A-Z]", params), re.findall("[a-z]", params)
            template = ", ".join(f"class {one}" for one in types)
            result = " + ".join(f"typename __rawkern_number<{one}>::type()" for one in types)
            return (
                f"template <{template}> __device__ __forceinline__ decltype({result}) "
                f"{function}({params}) {{ return {function}({', '.join(f'(double){one}' for one in values)}); }}\n"
            )
    return ""


# Functions of the runtime for device code, which nvcc's own headers bring.
_OF_DEVICES = {"cudaGridDependencySynchronize", "cudaTriggerProgrammaticLaunchCompletion"}
# Keywords of GNU C.
_TYPE_OF = ("typeof", "__typeof", "__typeof__")
_VALUE = (
    "template <class T> struct __rawkern_value { typedef T type; };\n"
    "template <class T> struct __rawkern_value<T&> { typedef T type; };\n"
    "template <class T> using __rawkern_type_of = typename __rawkern_value<T>::type;\n"
)
# Function objects that CUB had until CUDA 13, as its last releases before defined them.
_CUB = {
    "Sum": "::cuda::std::plus<>", "Difference": "::cuda::std::minus<>", "Division": "::cuda::std::divides<>",
    "Max": "::cuda::maximum<>", "Min": "::cuda::minimum<>",
    "Equality": "::cuda::std::equal_to<>", "Inequality": "::cuda::std::not_equal_to<>",
}  # fmt: skip


def _declaration(name: str) -> str:
    """Return what declares a name that a source lacks, "" where nothing does; "sqrt()" stands for calls of sqrt."""
    if name.endswith("()"):
        return _promoting(name[:-2])
    if name in _TYPE_OF:
        return f"#define {name}(...) __rawkern_type_of<decltype(__VA_ARGS__)>\n"
    if name == "__auto_type":
        return f"#define {name} auto\n"
    if name in (types := shims.c_types()):
        return f"typedef {types[name]} {name};\n"
    if name in shims.builtins():
        return "#include <rawkern/builtins.h>\n"
    if name in _OF_DEVICES:
        return "#include <cuda_device_runtime_api.h>\n"
    space, _, member = name.rpartition("::")
    if space == "cub" and member in _CUB:
        return f"#include <cuda/functional>\nnamespace cub {{ using {member} = {_CUB[member]}; }}\n"
    header = shims.header_of(name)
    return f"#include <{header}>\n" if header else ""


@dataclass(frozen=True)
class Dialect:
    """What a source needs beyond NVRTC's own language."""

    names: tuple[str, ...] = ()  # those to declare
    default_device: bool = False  # take functions that are not annotated for __device__ ones
    light: bool = False  # of std, take what a small header has
    literals: bool = False  # take compound literals of C in the source, (float2){x, y}

    @property
    def header(self) -> str:
        """The declarations, empty where none is needed."""
        numbers = _NUMBER if any(name.endswith("()") for name in self.names) else ""
        numbers += _VALUE if any(name in _TYPE_OF for name in self.names) else ""
        std = "#include <rawkern/std.h>\n" if self.light else ""
        # Headers come last: those of std reuse what is declared before.
        return (
            numbers + std + "".join(sorted(map(_declaration, self.names), key=lambda text: text.startswith("#include")))
        )

    @property
    def options(self) -> tuple[str, ...]:
        """Options for NVRTC."""
        included = (f"-include={HEADER}",) if self.names or self.light else ()
        return (*included, "-default-device") if self.default_device else included

    def widened(self, source: Source, log: str) -> Dialect:
        """Return a dialect in which the errors of a log may be none; this one if nothing here helps."""
        problems = diagnostics.problems(log)
        names = {f"{one.ambiguous}()" if one.ambiguous else one.undeclared for one in problems}.difference(self.names)
        if missing := sorted(filter(_declaration, names)):
            return replace(self, names=(*self.names, *missing), light=False)
        if self.light:
            return replace(self, light=False)
        if not self.literals and any("expected an expression" in one.text for one in problems):
            return replace(self, literals=without_literals(source.text) != source.text)
        return replace(self, default_device=self.default_device or _host_is_for_device(source, problems, log))


_LITERAL = re.compile(r"\(\s*(?:struct\s+|union\s+)?((?:\w+\s*::\s*)*[A-Za-z_]\w*(?:<[^()<>{};]*>)?)\s*\)(?=\s*\{)")
_BEFORE_A_LITERAL = re.compile(
    r"(?:[=,({?:&|+\-*/%!<>~^]|\breturn|#[ \t]*define[ \t]+\w+(?:\([^()\n]*\))?)[ \t\\\n]*\Z"
)
_OPERATOR = re.compile(r"\boperator\s*\W+\Z")  # what follows it are parameters


def without_literals(text: str) -> str:
    """A text in which compound literals of C are C++'s, as long as they were: `` float2 {x}`` for ``(float2){x}``.

    What stands before a parenthesis tells whether it may be anything else, such as a condition or parameters.
    """
    code, directives = declarations.blanked(text)
    for one in directives:  # a macro may stand for a literal
        if re.match(r"[ \t]*#[ \t]*define\b", one.text):
            code = code[: one.start] + one.text + code[one.end :]
    for match in reversed(list(_LITERAL.finditer(code))):
        start, end = match.span()
        before = code[max(0, start - 200) : start]
        if _BEFORE_A_LITERAL.search(before) and not _OPERATOR.search(before):
            spaces = [re.sub(r"[^\n]", " ", part) for part in (code[start : match.start(1)], code[match.end(1) : end])]
            text = text[:start] + match[1].join(spaces) + text[end:]
    return text


def _host_is_for_device(source: Source, problems: list[diagnostics.Problem], log: str) -> bool:
    """Whether all that a log calls host code is device code to nvcc: generic lambdas and constexpr functions.

    Those need --expt-relaxed-constexpr, with which PyTorch's extensions are compiled. NVRTC has an option for host code
    of any kind only.
    """
    host = [problem for problem in problems if problem.is_host_code]
    whole = "Error limit reached" not in log
    return bool(host) and whole and all(diagnostics.is_for_device(problem, source) for problem in host)
