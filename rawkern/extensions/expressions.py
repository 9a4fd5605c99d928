"""Expressions: literals, names, operators, casts, indices, lists in braces."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.extensions import types as t
from rawkern.extensions.constants import NAMES
from rawkern.extensions.context import Context, expression, short
from rawkern.extensions.program import RESERVED
from rawkern.extensions.refusal import Refused
from rawkern.extensions.spelling import instance, spelled, split_name, type_of
from rawkern.extensions.types import LIMITS, Type
from rawkern.extensions.values import Value, arithmetic, common, compared, converted, integer, negative

_NUMBER = re.compile(r"(0[xX][\da-fA-F]+|0[bB][01]+|\d+)([uUlLzZ]*)\Z")


@expression("number_literal")
def number(f: Context, node: Any) -> Value:
    text = text_of(node).replace("'", "")
    if text[0] in "+-":  # the tree takes a sign for a part of the number
        found = _number(text[1:].lstrip())
        return negative(found) if text[0] == "-" else found
    return _number(text)


def _number(text: str) -> Value:
    match = _NUMBER.match(text)
    if match is None:
        single = text.lower().endswith("f") and not text.lower().startswith("0x")
        digits = text.rstrip("fFlL")
        number_ = float.fromhex(digits) if digits.lower().startswith("0x") else float(digits)
        code = digits if not digits.lower().startswith("0x") else repr(number_)
        code = "0" + code if code.startswith(".") else code + "0" if code.endswith(".") else code
        code = repr(number_) if "e" not in code.lower() else code
        return converted(Value(code, t.DOUBLE), t.FLOAT) if single else Value(code, t.DOUBLE)
    digits, suffix = match[1], match[2].lower()
    octal = len(digits) > 1 and digits[0] == "0" and digits.isdigit()
    value = int(digits, 8) if octal else int(digits, 0)
    decimal = digits.isdigit() and not octal
    names = ["uint64", "uint64"] if "u" in suffix and "l" in suffix else None
    names = names or (["uint32", "uint64"] if "u" in suffix else None)
    names = names or (["int64", "uint64"] if "l" in suffix else None)
    names = names or (["int32", "int64"] if decimal else ["int32", "uint32", "int64", "uint64"])
    name = next((one for one in names if value <= LIMITS[one][1]), names[-1])
    return Value(digits if decimal else hex(value), Type("int", name), value, value)


@expression("true", "false")
def boolean(f: Context, node: Any) -> Value:
    return Value(text_of(node).capitalize(), t.BOOL)


@expression("null", "nullptr")
def null(f: Context, node: Any) -> Value:
    return Value("None", t.NULL)


@expression("string_literal", "concatenated_string", "raw_string_literal")
def string(f: Context, node: Any) -> Value:
    if node.type == "concatenated_string":
        return Value(repr("".join(ast.literal_eval(f.value(one).code) for one in named(node))), t.STRING)
    text = text_of(node)
    if node.type == "raw_string_literal":
        inside = re.match(r'\w*R"([^()\\ ]*)\((.*)\)\1"\Z', text, re.S)
        return Value(repr(inside[2] if inside else ""), t.STRING)
    try:
        return Value(repr(ast.literal_eval(text.lstrip("LuU8"))), t.STRING)
    except (SyntaxError, ValueError):
        raise Refused(f"the literal {short(node)}", node) from None


@expression("char_literal")
def character(f: Context, node: Any) -> Value:
    code = ord(ast.literal_eval(text_of(node)))
    return Value(str(code), Type("int", "int8"), code, code)


@expression("identifier", "qualified_identifier", "type_identifier", "template_function", "dependent_name")
def name(f: Context, node: Any) -> Value:
    full, arguments = split_name(node)
    if arguments is not None:
        return _template_name(f, node, full, arguments)
    if "<" in full:
        return _of_template(f, node, full)
    variable = f.find(full)
    if variable is not None:
        if variable.kind == "type":
            raise Refused(f"the type {full} as a value", node)
        if variable.kind == "function":
            return Value(variable.python, Type("lambda"), extra=variable.extra)
        low, high = (0, 0) if variable.type.spelled == "cudaError_t" else (variable.low, variable.high)
        return Value(variable.python, variable.type, low, high, lvalue=True, extra=variable.extra)
    if "::" in full:
        scope = full.split("::")[0]
        if (of := f.find(scope)) is not None and of.kind == "type":
            return _member_constant(f, node, full)
    return global_name(f, node, full)


def _of_template(f: Context, node: Any, full: str) -> Value:
    """``Traits<T>::kValue``."""
    inner = node
    while inner.type == "qualified_identifier" and inner.child_by_field_name("name").type == "qualified_identifier":
        inner = inner.child_by_field_name("name")
    scope = inner.child_by_field_name("scope")
    if scope is not None and scope.type == "template_type":
        bare, arguments = split_name(scope)
        if bare == "is_same" and arguments is not None:
            return same(f, arguments)
    return _member_constant(f, node, full)


def global_name(f: Context, node: Any, full: str) -> Value:
    """A name that is no local one: a constant, a kernel, a function, or one of torch's."""
    bare = full.rsplit("::", 1)[-1]
    if "::" not in full or full.split("::")[0] not in ("at", "torch", "c10", "std"):
        if bare in f.unit.lazy:
            f.unit.constants[bare] = lazy_constant(f, bare)
        for key in (full, "::".join(full.split("::")[-2:]), bare):
            if key in f.unit.constants:
                return f.unit.constants[key]
        if bare in f.unit.kernels:
            return Value(f"{f.unit.variable}[{bare!r}]", t.KERNEL, extra=repr(full))
        if bare in f.unit.functions:
            return Value(f.unit.functions[bare][0].python, Type("lambda"), extra=f.unit.functions[bare])
    if bare in _HERE:
        return Value(repr(f.function.name), t.STRING)
    if bare == "__LINE__":
        return integer(f.line(node.start_point[0]))
    known = NAMES.get(full) or (NAMES.get(bare) if full.startswith(t.NAMESPACES) or "::" not in full else None)
    if known is not None:
        return known
    if bare.startswith("cuda") and "::" not in full:
        return Value(repr(bare), Type("enum"))
    if "::" in full:
        return _member_constant(f, node, full)
    raise Refused(f"the name {full}", node)


