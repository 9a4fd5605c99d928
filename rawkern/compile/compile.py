"""One run of the compiler: a source through NVRTC to code, kernels and their exact types.

One compilation gives code and types together: a kernel template is declared after the source, and for each extern "C"
kernel and each template instance NVRTC is asked for the lowered name of ``&__rawkern_probe<decltype(kernel)>``, which
spells the kernel's type in full, through typedefs and macros; being declared only, the probe leaves nothing in the
code. Other kernels' types are in their mangled names. Which kernels there are is guessed from the text; where
the guess fails (``#if`` left one out), the source is compiled plainly first, and what its PTX holds is asked for.
"""

from __future__ import annotations

import re
from pathlib import Path

from rawkern.compile import diagnostics
from rawkern.compile.names import demangle, function_parameters, outside, split_function, strip_anonymous
from rawkern.compile.nvrtc import Result, include_path, run_nvrtc
from rawkern.compile.program import Entry, Program, declared
from rawkern.compile.source import Source
from rawkern.errors import CompileError

#: Asked for as an instance, lets a program have no kernel; "&NAME" does, and has the program hold that variable.
VARIABLES = "&"


def build(source: Source, arch: str, asked: tuple[str, ...], key: str) -> Program:
    """Compile a source; `asked` are the template instances and overloads it must hold, `key` names the program.

    CompileError if it does not compile, has no kernel, or lacks an instance that was asked for.
    """
    wanted = {name: _expression(name) for name in asked if name != VARIABLES}
    guessed = {
        kernel.name.rpartition("::")[2]: kernel.name
        for kernel in declared(source)
        if kernel.extern_c and not kernel.template
    }
    named = [name for name in wanted.values() if not name.startswith("&")]
    probes = {name: _probe(name) for name in (*guessed.values(), *_with_classes(source), *named)}
    result = run_nvrtc(source, arch, [*wanted.values(), *probes.values()], append=PROBE)
    if not result.ok:
        if not _OURS.search(result.log):
            raise diagnostics.compile_error(source, result.log, include_path(source))
        probes = {}
        result = _plain(source, arch, wanted)
    types = _types(result, wanted, guessed, probes)
    unknown = [symbol for symbol, (_, params) in types.items() if params is None]
    if unknown:
        result, types = _probe_found(source, arch, wanted, guessed, probes, unknown)
    if not types and not any(name.startswith("&") for name in asked):
        raise _no_kernel(source, result.log)
    lowered = dict(result.lowered)
    code = result.cubin if arch.startswith("sm_") else _tidy(result.ptx, source).encode()
    entries = tuple(Entry(symbol, name, params or ()) for symbol, (name, params) in types.items())
    symbols = tuple((name, lowered[wanted[name]] if name in wanted else "") for name in asked)
    return Program(source, arch, code, entries, symbols, result.log, key)


def _with_classes(source: Source) -> list[str]:
    """Kernels whose symbols will not tell their parameters' types, which may be enumerations or aliases in them."""
    kernels = [kernel for kernel in declared(source) if not kernel.extern_c]
    names = [kernel.name for kernel in kernels]
    return [
        kernel.name
        for kernel in kernels
        if not kernel.template and names.count(kernel.name) == 1 and any(map(_is_class, kernel.types))
    ]


# --- Asking for names and types --------------------------------------------------------------------------

PROBE = "\n" + Path(__file__).with_name("probe.cuh").read_text()
ENTRY = re.compile(r"^\s*(?:\.(?:visible|weak|extern)\s+)?\.entry\s+([\w$]+)", re.M)
_OURS = re.compile(r"__rawkern_|__nv_name_map\(")  # in what the compiler says of probes, or of names asked for
_BAD_NAME = re.compile(r"^__nv_name_map\(\d+\): [^\n]*\n  #pragma nv_mangled_name (.*)$", re.M)

Types = dict[str, tuple[str, tuple[str, ...] | None]]  # symbol -> (name, parameter types, None while unknown)


