"""CUDA's functions for the host and torch's around them, as far as they mean something here."""

from __future__ import annotations

from typing import Any

from rawkern.base.tree import named, text_of
from rawkern.extensions import types as t
from rawkern.extensions.context import Context, short
from rawkern.extensions.launches import launch_call
from rawkern.extensions.spelling import spelled, type_of
from rawkern.extensions.statements import assign
from rawkern.extensions.types import Type
from rawkern.extensions.untranslated import NotTranslated
from rawkern.extensions.values import Value, converted, integer, typed

#: What rawkern does by itself, or has no effect because errors are exceptions: their value is cudaSuccess.
_NOTHING = {
    "cudaFuncSetAttribute", "cudaGetLastError", "cudaPeekAtLastError", "cudaFuncSetCacheConfig", "cudaSetDevice",
    "cudaFuncSetSharedMemConfig", "MaybeSetDevice", "set_device", "cudaDeviceSetCacheConfig",
    "cudaCtxResetPersistingL2Cache", "cudaDeviceSetSharedMemConfig", "cudaProfilerStart", "cudaProfilerStop",
    "cudaDeviceSetLimit", "cudaFree", "free", "cudaFreeAsync", "THCudaFree", "raw_delete",
    # All runs on the current stream in the order of the code, which is an order that streams and events allow.
    "cudaStreamCreate", "cudaStreamCreateWithFlags", "cudaStreamCreateWithPriority", "cudaStreamDestroy",
    "cudaEventCreate", "cudaEventCreateWithFlags", "cudaEventRecord", "cudaEventRecordWithFlags", "cudaEventDestroy",
    "cudaStreamWaitEvent", "setCurrentCUDAStream",
}  # fmt: skip
_UNSUPPORTED = {
    "cudaMallocManaged": "allocate with torch::empty",
    "cudaMallocHost": "allocate with torch::empty",
    "cudaHostAlloc": "allocate with torch::empty",
    "cudaEventElapsedTime": "measure with torch.cuda.Event in Python",
    "cudaEventQuery": "use torch.cuda.Event in Python",
    "cudaStreamQuery": "use torch.cuda.Stream in Python",
    "cudaStreamAddCallback": "call the function in Python, after torch.cuda.synchronize",
    "cudaLaunchHostFunc": "call the function in Python, after torch.cuda.synchronize",
    "cudaStreamBeginCapture": "use torch.cuda.CUDAGraph in Python",
    "cudaLaunchCooperativeKernel": "launch with rawkern.RawKernel(enable_cooperative_groups=True)",
    "cudaLaunchKernelEx": "launch with <<<>>>",
    "cudaLaunchKernelExC": "launch with <<<>>>",
    "cudaTextureObject_t": "read from the tensor",
    "cudaCreateTextureObject": "read from the tensor",
    "cudaGraphLaunch": "use torch.cuda.CUDAGraph in Python",
}


def cuda_function(f: Context, node: Any, name: str, of: Any, nodes: list[Any]) -> Value | None:
    """A call of CUDA's functions; None for another function."""
    bare = name.rsplit("::", 1)[-1]
    if bare in _NOTHING:
        return Value("0", t.INT, 0, 0)
    if bare in _UNSUPPORTED:
        raise NotTranslated(f"`{short(node)}`", node, _UNSUPPORTED[bare])
    handler = _FUNCTIONS.get(bare)
    return handler(f, node, nodes, of) if handler is not None else None


