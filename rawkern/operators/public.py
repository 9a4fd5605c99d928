"""The function a user calls: straight to the implementation where nothing but autograd watches, else the dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from rawkern.base import generated, operator_state
from rawkern.base import torch_private as private
from rawkern.operators.checks import changed, refuse_changes, refuse_layouts, verify
from rawkern.operators.declaration import Declaration, Param
from rawkern.operators.operator import Operator

__all__ = ["make_public"]

_TESTS = {
    "float": "type({0}) is float",
    "SymInt": "type({0}) is int",
    "bool": "({0} is True or {0} is False)",
    "str": "type({0}) is str",
    "ScalarType": "type({0}) is dtype",
    "Device": "type({0}) is device",
    "SymInt[]": "type({0}) is list and ints({0})",
    "float[]": "type({0}) is list and floats({0})",
}


def make_public(op: Operator) -> Callable[..., Any]:
    """Write the function: parameters, defaults and keywords are those of the user's."""
    decl = op.declaration
    space: dict[str, Any] = {
        "_apply": op.record.apply,
        "_autocast": private.autocast_enabled,
        "_bump": private.increment_version,
        "_changed": lambda args: tuple(changed(decl, args)),
        "_compiling": torch.compiler.is_dynamo_compiling,
        "_exporting": torch.compiler.is_exporting,
        "_forward_ad": forward_ad,
        "_function_modes": private.function_modes,
        "_grad_enabled": torch.is_grad_enabled,
        "_in_graphs": op.in_graphs,
        "_launch": op.function,
        "_modes": private.dispatch_modes,
        "_overload": op.overload,
        "_refuse": lambda args: refuse_changes(decl, args),
        "_dense": lambda args: refuse_layouts(decl, args),
        "_record": op.apply,
        "_flat": decl.flat,
        "_state": operator_state.state,
        "_tracing": private.jit_tracing,
        "_transforms": private.transforms,
        "_verify": lambda result, args: verify(decl, result, args),
        "PLAIN": private.PLAIN,
        "Tensor": torch.Tensor,
        "device": torch.device,
        "dtype": torch.dtype,
        "floats": lambda values: all(type(v) is float for v in values),
        "ints": lambda values: all(type(v) is int for v in values),
        "plain": lambda values: all(
            type(v) in private.PLAIN and v.layout is torch.strided and not v.is_nested for v in values
        ),
        "one_device": _one_device,
        "strided": torch.strided,
        "wanted": lambda values: any(v.requires_grad for v in values),
    }
    inner = {f"_n{i}": value for i, value in enumerate(space.values())}
    rename = dict(zip(space, inner, strict=True))
    text = _write(decl, rename)
    make = generated.run(text, f"<rawkern operator {decl.qualified}>", {})["make"]
    public, op.direct = make(*inner.values(), **decl.defaults)
    return public


def _write(decl: Declaration, names: dict[str, str]) -> str:
    for p in decl.params:
        if p.name.startswith("_n") or (p.name[0] == "d" and p.name[1:].isdigit()):
            raise ValueError(f"{decl.qualified}: rename parameter {p.name}, that name is needed")
    n = names
    arguments = ", ".join(p.name for p in decl.params)
    call = ", ".join(f"{p.name}={p.name}" if p.keyword_only else p.name for p in decl.params)
    everything = f"({arguments},)"
    tests = "\n            or ".join(_watchers(decl, n) + [f"not ({test})" for test in _tests(decl, n)])
    wants = " or ".join(_wants(p, n) for p in decl.tensors)
    values = "".join(f", {p.name}" for p in (*decl.values, *decl.tensors))
    apply = (
        f"{n['_record']}(direct, {everything}, {n['_flat']}({everything}))"
        if decl.has_lists
        else f"{n['_apply']}(direct{values})"
    )
    launch = [
        f"level = {n['_state']}.level",
        f"{n['_state']}.level = 1",
        "try:",
        f"    result = {n['_launch']}({call})",
        "finally:",
        f"    {n['_state']}.level = level",
        f"if {_wrong(decl, n)}:",
        f"    {n['_verify']}(result, {everything})",
        *([f"{n['_bump']}({n['_changed']}({everything}))"] if decl.mutated else []),
    ]
    lines = [
        f"def make({', '.join(n.values())}, **defaults):",
        *(f"    d{i} = defaults['d{i}']" for i in range(len(decl.params))),
        f"    def direct({arguments}):",
        *(f"        {line}" for line in launch),
        "        return result",
        "    direct.watched = False",
        f"    def {decl.name}({decl.parameters}):",
        f"        if {n['_compiling']}():",
        f"            if {n['_exporting']}():",
        f"                result = {n['_overload']}({call})",
        "            else:",
        f"                result = {n['_in_graphs']}[0]({call})",
        f"        elif (\n            {tests}\n        ):",
        f"            {n['_dense']}({everything})",
        f"            result = {n['_overload']}({call})",
        f"        elif {n['_grad_enabled']}() and ({wants}):",
        *([f"            {n['_refuse']}({everything})"] if decl.mutated else []),
        f"            result = {apply}",
        *([f"            return {_changed(decl)}"] if decl.in_place else []),
        "        else:",
        *(f"            {line}" for line in launch),
        f"        return {_result(decl)}",
        f"    return {decl.name}, direct",
    ]
    return "\n".join(lines) + "\n"


