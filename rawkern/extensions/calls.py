"""Calls: of functions of the source, of torch's, CUDA's and C++'s, of methods."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.extensions import types as t
from rawkern.extensions.checks import check
from rawkern.extensions.construction import argument_code, construct, from_braces
from rawkern.extensions.context import RETURNED, RUN, Context, expression, short
from rawkern.extensions.cuda import cuda_function
from rawkern.extensions.dispatch import dispatched, is_dispatch
from rawkern.extensions.elements import cast_to
from rawkern.extensions.lambdas import call_lambda, define_lambda, in_place
from rawkern.extensions.launches import launch
from rawkern.extensions.methods import method_of
from rawkern.extensions.objects import call_inside, call_method, owned
from rawkern.extensions.options import options_function
from rawkern.extensions.own import call_own
from rawkern.extensions.spelling import split_name, type_of
from rawkern.extensions.standard import limits_value, standard_function
from rawkern.extensions.statements import run
from rawkern.extensions.syntax import lambda_of
from rawkern.extensions.tensors import function as tensor_function
from rawkern.extensions.untranslated import NotTranslated, library_call
from rawkern.extensions.values import Value, converted

_TYPES = {"primitive_type", "sized_type_specifier", "template_type"}


@expression("call_expression")
def call(f: Context, node: Any) -> Value:
    found = _call(f, node, "value")
    if found is None:
        raise NotTranslated(f"`{short(node)}` inside of an expression", node)
    return found


def run_call(f: Context, node: Any) -> None:
    """A call as a statement."""
    called = node.child_by_field_name("function")
    name = text_of(called) if called.type in ("identifier", "qualified_identifier") else ""
    if name in _NOTHING:
        return
    if name and f.find(name) is None and check(f, node, name):
        return
    if name in _PASSED_ON:
        run(f, named(node.child_by_field_name("arguments"))[0])
        return
    found = _call(f, node, "place")
    if found is not None and found.code and found.code not in ("None", "0") and not found.code.isidentifier():
        f.emit(found.code)


def return_call(f: Context, node: Any) -> Value | None:
    """The value of a call that is returned; None where it has been written with returns of its own."""
    return _call(f, node, "function")


RUN["call_expression"] = run_call
RETURNED["call_expression"] = return_call
_NOTHING = {
    "C10_CUDA_KERNEL_LAUNCH_CHECK", "AT_CUDA_KERNEL_LAUNCH_CHECK", "C10_CUDA_CHECK_WARN", "THCudaCheckError",
    "static_assert", "C10_UNUSED", "RECORD_FUNCTION", "TORCH_CUDA_KERNEL_LAUNCH_CHECK", "nvtxRangePop",
    "nvtxRangePush", "C10_LOG_API_USAGE_ONCE", "CUDA_KERNEL_ASSERT", "C10_HIP_KERNEL_LAUNCH_CHECK",
}  # fmt: skip
#: Macros around a call of CUDA, whose errors rawkern raises by itself.
_PASSED_ON = {
    "AT_CUDA_CHECK", "C10_CUDA_CHECK", "THCudaCheck", "TORCH_CUDA_CHECK", "C10_CUDA_ERROR_HANDLED",
    "C10_CUDA_IGNORE_ERROR", "AT_CUDA_DRIVER_CHECK",
}  # fmt: skip


def _call(f: Context, node: Any, how: str) -> Value | None:
    called = node.child_by_field_name("function")
    syntax = next((child for child in node.children if child.type == "kernel_call_syntax"), None)
    if syntax is not None:
        return launch(f, node, syntax)
    arguments = node.child_by_field_name("arguments")
    nodes = named(arguments) if arguments is not None else []
    body = lambda_of(called)
    if body is not None:
        if how != "value" and in_place(f, body, how):
            return None
        variable = define_lambda(f, f.temporary("function"), body)
        return call_lambda(f, node, variable, nodes)
    if called.type == "field_expression":
        return method_of(f, node, called, nodes)
    if called.type in _TYPES:
        return _constructed(f, node, called, nodes)
    if called.type == "parenthesized_expression" and len(named(called)) == 1:
        called = named(called)[0]
    name, of = split_name(called)
    return _named(f, node, called, name, of, nodes, how)


def _constructed(f: Context, node: Any, called: Any, nodes: list[Any]) -> Value:
    type_ = type_of(f, called)
    if type_.number and len(nodes) == 1:
        return cast_to(f, node, f.value(nodes[0]), type_)
    return construct(f, node, type_, [f.value(one) for one in nodes])


def _named(
    f: Context, node: Any, called: Any, name: str, of: list[Any] | None, nodes: list[Any], how: str
) -> Value | None:
    """A call of something with a name."""
    bare = name.rsplit("::", 1)[-1]
    variable = f.find(name) if of is None else None
    if variable is not None and variable.kind == "function":
        if isinstance(variable.extra, dict):
            return call_lambda(f, node, variable, nodes)
        own = variable.extra
        functions, given = own if isinstance(own, tuple) else (own, None)
        return call_own(f, node, functions, given, nodes)
    if variable is not None and variable.type.kind == "struct":
        return call_method(f, node, f.value(called), "operator()", None, nodes)
    if variable is not None and variable.kind == "type":
        return _constructed(f, node, called, nodes)
    if variable is not None and variable.type.name == "function" and len(nodes) + 1 == len(variable.type.of):
        returned, *types = variable.type.of
        codes = [argument_code(f, one, f.value(one), type_) for one, type_ in zip(nodes, types, strict=True)]
        return Value(f"{variable.python}({', '.join(codes)})", t.plain(returned))
    if variable is not None:
        raise NotTranslated(f"`{short(node)}`: a call of a value of {variable.type}", node)
    if is_dispatch(bare):
        return dispatched(f, node, bare, how)
    if bare in ("static_cast", "reinterpret_cast", "const_cast") and of is not None:
        value = f.value(nodes[0])
        if bare == "const_cast":
            return value
        return cast_to(f, node, value, type_of(f, of[0]))
    if bare in _PASSED_ON:
        return f.value(nodes[0])
    known_space = name.startswith(("at::", "torch::", "c10::", "std::"))
    method = call_inside(f, node, name, of, nodes) if not known_space else None
    if method is not None:
        return method
    if not known_space and bare in f.unit.functions and bare not in ("min", "max"):
        try:
            return call_own(f, node, f.unit.functions[bare], of, nodes, name)
        except NotTranslated:
            found = cuda_function(f, node, name, of, nodes) if bare.startswith("make_") else None
            if found is None:
                raise
            return found
    instead = library_call(name)
    if instead is not None:
        raise NotTranslated(f"{name}, a function of a host library", node, f"call {instead}")
    limit = limits_value(f, node, called)
    if limit is not None:
        return limit
    for attempt in (owned, cuda_function, standard_function, options_function):
        found = attempt(f, node, name, of, nodes)
        if found is not None:
            return found
    if _is_type(f, called, name):
        return _constructed(f, node, called, nodes)
    if known_space or "::" not in name:
        if bare == "pad" and "functional::" in name:
            return padded(f, node, nodes)
        if "functional::" in name and bare in _OF_FUNCTIONAL:
            return Value(f"torch.nn.functional.{bare}({', '.join(f.value(one).code for one in nodes)})", t.TENSOR)
        if bare == "any_variable_requires_grad" and len(nodes) == 1:
            tensors = converted(f.value(nodes[0]), t.Type("vector", of=(t.TENSOR,))).code
            return Value(f"any(one.requires_grad for one in {tensors})", t.BOOL)
        if "nn::" in name or "autograd::" in name or "jit::" in name:
            raise NotTranslated(f"`{short(node)}`: torch's C++ frontend", node)
        of_torch = name.startswith(("at::", "torch::", "c10::")) or bare in _UNQUALIFIED
        found = tensor_function(f, node, bare, nodes) if of_torch and not name.startswith("std::") else None
        if found is not None:
            return found
    if bare in f.unit.functions:
        return call_own(f, node, f.unit.functions[bare], of, nodes, name)
    if bare == "apply":
        raise NotTranslated(
            f"`{short(node)}`: a torch::autograd::Function in C++",
            node,
            "write a torch.autograd.Function in Python around the functions that launch",
        )
    if bare.isupper() or bare.startswith(("AT_", "TORCH_", "C10_")):
        raise NotTranslated(f"the macro {bare}", node)
    raise NotTranslated(f"`{short(node)}`: the function {name}, whose definition is not in these sources", node)


def padded(f: Context, node: Any, nodes: list[Any]) -> Value:
    """``torch::nn::functional::pad(x, PadFuncOptions({...}).mode(torch::kReflect).value(v))``."""
    options, more = nodes[1], {}
    while options.type == "call_expression":
        called, given = options.child_by_field_name("function"), named(options.child_by_field_name("arguments"))
        if called.type != "field_expression":
            break
        more[text_of(called.child_by_field_name("field"))] = given[0]
        options = called.child_by_field_name("argument")
    if (
        options.type != "call_expression"
        or not text_of(called).endswith("PadFuncOptions")
        or set(more) - {"mode", "value"}
    ):
        raise NotTranslated(f"`{short(node)}`: torch's C++ frontend", node)
    parts = [f.value(nodes[0]).code, converted(f.value(given[0]), t.SIZES).code]
    if "mode" in more:
        parts.append(f"mode={text_of(more['mode']).rpartition('::k')[2].lower()!r}")
    if "value" in more:
        parts.append(f"value={f.value(more['value']).code}")
    return Value(f"torch.nn.functional.pad({', '.join(parts)})", t.TENSOR)


#: Functions of torch::nn::functional that take no options of their own.
_OF_FUNCTIONAL = {
    "linear", "bilinear", "relu6", "logsigmoid", "mish", "silu", "softsign", "tanhshrink", "selu", "relu", "embedding",
}  # fmt: skip
_UNQUALIFIED = {"empty", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like", "cat", "stack", "matmul"}
_UNQUALIFIED |= {"sum", "mean", "sigmoid", "tanh", "relu", "exp", "arange", "full_like"}


def _is_type(f: Context, called: Any, name: str) -> bool:
    bare = name.rsplit("::", 1)[-1]
    if t.named_type(name) is not None or t.container(name, ()) is not None or bare in f.unit.structs:
        return True
    return bare in f.unit.aliases


@expression("compound_literal_expression")
def compound(f: Context, node: Any) -> Value:
    return from_braces(f, node, type_of(f, node.child_by_field_name("type")), node.child_by_field_name("value"))
