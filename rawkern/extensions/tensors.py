"""Methods and functions of tensors: ATen's names with torch's Python API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from rawkern.base.tree import named, text_of
from rawkern.extensions import types as t
from rawkern.extensions.context import Context, short
from rawkern.extensions.options import keywords
from rawkern.extensions.spelling import spelled, type_of
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, converted, integer, typed

_MOST = 2**40  # no tensor that there is has more elements; what is computed with sizes is checked beyond
_TUPLES = {
    "aminmax", "cummax", "cummin", "frexp", "histogram", "kthvalue", "max", "median", "min", "mode", "nanmedian",
    "native_layer_norm", "qr", "slogdet", "sort", "std_mean", "svd", "topk", "triangular_solve", "var_mean",
}  # fmt: skip
_LISTS = {"split", "chunk", "unbind", "tensor_split", "split_with_sizes", "where_list", "meshgrid", "broadcast_tensors"}
_KEYWORDS: dict[str, tuple[str, ...]] = {
    # Of torch's Python API these are keyword-only; in C++ they are the last ones in their order.
    "add": ("alpha",), "add_": ("alpha",), "sub": ("alpha",), "sub_": ("alpha",), "addmm": ("beta", "alpha"),
    "addmm_": ("beta", "alpha"), "addmv": ("beta", "alpha"), "addmv_": ("beta", "alpha"), "addbmm": ("beta", "alpha"),
    "baddbmm": ("beta", "alpha"), "baddbmm_": ("beta", "alpha"), "addr": ("beta", "alpha"), "addcmul": ("value",),
    "addcmul_": ("value",), "addcdiv": ("value",), "addcdiv_": ("value",), "div": ("rounding_mode",),
    "div_": ("rounding_mode",), "rsub": ("alpha",),
}  # fmt: skip
_POSITIONAL = {"add": 1, "add_": 1, "sub": 1, "sub_": 1, "div": 1, "div_": 1, "rsub": 1}
_FACTORIES = {
    "empty", "zeros", "ones", "full", "arange", "linspace", "logspace", "rand", "randn", "randint", "randperm", "eye",
    "tensor", "scalar_tensor", "range", "empty_strided", "hann_window",
}  # fmt: skip
_LIKE = {"empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"}
_LIKE |= {"new_empty", "new_zeros", "new_ones", "new_full", "new_tensor"}
_SIZED = {"empty": 1, "zeros": 1, "ones": 1, "full": 1, "rand": 1, "randn": 1, "empty_strided": 2}
_SIZED |= {"new_empty": 1, "new_zeros": 1, "new_ones": 1, "new_full": 1}
_NO_PYTHON = {"index_put_", "index", "slice"}
_PROPERTIES = {
    "scalar_type": ("dtype", t.DTYPE), "dtype": ("dtype", t.DTYPE), "type": ("dtype", t.DTYPE),
    "device": ("device", t.DEVICE), "sizes": ("shape", t.SIZES), "layout": ("layout", t.LAYOUT),
    "requires_grad": ("requires_grad", t.BOOL), "grad": ("grad", t.TENSOR), "is_sparse": ("is_sparse", t.BOOL),
    "is_leaf": ("is_leaf", t.BOOL), "is_quantized": ("is_quantized", t.BOOL), "data": ("data", t.TENSOR),
    "variable_data": ("data", t.TENSOR), "real": ("real", t.TENSOR), "imag": ("imag", t.TENSOR),
    "sym_sizes": ("shape", t.SIZES), "mT": ("mT", t.TENSOR), "is_meta": ("is_meta", t.BOOL), "names": ("names", t.ANY),
}  # fmt: skip


def method(f: Context, node: Any, value: Value, name: str, of: list[Any] | None, nodes: list[Any]) -> Value:
    """``tensor.name<of>(...)``."""
    code = value.code
    if name in ("data_ptr", "const_data_ptr", "mutable_data_ptr") or (name == "data" and of):
        item = type_of(f, of[0]) if of else t.VOID
        return Value(code, Type("pointer", of=(t.plain(item),)))
    if name in ("packed_accessor32", "packed_accessor64", "packed_accessor", "generic_packed_accessor"):
        return Value(code, Type("accessor", "1", (type_of(f, of[0]),)) if of else t.ANY)
    if name == "accessor" and of:
        dims = f.value(of[1]).constant
        item = type_of(f, of[0])
        inner = f"typed({code}.detach(), {spelled(f, item)})"
        return Value(inner if item.number else f"{code}.detach()", Type("accessor", str(dims), (item,)))
    if name == "item":
        type_ = type_of(f, of[0]) if of else t.SCALAR
        found = Value(f"{code}.item()", t.SCALAR)
        return found if not of else _item(found, type_)
    if name == "toType" or (name == "type" and nodes):
        return Value(f"{code}.to({f.value(nodes[0]).code})", t.TENSOR)
    if name in _PROPERTIES and not nodes:
        attribute, type_ = _PROPERTIES[name]
        return Value(f"{code}.{attribute}", type_)
    special = _SPECIAL.get(name)
    if special is not None:
        return special(f, node, value, [f.value(one) for one in nodes])
    if name in _BY_ATEN or (not hasattr(torch.Tensor, name) and _schema(name) is not None):
        return _of_aten(f, node, name, [value, *(f.value(one) for one in nodes)])
    if name.startswith("toLegacy") or not hasattr(torch.Tensor, name):
        raise NotTranslated(f"`{short(node)}`: a tensor's method {name}, which torch does not have in Python", node)
    arguments = [f.value(one) for one in nodes]
    codes = arguments_of(f, node, name, arguments, function=False)
    return Value(f"{code}.{name}({', '.join(codes)})", _returned(name, arguments, 0))


def _item(value: Value, type_: Type) -> Value:
    if type_.kind == "bool":
        return Value(f"bool({value.code})", t.BOOL)
    if type_.kind == "int":
        return Value(f"int({value.code})" if type_.name == "int64" else f"{type_.name}({value.code})", t.plain(type_))
    if type_.kind == "float" and type_.name == "float64":
        return Value(f"float({value.code})", t.DOUBLE)
    return converted(value, t.plain(type_))


def _size(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    return Value(f"{value.code}.shape[{given[0].code}]", t.INT64, 0, _MOST)


def _numel(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    return Value(f"{value.code}.numel()", t.INT64, 0, _MOST)


def _dim(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    return Value(f"{value.code}.dim()", t.INT64, 0, 64)


def _stride(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    return Value(f"{value.code}.stride({given[0].code})", t.INT64, 0, _MOST)


def _strides(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    return Value(f"{value.code}.stride()", t.SIZES)


def _bytes(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    return Value(f"{value.code}.nbytes", t.SIZE, 0, _MOST)


def _element(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    return Value(f"{value.code}.element_size()", t.INT64, 1, 16)


def _is_cuda(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    return Value(f"is_cuda({value.code})", t.BOOL)


def _is_cpu(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    return Value(f"{value.code}.is_cpu", t.BOOL)


def _options(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    return Value("", t.OPTIONS, options={"dtype": f"{value.code}.dtype", "device": f"{value.code}.device"})


def _contiguous(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    name = text_of(node.child_by_field_name("function").child_by_field_name("field"))
    inside = f"memory_format={given[0].code}" if given else ""
    return Value(f"{value.code}.{name}({inside})", t.BOOL if name == "is_contiguous" else t.TENSOR)


def _defined(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    return Value(f"({value.code} is not None)", t.BOOL)


def _index(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    return Value(f"{value.code}[{indices(f, node, given[0])}]", t.TENSOR)


def _index_put(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    if len(given) > 2:
        items = given[0].items or ()
        if given[1].type.kind != "tensor" or not items or any(one.type.kind != "tensor" for one in items):
            raise NotTranslated(f"`{short(node)}`: index_put_ that accumulates", node)
        inside = ", ".join(one.code for one in items)
        return Value(f"{value.code}.index_put_([{inside}], {given[1].code}, {given[2].code})", t.TENSOR)
    return Value(f"{value.code}.__setitem__({_tuple(indices(f, node, given[0]))}, {given[1].code})", t.TENSOR)


def _tuple(code: str) -> str:
    return f"({code})" if "," in code else code


def indices(f: Context, node: Any, value: Value) -> str:
    """The indices of ``x.index({...})``."""
    items = value.items if value.items is not None else (value,)
    codes = []
    for one in items:
        if one.type.kind == "string":
            codes.append("...")
        elif one.type.kind in ("index", "int", "tensor", "bool", "nothing"):
            codes.append(one.code)
        else:
            raise NotTranslated(f"`{short(node)}`: an index of {one.type}", node)
    return ", ".join(codes)


def _slice(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    codes = ", ".join(one.code for one in given)
    return Value(f"torch.ops.aten.slice({value.code}, {codes})", t.TENSOR)


def _to(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    codes: list[str] = []
    for one in given:
        one = converted(one, t.OPTIONS) if one.items is not None else one
        if one.type.kind == "options":
            codes += keywords(one)
        elif one.type.kind in ("dtype", "tensor"):
            codes.append(one.code)
        elif one.type.kind in ("device", "device_type"):
            codes.append(converted(one, t.DEVICE).code)
        elif one.type.kind == "memory_format":
            codes.append(f"memory_format={one.code}")
        elif one.type.kind == "bool":
            codes.append(one.code)
        else:
            raise NotTranslated(f"`{short(node)}`", node)
    return Value(f"{value.code}.to({', '.join(codes)})", t.TENSOR)


def _reset(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    raise NotTranslated(f"`{short(node)}`", node)


def _same(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    return Value(f"({value.code} is {given[0].code})", t.BOOL)


def _cuda(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    return Value(f"{value.code}.to(cuda_device())", t.TENSOR)


def _device_index(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    return Value(f"{value.code}.get_device()", t.INT, -1, 1024)


def _dense(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    return Value(f"is_dense({value.code})", t.BOOL)


def _chosen(f: Context, node: Any, value: Value, given: list[Value]) -> Value:
    name = text_of(node.child_by_field_name("function").child_by_field_name("field"))
    return Value(f"{value.code}.{name}()", t.BOOL)


_SPECIAL = {
    "size": _size, "numel": _numel, "dim": _dim, "ndimension": _dim, "stride": _stride, "strides": _strides,
    "nbytes": _bytes, "element_size": _element, "itemsize": _element, "is_cuda": _is_cuda, "is_cpu": _is_cpu,
    "options": _options, "contiguous": _contiguous, "is_contiguous": _contiguous, "clone": _contiguous,
    "defined": _defined, "index": _index, "index_put_": _index_put, "slice": _slice, "to": _to, "reset": _reset,
    "is_same": _same, "cuda": _cuda, "get_device": _device_index, "is_floating_point": _chosen, "is_complex": _chosen,
    "is_signed": _chosen, "suggest_memory_format": lambda f, node, value, given: Value(
        f"memory_format_of({value.code})", t.MEMORY_FORMAT
    ), "sym_size": _size, "sym_numel": _numel, "storage_offset": lambda f, node, value, given: Value(
        f"{value.code}.storage_offset()", t.INT64, 0, _MOST
    ), "is_non_overlapping_and_dense": _dense, "unsafeGetTensorImpl": _reset, "use_count": _reset,
    "resize_": lambda f, node, value, given: Value(
        f"{value.code}.resize_({converted(given[0], t.SIZES).code})", t.TENSOR
    ),
}  # fmt: skip


def arguments_of(f: Context, node: Any, name: str, values: Sequence[Value], *, function: bool) -> list[str]:
    """The arguments of a call of torch in Python, in C++'s order."""
    codes: list[str] = []
    if name in _FACTORIES and len(values) > 1 and values[0].type.kind == "dtype":  # at::empty(x.type(), {n})
        dtype = values[0].code
        if not dtype.endswith(".dtype"):
            raise NotTranslated(f"`{short(node)}`: a type before the sizes", node)
        options = {"dtype": dtype, "device": f"{dtype.removesuffix('.dtype')}.device"}
        values = [*values[1:], Value("", t.OPTIONS, options=options)]
    after_star = _KEYWORDS.get(name, ())
    count = len(values)
    sized = _SIZED.get(name, 0)
    first = _POSITIONAL.get(name)
    star = (first + function if first is not None else count - len(after_star)) if after_star else count
    if after_star and first is None and count <= 2 + function:
        star = count
    for k, one in enumerate(values):
        if one.type.kind == "options":
            codes += keywords(one)
        elif one.type.kind == "dtype" and name not in ("to", "result_type", "promote_types", "can_cast", "view"):
            codes.append(f"dtype={one.code}")
        elif one.type.kind == "device_type":
            codes.append(f"device={converted(one, t.DEVICE).code}")
        elif one.type.kind == "device":
            codes.append(f"device={one.code}")
        elif one.type.kind == "memory_format":
            codes.append(f"memory_format={one.code}")
        elif one.type.kind == "layout":
            codes.append(f"layout={one.code}")
        elif k < sized and (one.items is not None or one.type.kind in ("int", "sizes", "vector")):
            codes.append(converted(one, t.SIZES).code)
        elif one.items is not None and name == "tensor":
            codes.append(converted(one, Type("vector", of=(t.ANY,))).code if not _nested(one) else one.code)
        elif one.items == () and _may_be_none(name, k + (not function)):
            codes.append("None")
        elif one.items is not None:
            tensors = any(item.type.kind == "tensor" for item in one.items)
            codes.append(one.code if tensors else converted(one, t.SIZES).code)
        elif k >= star and k - star < len(after_star):
            codes.append(f"{after_star[k - star]}={one.code}")
        elif one.type.kind not in _NO_ARGUMENTS and (keyword := _keyword(name, k + (not function))):
            codes.append(f"{keyword}={one.code}")
        elif one.type.kind in _NO_ARGUMENTS:
            raise NotTranslated(f"`{short(node)}`: {one.type} for {name}", node)
        elif one.type.kind == "generator":
            raise NotTranslated(f"`{short(node)}`: a generator", node)
        else:
            codes.append(one.code)
    return codes


