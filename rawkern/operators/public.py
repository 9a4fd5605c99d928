"""The function a user calls: straight to the implementation where nothing but autograd watches, else the dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rawkern.base import generated
from rawkern.base import torch_private as private
from rawkern.base.api_boundary import hide
from rawkern.base.dynamo import exporting
from rawkern.operators.checks import changed, reject_changes, reject_layouts, verify
from rawkern.operators.declaration import Declaration
from rawkern.operators.native import watching
from rawkern.operators.operator import Operator

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
        "_exporting": exporting,
        "_in_graphs": op.in_graphs,
        "_calls": op.kept and op.kept.calls,
        "_function": op.function,
        "_launch": op.launch,
        "_traced": op.traced or op.launch,
        "_overload": op.overload,
        "_reject": lambda args: reject_changes(decl, args),
        "_hide": hide,
        "_dense": lambda args: reject_layouts(decl, args),
        "_record": op.apply,
        "_flat": decl.flat,
        "_verify": lambda result, args: verify(decl, result, args),
        "Tensor": torch.Tensor,
        "device": torch.device,
        "dtype": torch.dtype,
        "floats": lambda values: all(type(v) is float for v in values),
        "given": lambda values: all(v is not None for v in values),
        "ints": lambda values: all(type(v) is int for v in values),
        "_watching": watching,
    }
    inner = {f"_n{i}": value for i, value in enumerate(space.values())}
    rename = dict(zip(space, inner, strict=True))
    text = _write(decl, rename)
    make = generated.run(text, f"<rawkern operator {decl.qualified}>", {})["make"]
    public, op.direct = make(*inner.values(), **decl.defaults)
    op.native_for_users()
    return public


def _write(decl: Declaration, names: dict[str, str]) -> str:
    for p in decl.params:
        if p.name.startswith("_n") or (p.name[0] == "d" and p.name[1:].isdigit()):
            raise ValueError(f"{decl.qualified}: rename parameter {p.name}, that name is needed")
    n = names
    arguments = ", ".join(p.name for p in decl.params)
    call = ", ".join(f"{p.name}={p.name}" if p.keyword_only else p.name for p in decl.params)
    everything = f"({arguments},)"
    autocast = [f"{n['_autocast']}()"] if decl.autocast is not None else []
    looked = ", ".join(f"*{p.name}" if p.kind == "list" else p.name for p in decl.tensors)
    rejected = [f"not ({test})" for test in _tests(decl, n)]
    answer = f"(_nrecorded := {n['_watching']}.look({looked})) is None"  # what is not plain
    tests = "\n                    or ".join([*autocast, *rejected, answer])
    values = "".join(f", {p.name}" for p in (*decl.values, *decl.tensors))
    apply = (
        f"{n['_record']}(direct, {everything}, {n['_flat']}({everything}))"
        if decl.has_lists
        else f"{n['_apply']}(direct{values})"
    )
    known, own, run = "False", "False", n["_launch"]
    if decl.keeps_launches:
        known, own = (
            f"(_nresult := {n['_calls']}.{way}({arguments})) is not None and _nresult is not NotImplemented"
            for way in ("users", "call")
        )
        run = f"({n['_function']} if _nresult is NotImplemented else {n['_launch']})"
    launch = [
        f"_nresult = {run}({call})",
        f"if {_wrong(decl, n)}:",
        f"    {n['_verify']}(_nresult, {everything})",
        *([f"{n['_bump']}({n['_changed']}({everything}))"] if decl.mutated else []),
    ]
    traced = [f"_nresult = {n['_traced']}({call})", *launch[1:]]
    lines = [
        f"def make({', '.join(n.values())}, **defaults):",
        *(f"    d{i} = defaults['d{i}']" for i in range(len(decl.params))),
        f"    def direct({arguments}):",
        f"        if {own}:",
        "            return _nresult",
        *(f"        {line}" for line in (launch if not decl.derived else traced)),
        "        return _nresult",
        "    direct.watched = False",
        f"    def {decl.name}({decl.parameters}):",
        f"        if {n['_compiling']}():",
        f"            if {n['_exporting']}():",
        f"                _nresult = {n['_overload']}({call})",
        "            else:",
        f"                _nresult = {n['_in_graphs']}[0]({call})",
        "        else:",
        "            try:",
        f"                if {known}:",
        "                    pass",
        f"                elif (\n                    {tests}\n                ):",
        f"                    {n['_dense']}({everything})",
        f"                    _nresult = {n['_overload']}({call})",
        "                elif _nrecorded:",
        *([f"                    {n['_reject']}({everything})"] if decl.mutated else []),
        f"                    _nresult = {apply}",
        *([f"                    return {_changed(decl)}"] if decl.in_place else []),
        "                else:",
        *(f"                    {line}" for line in launch),
        "            except Exception as _nerror:",
        f"                {n['_hide']}(_nerror)",
        "                raise",
        f"        return {_result(decl)}",
        f"    return {decl.name}, direct",
    ]
    return "\n".join(lines) + "\n"


def _tests(decl: Declaration, n: dict[str, str]) -> list[str]:
    """What plain arguments pass. The dispatcher converts others, or says what is wrong with them."""
    tests = []
    for p in decl.params:
        name = p.name
        if p.kind == "tensor":
            tests.append(f"{name} is not None")
        elif p.kind == "list":
            tests.append(f"type({name}) is list and {n['given']}({name})")
        elif p.kind == "value":
            test = _TESTS.get(p.type.removesuffix("?"), "False").format(name)
            for word in ("dtype", "device", "ints", "floats"):
                test = test.replace(f" {word}", f" {n[word]}")
            tests.append(f"({name} is None or {test})" if p.type.endswith("?") else test)
    return tests


def _wrong(decl: Declaration, n: dict[str, str]) -> str:
    count = len(decl.returned)
    if count == 0:
        return "_nresult is not None"
    given = ", ".join(f"*{p.name}" if p.kind == "list" else p.name for p in decl.tensors)
    wanted = n["Tensor"] if count == 1 else f"tuple or len(_nresult) != {count}"
    return f"type(_nresult) is not {wanted} or not {n['_watching']}.fresh(_nresult, {given})"


def _result(decl: Declaration) -> str:
    """What is visible of what the operator returns."""
    if decl.in_place:
        return _changed(decl)
    if not decl.hidden:
        return "(_nresult,)" if decl.boxed else "_nresult"
    return "_nresult[0]" if decl.single else f"_nresult[:{len(decl.outputs)}]"


def _changed(decl: Declaration) -> str:
    return ", ".join(p.name for p in decl.mutated)