_HERE = ("__func__", "__FUNCTION__", "__PRETTY_FUNCTION__", "__FILE__")


def lazy_constant(f: Context, bare: str) -> Value:
    """A constant of the source, whose value is translated at its first use."""
    type_node, value_node, around = f.unit.lazy.pop(bare)[0]
    inner = Context(f.unit, f.function)
    type_ = type_of(inner, type_node)
    value = inner.value(value_node)
    value = value if type_.kind == "auto" else converted(value, type_)
    if around == "array" or type_.kind in ("map", "vector"):
        python = inner.python_name(bare)
        items = value.items or ()
        shown = f"({', '.join(one.code for one in items)},)" if around == "array" else value.code
        f.unit.definitions[python] = shown
        of = Type("array", of=(type_,)) if around == "array" else type_
        return Value(python, of, extra=items if around == "array" else None)
    return replace(value, type=t.plain(value.type), lvalue=False)


def _member_constant(f: Context, node: Any, full: str) -> Value:
    """A static constant of a struct, which the compiler knows."""
    bare = full.rsplit("::", 1)[-1]
    text = f.unit.members.get(bare, "int")
    found = t.named_type(text.replace("const ", "").strip()) or t.INT
    found = found if found.kind in ("int", "bool", "float") else t.INT
    return Value(f"{f.unit.variable}.constant({instance(f, node)})", t.plain(found))