def _watchers(decl: Declaration, n: dict[str, str]) -> list[str]:
    """What sees torch's calls."""
    found = [f"{n[name]}()" for name in ("_modes", "_function_modes", "_transforms", "_tracing")]
    if decl.autocast is not None:
        found.append(f"{n['_autocast']}()")
    return [*found, f"{n['_forward_ad']}._current_level >= 0"]


def _tests(decl: Declaration, n: dict[str, str]) -> list[str]:
    """What plain arguments pass. The dispatcher converts others, or says what is wrong with them."""
    tests = []
    for p in decl.params:
        name = p.name
        plain = f"type({name}) in {n['PLAIN']} and {name}.layout is {n['strided']} and not {name}.is_nested"
        if p.kind == "tensor":
            tests.append(plain)
        elif p.kind == "optional":
            tests.append(f"({name} is None or ({plain}))")
        elif p.kind == "list":
            tests.append(f"type({name}) is list and {n['plain']}({name})")
        else:
            test = _TESTS.get(p.type.removesuffix("?"), "False").format(name)
            for word in ("dtype", "device", "ints", "floats"):
                test = test.replace(f" {word}", f" {n[word]}")
            tests.append(f"({name} is None or {test})" if p.type.endswith("?") else test)
    plain = [p.name for p in decl.tensors if p.kind == "tensor"]
    if len(plain) == len(decl.tensors):
        same = "".join(f" == {name}.get_device()" for name in plain[1:])
        if same:
            tests.append(f"{plain[0]}.get_device(){same}")
        tests.append(f"not {plain[0]}.is_meta")
    else:
        tests.append(f"{n['one_device']}({', '.join(p.name for p in decl.tensors)})")
    return tests


def _one_device(*values: Any) -> bool:
    found = None
    for value in values:
        for t in value if type(value) is list else (value,):
            if t is None:
                continue
            if found is None:
                found = t.get_device()
            if t.is_meta or t.get_device() != found:
                return False
    return found is not None


def _wants(p: Param, n: dict[str, str]) -> str:
    if p.kind == "list":
        return f"{n['wanted']}({p.name})"
    return f"{p.name}.requires_grad" if p.kind == "tensor" else f"{p.name} is not None and {p.name}.requires_grad"


def _wrong(decl: Declaration, n: dict[str, str]) -> str:
    count = len(decl.returned)
    if count == 0:
        return "result is not None"
    if count == 1:
        inputs = "".join(f" or result is {p.name}" for p in decl.tensors if p.kind != "list")
        return f"type(result) is not {n['Tensor']}{inputs}"
    return f"type(result) is not tuple or len(result) != {count}"


def _result(decl: Declaration) -> str:
    """What is visible of what the operator returns."""
    if decl.in_place:
        return _changed(decl)
    if not decl.hidden:
        return "result"
    return "result[0]" if decl.single else f"result[:{len(decl.outputs)}]"


def _changed(decl: Declaration) -> str:
    return ", ".join(p.name for p in decl.mutated)
