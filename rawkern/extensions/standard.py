"""Functions of C++'s library."""

from __future__ import annotations

import ast
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.extensions import types as t
from rawkern.extensions.arithmetic import arithmetic, common, fitted
from rawkern.extensions.checks import message
from rawkern.extensions.context import Context, expression, short
from rawkern.extensions.iterators import part_of
from rawkern.extensions.lambdas import call_lambda, define_lambda
from rawkern.extensions.names import name as name_value
from rawkern.extensions.names import same
from rawkern.extensions.spelling import spelled, split_name, type_of
from rawkern.extensions.syntax import lambda_of
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, converted, copy_of, integer, typed

_ONE = {
    "sqrt": "sqrt", "exp": "exp", "log": "log", "log2": "log2", "log10": "log10", "sin": "sin", "cos": "cos",
    "tan": "tan", "tanh": "tanh", "floor": "floor", "ceil": "ceil", "round": "round", "trunc": "trunc", "fabs": "fabs",
    "rsqrt": "rsqrt", "exp2": "exp2", "cbrt": "cbrt", "log1p": "log1p", "expm1": "expm1",
}  # fmt: skip


_SPACES = ("std::", "at::", "c10::", "torch::", "::", "math::", "cuda::")


def standard_function(f: Context, node: Any, name: str, of: Any, nodes: list[Any]) -> Value | None:
    """A call of C++'s library; None for another function."""
    if "::" in name and not name.startswith(_SPACES):
        return None
    bare = name.rsplit("::", 1)[-1]
    tensors = name.startswith(("at::", "torch::"))
    handler = _FUNCTIONS.get(bare)
    if handler is not None and not (tensors and bare in _OF_TENSORS):
        return handler(f, node, nodes, of)
    single = bare.removesuffix("f") if bare.removesuffix("f") in _ONE and bare not in _ONE else bare
    if single in _ONE and not tensors and nodes:
        value = f.value(nodes[0])
        if not value.type.number:
            return None
        return _of_float(single, value, bare != single)
    if bare == "value" and "is_same" in name:
        return None
    return None


def _of_float(name: str, value: Value, single: bool) -> Value:
    """A function of a floating-point number, in single precision for one of single precision."""
    narrow = single or value.type.name == "float32"
    value = converted(value, t.FLOAT if narrow else t.DOUBLE)
    code = f"math_{name}({value.code})"
    return Value(f"float32({code})" if narrow else code, t.FLOAT if narrow else t.DOUBLE)