def _template_name(f: Context, node: Any, full: str, arguments: list[Any]) -> Value:
    """A kernel's or a function's instance as a value."""
    bare = full.rsplit("::", 1)[-1]
    if bare in f.unit.kernels:
        text = instance(f, node)
        return Value(f"{f.unit.variable}[{text}]", t.KERNEL, extra=text)
    if bare == "numeric_limits":
        raise Refused(f"`{short(node)}`", node)
    if bare in ("is_same_v",):
        return same(f, arguments)
    if bare in f.unit.functions:
        return Value(f.unit.functions[bare][0].python, Type("lambda"), extra=(f.unit.functions[bare], arguments))
    if "::" in full or bare in f.unit.structs:
        return Value(f"{f.unit.variable}.constant({instance(f, node)})", t.INT)
    raise Refused(f"`{short(node)}`", node)


def same(f: Context, arguments: list[Any]) -> Value:
    """``std::is_same<A, B>``."""
    a, b = (spelled(f, type_of(f, one)) for one in arguments)
    return Value(f"same_type({a}, {b})", t.BOOL)


@expression("parenthesized_expression", "condition_clause")
def parenthesized(f: Context, node: Any) -> Value:
    inside = [one for one in named(node)]
    if len(inside) != 1:
        raise Refused(f"`{short(node)}`", node)
    if inside[0].type == "comma_expression":
        raise Refused("a comma between expressions", node)
    found = f.value(inside[0])
    return found


# Operators ---------------------------------------------------------------------------------------------------------


@expression("binary_expression")
def binary(f: Context, node: Any) -> Value:
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    operator = text_of(node.child_by_field_name("operator"))
    if operator in ("&&", "||", "and", "or"):
        word = "and" if operator in ("&&", "and") else "or"
        return Value(f"({f.condition(left)} {word} {f.condition(right)})", t.BOOL)
    if operator == "<<" and _is_stream(left):
        raise Refused(f"`{short(node)}`: a stream of text", node)
    a, b = f.value(left), f.value(right)
    return combined(f, node, operator, a, b)


def _is_stream(node: Any) -> bool:
    while node.type == "binary_expression":
        node = node.child_by_field_name("left")
    return text_of(node) in ("std::cout", "std::cerr", "cout", "cerr")


_COMPARISONS = ("==", "!=", "<", ">", "<=", ">=")
_COMPARED = {
    "dtype", "string", "sizes", "vector", "device", "layout", "memory_format", "any", "tuple", "device_type", "enum",
    "scalar", "opaque", "stream",
}  # fmt: skip


def combined(f: Context, node: Any, operator: str, a: Value, b: Value) -> Value:
    """``a + b`` of any types."""
    kinds = {a.type.kind, b.type.kind}
    if a.type.number and b.type.number:
        return compared(operator, a, b) if operator in _COMPARISONS else arithmetic(operator, a, b)
    if "tensor" in kinds and operator not in ("&&", "||"):
        if kinds & {"null", "nothing"}:
            raise Refused(f"`{short(node)}`", node)
        if kinds <= {"tensor", "int", "float", "bool", "scalar", "param"} and operator not in ("<<", ">>"):
            return Value(f"({a.code} {operator} {b.code})", t.TENSOR)
        raise Refused(f"`{short(node)}`: {a.type} {operator} {b.type}", node)
    if operator in ("==", "!=") and kinds & {"null", "nothing"}:
        other = b if a.type.kind in ("null", "nothing") else a
        if other.type.kind in ("optional", "nothing"):
            return Value(f"({other.code} is{'' if operator == '==' else ' not'} None)", t.BOOL)
        return Value(f"({'' if operator == '==' else 'not '}is_null({other.code}))", t.BOOL)
    if "pointer" in kinds:
        return _pointers(f, node, operator, a, b)
    if "device_type" in kinds and operator in ("==", "!="):
        return _devices(operator, a, b)
    if kinds & {"sizes", "vector"} and operator in ("==", "!="):
        a, b = (converted(one, t.SIZES) if one.items is not None else one for one in (a, b))
        codes = [
            f"tuple({one.code})" if "sizes" not in kinds or one.type.kind != "sizes" else one.code for one in (a, b)
        ]
        return Value(f"({codes[0]} {operator} {codes[1]})", t.BOOL)
    if "string" in kinds and operator == "+":
        codes = [one.code if one.type.kind == "string" else f"text({one.code})" for one in (a, b)]
        return Value(f"({codes[0]} + {codes[1]})", t.STRING)
    if operator in ("==", "!=") and kinds <= _COMPARED | {"int"}:
        return Value(f"({a.code} {operator} {b.code})", t.BOOL)
    if kinds <= {"struct", "int", "float"} or "cuda_vector" in kinds:
        raise Refused(f"`{short(node)}`: an operator of a struct", node)
    if "optional" in kinds and operator in ("==", "!="):
        return Value(f"({a.code} {operator} {b.code})", t.BOOL)
    if "scalar" in kinds and kinds <= {"scalar", "int", "float", "bool"} and operator in "+-*":
        return Value(f"({a.code} {operator} {b.code})", t.SCALAR)
    raise Refused(f"`{short(node)}`: {a.type} {operator} {b.type}", node)