def _expression(name: str) -> str:
    """Turn a name as users write it into an expression: an overload ``f(int)`` is selected by a cast."""
    name = name.strip()
    if not name.endswith(")") or name.startswith(("static_cast", "&", "(")):
        return name
    at = [at for at, c in outside(name) if c == "("][-1]
    return f"static_cast<void(*)({name[at + 1 : -1]})>({name[:at].strip()})"


def _probe(expression: str) -> str:
    if expression.startswith("static_cast<void(*)("):
        # decltype of the cast is a pointer to the function, which would be probed as such.
        return probe_of(f"void({expression[len('static_cast<void(*)(') : expression.rindex(')>(')]})")
    return probe_of(f"decltype({expression})")


def probe_of(type_text: str) -> str:
    """Return the expression whose symbol spells a type in full, once `PROBE` is appended."""
    return f"&__rawkern_probe<__rawkern_plain<{type_text}>::__rawkern_TYPE>"


def _plain(source: Source, arch: str, wanted: dict[str, str]) -> Result:
    """Compile without probes, to tell whose fault it is that a compilation with them failed."""
    result = run_nvrtc(source, arch)
    if not result.ok:
        raise diagnostics.compile_error(source, result.log, include_path(source))
    if not wanted:
        return result
    asked = run_nvrtc(source, arch, wanted.values())
    if asked.ok:
        return asked
    bad = {match[1].strip() for match in _BAD_NAME.finditer(asked.log)}
    names = [name for name, expression in wanted.items() if expression in bad]
    if not names:
        raise diagnostics.compile_error(source, asked.log, include_path(source))
    found = list(_types(result, {}, {}, {}).values())
    overloaded = {name for name, params in found if any(name == other and params != rest for other, rest in found)}
    kernels = [f"{name}({', '.join(params)})" if name in overloaded and params else name for name, params in found]
    templates = [kernel for kernel in declared(source) if kernel.template]
    raise diagnostics.unknown_instance(source, names, kernels, templates, asked.log)


def _types(result: Result, wanted: dict[str, str], guessed: dict[str, str], probes: dict[str, str]) -> Types:
    """Read names and parameter types of a result's kernels off their symbols and the probes' symbols."""
    lowered = dict(result.lowered)
    probed = {
        lowered[expression]: _probed(lowered, probes.get(expression))
        for expression in wanted.values()
        if expression in lowered
    }
    types: Types = {}
    for symbol in dict.fromkeys(ENTRY.findall(result.ptx)):
        if symbol.startswith("_Z"):
            name, params, instance = split_function(demangle(symbol))
            if any(map(_is_class, params)) and not instance:
                params = _probed(lowered, probes.get(symbol) or probes.get(strip_anonymous(name)))
            elif (
                instance
            ):  # dependent types, such as typename Traits<T>::type, stand unresolved in an instance's symbol
                params = probed.get(symbol) or _probed(lowered, probes.get(symbol))
            types[symbol] = (strip_anonymous(name), params)
        else:
            types[symbol] = (symbol, _probed(lowered, probes.get(symbol) or probes.get(guessed.get(symbol) or symbol)))
    return types


_BUILTIN = re.compile(
    r"(?:const |volatile )*(?:(?:unsigned |signed )?(?:char|short|int|long|long long|__int128)"
    r"|bool|float|double|void|wchar_t|char\d+_t"
    r"|(?:char|uchar|short|ushort|int|uint|long|ulong|longlong|ulonglong|float|double)[1-4]|dim3|__half2?|__nv_bfloat162?|__nv_fp\w+"
    r"|c10::(?:Half|BFloat16|Float8_\w+))(?![\w:<])"
)


def _is_class(param: str) -> bool:
    """Whether a parameter's type is the user's own, and so may be an enumeration."""
    return not _BUILTIN.match(param)


