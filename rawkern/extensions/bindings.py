"""Bindings: PYBIND11_MODULE and TORCH_LIBRARY, as lists of names and functions."""

from __future__ import annotations

import ast
import re
from typing import Any

from rawkern.base.tree import named, parse, text_of
from rawkern.extensions.macros import Expanded
from rawkern.extensions.program import Binding, ClassBinding, EnumBinding, Registration, Unit
from rawkern.extensions.untranslated import NotTranslated

_HEAD = re.compile(r"\s*(\w+)\s*\(([^{}]*?)\)\s*\{", re.S)


def read_binding(unit: Unit, name: str, expanded: Expanded, original: str) -> None:
    """Read a binding macro with its body, or a ``RegisterOperators``."""
    text = expanded.text
    if "RegisterOperators" in text:
        _operators(unit, text)
        return
    head = _HEAD.match(text)
    if head is None:
        raise NotTranslated(f"the binding {name}")
    arguments = [one.strip() for one in head[2].split(",")]
    root = parse("void rk_bind() {" + text[head.end() :])
    if head[1].startswith("PYBIND11"):
        _pybind(unit, root, expanded)
    else:
        _library(unit, head[1], arguments, root, expanded)


Call = tuple[str, list[Any], Any]


def _chains(root: Any) -> list[list[Call]]:
    """The calls of each statement."""
    found = []
    stack = [root]
    statements = []
    while stack:
        one = stack.pop(0)
        if one.type in ("expression_statement", "declaration"):
            statements.append(one)
            continue
        stack = [*one.children, *stack]
    variables: dict[str, list[Call]] = {}  # py::class_<T> name(m, "T");
    for one in statements:
        inner = named(one)[0] if named(one) else None
        chain: list[Call] = []
        if one.type == "declaration":
            declarator = one.child_by_field_name("declarator")
            value = declarator.child_by_field_name("value") if declarator is not None else None
            if declarator is None or value is None:
                continue
            if value.type in ("argument_list", "initializer_list") and "def_submodule" in text_of(value):
                value = named(value)[0]
            if value.type == "argument_list":
                head = " ".join(text_of(one.child_by_field_name("type")).split())
                chain = [(head, named(value), one)]
                variables[text_of(declarator.child_by_field_name("declarator"))] = chain
                found.append(chain)
                continue
            inner = value
        while inner is not None and inner.type in ("call_expression", "assignment_expression"):
            if inner.type == "assignment_expression":
                break
            called = inner.child_by_field_name("function")
            arguments = named(inner.child_by_field_name("arguments"))
            if called.type == "field_expression":
                chain.insert(0, (text_of(called.child_by_field_name("field")), arguments, inner))
                inner = called.child_by_field_name("argument")
            else:
                chain.insert(0, (text_of(called), arguments, inner))
                break
        if inner is not None and inner.type == "identifier" and text_of(inner) in variables:
            variables[text_of(inner)] += chain
        elif chain:
            found.append(chain)
    return found


def _string(node: Any) -> str | None:
    parts = [node] if node.type in ("string_literal", "raw_string_literal") else named(node)
    if node.type == "concatenated_string" or node.type in ("string_literal", "raw_string_literal"):
        out = ""
        for one in parts:
            text = text_of(one)
            raw = re.match(r'R"([^()\\ ]*)\((.*)\)\1"\Z', text, re.S)
            if raw is not None:
                out += raw[2]
                continue
            try:
                out += ast.literal_eval(text)
            except (SyntaxError, ValueError):
                return None
        return out
    return None


def _function(node: Any) -> tuple[str, str] | None:
    """The name of a function that a binding points to, and the arguments of its instance."""
    while node.type in ("pointer_expression", "parenthesized_expression", "cast_expression"):
        node = node.child_by_field_name("argument") or node.child_by_field_name("value") or named(node)[0]
    if node.type == "call_expression":  # TORCH_FN(f), TORCH_BOX(&f), py::overload_cast<...>(&f)
        arguments = named(node.child_by_field_name("arguments"))
        return _function(arguments[-1]) if arguments else None
    if node.type in ("identifier", "qualified_identifier"):
        text = text_of(node)
        match = re.fullmatch(r"([\w:\s]+?)\s*<(.*)>", text, re.S)
        return (match[1].rsplit("::", 1)[-1], match[2]) if match else (text.rsplit("::", 1)[-1], "")
    if node.type == "template_function":
        return text_of(node.child_by_field_name("name")).rsplit("::", 1)[-1], text_of(
            node.child_by_field_name("arguments")
        )[1:-1]
    return None


_CAST = re.compile(r"\(\s*(?:[\w:]+::\s*)?\*\s*\)\s*\(([^()]*)\)")  # of a pointer to a function


def _overload(node: Any) -> str | None:
    """The types of the parameters by which a binding chooses among functions; None where it does not."""
    text = text_of(node)
    chosen = re.match(r"(?:(?:py|pybind11)\s*::\s*)?overload_cast\s*<(.*)>\s*(?:\{\s*\}\s*)?\(", text, re.S)
    if chosen is None and text.startswith(("static_cast", "(")):
        chosen = _CAST.search(text)
    return chosen[1] if chosen else None