def _devices(operator: str, a: Value, b: Value) -> Value:
    """A comparison with a type of device: a CPU's tensor is taken for a CUDA device's."""
    literal, other = (a, b) if a.code in ("'cuda'", "'cpu'") else (b, a)
    if literal.code == "'cuda'":
        code = f"is_cuda({other.code})"
    else:
        code = f"(device_type({other.code}) == {literal.code})"
    return Value(code if operator == "==" else f"(not {code})", t.BOOL)


def _pointers(f: Context, node: Any, operator: str, a: Value, b: Value) -> Value:
    if operator in "+-" and b.type.integral and a.type.kind == "pointer":
        count = b.code if operator == "+" else negative(b).code
        return Value(f"offset({a.code}, {count}{_item(f, a.type)})", a.type)
    if operator == "+" and a.type.integral:
        return Value(f"offset({b.code}, {a.code}{_item(f, b.type)})", b.type)
    if operator in ("==", "!=") and {a.type.kind, b.type.kind} == {"pointer"}:
        return Value(f"({'' if operator == '==' else 'not '}same_pointer({a.code}, {b.code}))", t.BOOL)
    raise Refused(f"`{short(node)}` of pointers", node)


def _item(f: Context, pointer: Type) -> str:
    """The type of a pointer's elements, as the argument of `offset` behind the count."""
    item = pointer.item
    return "" if item.kind in ("void", "any") else f", {spelled(f, item)}"


@expression("unary_expression", "pointer_expression")
def unary(f: Context, node: Any) -> Value:
    operator, inside = text_of(node.children[0]), node.child_by_field_name("argument")
    if operator in ("!", "not"):
        code = f.condition(inside)
        return Value(f"(not {code})", t.BOOL)
    if operator == "&":
        return _address(f, node, inside)
    value = f.value(inside)
    if operator == "-":
        return negative(value)
    if operator == "+" and value.type.number:
        return value
    if operator == "~" and value.type.integral:
        code = value.code
        type_ = arithmetic("|", value, integer(0)).type
        low, high = value.limits
        if type_.name.startswith("u"):
            return Value(f"{type_.name}(~{code})", type_)
        return Value(f"(~{code})", type_, ~high, ~low)
    if operator == "~" and value.type.kind == "tensor":
        return Value(f"(~{value.code})", t.TENSOR)
    if operator == "*":
        if value.type.kind == "optional":
            return Value(f"value({value.code})", value.type.item)
        if value.type.kind == "pointer":
            return element(f, node, value, integer(0))
    raise Refused(f"`{short(node)}`", node)


def _address(f: Context, node: Any, inside: Any) -> Value:
    if inside.type in ("subscript_expression",):
        base = f.value(inside.child_by_field_name("argument"))
        if base.type.kind == "pointer":
            index = f.value(named(inside.child_by_field_name("indices"))[0])
            return Value(f"offset({base.code}, {index.code}{_item(f, base.type)})", base.type)
    value = f.value(inside)
    if value.type.kind in ("kernel", "lambda"):
        return value
    if value.type.kind == "struct":
        return Value(value.code, Type("pointer", of=(value.type,)), lvalue=True)
    return Value(f"address({value.code})", Type("address", of=(value.type,)), extra=inside)