def _stream(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    return Value("None", t.STREAM)


def _device(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    return Value("device_index(cuda_device())", t.INT, -1, 1024)


def _properties(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    return Value("device_properties()", Type("pointer", of=(t.PROPERTIES,)))


def _synchronize(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    return Value("synchronize()", t.INT)


def _capturing(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    return Value("False", t.BOOL)


def _text_of_error(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    return Value("'no error'", t.STRING)


def _memset(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    target, value, count = (f.value(one) for one in nodes[:3])
    if target.type.kind == "address" or target.type.item.kind == "struct":  # memset(&params, 0, sizeof(params))
        raise NotTranslated(f"`{short(node)}`", node)
    return Value(f"memset({typed(target)}, {value.code}, {converted(count, t.SIZE).code})", t.INT)


def _memset_struct(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    if (found := _memset_vector(f, nodes)) is not None:
        return found
    value, number = f.value(nodes[0]), f.value(nodes[1])
    pointed = value.type.item if value.type.kind == "pointer" else value.type
    if pointed.kind != "struct" or number.constant != 0:
        raise NotTranslated(f"`{short(node)}`", node)
    return Value(f"{value.code}.clear()", t.VOID)


def _memset_vector(f: Context, nodes: list[Any]) -> Value | None:
    """``memset(&v[0], 0, count)`` and ``memset(v.data(), 0, count)``; None for anything but a vector of numbers."""
    target = nodes[0]
    if target.type == "pointer_expression" and text_of(target.children[0]) == "&":
        inside = target.child_by_field_name("argument")
        if inside.type != "subscript_expression" or text_of(inside.child_by_field_name("indices")) != "[0]":
            return None
        target = inside.child_by_field_name("argument")
    elif target.type == "call_expression" and text_of(target).endswith((".data()", ".begin()")):
        target = target.child_by_field_name("function").child_by_field_name("argument")
    vector = f.value(target)
    size = {"bool": 1, "float32": 4, "float64": 8, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4}
    size |= {"uint32": 4, "int64": 8, "uint64": 8}
    if vector.type.kind not in ("vector", "array") or vector.type.item.name not in size:
        return None
    if f.value(nodes[1]).constant != 0:
        return None
    count = converted(f.value(nodes[2]), t.SIZE).code
    return Value(f"clear({vector.code}, {count} // {size[vector.type.item.name]})", t.VOID)


def _vector_of(f: Context, node: Any) -> Value:
    """A pointer, also one to a vector's first element as ``&v[0]``."""
    if node.type == "pointer_expression" and text_of(node.children[0]) == "&":
        inside = node.child_by_field_name("argument")
        if inside.type == "subscript_expression" and text_of(inside.child_by_field_name("indices")) == "[0]":
            vector = f.value(inside.child_by_field_name("argument"))
            if vector.type.kind in ("vector", "array"):
                return Value(vector.code, Type("pointer", "vector", (vector.type.item,)), extra="vector")
    value = f.value(node)
    if value.type.kind == "array":
        return Value(value.code, Type("pointer", "vector", (value.type.item,)), extra="vector")
    return value


def _memcpy(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    target, source, count = _vector_of(f, nodes[0]), _vector_of(f, nodes[1]), f.value(nodes[2])
    if "vector" in (target.type.name, source.type.name):
        down = target.type.name == "vector"
        vector, pointer = (target, source) if down else (source, target)
        if pointer.type.kind != "pointer" or pointer.type.name == "vector" or not vector.type.item.number:
            raise NotTranslated(f"`{short(node)}`", node)
        word = "download" if down else "upload"
        codes = f"{typed(target)}, {typed(source)}, {converted(count, t.SIZE).code}, {spelled(f, vector.type.item)}"
        return Value(f"{word}({codes})", t.INT)
    if target.type.kind == "address":
        return _to_variable(f, node, target, source, nodes)
    if source.type.kind == "address" and target.type.kind == "pointer":
        value = f.value(source.extra)
        if value.type.number:
            codes = f"{typed(target)}, [{value.code}], {converted(count, t.SIZE).code}, {spelled(f, value.type)}"
            return Value(f"upload({codes})", t.INT)
    if "pointer" not in (target.type.kind, source.type.kind) or source.type.kind == "address":
        raise NotTranslated(f"`{short(node)}`", node, "copy with Tensor.copy_")
    return Value(f"memcpy({typed(target)}, {typed(source)}, {converted(count, t.SIZE).code})", t.INT)


def _to_variable(f: Context, node: Any, target: Value, source: Value, nodes: list[Any]) -> Value:
    """``cudaMemcpy(&x, pointer, sizeof(T), cudaMemcpyDeviceToHost)``."""
    inside, type_ = target.extra, target.type.item
    variable = f.find(text_of(inside)) if inside.type == "identifier" else None
    if variable is None or not type_.number or source.type.kind != "pointer":
        raise NotTranslated(f"`{short(node)}`", node)
    f.writes(variable)
    return Value(f"({variable.python} := elements({typed(source)})[0].item())", t.INT)


def _symbol(f: Context, node: Any) -> str:
    """The memory of a ``__device__`` or ``__constant__`` variable."""
    if node.type not in ("identifier", "qualified_identifier") or f.find(text_of(node)) is not None:
        raise NotTranslated(f"`{short(node)}`, which is not the name of a variable of the device", node)
    return f"{f.unit.variable}.symbol({text_of(node)!r})"


def _to_symbol(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    """``cudaMemcpyToSymbol(symbol, source, bytes, offset)``."""
    source, count = _vector_of(f, nodes[1]), converted(f.value(nodes[2]), t.SIZE).code
    start = f.value(nodes[3]) if len(nodes) > 3 else integer(0)
    target = _symbol(f, nodes[0])
    target = target if start.constant == 0 else f"offset({target}, {start.code}, 1)"
    number = f.value(source.extra) if source.type.kind == "address" else None
    if source.type.kind == "pointer" and source.type.name == "vector" and source.type.item.number:
        return Value(f"upload({target}, {typed(source)}, {count}, {spelled(f, source.type.item)})", t.INT)
    if number is not None and number.type.number:
        return Value(f"upload({target}, [{number.code}], {count}, {spelled(f, number.type)})", t.INT)
    if source.type.kind != "pointer" or source.type.item.kind == "struct":
        raise NotTranslated(f"`{short(node)}`", node, "write to the tensor of RawModule.get_global")
    return Value(f"memcpy({target}, {typed(source)}, {count})", t.INT)


def _address_of_symbol(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    """``cudaGetSymbolAddress(&p, symbol)``."""
    target = _behind(f, node, nodes[0])
    type_ = f.value(target).type
    if type_.kind != "pointer":
        raise NotTranslated(f"`{short(node)}`", node, "use the tensor of RawModule.get_global")
    assign(f, node, target, Value(_symbol(f, nodes[1]), type_))
    return Value("0", t.INT, 0, 0)


def _behind(f: Context, node: Any, target: Any) -> Any:
    """The variable of a pointer that a function sets through ``&p`` or ``(void**)&p``."""
    while target.type in ("cast_expression", "parenthesized_expression"):
        target = target.child_by_field_name("value") or named(target)[0]
    if target.type != "pointer_expression" or text_of(target.children[0]) != "&":
        raise NotTranslated(f"`{short(node)}`", node, "allocate with torch::empty")
    return target.child_by_field_name("argument")


def _from_symbol(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    """``cudaMemcpyFromSymbol(&x, symbol, sizeof(x))``."""
    target = f.value(nodes[0])
    inside, type_ = target.extra, target.type.item if target.type.of else t.ANY
    variable = f.find(text_of(inside)) if inside is not None and inside.type == "identifier" else None
    if variable is None or not type_.number or (len(nodes) > 3 and f.value(nodes[3]).constant != 0):
        raise NotTranslated(f"`{short(node)}`", node, "read the tensor of RawModule.get_global")
    f.writes(variable)
    cast = {"bool": "bool", "int": "int", "float": "float"}.get(type_.kind, "")
    symbol = f"{f.unit.variable}.symbol({text_of(nodes[1])!r})"
    return Value(f"({variable.python} := {cast}({symbol}.item()))", t.INT)


def _allocate(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    """``cudaMalloc(&p, bytes)``: a tensor, which is freed when nothing has it any more."""
    target = _behind(f, node, nodes[0])
    type_ = f.value(target).type
    if type_.kind != "pointer" or type_.item.kind not in ("int", "float", "bool", "param", "void", "cuda_vector"):
        raise NotTranslated(f"`{short(node)}`", node, "allocate with torch::empty")
    assign(f, node, target, _allocated(f, nodes[1], type_))
    return Value("0", t.INT, 0, 0)


def _allocated(f: Context, count: Any, type_: Type) -> Value:
    item = "" if type_.item.kind == "void" else f", {spelled(f, type_.item)}"
    return Value(f"allocated({converted(f.value(count), t.SIZE).code}{item})", type_)


def _allocate_bytes(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    """``THCudaMalloc(state, bytes)`` and ``CUDACachingAllocator::raw_alloc(bytes)``."""
    return _allocated(f, nodes[-1], Type("pointer", of=(t.VOID,)))


def _attribute(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    """``cudaDeviceGetAttribute(&x, attribute, device)``, ``cudaGetDevice(&x)``: what is written through &x."""
    called = text_of(node.child_by_field_name("function")).rsplit("::", 1)[-1]
    target = f.value(nodes[0])
    inside = target.extra
    variable = f.find(text_of(inside)) if inside is not None and inside.type == "identifier" else None
    if variable is None and target.type.kind != "pointer":
        raise NotTranslated(f"`{short(node)}`", node)
    if called == "cudaGetDeviceProperties":
        code = target.code if variable is None else variable.python
        return Value(f"({code} := device_properties())", t.INT)
    assert variable is not None
    f.writes(variable)
    values = {
        "cudaGetDevice": "device_index(cuda_device())",
        "cudaGetDeviceCount": "max(torch.cuda.device_count(), 1)",
        "cudaRuntimeGetVersion": "12080",
        "cudaDriverGetVersion": "12080",
    }
    if called == "cudaDeviceGetAttribute":
        code = f"device_attribute({text_of(nodes[1])!r})"
    elif called.startswith("cudaOccupancyMaxActiveBlocks"):
        kernel, threads, shared = (f.value(one) for one in nodes[1:4])
        code = f"active_blocks({kernel.code}, {threads.code}, {shared.code})"
    else:
        code = values[called]
    return Value(f"({variable.python} := {code})", t.INT)


def _properties_of(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    target = f.value(nodes[0])
    inside = target.extra
    variable = f.find(text_of(inside)) if inside is not None and inside.type == "identifier" else None
    if variable is None:
        raise NotTranslated(f"`{short(node)}`", node)
    f.writes(variable)
    return Value(f"({variable.python} := device_properties())", t.INT)


def _occupancy(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    """``cudaOccupancyMaxPotentialBlockSize(&blocks, &threads, kernel, shared, limit)``."""
    kernel = f.value(nodes[2])
    shared = f.value(nodes[3]) if len(nodes) > 3 else integer(0)
    limit = f.value(nodes[4]) if len(nodes) > 4 else integer(0)
    if kernel.type.kind != "kernel" or not shared.type.integral or not limit.type.integral:
        raise NotTranslated(f"`{short(node)}`", node)
    sizes = f.temporary("sizes")
    f.emit(f"{sizes} = potential_block_size({kernel.code}, {shared.code}, {limit.code})")
    for k, one in enumerate(nodes[:2]):
        target = f.value(one)
        if target.type.kind != "address":
            raise NotTranslated(f"`{short(node)}`", node)
        assign(f, node, target.extra, Value(f"{sizes}[{k}]", t.INT))
    return Value("0", t.INT, 0, 0)


def _malloc(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    """``malloc(bytes)``, which a cast makes an array."""
    around = node.parent
    if around.type not in ("cast_expression", "argument_list"):
        raise NotTranslated(f"`{short(node)}`", node)
    return Value(converted(f.value(nodes[0]), t.SIZE).code, Type("pointer", "malloc", (t.VOID,)))


def _launch(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    return launch_call(f, node)


def _warp(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    return Value("32", t.INT, 32, 32)


def _all(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    """``checkAllSameGPU(context, {a, b})``, ``checkSameGPU(context, a, b)`` and the like."""
    name = text_of(node.child_by_field_name("function")).rsplit("::", 1)[-1]
    context, *values = (f.value(one) for one in nodes)
    if name == "checkDeviceType":
        return Value(f"check_device_type({context.code}, {values[0].code}, {values[1].code})", t.VOID)
    if name == "checkScalarType":
        return Value(f"check_scalar_types({context.code}, {values[0].code}, [{values[1].code}])", t.VOID)
    given = values[0].code if "All" in name else f"[{', '.join(one.code for one in values)}]"
    word = _CHECK_WORDS[name.removeprefix("check").removeprefix("All")]
    return Value(f"check_{word}({context.code}, {given})", t.VOID)


def _check_one(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    name = text_of(node.child_by_field_name("function")).rsplit("::", 1)[-1].removeprefix("check")
    word = {"ScalarTypes": "scalar_types", "DimRange": "dim_range"}.get(name, name.lower())
    return Value(f"check_{word}({', '.join(f.value(one).code for one in nodes)})", t.VOID)


_CHECK_WORDS = {
    "SameGPU": "same_gpu", "SameType": "same_type", "Defined": "defined", "SameSize": "same_size",
    "SameNumel": "same_numel", "Contiguous": "contiguous",
}  # fmt: skip


def _check(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    return f.value(nodes[0])


def _tensor_info(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    return Value(f.value(nodes[0]).code, Type("accessor", "1", (t.ANY,)))


def _null_accessor(f: Context, node: Any, nodes: list[Any], of: Any) -> Value | None:
    """``PackedTensorAccessor<T, N>(nullptr, sizes, strides)``, for a tensor that is not given."""
    if not of or len(of) < 2 or len(nodes) != 3 or f.value(nodes[0]).type.kind != "null":
        return None
    inner = [named(one)[0] if one.type == "type_descriptor" else one for one in of[:2]]
    dtype = f"dtype_of({spelled(f, type_of(f, of[0]))})"
    code = f"torch.empty((0,) * {f.value(inner[1]).code}, dtype={dtype}, device=cuda_device())"
    return Value(code, Type("accessor", "1", (t.ANY,)))


def _vector(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    name = text_of(node.child_by_field_name("function")).removeprefix("make_")
    return converted(Value("", Type("list"), items=tuple(f.value(one) for one in nodes)), Type("cuda_vector", name))


def _index_32(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    return Value(f"({f.value(nodes[0]).code}.numel() < 2**31)", t.BOOL)


def _arguments(f: Context, node: Any) -> list[Any]:
    return named(node.child_by_field_name("arguments"))


def _to_half(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    name = text_of(node.child_by_field_name("function"))
    half = (
        Type("float", "half", spelled="half")
        if "half" in name
        else Type("float", "__nv_bfloat16", spelled="__nv_bfloat16")
    )
    return converted(f.value(nodes[0]), half)


def _from_half(f: Context, node: Any, nodes: list[Any], of: Any) -> Value:
    value = f.value(nodes[0])
    return Value(value.code, t.FLOAT)


_FUNCTIONS = {
    "malloc": _malloc, "cudaMalloc": _allocate, "cudaMallocAsync": _allocate,
    "THCudaMalloc": _allocate_bytes, "raw_alloc": _allocate_bytes,
    "PackedTensorAccessor": _null_accessor, "PackedTensorAccessor32": _null_accessor,
    "PackedTensorAccessor64": _null_accessor, "GenericPackedTensorAccessor": _null_accessor,
    "__float2half": _to_half, "__float2half_rn": _to_half, "__float2bfloat16": _to_half, "__half2float": _from_half,
    "__bfloat162float": _from_half, "__float2bfloat16_rn": _to_half,
    "getCurrentCUDAStream": _stream, "THCState_getCurrentStream": _stream, "getDefaultCUDAStream": _stream,
    "getCurrentHIPStream": _stream, "getStreamFromPool": _stream, "cudaEventSynchronize": _synchronize,
    "current_device": _device, "getCurrentDeviceProperties": _properties, "getDeviceProperties": _properties,
    "cudaDeviceSynchronize": _synchronize, "cudaStreamSynchronize": _synchronize, "device_synchronize": _synchronize,
    "stream_synchronize": _synchronize, "cudaGetErrorString": _text_of_error, "cudaGetErrorName": _text_of_error,
    "cudaMemsetAsync": _memset, "cudaMemset": _memset, "memset": _memset_struct, "cudaMemcpyAsync": _memcpy,
    "cudaMemcpy": _memcpy, "cudaMemcpyToSymbol": _to_symbol, "cudaMemcpyToSymbolAsync": _to_symbol,
    "cudaGetSymbolAddress": _address_of_symbol, "cudaMemcpyFromSymbol": _from_symbol,
    "cudaMemcpyFromSymbolAsync": _from_symbol,
    "cudaDeviceGetAttribute": _attribute, "cudaGetDevice": _attribute, "cudaGetDeviceCount": _attribute,
    "cudaRuntimeGetVersion": _attribute, "cudaDriverGetVersion": _attribute,
    "cudaGetDeviceProperties": _properties_of, "cudaLaunchKernel": _launch, "warp_size": _warp,
    "cudaOccupancyMaxPotentialBlockSize": _occupancy,
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor": _attribute, "getTensorInfo": _tensor_info,
    "canUse32BitIndexMath": _index_32, "is_available": _capturing,
    **{f"make_{name}": _vector for name in t.VECTORS}, "checkAllSameGPU": _all, "checkAllSameType": _all,
    "checkAllDefined": _all, "checkAllSameSize": _all, "checkAllSameNumel": _all, "checkAllContiguous": _all,
    "checkSameGPU": _all, "checkSameType": _all, "checkSameSize": _all, "checkSameNumel": _all,
    "checkContiguous": _all, "checkDim": _check_one, "checkDimRange": _check_one, "checkSize": _check_one,
    "checkNumel": _check_one, "checkScalarType": _all, "checkDeviceType": _all, "checkScalarTypes": _check_one,
}  # fmt: skip