_ATTRIBUTE = re.compile(r"(\w+)\s*\.\s*attr\s*\(\s*\"(\w+)\"\s*\)\Z")
_WRAPPED = re.compile(r"(?:py|pybind11)\s*::\s*(?:cast|int_|float_|bool_|str)\Z")


_SUBMODULE = re.compile(r'(\w+)\s*[=({]\s*(\w+)\s*\.\s*def_submodule\s*\(\s*"(\w+)"')


def _submodules(root: Any) -> dict[str, str]:
    """``auto s = m.def_submodule("sub");``: variables of submodules, with where these are: ``"sub"``."""
    found: dict[str, str] = {}
    for name, parent, called in _SUBMODULE.findall(text_of(root)):
        found[name] = _within(found.get(parent, ""), called)
    return found


def _within(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name


def _receiver(chain: list[Call]) -> str:
    """The variable that the first call of a chain is of, or that it is given first: ``py::class_<T>(m, "T")``."""
    _, given, node = chain[0]
    called = node.child_by_field_name("function") if node.type == "call_expression" else None
    if called is not None and called.type == "field_expression":
        return text_of(called.child_by_field_name("argument"))
    return text_of(given[0]) if given else ""


def _attributes(root: Any, modules: dict[str, str]) -> dict[str, Any]:
    """``m.attr("VERSION") = 3;``"""
    found: dict[str, Any] = {}
    stack = [root]
    while stack:
        one = stack.pop()
        stack += one.children
        match = (
            _ATTRIBUTE.match(text_of(one.child_by_field_name("left"))) if one.type == "assignment_expression" else None
        )
        if match is None:
            continue
        value = one.child_by_field_name("right")
        if value.type == "call_expression" and _WRAPPED.match(text_of(value.child_by_field_name("function"))):
            value = named(value.child_by_field_name("arguments"))[0]
        found[_within(modules.get(match[1], ""), match[2])] = value
    return found


def _pybind(unit: Unit, root: Any, expanded: Expanded) -> None:
    modules = _submodules(root)
    unit.attributes |= _attributes(root, modules)
    for chain in _chains(root):
        module = modules.get(_receiver(chain), "")
        if _CLASS.match(chain[0][0]):
            _class(unit, chain, expanded, module=module)
            continue
        if chain[0][0].startswith(("py::enum_", "pybind11::enum_")):
            _enumeration(unit, chain, module)
            continue
        for method, arguments, node in chain:
            if method == "def_submodule" and arguments and (name := _string(arguments[0])) is not None:
                module = _within(module, name)
                unit.submodules[module] = (_string(arguments[1]) or "") if len(arguments) > 1 else ""
            if method != "def" or len(arguments) < 2:
                continue
            binding = _bound(arguments, expanded)
            if binding is None:
                unit.notes.append(f"the binding {' '.join(text_of(node).split())[:60]}")
            else:
                binding.module = module
                unit.bindings.append(binding)


def _enumeration(unit: Unit, chain: list[Call], module: str) -> None:
    """``py::enum_<E>(m, "E").value("A", E::A)``."""
    _, given, node = chain[0]
    name = next((text for one in given if (text := _string(one)) is not None), None)
    made = EnumBinding(name or "", module=module)
    for method, arguments, _ in chain[1:]:
        if method == "value" and len(arguments) > 1 and (label := _string(arguments[0])) is not None:
            made.values[label] = arguments[1]
        made.exported |= method == "export_values"
    if name is None or len(made.values) < sum(method == "value" for method, _, _ in chain):
        unit.notes.append(f"the class {' '.join(text_of(node).split())[:60]} is not bound")
        return
    unit.enumerations.append(made)


def _bound(arguments: list[Any], expanded: Expanded) -> Binding | None:
    """What ``def(name, function, ...)`` binds; None for what is not understood."""
    name = _string(arguments[0])
    found = None if arguments[1].type == "lambda_expression" else _function(arguments[1])
    if name is None or (found is None and arguments[1].type != "lambda_expression"):
        return None
    binding = Binding(name, *(found or ("", "")), _overload(arguments[1]), lines=expanded.lines)
    if found is None:
        binding.code = arguments[1]
    _described(binding, arguments[2:])
    return binding


def _described(binding: Binding, arguments: list[Any]) -> None:
    """The docstring, names and default values that a binding gives."""
    for one in arguments:
        doc = _string(one)
        if doc is not None:
            binding.doc = doc
            continue
        text = text_of(one)
        match = re.match(r"(?:py|pybind11)::arg\(\s*\"(\w+)\"\s*\)(?:\.\w+\(\w*\))*\s*(?:=\s*(.*))?\Z", text, re.S)
        literal = re.match(r"\"(\w+)\"_a\s*(?:=\s*(.*))?\Z", text, re.S)
        match = match or literal
        if match is not None:
            binding.names.append(match[1])
            if match[2]:
                binding.defaults[match[1]] = match[2].strip()


_CLASS = re.compile(r"(?:(?:py|pybind11|torch)\s*::\s*class_|(?:m|lib|library)\s*\.\s*class_)\s*<\s*([\w:]+)")
_INIT = re.compile(r"(?:py|pybind11|torch)\s*::\s*init\s*<(.*)>\s*\(\s*\)\Z", re.S)


def _class(unit: Unit, chain: list[Call], expanded: Expanded, namespace: str = "", module: str = "") -> None:
    """``py::class_<T>(m, "T").def(...)``, or ``torch::class_<T>("namespace", "T")``."""
    head, given, node = chain[0]
    strings = [text for one in given if (text := _string(one)) is not None]
    found = _CLASS.match(head)
    if found is None or not strings:
        unit.notes.append(f"the class {' '.join(text_of(node).split())[:60]} is not bound")
        return
    if head.startswith("torch") and len(strings) > 1:
        namespace = strings.pop(0)
    row = expanded.lines[min(node.start_point[0], len(expanded.lines) - 1)] if expanded.lines else 0
    made = ClassBinding(strings[0], found[1].rsplit("::", 1)[-1], namespace, module=module, line=row)
    for method, arguments, each in chain[1:]:
        text = " ".join(text_of(arguments[0]).split()) if arguments else ""
        init = _INIT.match(text)
        if method == "def" and init is not None:
            types = [text_of(one) for one in _types(init[1])]
            constructor = Binding(made.name, "")
            _described(constructor, arguments[1:])
            made.constructors.append((types, constructor))
        elif method in ("def_readwrite", "def_readonly") and len(arguments) > 1:
            made.fields[_string(arguments[0]) or ""] = text_of(arguments[1]).rsplit("::", 1)[-1]
        elif method in ("def", "def_static", "def_property_readonly", "def_property") and len(arguments) > 1:
            binding = _bound(arguments[:2] if method == "def_property" else arguments, expanded)
            where = {"def": made.methods, "def_static": made.static}.get(method, made.properties)
            if binding is not None:
                where.append(binding)
                continue
            unit.notes.append(f"the binding {' '.join(text_of(each).split())[-60:]} of {made.name}")
        else:
            unit.notes.append(f"{method}({text[:40]}) of the class {made.name} is not bound")
    unit.classes.append(made)


def _head(call: Call) -> str:
    """What the first call of a chain calls: ``m.class_<T>`` in full."""
    method, _, node = call
    called = node.child_by_field_name("function") if node.type == "call_expression" else None
    return text_of(called) if method.startswith("class_") and called is not None else method


def _types(text: str) -> list[Any]:
    """The nodes of a list of types."""
    stack = [parse(f"rk<{text}> rk;")]
    while stack:
        one = stack.pop(0)
        if one.type == "template_argument_list":
            return named(one)
        stack += one.children
    return []


def _library(unit: Unit, macro: str, arguments: list[str], root: Any, expanded: Expanded) -> None:
    namespace = arguments[0]
    key = arguments[1] if "IMPL" in macro and len(arguments) > 2 else ""
    key = "" if key == "CatchAll" else key
    chains = _chains(root)
    for chain in (one for one in chains if _CLASS.match(_head(one[0]))):
        _class(unit, [(_head(chain[0]), *chain[0][1:]), *chain[1:]], expanded, namespace)
    for method, given, node in (one for chain in chains if not _CLASS.match(_head(chain[0])) for one in chain):
        if method not in ("def", "impl") or not given:
            continue
        text = _string(given[0])
        if text is None and given[0].type == "call_expression":  # torch::schema("f(Tensor x) -> Tensor")
            inner = named(given[0].child_by_field_name("arguments"))
            text = _string(inner[0]) if inner else None
        if text is None:
            unit.notes.append(f"the registration {' '.join(text_of(node).split())[:60]}")
            continue
        function, own_key, code = "", key, None
        for one in given[1:]:
            said = text_of(one)
            if said.startswith(("torch::kC", "at::kC", "c10::kC", "c10::DispatchKey::", "torch::kMeta")):
                own_key = said.rsplit("::", 1)[-1].removeprefix("k")
                continue
            if said.startswith("torch::dispatch("):
                inner = named(one.child_by_field_name("arguments"))
                own_key = text_of(inner[0]).rsplit("::", 1)[-1].removeprefix("k")
                one = inner[1]
            if one.type == "initializer_list":
                continue
            if one.type == "lambda_expression":
                code = one
                continue
            found = _function(one)
            if found is not None:
                function = found[0]
        made = Registration(namespace, method, " ".join(text.split()), function, own_key, code, expanded.lines)
        unit.registrations.append(made)


def _operators(unit: Unit, text: str) -> None:
    """``torch::RegisterOperators().op("ns::f", &f)``."""
    for match in re.finditer(r"\.op\(\s*\"([^\"]+)\"\s*,\s*&?\s*([\w:]+)", text):
        namespace, _, name = match[1].partition("::")
        unit.registrations.append(Registration(namespace, "def", name, match[2].rsplit("::", 1)[-1]))
