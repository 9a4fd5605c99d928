"""Methods of what is not a tensor: optionals, vectors, sizes, dtypes, devices, streams."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import text_of
from rawkern.extensions import types as t
from rawkern.extensions.autograd import context_method, saved_method
from rawkern.extensions.construction import construct, default_of
from rawkern.extensions.context import Context, short
from rawkern.extensions.iterators import inserted, part_of
from rawkern.extensions.objects import call_method
from rawkern.extensions.options import options_method
from rawkern.extensions.spelling import split_name, type_of
from rawkern.extensions.tensors import count, method
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, converted, copy_of


def method_of(f: Context, node: Any, called: Any, nodes: list[Any]) -> Value:
    """``value.name<of>(...)`` or ``value->name(...)``."""
    inside, field = called.child_by_field_name("argument"), called.child_by_field_name("field")
    if field.type == "template_method" or field.type in ("dependent_name",):
        name, of = split_name(field)
    else:
        name, of = text_of(field), None
    arrow = text_of(called.children[1]) == "->"
    value = f.value(inside)
    type_ = value.type
    if arrow and type_.kind == "optional":
        value = Value(f"value({value.code})", type_.item)
    if arrow and type_.kind == "pointer" and type_.item.kind == "tensor":
        value = Value(value.code, t.TENSOR)
    if arrow and type_.kind == "tensor_arg":
        value = Value(f"{value.code}[0]", t.TENSOR)
    if arrow and type_.kind == "iterator":
        value = Value(f"{value.code}[{value.extra}]", type_.item)
    if type_.kind == "pointer" and type_.item.kind == "struct" and type_.name not in ("vector", "memory"):
        if arrow:
            value = Value(value.code, type_.item, lvalue=True)
        elif name == "get":
            return value
    if type_.kind == "pointer" and type_.item.kind == "autograd":
        value = Value(value.code, type_.item)
    if value.type.kind == "struct":
        return call_method(f, node, value, name, of, nodes)
    if type_.kind == "options":
        return options_method(f, node, value, name, nodes)
    kind = value.type.kind
    if kind == "tensor" or (kind == "accessor" and name in ("size", "stride", "sizes", "strides")):
        return method(f, node, value, name, of, nodes)
    handler = _METHODS.get(kind)
    if handler is None:
        raise NotTranslated(f"`{short(node)}`: a method of {value.type}", node)
    found = handler(f, node, value, name, of, nodes)
    if found is None:
        raise NotTranslated(f"`{short(node)}`: the method {name} of {value.type}", node)
    return found


def _optional(f: Context, node: Any, value: Value, name: str, of: Any, nodes: list[Any]) -> Value | None:
    item, code = value.type.item, value.code
    if name == "has_value":
        return Value(f"({code} is not None)", t.BOOL)
    if name == "value":
        return Value(f"value({code})", item)
    if name == "value_or":
        other = converted(f.value(nodes[0]), item)
        return Value(f"({code} if {code} is not None else {other.code})", item)
    if name == "defined":
        return Value(f"({code} is not None)", t.BOOL)
    return None


def _sequence(f: Context, node: Any, value: Value, name: str, of: Any, nodes: list[Any]) -> Value | None:
    code, item = value.code, value.type.item if value.type.kind != "sizes" else t.INT64
    given = [f.value(one) for one in nodes]
    most: dict[str, Any] = {"low": 0, "high": 2**40} if value.type.kind == "sizes" else {}
    if name in ("size", "length"):
        return count(value)
    if name == "vec":
        return Value(f"list({code})", Type("vector", of=(item,)))
    if name == "empty":
        return Value(f"(len({code}) == 0)", t.BOOL)
    if name == "front":
        return Value(f"{code}[0]", item, lvalue=True, **most)
    if name == "back":
        return Value(f"{code}[-1]", item, lvalue=True, **most)
    if name in ("begin", "cbegin", "end", "cend"):
        return Value(code, Type("iterator", of=(item,)), extra="0" if name.endswith("begin") else f"len({code})")
    if name == "at":
        return Value(f"{code}[at({given[0].code})]", item, lvalue=True, **most)
    if name == "data":
        return Value(code, Type("pointer", "vector", (item,)), extra="vector")
    if name == "equals":
        return Value(f"(tuple({code}) == tuple({given[0].code}))", t.BOOL)
    if name == "slice" and len(given) == 2:
        return Value(f"{code}[{given[0].code}:{given[0].code} + {given[1].code}]", value.type)
    if name == "slice" and len(given) == 1:
        return Value(f"{code}[{given[0].code}:]", value.type)
    if name == "resize" and value.type.kind == "vector" and len(given) in (1, 2):
        fill = given[1].code if len(given) == 2 else default_of(f, node, item).code
        return Value(f"resize({code}, {given[0].code}, {fill})", t.VOID)
    if name == "reserve":
        return Value("None", t.VOID)
    if value.type.kind == "sizes":
        return None
    if name == "emplace_back" and len(given) != 1:
        return Value(f"{code}.append({construct(f, node, item, given).code})", t.VOID)
    if name in ("push_back", "emplace_back"):
        new = converted(given[0], item)
        return Value(f"{code}.append({copy_of(given[0], new)})", t.VOID)
    if name == "pop_back":
        return Value(f"{code}.pop()", t.VOID)
    if name == "clear":
        return Value(f"{code}.clear()", t.VOID)
    if name == "insert" and len(given) == 3 and given[0].code == code and given[1].type.kind == "iterator":
        return Value(f"{code}.{inserted(given[0], part_of(given[1], given[2]))}", t.VOID)
    if name == "insert" and len(given) == 2 and given[0].code == code:
        return Value(f"{code}.insert({given[0].extra}, {converted(given[1], item).code})", t.VOID)
    if name == "erase" and len(given) == 1 and given[0].code == code and _alone(node):
        return Value(f"{code}.pop({given[0].extra})", t.VOID)
    if name == "assign" and len(given) == 2 and given[0].type.integral:
        return Value(f"{code}.__setitem__(slice(None), [{converted(given[1], item).code}] * {given[0].code})", t.VOID)
    return None


def _alone(node: Any) -> bool:
    return node.parent is not None and node.parent.type == "expression_statement"


def _tuple(f: Context, node: Any, value: Value, name: str, of: Any, nodes: list[Any]) -> Value | None:
    return count(value) if name == "size" else None


def _list(f: Context, node: Any, value: Value, name: str, of: Any, nodes: list[Any]) -> Value | None:
    return _sequence(f, node, value, name, of, nodes)


def _map(f: Context, node: Any, value: Value, name: str, of: Any, nodes: list[Any]) -> Value | None:
    given = [f.value(one) for one in nodes]
    if name == "at":
        return Value(f"{value.code}[{converted(given[0], value.type.of[0]).code}]", value.type.of[-1], lvalue=True)
    if name in ("count", "contains") and len(given) == 1:
        found = f"{converted(given[0], value.type.of[0]).code} in {value.code}"
        return Value(f"int({found})", t.SIZE, 0, 1) if name == "count" else Value(f"({found})", t.BOOL)
    if name == "empty":
        return Value(f"(len({value.code}) == 0)", t.BOOL)
    if name == "size":
        return count(value)
    if name == "erase" and len(given) == 1 and given[0].type.kind != "iterator" and _alone(node):
        return Value(f"{value.code}.pop({converted(given[0], value.type.of[0]).code}, None)", t.VOID)
    return None


def _dtype(f: Context, node: Any, value: Value, name: str, of: Any, nodes: list[Any]) -> Value | None:
    if name in ("toScalarType", "scalarType"):
        return value
    if name == "name":
        return Value(f"text({value.code})", t.STRING)
    if name == "itemsize":
        return Value(f"{value.code}.itemsize", t.SIZE, 1, 16)
    if name == "is_cuda":  # x.type().is_cuda()
        return Value(f"is_cuda({value.code.removesuffix('.dtype')})", t.BOOL)
    if name == "toString":
        return Value(f"text({value.code})", t.STRING)
    return None


def _device(f: Context, node: Any, value: Value, name: str, of: Any, nodes: list[Any]) -> Value | None:
    if name == "is_cuda":
        return Value(f"is_cuda({value.code})", t.BOOL)
    if name == "is_cpu":
        return Value(f"({value.code}.type == 'cpu')", t.BOOL)
    if name in ("is_meta", "is_xpu", "is_mps", "is_hip", "is_privateuseone", "is_ipu", "is_xla", "is_hpu"):
        return Value(f"({value.code}.type == {name.removeprefix('is_')!r})", t.BOOL)
    if name == "type":
        return Value(value.code, t.DEVICE_TYPE)
    if name == "index":
        return Value(f"device_index({value.code})", t.INT, -1, 1024)
    if name == "has_index":
        return Value(f"({value.code}.index is not None)", t.BOOL)
    if name == "str":
        return Value(f"str({value.code})", t.STRING)
    return None


def _stream(f: Context, node: Any, value: Value, name: str, of: Any, nodes: list[Any]) -> Value | None:
    if name in ("stream", "unwrap"):
        return value
    if name == "synchronize":
        return Value("synchronize()", t.VOID)
    if name == "device_index":
        return Value("device_index(cuda_device())", t.INT)
    if name == "device":
        return Value("cuda_device()", t.DEVICE)
    return None


def _scalar(f: Context, node: Any, value: Value, name: str, of: Any, nodes: list[Any]) -> Value | None:
    types = {"toFloat": t.FLOAT, "toDouble": t.DOUBLE, "toInt": t.INT, "toLong": t.INT64, "toBool": t.BOOL}
    if name in types or (name == "to" and of):
        type_ = types[name] if name in types else type_of(f, of[0])
        if type_.kind == "bool":
            return Value(f"bool({value.code})", t.BOOL)
        if type_.kind == "int" and value.code.endswith(".item()"):
            return Value(f"int({value.code})" if type_.name == "int64" else f"{type_.name}({value.code})", type_)
        return converted(value, t.plain(type_))
    if name == "isFloatingPoint":
        return Value(f"isinstance({value.code}, float)", t.BOOL)
    return None


def _text(f: Context, node: Any, value: Value, name: str, of: Any, nodes: list[Any]) -> Value | None:
    return Value(value.code, t.STRING) if name == "str" and not nodes else None


def _string(f: Context, node: Any, value: Value, name: str, of: Any, nodes: list[Any]) -> Value | None:
    if name in ("c_str", "str", "data"):
        return value
    if name in ("size", "length"):
        return count(value)
    if name == "empty":
        return Value(f"(len({value.code}) == 0)", t.BOOL)
    if name == "compare" and len(nodes) == 1:
        other = f.value(nodes[0]).code
        return Value(f"(({value.code} > {other}) - ({value.code} < {other}))", t.INT, -1, 1)
    return None


def _number(f: Context, node: Any, value: Value, name: str, of: Any, nodes: list[Any]) -> Value | None:
    """Methods of numbers: those of SymInt, which are numbers here."""
    if name in ("guard_int", "expect_int", "as_int_unchecked"):
        return value
    return None


def _context(f: Context, node: Any, value: Value, name: str, of: Any, nodes: list[Any]) -> Value | None:
    if name == "deterministicAlgorithms":
        return Value("torch.are_deterministic_algorithms_enabled()", t.BOOL)
    if name == "allowTF32CuBLAS":
        return Value("torch.backends.cuda.matmul.allow_tf32", t.BOOL)
    if name == "alertNotDeterministic" and len(nodes) == 1:
        return Value(f"alert_not_deterministic({f.value(nodes[0]).code})", t.VOID)
    if name in ("lazyInitCUDA", "getTHCState"):
        return Value("None", t.NULL)
    return None


def _guard(f: Context, node: Any, value: Value, name: str, of: Any, nodes: list[Any]) -> Value | None:
    if name in ("set_device", "set_index", "reset_device", "unlock", "lock"):
        return Value("None", t.VOID)
    return None


def _any(f: Context, node: Any, value: Value, name: str, of: Any, nodes: list[Any]) -> Value | None:
    if name in ("has_value", "defined"):
        return Value(f"({value.code} is not None)", t.BOOL)
    if name == "value":
        return Value(f"value({value.code})", t.ANY)
    return None


def _device_type(f: Context, node: Any, value: Value, name: str, of: Any, nodes: list[Any]) -> Value | None:
    return None


_METHODS = {
    "optional": _optional, "vector": _sequence, "sizes": _sequence, "list": _list, "array": _sequence, "map": _map,
    "dtype": _dtype, "device": _device, "stream": _stream, "scalar": _scalar, "string": _string, "text": _text,
    "autograd": context_method, "ivalue": saved_method,
    "int": _number, "global_context": _context, "guard": _guard, "any": _any, "tuple": _tuple,
}  # fmt: skip