_NO_ARGUMENTS = ("pointer", "struct", "lambda", "kernel", "stream", "address", "generator")


def _keyword(name: str, place: int) -> str:
    """The name of an argument of ATen that Python takes by keyword alone; "" for another one."""
    inside = [one.arguments for one in _schemas(name) if not any(each.is_out for each in one.arguments)]
    found = {(one[place].name if one[place].kwarg_only else "") for one in inside if len(one) > place}
    return found.pop() if len(found) == 1 else ""


def _may_be_none(name: str, place: int) -> bool:
    """Whether an operator of ATen has a tensor in this place that need not be given."""
    arguments = [one.arguments[place] for one in _schemas(name) if len(one.arguments) > place]
    return any(str(one.type) == "Optional[Tensor]" for one in arguments)


def _nested(value: Value) -> bool:
    return any(item.items is not None for item in value.items or ())


def _returned(name: str, values: Sequence[Value], self: int) -> Type:
    """What a function of torch returns; `self` is 1 where the first value is the tensor."""
    if name in _TUPLES:
        rest = values[self:]
        if name in ("max", "min", "median", "nanmedian") and (not rest or rest[0].type.kind == "tensor"):
            return t.TENSOR
        return Type("tuple", of=(t.TENSOR, t.TENSOR))
    if name in _LISTS:
        return Type("vector", of=(t.TENSOR,))
    if name in ("result_type", "promote_types"):
        return t.DTYPE
    if name in ("tolist", "backward", "storage", "register_hook", "numpy"):
        raise NotTranslated(f"a tensor's method {name}")
    schema = _schema(name)
    return _by_schema(schema) if schema is not None and schema.returns else t.TENSOR


