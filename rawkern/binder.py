"""Code that binds arguments, written once per signature: a fast path for plain tensors, the careful path for the rest.

The fast path accepts only what needs no thought: exactly Tensor, Parameter or Buffer, strided, with memory, of the
right dtype, contiguous and aligned, all on one device. Whatever else comes is looked at again by `arguments`, which
accepts it after all or says what is wrong. Generated source is registered with `linecache`, so tracebacks show it.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rawkern import _torch_private as private
from rawkern import tensors
from rawkern.arguments import Call
from rawkern.ctype import CType
from rawkern.errors import LaunchError
from rawkern.memory import dtype_name
from rawkern.values import FLOAT_LIMITS, Where, by_value, traced

if TYPE_CHECKING:
    from rawkern.signature import Bound, Param, Signature

__all__ = ["build", "check"]

_CPU, _META = torch.device("cpu"), torch.device("meta")
_serial = itertools.count(1)
_SYMBOLIC = {
    "int": (torch.SymInt, torch.SymBool),
    "bool": (torch.SymBool,),
    "float": (torch.SymFloat, torch.SymInt),
    "half": (torch.SymFloat, torch.SymInt),
    "bfloat16": (torch.SymFloat, torch.SymInt),
    "float8": (torch.SymFloat, torch.SymInt),
}


# By CUDA index, -1 for the CPU; torch itself numbers devices with 8 bits.
DEVICES = {-1: _CPU} | {index: torch.device("cuda", index) for index in range(128)}


def arrange(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """Positional and keyword arguments in the order of the parameters."""
    params, given = signature.params, len(args)
    if not kwargs:
        if given == len(params):
            return tuple(args)
        were = "was" if given == 1 else "were"
        takes = f"{len(params)} argument{'' if len(params) == 1 else 's'}"
        raise TypeError(f"{signature.name} takes {takes}, {given} {were} given: {signature}")
    if given > len(params):
        total = given + len(kwargs)
        raise TypeError(f"{signature.name} takes {len(params)} arguments, {total} were given: {signature}")
    names = [param.name for param in params]
    for name in kwargs:
        if name not in names:
            raise TypeError(f"{signature.name} has no parameter '{name}': {signature}")
        if name in names[:given]:
            at = names.index(name)
            where = signature.wheres[at]
            raise TypeError(f"{where} is given by position and by keyword: {signature}")
    for param in params[given:]:
        if param.name not in kwargs:
            raise TypeError(f"{signature.wheres[param.index]} is missing: {signature}")
    return (*args, *(kwargs[name] for name in names[given:]))


def careful(
    signature: Signature, bound: type[Bound], args: Sequence[Any], strided: bool, call: Call | None = None
) -> Bound:
    """Bind arguments one by one; the path of all that is not plain, and of every error."""
    if tensors.state.level == tensors.FAKE:
        return check(signature, bound, args)
    if tensors.state.level == tensors.COMPOSED:
        raise LaunchError(f"{signature.name} is launched where autograd records; wrap it in rawkern.op")
    if tensors.state.level == 0:
        if private.dispatch_modes():
            raise traced(f"{signature.name}:", f"a torch dispatch mode is active ({private.dispatch_mode_name()})")
        if private.jit_tracing():
            raise traced(f"{signature.name}:", "torch.jit.trace is active")
    call = call or Call(strided, signature.struct_layout)
    values = tuple(
        call.value(param.ctype, value, where)
        for param, value, where in zip(signature.params, args, signature.wheres, strict=True)
    )
    if call.written:
        private.increment_version(tuple(call.written))
    device = None if call.device is None else DEVICES[call.device]
    index = -1 if call.device is None else call.device
    return bound(device, values, tuple(call.written), tuple(call.keep), tuple(call.tensors), index, call.fresh)


def check(
    signature: Signature, bound: type[Bound], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Bound:
    """Check arguments for kind only: number, dtypes, devices. Symbolic numbers are neither compared nor converted."""
    first: tuple[Where, torch.device] | None = None
    for param, where, value in zip(signature.params, signature.wheres, arrange(signature, args, kwargs), strict=True):
        ctype = param.ctype
        if param.is_pointer and isinstance(value, torch.Tensor):
            target = ctype.target
            assert target is not None
            if target.dtypes and dtype_name(value.dtype) not in target.dtypes:
                does = f"the kernel {'reads' if param.const else 'writes'} {ctype.spell()}"
                raise TypeError(f"{where} is {dtype_name(value.dtype)}, {does}")
            if first is None:
                first = where, value.device
            elif value.device != first[1]:
                raise ValueError(f"{where} is on {value.device}, argument {first[0].position} is on {first[1]}")
        elif type(value) in (torch.SymInt, torch.SymFloat, torch.SymBool):
            if type(value) not in _SYMBOLIC.get(ctype.kind, ()):
                raise TypeError(f"{where} is a {type(value).__name__}, the kernel takes {ctype.spell()}")
        elif not (param.is_pointer or ctype.kind == "struct" or isinstance(value, torch.Tensor) or _has_symbols(value)):
            by_value(ctype, value, where)
    return bound(_META, (), (), (), ())


def _has_symbols(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and any(
        isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)) for item in value
    )


# --- the generated fast path ----------------------------------------------------------------------------------------


def build(signature: Signature, bound: type[Bound], whole: bool, nulls: tuple[int, ...] = ()) -> Any:
    """The `bind(args, kwargs, strided)` function of a signature or, if not `whole`, its `plain(args, strided)`.

    The latter is for arguments that are None at the positions ``nulls`` and nowhere else.
    """
    space = names()
    space["Bound"] = bound
    space["arrange"] = lambda args, kwargs: arrange(signature, args, kwargs)
    space["careful"] = lambda args, strided: careful(signature, bound, args, strided)
    text = _write(signature, space, whole, nulls)
    file = f"<rawkern {'bind' if whole else 'plain'} {signature.name} {next(_serial)}>"
    return run(text, file, space)["bind" if whole else "plain"]


def names() -> dict[str, Any]:
    """What generated code uses of torch and of this package."""
    return {
        "bump": private.increment_version,
        "DEVICES": DEVICES,
        "empty": is_empty,
        "grad_enabled": torch.is_grad_enabled,
        "modes": private.dispatch_modes,
        "new": tuple.__new__,
        "PLAIN": private.PLAIN,
        "state": tensors.state,
        "Tensor": torch.Tensor,
        "tracing": private.jit_tracing,
    }


def run(text: str, file: str, space: dict[str, Any]) -> dict[str, Any]:
    """Execute generated code, so that tracebacks show it."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), space)
    return space


