"""Bindings: PYBIND11_MODULE and TORCH_LIBRARY, as lists of names and functions."""

from __future__ import annotations

import ast
import re
from typing import Any

from rawkern.base.tree import named, parse, text_of
from rawkern.extensions.macros import Expanded
from rawkern.extensions.program import Binding, Registration, Unit
from rawkern.extensions.refusal import Refused

_HEAD = re.compile(r"\s*(\w+)\s*\(([^{}]*?)\)\s*\{", re.S)


def read_binding(unit: Unit, name: str, expanded: Expanded, original: str) -> None:
    """Read a binding macro with its body, or a ``RegisterOperators``."""
    text = expanded.text
    if "RegisterOperators" in text:
        _operators(unit, text)
        return
    head = _HEAD.match(text)
    if head is None:
        raise Refused(f"the binding {name}")
    arguments = [one.strip() for one in head[2].split(",")]
    root = parse("void rk_bind() {" + text[head.end() :])
    if head[1].startswith("PYBIND11"):
        _pybind(unit, root, expanded)
    else:
        _library(unit, head[1], arguments, root)


def _calls(root: Any) -> list[tuple[str, list[Any], Any]]:
    """Calls of methods in statements: the method, its arguments; a chain in its order."""
    found = []
    stack = [root]
    statements = []
    while stack:
        one = stack.pop(0)
        if one.type == "expression_statement":
            statements.append(one)
            continue
        stack = [*one.children, *stack]
    for one in statements:
        inner = named(one)[0] if named(one) else None
        chain: list[tuple[str, list[Any], Any]] = []
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
        found += chain
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


def _pybind(unit: Unit, root: Any, expanded: Expanded) -> None:
    for method, arguments, node in _calls(root):
        if method.startswith(("py::class_", "pybind11::class_", "py::enum_", "torch::class_")):
            unit.notes.append(f"the class {' '.join(text_of(node).split())[:60]} is not bound")
            continue
        if method != "def" or len(arguments) < 2:
            continue
        name = _string(arguments[0])
        found = None if arguments[1].type == "lambda_expression" else _function(arguments[1])
        if name is None or (found is None and arguments[1].type != "lambda_expression"):
            unit.notes.append(f"the binding {' '.join(text_of(node).split())[:60]}")
            continue
        binding = Binding(name, *(found or ("", "")), lines=expanded.lines)
        if found is None:
            binding.code = arguments[1]
        for one in arguments[2:]:
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
        unit.bindings.append(binding)


def _library(unit: Unit, macro: str, arguments: list[str], root: Any) -> None:
    namespace = arguments[0]
    key = arguments[1] if "IMPL" in macro and len(arguments) > 2 else ""
    key = "" if key == "CatchAll" else key
    for method, given, node in _calls(root):
        if method not in ("def", "impl") or not given:
            continue
        text = _string(given[0])
        if text is None and given[0].type == "call_expression":  # torch::schema("f(Tensor x) -> Tensor")
            inner = named(given[0].child_by_field_name("arguments"))
            text = _string(inner[0]) if inner else None
        if text is None:
            unit.notes.append(f"the registration {' '.join(text_of(node).split())[:60]}")
            continue
        function, own_key = "", key
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
            found = _function(one)
            if found is not None:
                function = found[0]
        unit.registrations.append(Registration(namespace, method, " ".join(text.split()), function, own_key))


def _operators(unit: Unit, text: str) -> None:
    """``torch::RegisterOperators().op("ns::f", &f)``."""
    for match in re.finditer(r"\.op\(\s*\"([^\"]+)\"\s*,\s*&?\s*([\w:]+)", text):
        namespace, _, name = match[1].partition("::")
        unit.registrations.append(Registration(namespace, "def", name, match[2].rsplit("::", 1)[-1]))