def _schema(name: str) -> Any:
    """What torch says of an operator of ATen; None for a name that is not one."""
    return next(_schemas(name), None)


def _schemas(name: str) -> Iterator[Any]:
    """What torch says of each overload of an operator of ATen; nothing for a name that is not one."""
    packet = getattr(torch.ops.aten, name, None)
    return (getattr(packet, one)._schema for one in packet.overloads()) if packet is not None else iter(())


def _of_aten(f: Context, node: Any, name: str, values: Sequence[Value]) -> Value:
    """A call of an operator that torch's Python has not, or has with another result."""
    codes = arguments_of(f, node, name, values, function=True)
    return Value(f"torch.ops.aten.{name}({', '.join(codes)})", _by_schema(_schema(name)))


def _from_blob(f: Context, node: Any, given: Sequence[Value]) -> Value:
    """``torch::from_blob``: of a tensor's memory a view, of a vector a copy, which is to be copied."""
    memory, sizes = given[0], converted(given[1], t.SIZES).code
    copied = node.parent.type == "field_expression" and text_of(node.parent.child_by_field_name("field")) in _COPIES
    if memory.type.kind != "pointer" or (memory.extra == "vector" and not copied):
        raise NotTranslated("torch::from_blob", node, "make the tensor in Python and pass it")
    options = converted(given[-1], t.OPTIONS) if len(given) > 2 else Value("", t.OPTIONS, options={})
    if len(given) > 3:
        raise NotTranslated("torch::from_blob", node, "make the tensor in Python and pass it")
    dtype = (options.options or {}).get("dtype") or (
        f"{options.code}.get('dtype')" if options.code else "torch.float32"
    )
    return Value(f"from_blob({typed(memory)}, {sizes}, {dtype})", t.TENSOR)