@expression("conditional_expression")
def conditional(f: Context, node: Any) -> Value:
    condition = f.condition(node.child_by_field_name("condition"))
    a = f.value(node.child_by_field_name("consequence"))
    b = f.value(node.child_by_field_name("alternative"))
    type_ = _chosen(node, a, b)
    a, b = converted(a, type_), converted(b, type_)
    code = f"({a.code} if {condition} else {b.code})"
    if type_.kind == "options" and (a.options is not None or b.options is not None):
        raise Refused("a choice between tensor options", node)
    if type_.kind == "int":
        (la, ha), (lb, hb) = a.limits, b.limits
        return Value(code, type_, min(la, lb), max(ha, hb))
    extra = None
    if type_.kind == "kernel":
        extra = f"({a.extra} if {condition} else {b.extra})"
    return Value(code, type_, extra=extra)


def _chosen(node: Any, a: Value, b: Value) -> Type:
    """The type of ``c ? a : b``."""
    kinds = (a.type.kind, b.type.kind)
    if kinds[0] == kinds[1] and not (a.type.number):
        return t.plain(a.type)
    if a.type.number and b.type.number:
        if kinds == ("bool", "bool"):
            return t.BOOL
        if a.type == b.type:
            return t.plain(a.type)
        return common(a.type, b.type)
    for one, other in ((a, b), (b, a)):
        if one.type.kind in ("null", "nothing") or (one.constant == 0 and other.type.kind == "pointer"):
            return t.plain(other.type)
    if a.items is not None:
        return t.plain(b.type)
    if b.items is not None:
        return t.plain(a.type)
    raise Refused(f"`{short(node)}`: {a.type} or {b.type}", node)


# Assignments in expressions ------------------------------------------------------------------------------------------


@expression("update_expression")
def update(f: Context, node: Any) -> Value:
    inside = node.child_by_field_name("argument")
    prefix = text_of(node.children[0]) in ("++", "--")
    step = text_of(node.child_by_field_name("operator"))[0]
    value = f.value(inside)
    if inside.type != "identifier" or not value.type.integral or value.type.kind != "int":
        raise Refused(f"`{short(node)}` inside of an expression", node)
    variable = f.find(text_of(inside))
    assert variable is not None
    f.writes(variable)
    new = converted(arithmetic(step, Value(value.code, value.type), integer(1)), value.type)
    code = f"({variable.python} := {new.code})"
    if prefix:
        return Value(code, value.type)
    return Value(f"({code} {'-' if step == '+' else '+'} 1)", value.type)


@expression("assignment_expression")
def assignment(f: Context, node: Any) -> Value:
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    if left.type != "identifier" or text_of(node.child_by_field_name("operator")) != "=":
        raise Refused(f"`{short(node)}` inside of an expression", node)
    variable = f.find(text_of(left))
    if variable is None or variable.kind != "value" or variable.type.reference:
        raise Refused(f"`{short(node)}` inside of an expression", node)
    f.writes(variable)
    return Value(f"({variable.python} := {f.of_type(right, variable.type).code})", variable.type)


# Casts -------------------------------------------------------------------------------------------------------------


@expression("cast_expression")
def cast(f: Context, node: Any) -> Value:
    to = type_of(f, node.child_by_field_name("type"))
    inside = node.child_by_field_name("value")
    return cast_to(f, node, f.value(inside), to)


