"""What to pass if memory has another dtype than a kernel reads: a conversion, or a view of the same bytes."""

from __future__ import annotations

from rawkern.arguments.memory import Memory
from rawkern.arguments.scalars import Where
from rawkern.base.ctype import CType

_METHOD = {
    "float32": "float()",
    "float64": "double()",
    "float16": "half()",
    "bfloat16": "bfloat16()",
    "int16": "short()",
    "int32": "int()",
    "int64": "long()",
    "bool": "bool()",
}
_REAL_OF = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}


def conversion(target: CType, memory: Memory, where: Where, writes: bool) -> str:
    """The call that makes the dtype right; two where the kernel may mean numbers or their bytes."""
    complex_, real = memory.dtype.startswith("complex"), _REAL_OF.get(memory.dtype)
    want = next((dtype for dtype in target.dtypes if complex_ and dtype.startswith("complex")), target.dtypes[0])
    module = "torch" if memory.tensor is not None else "numpy"
    if target.name == "unsigned char":
        return f"pass {where.expr}.view({module}.uint8) if bytes are meant"
    if memory.tensor is not None and complex_ and not want.startswith("complex") and not (writes and real != want):
        call = "" if real == want else f".{_METHOD.get(want, f'to(torch.{want})')}"
        return f"pass torch.view_as_real({where.expr}){call}"
    if memory.tensor is not None and want.startswith("float4") and not writes:
        return f"pass {where.expr}.view(torch.{want})"
    numbers = _numbers(want, memory, where, writes)
    return f"pass {view} if bytes are meant, else {numbers}" if (view := _bytes(target, memory, where)) else numbers


def _numbers(want: str, memory: Memory, where: Where, writes: bool) -> str:
    if memory.tensor is not None:
        if writes:
            return f"make it with dtype=torch.{want}"
        return f"pass {where.expr}.{_METHOD.get(want, f'to(torch.{want})')}"
    module = "ml_dtypes" if want.startswith(("bfloat16", "float8")) else "numpy"
    want = "bool_" if want == "bool" else want
    return f"make it with dtype={module}.{want}" if writes else f"pass {where.expr}.astype({module}.{want})"


def _bytes(target: CType, memory: Memory, where: Where) -> str:
    """The view in which the same bytes have the type that the kernel reads, "" where it can only mean numbers.

    Kernels load 16 bytes of halves as a float4, or four int8 as an int.
    """
    element = target.element or target
    integer = memory.dtype.startswith(("int", "uint", "bool"))
    narrower = memory.itemsize < element.size
    if target.kind == "vector":
        fits = element.kind in ("int", "float") and (narrower or integer != (element.kind == "int"))
    else:
        fits = target.kind == "int" and narrower and memory.dtype != "bool"
    if not fits or not memory.contiguous or memory.count * memory.itemsize % element.size:
        return ""
    shape = getattr(memory.owner if memory.tensor is None else memory.tensor, "shape", ())
    whole = len(shape) > 0 and shape[-1] * memory.itemsize % element.size == 0
    module = "torch" if memory.tensor is not None else "numpy"
    return f"{where.expr}.{'' if whole else 'reshape(-1).'}view({module}.{target.dtypes[0]})"