_COPIES = ("clone", "to", "cuda")


def _by_schema(schema: Any) -> Type:
    types = [_RETURNS.get(str(one.type), t.ANY) for one in schema.returns]
    return types[0] if len(types) == 1 else Type("tuple", of=tuple(types)) if types else t.VOID


_RETURNS = {
    "Tensor": t.TENSOR, "List[Tensor]": Type("vector", of=(t.TENSOR,)), "bool": t.BOOL, "int": t.INT64,
    "float": t.DOUBLE, "number": t.SCALAR,
}  # fmt: skip
#: Functions of torch whose number of results, or whose arguments, are others in Python.
_BY_ATEN = {"tensordot", "unique_consecutive", "unique_dim", "unique_dim_consecutive", "_unique", "_unique2"}


#: Functions whose tensors are a list in C++, and arguments in Python.
_OF_ALL = {"broadcast_tensors", "cartesian_prod", "meshgrid", "block_diag"}


def function(f: Context, node: Any, name: str, nodes: list[Any]) -> Value | None:
    """``at::name(...)``; None for a name that torch has not."""
    if name == "from_blob":
        return _from_blob(f, node, [f.value(one) for one in nodes])
    if name in ("numel", "size", "stride", "dim") and nodes:
        return method(f, node, f.value(nodes[0]), name, None, nodes[1:])
    if name == "slice":
        values = [f.value(one) for one in nodes]
        return Value(f"torch.ops.aten.slice({', '.join(one.code for one in values)})", t.TENSOR)
    if name.endswith("_out") and hasattr(torch, name.removesuffix("_out")):
        values = [f.value(one) for one in nodes]
        codes = arguments_of(f, node, name.removesuffix("_out"), values[1:], function=True)
        return Value(f"torch.{name.removesuffix('_out')}({', '.join([*codes, f'out={values[0].code}'])})", t.TENSOR)
    if name in ("index", "index_put_", "device", "dtype", "Tensor", "jit", "nn", "cuda"):
        return None
    if name in _BY_ATEN or not hasattr(torch, name):
        return _of_aten(f, node, name, [f.value(one) for one in nodes]) if _schema(name) is not None else None
    values = [f.value(one) for one in nodes]
    codes = arguments_of(f, node, name, values, function=True)
    if name in _OF_ALL:
        codes[0] = f"*{codes[0]}"
    if name in _FACTORIES or name in _LIKE:
        return Value(f"torch.{name}({', '.join(codes)})", t.TENSOR)
    return Value(f"torch.{name}({', '.join(codes)})", _returned(name, values, 1))


def count(value: Value) -> Value:
    return integer(0) if value.code == "[]" else Value(f"len({value.code})", t.SIZE, 0, _MOST)


def type_argument(f: Context, node: Any) -> str:
    """A type as text."""
    return spelled(f, type_of(f, named(node)[0]))