def _extreme(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    bare = text_of(node.child_by_field_name("function")).split("<")[0].rsplit("::", 1)[-1].rstrip("f")
    bare = {"fmax": "max", "fmin": "min", "fma": "max"}.get(bare, bare)
    values = [f.value(one) for one in nodes]
    if len(values) == 1 and values[0].items is not None:
        values = list(values[0].items)
    if of:
        values = [converted(one, t.plain(type_of(f, of[0]))) for one in values]
    if not all(one.type.number for one in values) or len(values) < 2:
        raise NotTranslated(f"`{short(node)}`", node)
    type_ = values[0].type
    for one in values[1:]:
        type_ = t.plain(one.type) if one.type == type_ else common(type_, one.type)
    values = [converted(one, type_) for one in values]
    limits: dict[str, Any] = {}
    if type_.kind == "int":
        pick = max if bare == "max" else min
        limits = {"low": pick(one.limits[0] for one in values), "high": pick(one.limits[1] for one in values)}
    if type_.kind == "float":  # which of them for NaN: std::max(a, b) is `a < b ? b : a`
        word = "std_max" if bare == "max" else "std_min"
        return Value(f"{word}({', '.join(one.code for one in values)})", t.plain(type_))
    return Value(f"{bare}({', '.join(one.code for one in values)})", t.plain(type_), **limits)


def _clamp(f: Context, node: Any, nodes: list[Any], of: Any) -> Value | None:
    values = [f.value(one) for one in nodes]
    if len(values) != 3 or not all(one.type.number for one in values):
        return None
    type_ = t.plain(type_of(f, of[0])) if of else t.plain(values[0].type)
    value, low, high = (converted(one, type_) for one in values)
    return Value(f"min(max({value.code}, {low.code}), {high.code})", type_)


def _abs(f: Context, node: Any, nodes: list[Any], of: Any) -> Value | None:
    value = f.value(nodes[0])
    if not value.type.number:
        return None
    if value.type.integral:
        type_ = common(value.type, t.INT)
        low, high = converted(value, type_).limits
        return fitted(f"abs({converted(value, type_).code})", type_, 0, max(abs(low), abs(high)))
    return Value(f"abs({value.code})", value.type)


def _pow(f: Context, node: Any, nodes: list[Any], of: Any) -> Value | None:
    a, b = (f.value(one) for one in nodes)
    if not (a.type.number and b.type.number):
        return None
    narrow = a.type.name == b.type.name == "float32" or text_of(node.child_by_field_name("function")).endswith("powf")
    type_ = t.FLOAT if narrow else t.DOUBLE
    code = f"power({converted(a, type_).code}, {converted(b, type_).code})"
    return Value(f"float32({code})" if narrow else code, type_)


def _angle(f: Context, node: Any, nodes: list[Any], of: Any) -> Value | None:
    """``atan2``, ``fmod``, ``hypot``."""
    name = text_of(node.child_by_field_name("function")).rsplit("::", 1)[-1]
    a, b = (f.value(one) for one in nodes)
    if not (a.type.number and b.type.number):
        return None
    bare = name.removesuffix("f")
    narrow = a.type.name == b.type.name == "float32" or bare != name
    type_ = t.FLOAT if narrow else t.DOUBLE
    code = (
        f"{'float_rem' if bare == 'fmod' else f'math.{bare}'}({converted(a, type_).code}, {converted(b, type_).code})"
    )
    return Value(f"float32({code})" if narrow else code, type_)


def _rounded(f: Context, node: Any, nodes: list[Any], of: Any) -> Value | None:
    """``std::lround``."""
    value = f.value(nodes[0])
    return Value(f"int64(math_round({value.code}))", t.INT64) if value.type.kind in ("int", "float") else None


def _get(f: Context, node: Any, nodes: list[Any], of: Any) -> Value | None:
    if not of:
        return None
    value, index = f.value(nodes[0]), f.value(of[0]).constant
    if index is None or value.type.kind not in ("tuple", "any", "vector", "array", "param"):
        raise NotTranslated(f"`{short(node)}`", node)
    types = value.type.of
    item = types[index] if value.type.kind == "tuple" and index < len(types) else value.type.item
    return Value(f"{value.code}[{index}]", item, lvalue=value.lvalue)


def _make_tuple(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    values = [f.value(one) for one in nodes]
    codes = [copy_of(one, one) if one.options is None else "" for one in values]
    if "" in codes:
        raise NotTranslated(f"`{short(node)}`", node)
    comma = "," if len(codes) == 1 else ""
    return Value(f"({', '.join(codes)}{comma})", Type("tuple", of=tuple(t.plain(one.type) for one in values)))


def _optional(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    value = f.value(nodes[0])
    return Value(value.code, Type("optional", of=(t.plain(value.type),)))


def _move(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    value = f.value(nodes[0])
    return Value(value.code, value.type, value.low, value.high, value.options, value.items, extra=value.extra)


def _ceil_div(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    a, b = (f.value(one) for one in nodes)
    if of:
        a, b = (converted(one, t.plain(type_of(f, of[0]))) for one in (a, b))
    return arithmetic("/", arithmetic("-", arithmetic("+", a, b), integer(1)), b)


def _accumulate(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    begin, end, start = (f.value(one) for one in nodes[:3])
    product = len(nodes) > 3 and "multiplies" in text_of(nodes[3])
    if begin.type.kind != "iterator" or (len(nodes) > 3 and not product):
        raise NotTranslated(f"`{short(node)}`", node)
    part = part_of(begin, end).removesuffix("[:]")
    if start.type.kind == "float" and begin.type.item.number:  # each sum is rounded
        one = arithmetic("*" if product else "+", Value("a", start.type), Value("b", begin.type.item))
        step = converted(one, start.type).code
        return Value(f"functools.reduce(lambda a, b: {step}, {part}, {start.code})", t.plain(start.type))
    if start.type.kind != "int" or not begin.type.item.integral:
        raise NotTranslated(f"`{short(node)}`", node)
    code = f"math.prod({part}, start={start.code})" if product else f"sum({part}, {start.code})"
    return Value(f"{start.type.name}({code})", start.type)


def _range(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    """``c10::irange(n)``, ``c10::irange(begin, end)``."""
    values = [f.value(one) for one in nodes]
    if not all(one.type.kind == "int" for one in values):
        raise NotTranslated(f"`{short(node)}`", node)
    type_ = t.plain(values[-1].type)
    values = [converted(one, type_) for one in values]
    low, high = (values[0].limits[0] if len(values) > 1 else 0), values[-1].limits[1] - 1
    item = Value("", type_, low, max(low, high))
    return Value(f"range({', '.join(one.code for one in values)})", Type("list", of=(type_,)), extra=item)


def _string(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    value = f.value(nodes[0])
    if value.type.kind not in ("int", "bool", "float", "param", "any"):
        raise NotTranslated(f"`{short(node)}`", node)
    return Value(f"to_string({value.code})", t.STRING)


def _environment(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    return Value(f"getenv({f.value(nodes[0]).code})", Type("optional", of=(t.STRING,)))


def _of_text(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    """``atoi``, ``std::stoi`` and the like."""
    name = text_of(node.child_by_field_name("function")).rsplit("::", 1)[-1]
    types = {"atoi": t.INT, "stoi": t.INT, "atol": t.INT64, "stol": t.INT64, "stoll": t.INT64}
    type_ = types.get(name, t.DOUBLE)
    code = f"leading_number({f.value(nodes[0]).code}, {type_.kind}, {name.startswith('a')})"
    return Value(f"{type_.name}({code})" if type_.kind == "int" else code, type_)


def _text_compared(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    a, b = (f.value(one).code for one in nodes[:2])
    if len(nodes) != 2:
        raise NotTranslated(f"`{short(node)}`", node)
    return Value(f"(({a} > {b}) - ({a} < {b}))", t.INT, -1, 1)


def _extreme_of(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    """``std::max_element(begin, end)``, whose value is used through a star."""
    if len(nodes) != 2 or node.parent.type != "pointer_expression":
        raise NotTranslated(f"`{short(node)}`", node)
    word = text_of(node.child_by_field_name("function")).rsplit("::", 1)[-1].removesuffix("_element")
    begin, end = (f.value(one) for one in nodes)
    found = Type("found", of=(begin.type.item,))
    if begin.type.kind == "iterator":
        return Value(f"{word}({part_of(begin, end)})", found)
    (base, start), (other, stop) = _place(begin.code), _place(end.code)
    if begin.type.kind != "pointer" or base != other or not stop:
        raise NotTranslated(f"`{short(node)}`", node)
    base = typed(Value(base, begin.type))
    return Value(f"elements({base})[{start}:{stop}].{word}().item()", found)


def _place(code: str) -> tuple[str, str]:
    """What a pointer is an offset from, and by how much."""
    start = ""
    while True:
        tree = ast.parse(code, mode="eval").body
        if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "offset"):
            return code, start
        code, count = ast.unparse(tree.args[0]), ast.unparse(tree.args[1])
        start = f"{count} + {start}" if start else count


def _joined(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    return Value(message(f, nodes), t.STRING)


def _isnan(f: Context, node: Any, nodes: list[Any], of: Any) -> Value | None:
    value = f.value(nodes[0])
    if not value.type.number:
        return None
    name = text_of(node.child_by_field_name("function")).rsplit("::", 1)[-1]
    return Value(f"math.{name}({value.code})", t.BOOL)


def _print(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    values = [f.value(one) for one in nodes]
    if text_of(node.child_by_field_name("function")).endswith("fprintf"):
        if values[0].type.kind != "file":
            raise NotTranslated(f"`{short(node)}`", node)
        values = values[1:]
    codes = [one.code for one in values]
    return Value(f"printf({', '.join(codes)})", t.VOID)


def _print_to(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    """``sprintf(text, format, ...)``, ``snprintf(text, size, format, ...)``, as statements: an array becomes a text."""
    bounded = text_of(node.child_by_field_name("function")).endswith("snprintf")
    variable = f.find(text_of(nodes[0])) if nodes[0].type == "identifier" else None
    array = variable is not None and variable.type.kind == "array" and variable.type.item.name in ("int8", "uint8")
    if variable is None or not (array or variable.type.kind == "string") or node.parent.type != "expression_statement":
        raise NotTranslated(f"`{short(node)}`", node)
    format_, *values = (f.value(one).code for one in nodes[1 + bounded :])
    room = f"[: {f.value(nodes[1]).code} - 1]" if bounded and "sizeof" not in text_of(nodes[1]) else ""
    f.writes(variable)
    f.emit(f"{variable.python} = sprintf({', '.join([format_, *values])}){room}")
    variable.type = t.STRING
    return Value("None", t.VOID)


def _begin(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    value = f.value(nodes[0])
    name = text_of(node.child_by_field_name("function"))
    if value.type.kind not in ("vector", "sizes", "array"):
        raise NotTranslated(f"`{short(node)}`: an iterator of {value.type}", node)
    place = "0" if name.endswith("begin") else f"len({value.code})"
    return Value(value.code, Type("iterator", of=(value.type.item,)), extra=place)


def _swap(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    if len(nodes) == 2 and all(one.type == "subscript_expression" for one in nodes):
        a, b = (f.value(one) for one in nodes)
        if a.lvalue and b.lvalue and a.type == b.type and a.type.kind in ("tensor", "int", "float", "vector"):
            f.emit(f"{a.code}, {b.code} = {b.code}, {a.code}")
            return Value("None", t.VOID)
    names = [f.find(text_of(one)) if one.type == "identifier" else None for one in nodes]
    if len(names) != 2 or None in names or node.parent.type != "expression_statement":
        raise NotTranslated(f"`{short(node)}`", node)
    swapped = [one for one in names if one is not None]
    pair = [one.python for one in swapped]
    for one in swapped:
        f.writes(one)
    f.emit(f"{', '.join(pair)} = {', '.join(reversed(pair))}")
    return Value("None", t.VOID)


def _algorithm(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    """``std::sort(v.begin(), v.end())`` and the like, as statements."""
    name = text_of(node.child_by_field_name("function")).split("<")[0].rsplit("::", 1)[-1]
    if "sort" in name and len(nodes) == 3:
        return _sorted_by(f, node, nodes)
    values = [f.value(one) for one in nodes]
    more = {"sort": 0, "stable_sort": 0, "reverse": 0, "fill": 1, "iota": 1, "copy": 1}[name]
    if len(values) != 2 + more or node.parent.type != "expression_statement" or values[0].type.kind != "iterator":
        raise NotTranslated(f"`{short(node)}`", node)
    part, item = part_of(values[0], values[1]), values[0].type.item
    if name == "copy":
        target = values[2]
        if target.type.kind != "iterator" or target.code == values[0].code:
            raise NotTranslated(f"`{short(node)}`", node)
        f.emit(f"overwrite({target.code}, {target.extra}, {part.removesuffix('[:]')})")
    elif name in ("fill", "iota"):
        start = converted(values[2], item).code
        made = f"[{start}] * len({part})" if name == "fill" else f"range({start}, {start} + len({part}))"
        if (name == "iota" and item.kind != "int") or item.kind not in ("int", "float", "bool"):
            raise NotTranslated(f"`{short(node)}`", node)
        f.emit(f"{part} = {made}")
    else:
        pairs = item.kind == "tuple" and item.of and all(one.number for one in item.of)
        if not (item.number or (pairs and "sort" in name)):
            raise NotTranslated(f"`{short(node)}`", node)
        f.emit(f"{part} = {'sorted' if 'sort' in name else 'reversed'}({part})")
    return Value("None", t.VOID)


def _sorted_by(f: Context, node: Any, nodes: list[Any]) -> Value:
    """``std::sort(begin, end, comparison)``, whose order of what compares equal is that of a stable sort."""
    begin, end, body = f.value(nodes[0]), f.value(nodes[1]), lambda_of(nodes[2])
    if body is None or begin.type.kind != "iterator" or node.parent.type != "expression_statement":
        raise NotTranslated(f"`{short(node)}`", node)
    variable = define_lambda(f, f.temporary("before"), body)
    if len(variable.extra["parameters"]) != 2 or variable.extra["returns"].kind != "bool":
        raise NotTranslated(f"`{short(node)}`", node)
    part = part_of(begin, end)
    f.emit(f"{part} = ordered({part}, {variable.python})")
    return Value("None", t.VOID)


def _quantified(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    """``std::any_of(begin, end, condition)`` and the like."""
    name = text_of(node.child_by_field_name("function")).rsplit("::", 1)[-1]
    body = lambda_of(nodes[2]) if len(nodes) == 3 else None
    begin, end = f.value(nodes[0]), f.value(nodes[1])
    if body is None or begin.type.kind != "iterator":
        raise NotTranslated(f"`{short(node)}`", node)
    variable = define_lambda(f, f.temporary("condition"), body)
    if len(variable.extra["parameters"]) != 1 or variable.extra["returns"].kind != "bool":
        raise NotTranslated(f"`{short(node)}`", node)
    word = {"any_of": "any", "all_of": "all", "none_of": "not any"}[name]
    return Value(f"({word}(map({variable.python}, {part_of(begin, end).removesuffix('[:]')})))", t.BOOL)


def _flushed(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    """``fflush``: Python's own streams are flushed by themselves."""
    return Value("0", t.INT, 0, 0)


def _ended(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    f.emit(f"raise SystemExit({f.value(nodes[0]).code if nodes else '1'})")
    return Value("None", t.VOID)


def _discarded(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    """An error that is made and not thrown."""
    return Value("None", t.VOID)


def _parallel(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    """``at::parallel_for(begin, end, grain, body)``: in one piece."""
    body = lambda_of(nodes[3]) if len(nodes) == 4 else None
    if body is None:
        raise NotTranslated(f"`{short(node)}`", node)
    variable = define_lambda(f, f.temporary("loop"), body)
    return call_lambda(f, node, variable, nodes[:2])


def _time(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    return Value("unix_time()", t.INT64, 0, 2**40)


_FUNCTIONS = {
    "min": _extreme, "max": _extreme, "fmax": _extreme, "fmin": _extreme, "fmaxf": _extreme, "fminf": _extreme,
    "abs": _abs, "clamp": _clamp, "pow": _pow, "powf": _pow, "get": _get, "make_tuple": _make_tuple,
    "make_pair": _make_tuple,
    "make_optional": _optional, "move": _move, "forward": _move, "ceil_div": _ceil_div,
    "CeilDiv": _ceil_div, "ATenCeilDiv": _ceil_div, "THCCeilDiv": _ceil_div, "divup": _ceil_div,
    "parallel_for": _parallel, "time": _time,
    "irange": _range,
    "accumulate": _accumulate, "to_string": _string, "getenv": _environment, "atoi": _of_text, "atol": _of_text,
    "stoi": _of_text, "stol": _of_text, "stoll": _of_text, "atof": _of_text, "stof": _of_text, "stod": _of_text,
    "strcmp": _text_compared, "max_element": _extreme_of, "min_element": _extreme_of, "str": _joined, "isnan": _isnan,
    "isinf": _isnan, "isfinite": _isnan, "printf": _print, "fprintf": _print, "sprintf": _print_to,
    "snprintf": _print_to, "begin": _begin, "end": _begin,
    "swap": _swap, "runtime_error": _discarded, "fflush": _flushed, "exit": _ended, "abort": _ended,
    "any_of": _quantified, "all_of": _quantified, "none_of": _quantified, "sort": _algorithm,
    "stable_sort": _algorithm, "reverse": _algorithm, "fill": _algorithm, "iota": _algorithm, "copy": _algorithm,
    "atan2": _angle, "atan2f": _angle, "hypot": _angle, "hypotf": _angle, "fmod": _angle, "fmodf": _angle,
    "lround": _rounded, "llround": _rounded, "lroundf": _rounded,
}  # fmt: skip


#: Functions that torch has as well.
_OF_TENSORS = {
    "max", "min", "abs", "get", "pow", "sort", "stable_sort", "reverse", "fill", "copy", "swap", "clamp", "isnan",
    "isinf", "isfinite", "atan2", "fmod", "hypot",
}  # fmt: skip


def limits_value(f: Context, node: Any, called: Any) -> Value | None:
    """``std::numeric_limits<T>::max()`` and the like."""
    full = text_of(called)
    if "numeric_limits" not in full:
        return None
    inner = called
    while inner.type == "qualified_identifier" and inner.child_by_field_name("name").type in ("qualified_identifier",):
        inner = inner.child_by_field_name("name")
    scope = inner.child_by_field_name("scope")
    which = text_of(inner.child_by_field_name("name"))
    type_ = type_of(f, named(scope.child_by_field_name("arguments"))[0])
    if type_.kind == "int":
        least, most = t.LIMITS[type_.name]
        return integer(most if which == "max" else least, t.plain(type_))
    if type_.kind in ("float", "param"):
        return Value(f"limit({spelled(f, type_)}, {which!r})", t.plain(type_))
    raise NotTranslated(f"`{short(node)}`", node)


@expression("template_type")
def template_value(f: Context, node: Any) -> Value:
    """``std::is_same<A, B>::value`` reaches its parts as types."""
    name, arguments = split_name(node)
    if name.endswith("is_same") and arguments is not None:
        return same(f, arguments)
    return name_value(f, node)
