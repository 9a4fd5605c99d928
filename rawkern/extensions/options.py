"""Tensor options, devices and dtypes: set and asked."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import text_of
from rawkern.extensions import types as t
from rawkern.extensions.context import Context, short
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, converted, options_code


def keywords(value: Value) -> list[str]:
    """Tensor options as keywords."""
    if value.code:  # what is set replaces what was
        return [f"**{options_code(value)}"]
    return [f"{key}={code}" for key, code in (value.options or {}).items()]


def options_method(f: Context, node: Any, value: Value, name: str, nodes: list[Any]) -> Value:
    """``options.dtype(...)`` and the like: set with an argument, read without."""
    key = {"pinned_memory": "pin_memory", "device_index": "device"}.get(name, name)
    if key not in ("dtype", "device", "layout", "requires_grad", "pin_memory", "memory_format", "is_cuda", "has_dtype"):
        raise NotTranslated(f"`{short(node)}`: an option", node)
    if not nodes and key in ("dtype", "device"):
        type_ = t.DTYPE if key == "dtype" else t.DEVICE
        if value.options and key in value.options:
            return Value(value.options[key], type_)
        return Value(f"{value.code}[{key!r}]", type_)
    if key == "is_cuda":
        return Value(f"is_cuda({options_method(f, node, value, 'device', []).code})", t.BOOL)
    if key in ("requires_grad",) and nodes == []:
        code = "True"
    elif key == "device":
        values = [f.value(one) for one in nodes]
        if name == "device_index" or len(values) == 2:
            code = f"cuda_device({values[-1].code})"
        else:
            code = converted(values[0], t.DEVICE).code
            code = f"torch.device({code})" if values[0].type.kind == "string" else code
    else:
        given = f.value(nodes[0])
        if key == "dtype" and given.type.kind != "dtype":
            raise NotTranslated(f"`{short(node)}`", node)
        code = given.code
    return Value(value.code, t.OPTIONS, options={**(value.options or {}), key: code})


_SPACES = ("torch::", "at::", "c10::")


def options_function(f: Context, node: Any, name: str, of: Any, nodes: list[Any]) -> Value | None:
    """``torch::dtype(torch::kFloat)``, ``at::device(...)``, ``TensorOptions()``, and indices."""
    bare = name.rsplit("::", 1)[-1]
    empty = Value("", t.OPTIONS, options={})
    if bare in ("dtype", "device", "requires_grad", "layout") and (name.startswith(_SPACES) or len(nodes) == 1):
        if bare == "dtype" and of:
            raise NotTranslated(f"`{short(node)}`", node)
        return options_method(f, node, empty, bare, nodes)
    if bare in ("CUDA", "CPU") and len(nodes) == 1 and name.startswith(("torch::", "at::")):  # a type of old
        device = "cuda_device()" if bare == "CUDA" else "torch.device('cpu')"
        return Value("", t.OPTIONS, options={"dtype": f.value(nodes[0]).code, "device": device})
    if bare == "TensorOptions":
        return converted(f.value(nodes[0]), t.OPTIONS) if nodes else empty
    if bare == "Slice":
        codes = ["None" if one.type.kind in ("index", "nothing") else one.code for one in map(f.value, nodes)]
        codes += ["None"] if len(codes) == 1 else []  # Slice(1) of C++ begins at 1
        return Value(f"slice({', '.join(codes or ['None'])})", t.INDEX)
    if bare in ("device_of", "typeMetaToScalarType", "scalarTypeToTypeMeta", "toScalarType"):
        value = f.value(nodes[0])
        return Value(value.code, t.ANY if bare == "device_of" else t.DTYPE)
    if bare == "scalar_type" and len(nodes) == 1 and "detail::" in name:  # of torch's old AT_DISPATCH
        value = f.value(nodes[0])
        return Value(f"{value.code}.dtype", t.DTYPE) if value.type.kind == "tensor" else value
    if bare in ("toString", "scalarTypeToString", "c10_toString"):
        return Value(f"text({f.value(nodes[0]).code})", t.STRING)
    if bare in ("elementSize",):
        return Value(f"{f.value(nodes[0]).code}.itemsize", t.SIZE, 1, 16)
    if bare in ("isFloatingType", "isIntegralType", "isComplexType", "isReducedFloatingType"):
        code = f.value(nodes[0]).code
        tests = {
            "isFloatingType": f"{code}.is_floating_point",
            "isComplexType": f"{code}.is_complex",
            "isReducedFloatingType": f"({code} in (torch.float16, torch.bfloat16))",
        }
        if bare == "isIntegralType":
            integral = f"(not {code}.is_floating_point and not {code}.is_complex and {code} != torch.bool)"
            if len(nodes) > 1 and text_of(nodes[1]) == "true":
                integral = f"(not {code}.is_floating_point and not {code}.is_complex)"
            tests[bare] = integral
        return Value(tests[bare], t.BOOL)
    if bare in ("CppTypeToScalarType",):
        raise NotTranslated(f"`{short(node)}`", node)
    if bare == "increment_version" and len(nodes) == 1:
        return Value(f"torch.autograd.graph.increment_version({f.value(nodes[0]).code})", t.VOID)
    if bare in ("globalContext",):
        return Value("torch", Type("global_context"))
    if bare in ("value_or_else", "toAccumulateType"):
        raise NotTranslated(f"`{short(node)}`", node)
    return None