def _probed(lowered: dict[str, str], probe: str | None) -> tuple[str, ...] | None:
    symbol = lowered.get(probe) if probe else None
    if symbol is None:
        return None
    return function_parameters(probe_type(symbol))


def probe_type(symbol: str) -> str:
    """Read the type that a probe was made for off its symbol."""
    text = demangle(symbol)
    return text[text.index("<") + 1 : text.rindex(">")]


def instance_of(entry: Entry) -> tuple[str, ...]:
    """Return the expressions that make the compiler keep this kernel: a template's instance must be named."""
    return (entry.name,) if "<" in entry.name else ()


def _probe_found(
    source: Source,
    arch: str,
    wanted: dict[str, str],
    guessed: dict[str, str],
    probes: dict[str, str],
    unknown: list[str],
) -> tuple[Result, Types]:
    """Compile again, with probes for the kernels that are really there."""
    probes = probes | {each: _probe(each) for each in wanted.values() if not each.startswith("&")}
    candidates = {symbol: _candidates(source, symbol, guessed) for symbol in unknown}
    while True:
        probes |= {symbol: names[0] for symbol, names in candidates.items() if names}
        again = run_nvrtc(source, arch, [*wanted.values(), *probes.values()], append=PROBE)
        if again.ok:
            break
        bad = {match[1].strip() for match in _BAD_NAME.finditer(again.log)}
        failed = [name for name, probe in probes.items() if probe in bad]
        if not failed:
            raise diagnostics.compile_error(source, again.log, include_path(source))
        for name in failed:
            del probes[name]
            candidates[name] = candidates.get(name, [])[1:]
    types = _types(again, wanted, guessed, probes)
    for symbol, (name, params) in types.items():
        if params is None:
            if not symbol.startswith("_Z"):
                raise CompileError(
                    f'{source.title}: the types of kernel {symbol!r} cannot be found; write extern "C" before it',
                    file=source.title,
                )
            types[symbol] = (name, split_function(demangle(symbol))[1])
    return again, types


def _candidates(source: Source, symbol: str, guessed: dict[str, str]) -> list[str]:
    """List probes for a kernel by the names it may have: a macro may have made it inside a namespace."""
    if symbol.startswith("_Z"):
        name, params, instance = split_function(demangle(symbol))
        plain = strip_anonymous(name)
        # An overloaded name has no decltype; then the types come from its symbol.
        return (
            [_probe(plain)]
            if instance
            else [_probe(plain), probe_of(f"void({', '.join(map(strip_anonymous, params))})")]
        )
    spaces = dict.fromkeys(re.findall(r"\bnamespace\s+([\w:]+)\s*\{", source.text))
    names = dict.fromkeys([guessed.get(symbol, symbol), symbol, *(f"{space}::{symbol}" for space in spaces)])
    return [_probe(name) for name in names]


def _no_kernel(source: Source, log: str) -> CompileError:
    templates = [kernel for kernel in declared(source) if kernel.template]
    if templates:
        listed = ", ".join(dict.fromkeys(one.name for one in templates))
        example = next((found for one in templates if (found := one.instance())), f"{templates[0].name}<...>")
        message = (
            f"{source.title} has no kernel that is not a template; name an instance of {listed}, such as {example}"
        )
    elif declared(source):
        message = f"{source.title} has no kernel: its __global__ functions are left out by #if or only declared"
    else:
        message = f"{source.title} has no kernel: no __global__ function is defined in it"
    return CompileError(message, file=source.title, log=log)


def _tidy(ptx: str, source: Source) -> str:
    """Drop the current directory from names that are not files: those of string sources and of NVRTC's own headers."""
    names = ["__nv_nvrtc_builtin_header.h"] if source.path is not None else ["__nv_nvrtc_builtin_header.h", source.name]
    found = "|".join(map(re.escape, names))
    return re.sub(rf'^(\s*\.file\s+\d+\s+)"[^"\n]*/({found})"', r'\1"\2"', ptx, flags=re.M) + "\n"