def cast_to(f: Context, node: Any, value: Value, to: Type) -> Value:
    """A value cast to a type, as ``(T)x``, ``T(x)`` or ``static_cast<T>(x)``."""
    if to.kind == "void":
        return value
    if to.kind == "pointer":
        if value.type.kind in ("kernel", "null", "any") or value.constant == 0:
            return converted(value, to)
        if value.type.kind == "pointer":
            return reinterpreted(f, value, to)
        if value.type.kind == "array":
            return Value(value.code, to)
        raise Refused(f"`{short(node)}`", node)
    if to.kind == "int" and value.type.kind == "float" and value.type.name in ("float32", "float64"):
        return Value(f"{to.name}({value.code})", t.plain(to))
    if to.kind == "int" and value.type.kind == "int" and value.type.spelled in f.unit.enums:
        return converted(value, t.plain(to))
    if to.kind == "float" and to.name == "float64" and value.constant is not None:
        return Value(repr(float(value.constant)), to)
    if to.kind in ("int", "float", "bool", "param") and not (
        value.type.number or value.type.kind in ("scalar", "enum")
    ):
        if value.type.kind in ("any", "opaque", "pointer", "optional", "dtype", "device_type"):
            return converted(value, t.plain(to))
        raise Refused(f"`{short(node)}`: {value.type} as a number", node)
    found = converted(value, t.plain(to))
    return replace(found, type=t.plain(to)) if to.kind == "int" else found


def reinterpreted(f: Context, value: Value, to: Type) -> Value:
    """A pointer as one to another type."""
    a, b = value.type.item, to.item
    same_ = (a.kind, a.name) == (b.kind, b.name) and a.kind in ("int", "float", "bool", "param", "struct", "void")
    if same_ or b.kind in ("void", "any"):
        return Value(value.code, to, extra=value.extra, lvalue=value.lvalue)
    if b.kind == "pointer" or b.kind == "struct" or a.kind == "struct":
        raise Refused(f"a pointer to {a} as one to {b}")
    return Value(f"pointer({value.code}, {spelled(f, b)})", to)


# Elements and members ------------------------------------------------------------------------------------------------


@expression("subscript_expression")
def subscript(f: Context, node: Any) -> Value:
    value = f.value(node.child_by_field_name("argument"))
    indices = named(node.child_by_field_name("indices"))
    if len(indices) != 1:
        raise Refused(f"`{short(node)}`", node)
    index = f.value(indices[0])
    return element(f, node, value, index)


def element(f: Context, node: Any, value: Value, index: Value) -> Value:
    """``a[i]``."""
    kind = value.type.kind
    if kind == "tensor":
        return Value(f"{value.code}[{index.code}]", t.TENSOR)
    if kind == "sizes":
        at = _positive(index, value)
        return Value(f"{value.code}[{at}]", t.INT64, 0, 2**40, extra=None)
    if kind == "map":
        return Value(f"{value.code}[{index.code}]", value.type.of[-1] if value.type.of else t.ANY, lvalue=True)
    if kind in ("vector", "array", "any", "list"):
        items = value.extra if isinstance(value.extra, tuple) else None
        if items and index.constant is not None and 0 <= index.constant < len(items) and kind == "array":
            return replace(items[index.constant], lvalue=False)
        return Value(f"{value.code}[{_positive(index, value)}]", value.type.item, lvalue=True)
    if kind == "tuple" and index.constant is not None:
        return Value(f"{value.code}[{index.code}]", value.type.item)
    if kind == "pointer":
        item = value.type.item
        if item.kind in ("void", "any", "opaque", "pointer", "struct"):
            raise Refused(f"`{short(node)}`: an element of a pointer to {item}", node)
        return Value(f"elements({value.code})[{index.code}].item()", item)
    if kind == "accessor":
        rest = value.type.of[0]
        dims = int(value.type.name)
        if dims == 1:
            return Value(f"{value.code}[{index.code}].item()", rest)
        return Value(f"{value.code}[{index.code}]", Type("accessor", str(dims - 1), (rest,)))
    if kind == "optional" and value.type.item.kind in ("vector", "sizes"):
        raise Refused(f"`{short(node)}`", node)
    raise Refused(f"`{short(node)}`: an element of {value.type}", node)


def _positive(index: Value, value: Value) -> str:
    """An index that C++ counts from the front."""
    low, _ = index.limits
    return index.code if not index.type.integral or low >= 0 else f"at({index.code})"