def is_empty(t: torch.Tensor) -> bool:
    """Whether a tensor without an address has none because it has no elements."""
    return t.numel() == 0 and not t.is_meta and private.wrapper_kind(t) is None


def _write(signature: Signature, space: dict[str, Any], whole: bool, nulls: tuple[int, ...]) -> str:
    """The source of `bind`, or, when not `whole`, of `plain`: the fast path of `bind` alone, returning less."""
    params = signature.params
    lines = [f"# {signature}"]
    if whole:
        lines += ["def bind(args, kwargs=None, strided=False):", f"    if kwargs or len(args) != {len(params)}:"]
        lines.append("        args = arrange(args, kwargs)")
    else:
        lines += ["def plain(args, strided=False):", f"    if len(args) != {len(params)}:", "        return None"]
    rest = "    return careful(args, strided)\n" if whole else "    return None\n"
    if not all(is_plain(param.ctype) for param in params):
        return "\n".join([*lines, rest])
    if params:
        lines.append(f"    {''.join(f'a{p.index}, ' for p in params)} = args")
    for param in params:
        if not param.is_pointer:
            lines += _write_value(signature, param, space, rest)
    pointers = [param for param in params if param.is_pointer and param.index not in nulls]
    if nulls:
        lines += [f"    if not ({' is '.join(f'a{index}' for index in nulls)} is None):", f"    {rest.rstrip()}"]
    lines += _write_pointers(pointers, space)
    values = "".join(value_of(param, nulls) + ", " for param in params)
    written = "".join(f"a{p.index}, " for p in pointers if not p.const)
    passed = "".join(f"a{p.index}, " for p in pointers)
    if written:
        lines += [f"        written = ({written})", "        bump(written)"]
    write = "written" if written else "()"
    if not whole:
        lines.append(f"        return {'i' if pointers else 'None'}, ({values})")
    elif pointers:
        lines.append(f"        return new(Bound, (DEVICES[i], ({values}), {write}, (), ({passed}), i, False))")
    else:
        lines.append(f"        return new(Bound, (None, ({values}), (), (), (), -1, False))")
    return "\n".join([*lines, rest])


def value_of(param: Param, nulls: tuple[int, ...]) -> str:
    """A parameter's value in generated code: an address, or the argument itself."""
    return "0" if param.index in nulls else f"p{param.index}" if param.is_pointer else f"a{param.index}"


def address_test(param: Param) -> str:
    """The test that ``aN`` has memory, or needs none; sets ``pN``."""
    return f"((p{param.index} := a{param.index}.data_ptr()) or empty(a{param.index}))"


def is_plain(ctype: CType) -> bool:
    """Whether the fast path knows the type: no tables of pointers, no pointers to structs."""
    if ctype.target is not None:
        return ctype.target.kind == "void" or bool(ctype.target.dtypes)
    return ctype.kind != "struct" or ctype.code == f"{ctype.size}s"


def _write_value(signature: Signature, param: Param, space: dict[str, Any], rest: str) -> list[str]:
    ctype, name = param.ctype, f"a{param.index}"
    if ctype.kind == "struct":  # plain as the bytes that are passed; members have to be looked at
        return [f"    if type({name}) is not bytes or len({name}) != {ctype.size}:", f"    {rest.rstrip()}"]
    if ctype.kind == "int" and ctype.size <= 8:
        test = f"type({name}) is not int or not {ctype.low} <= {name} <= {ctype.high}"
    elif ctype.kind == "bool":
        test = f"{name} is not True and {name} is not False"
    elif ctype.name == "double":
        test = f"type({name}) is not float"
    elif ctype.kind in ("float", "half"):
        limit = FLOAT_LIMITS[ctype.name]
        test = f"type({name}) is not float or not {-limit!r} <= {name} <= {limit!r}"
    else:
        test = ""
    space[f"value{param.index}"] = lambda value, c=ctype, w=signature.wheres[param.index]: by_value(c, value, w)
    convert = f"{name} = value{param.index}({name})"
    # Inside a fake implementation numbers may be symbols, which only `check` understands.
    guard = "state.level != 2"
    if test:
        return [f"    if ({test}) and {guard}:", f"        {convert}"]
    return [f"    if {guard}:", f"        {convert}"]


def _write_pointers(pointers: Sequence[Param], space: dict[str, Any]) -> list[str]:
    if not pointers:
        return ["    if not (modes() or tracing() or state.level) or state.level == 1:"]
    tests = [test for param in pointers for test in pointer_tests(param, space)]
    first = f"a{pointers[0].index}"
    tests += [address_test(param) for param in pointers]
    others = "".join(f" == a{p.index}.get_device()" for p in pointers[1:]) or " > -2"
    tests.append(f"(i := {first}.get_device()){others}")
    if not private.only_cuda():  # else an index means CUDA, and an address without an index means the CPU
        tests.append(f"({first}.is_cuda if i >= 0 else {first}.is_cpu)")
    tests += alignment_tests(pointers)
    # A fake implementation has fake or meta tensors, which have no address, so it does not get here.
    tests.append("(not (modes() or tracing()) or state.level == 1)")
    condition = "\n            and ".join(tests)
    return [
        "    try:",
        f"        fast = (\n            {condition}\n        )",
        "    except (RuntimeError, ValueError, AttributeError):",
        "        fast = False  # no memory to point to: sparse, functorch and uninitialised tensors",
        "    if fast:",
    ]


def alignment_tests(pointers: Sequence[Param]) -> list[str]:
    """Tests that the addresses ``pN`` are aligned to what they point to."""
    by_align: dict[int, list[str]] = {}
    for param in pointers:
        align = param.ctype.target.align if param.ctype.target is not None else 0
        if align > 1:
            by_align.setdefault(align, []).append(f"p{param.index}")
    return [f"not ({' | '.join(names)}) & {align - 1}" for align, names in by_align.items()]


def pointer_tests(param: Param, space: dict[str, Any]) -> list[str]:
    """Tests that ``aN`` is a plain tensor of this parameter's dtype, with elements as ``strided`` allows."""
    name, target = f"a{param.index}", param.ctype.target
    assert target is not None
    tests = [f"(type({name}) is Tensor or type({name}) in PLAIN)", f"not {name}.is_nested"]
    known = (getattr(torch, each, None) for each in target.dtypes)
    dtypes = [dtype for dtype in known if isinstance(dtype, torch.dtype)]
    if len(dtypes) == 1:
        space[dtype_name(dtypes[0])] = dtypes[0]
        tests.append(f"{name}.dtype is {dtype_name(dtypes[0])}")
    elif dtypes:
        space[f"dtypes{param.index}"] = frozenset(dtypes)
        tests.append(f"{name}.dtype in dtypes{param.index}")
    if param.const:
        tests.append(f"({name}.is_contiguous() or strided)")
    else:
        tests.append(f"({name}.is_contiguous() or (strided and 0 not in {name}.stride()))")
        tests.append(f"not ({name}.requires_grad and grad_enabled() and not state.level)")
    if any(dtype.is_complex for dtype in dtypes) or not dtypes:
        tests.append(f"not {name}.is_conj()")
    tests.append(f"not {name}.is_neg()")
    if param.ctype.kind == "reference":
        tests.append(f"{name}.numel() == 1")
    return tests