@expression("field_expression")
def member(f: Context, node: Any) -> Value:
    inside, field = node.child_by_field_name("argument"), node.child_by_field_name("field")
    value, name_ = f.value(inside), text_of(field)
    type_ = value.type
    if type_.kind == "pointer" and type_.item.kind in ("struct", "properties"):
        type_ = type_.item
    if type_.kind == "struct":
        struct = next((one for one in f.unit.structs.values() if one.python == type_.name), None)
        of = struct_field(f, struct, name_)
        if of is None:
            raise Refused(f"`{short(node)}`: a member that is not known", node)
        return Value(f"{value.code}.{python_field(name_)}", of, lvalue=True)
    if type_.kind == "dim3" and name_ in "xyz":
        return Value(f"{value.code}.{name_}", t.UINT, lvalue=True)
    if type_.kind == "cuda_vector" and name_ in "xyzw":
        return Value(f"{value.code}.{name_}", t.cuda_vector_item(type_.name), lvalue=True)
    if type_.kind == "properties":
        if name_ in ("maxGridSize", "maxThreadsDim"):
            return Value(f"{value.code}.{name_}", Type("array", of=(t.INT,)))
        of = t.STRING if name_ == "name" else t.SIZE if "Mem" in name_ and "Bus" not in name_ else t.INT
        return Value(f"{value.code}.{name_}", of, 0 if of.kind == "int" else None)
    if type_.kind == "tuple" and name_ in ("first", "second"):
        at = ("first", "second").index(name_)
        return Value(f"{value.code}[{at}]", type_.of[at] if len(type_.of) > at else t.ANY, lvalue=True)
    raise Refused(f"`{short(node)}`: a member of {value.type}", node)


def python_field(name_: str) -> str:
    return name_ + "_" if name_ in RESERVED else name_


def struct_field(f: Context, struct: Any, name_: str) -> Type | None:
    while struct is not None:
        if name_ in struct.fields:
            return struct.fields[name_]
        struct = f.unit.structs.get(struct.base)
    return None


@expression("initializer_list")
def braces(f: Context, node: Any) -> Value:
    items = tuple(f.value(one) for one in named(node) if one.type != "initializer_pair")
    if len(items) != len(named(node)):
        raise Refused("members by name in braces", node)
    kinds = {one.type.kind for one in items}
    if kinds == {"int"}:
        item: Type = Type("int", "int64") if any(one.type.name.endswith("64") for one in items) else t.INT
    else:
        item = items[0].type if len(kinds) == 1 else t.ANY
    code = f"[{', '.join(one.code for one in items)}]"
    return Value(code, Type("list", of=(t.plain(item),)), items=items)


@expression("sizeof_expression")
def size(f: Context, node: Any) -> Value:
    inside = node.child_by_field_name("type") or node.child_by_field_name("value")
    if inside.type == "parenthesized_expression":
        inside = named(inside)[0]
    type_ = None
    if inside.type in ("identifier", "field_expression") and f.find(text_of(inside)) is not None:
        variable = f.find(text_of(inside))
        assert variable is not None
        type_ = variable.type
    elif inside.type == "field_expression":
        type_ = f.value(inside).type
    else:
        type_ = type_of(f, inside)
    sizes = {"int8": 1, "uint8": 1, "bool": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8}
    sizes |= {"uint64": 8, "float32": 4, "float64": 8, "Half": 2, "BFloat16": 2, "__half": 2, "half": 2}
    if type_.kind == "pointer":
        return integer(8, t.SIZE)
    if type_.name in sizes and type_.number:
        return integer(sizes[type_.name], t.SIZE)
    if type_.kind == "struct":
        return Value(f"{f.unit.variable}.constant({'sizeof(' + type_.spelled + ')'!r})", t.SIZE, 0, 2**16)
    if type_.kind in ("param", "opaque"):
        return Value(f"sizeof({spelled(f, type_)}, {f.unit.variable})", t.SIZE, 0, 2**16)
    if type_.kind == "cuda_vector":
        lanes = int(type_.name[-1])
        item = t.cuda_vector_item(type_.name).name
        if item in sizes:
            return integer(sizes[item] * lanes, t.SIZE)
    raise Refused(f"`{short(node)}`", node)
