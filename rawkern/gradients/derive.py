"""From the text of a kernel to that of its backward."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rawkern.gradients import helpers, loops, types
from rawkern.gradients.activity import activity, check_memory
from rawkern.gradients.forward import Frame
from rawkern.gradients.ir import Array, Kernel, Loop, Store, walk
from rawkern.gradients.layout import Names, rendered
from rawkern.gradients.reading import Launched, Reader, Shape
from rawkern.gradients.reverse import Reverse
from rawkern.gradients.rules import number
from rawkern.gradients.syntax import Where
from rawkern.gradients.types import Aggregate


@dataclass(frozen=True)
class Text:
    """The text of a derived kernel, and what its parameters are."""

    name: str
    source: str
    #: In order: ("value", of the forward's parameters) or ("grad", of one of them).
    parameters: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]  # pointers whose gradients are read
    wrt: tuple[str, ...]  # parameters whose gradients are added to
    saved: tuple[str, ...]  # pointers whose values are read
    exchanged: tuple[str, ...]  # outputs whose gradients are set to 0 while they are read
    atomics: int  # how many additions may meet in one element
    unit_axes: tuple[bool, bool, bool]  # axes of the grid that have to have one block
    block: Shape = (1, 1, 1)
    assigned: tuple[str, ...] = field(default=())  # outputs that are set, not added to
    shared_mem: int = 0  # bytes of dynamic shared memory


def derive(
    text: str,
    name: str,
    *,
    where: Where,
    launched: Launched,
    options: Sequence[str] = (),
    headers: Sequence[str] = (),
    wrt: Sequence[str] | None = None,
    max_iterations: int | None = None,
    double: bool = False,
) -> Text:
    """Derive the backward of a kernel; with `double` in double, whatever its own type."""
    if headers:
        raise where.refuse(1, f"it includes {', '.join(headers)}", "put what it needs into one file")
    reader = Reader(text, name, where, options, launched)
    return reader.settle(lambda kernel: _derived(reader, kernel, where, wrt, max_iterations, double))


def forward(
    text: str, name: str, *, where: Where, launched: Launched, options: Sequence[str] = (), double: bool = False
) -> str:
    """The kernel itself as it was understood, as ``NAME_forward``; with `double` in double."""
    reader = Reader(text, name, where, options, launched, vectors=False)
    return reader.settle(lambda kernel: _forward(reader, kernel, double))


def _forward(reader: Reader, kernel: Kernel, double: bool) -> str:
    names = Names(_taken(kernel) | reader.file.options, double)
    frame = Frame(kernel.body, None, names, stores_all=True)
    frame.settle()
    params = [f"{_spelled(kind, names)}{'*' if pointer else ''} {n}" for n, kind, pointer in kernel.params]
    lines = rendered([*_shared(kernel, names, {a for a in kernel.shared}), *frame.printed()])
    head = f'extern "C" __global__ void {_base(kernel.name)}_forward({", ".join(params)}) {{'
    before = helpers.texts("\n".join([*params, *lines]))
    return "\n".join([*_structs(kernel, names), *before, head, *lines, "}", ""])


def _base(name: str) -> str:
    return name.partition("<")[0].strip()


def _taken(kernel: Kernel) -> set[str]:
    words = {n for n, *_ in kernel.params} | {a.name for a in kernel.shared} | {f"grad_{n}" for n, *_ in kernel.params}
    words |= {f"grad_{a.name}" for a in kernel.shared} | set(helpers.HELPERS) | set(kernel.structs)
    return words | {
        "lane",
        "float",
        "double",
        "int",
        "bool",
        "long",
        "short",
        "char",
        "unsigned",
        "for",
        "if",
        "while",
        "const",
        "return",
    }


def _derived(
    reader: Reader,
    kernel: Kernel,
    where: Where,
    wrt: Sequence[str] | None,
    max_iterations: int | None,
    double: bool,
) -> Text:
    written = {i.place.array for i in walk(kernel.body) if isinstance(i, Store)}
    floats = {
        n for n, kind, pointer in kernel.params if pointer and _has_floats(kind) and kernel.arrays[n] not in written
    }
    wrt = tuple(n for n, *_ in kernel.params if n in floats) if wrt is None else tuple(wrt)
    for each in wrt:
        fits = next(
            (
                types.is_float(kind) or (pointer and _has_floats(kind))
                for n, kind, pointer in kernel.params
                if n == each
            ),
            None,
        )
        if not fits:
            known = ", ".join(
                n for n, kind, pointer in kernel.params if types.is_float(kind) or (pointer and _has_floats(kind))
            )
            raise ValueError(
                f"wrt names {each!r}, which is no floating-point parameter of {kernel.name}; it has {known or 'none'}"
            )
    check_memory(kernel, wrt, where)
    for item in walk(kernel.body):
        if isinstance(item, Loop):
            loops.check_condition(item, where.refuse)
    active = activity(kernel, wrt)
    for array in active.outputs:
        if not _has_floats(array.type):
            raise where.refuse(
                1, f"{array.name} points to structs", "use an array of float or of a vector type for each field"
            )
    if not active.outputs:
        raise where.refuse(1, f"no output depends on {', '.join(wrt) or 'any parameter'}", "name others in wrt")
    names = Names(_taken(kernel) | reader.file.options, double)
    reverse = Reverse(kernel, active, names, where, max_iterations)
    body = reverse.run()
    return _text(kernel, reverse, wrt, body, names, reader.units)


def _has_floats(kind: types.Type) -> bool:
    if isinstance(kind, Aggregate):
        return kind in types.VECTORS.values() and _has_floats(kind.fields[0][1])
    return types.is_float(kind)


def _text(
    kernel: Kernel, reverse: Reverse, wrt: tuple[str, ...], body: list, names: Names, units: tuple[bool, bool, bool]
) -> Text:
    lines = [
        *_shadows(kernel, reverse, names),
        *_shared(kernel, names, reverse.read, reverse.shadows),
        *_zeroed(kernel, reverse, names),
        *body,
    ]
    while lines and lines[-1] in ("__syncthreads();", "__syncwarp();"):
        lines.pop()
    inner = "\n".join(rendered(lines))
    outputs = tuple(a.name for a in reverse.active.outputs)
    parameters, spelled = [], []
    for n, kind, pointer in kernel.params:
        if re.search(rf"(?<![\w.]){n}\b", inner):
            parameters.append(("value", n))
            spelled.append(
                f"const {_spelled(kind, names)}* __restrict__ {n}" if pointer else f"{_spelled(kind, names)} {n}"
            )
    for n, kind, _ in kernel.params:
        if n in outputs or n in wrt:
            parameters.append(("grad", n))
            const = "const " if n in outputs and kernel.arrays[n] not in reverse.exchanged else ""
            spelled.append(f"{const}{_summed(kind, names)}* __restrict__ grad_{n}")
    name = f"{_base(kernel.name)}_backward"
    shape = "x".join(map(str, kernel.block))
    unit = "".join(f", gridDim.{a} = 1" for a, one in zip("xyz", units, strict=True) if one)
    comment = [
        f"// The backward of {kernel.name}, derived by rawkern from {kernel.title[-70:]}.",
        f"// For blocks of {shape} threads{unit}.",
        f"// Adds to {', '.join(f'grad_{n}' for n in wrt)}, which begin with 0."
        + (
            f" Sets {', '.join(sorted(f'grad_{a.name}' for a in reverse.exchanged))} to 0." if reverse.exchanged else ""
        ),
    ]
    head = f'extern "C" __global__ void {name}({", ".join(spelled)}) {{'
    if len(head) > 120:
        head = f'extern "C" __global__ void {name}(\n    ' + ",\n    ".join(spelled) + ") {"
    text = "\n".join(
        [
            *_structs(kernel, names),
            *helpers.texts("\n".join([*spelled, inner]), reverse.helpers),
            *comment,
            head,
            inner,
            "}",
            "",
        ]
    )
    assigned = tuple(
        a.name
        for a in reverse.active.outputs
        if any(isinstance(i, Store) and i.place.array == a and not i.adds for i in walk(kernel.body))
    )
    saved = tuple(n for kind, n in parameters if kind == "value" and n in kernel.arrays)
    return Text(
        name, text, tuple(parameters), outputs, wrt, saved, tuple(a.name for a in reverse.exchanged),
        len(re.findall(r"atomicAdd|warp_add", inner)), units, kernel.block, assigned,
        sum(_bytes(a, reverse, names) for a in kernel.shared if a.dynamic),
    )  # fmt: skip


def _spelled(kind: types.Type, names: Names) -> str:
    if not isinstance(kind, Aggregate):
        return names.type(kind)
    if not names.double or kind not in types.VECTORS.values():
        return kind.name
    return "double2" if kind.fields[0][1] in types.HALVES else kind.name.replace("float", "double")


def _summed(kind: types.Type, names: Names) -> str:
    """The type of gradients, which is float for half precision."""
    if isinstance(kind, Aggregate):
        return "float2" if kind.fields[0][1] in types.HALVES and not names.double else _spelled(kind, names)
    return "float" if kind in types.HALVES and not names.double else names.type(kind)


def _bytes(array: Array, reverse: Reverse, names: Names) -> int:
    each = _size(array.type, names) if array in reverse.read else 0
    return array.sizes[0] * (each + (_summed_size(array.type, names) if array in reverse.shadows else 0))


def _summed_size(kind: types.Type, names: Names) -> int:
    if isinstance(kind, Aggregate):
        return sum(_summed_size(inner, names) for _, inner in kind.fields)
    return max(_size(kind, names), 4) if kind in types.HALVES else _size(kind, names)


def _size(kind: types.Type, names: Names) -> int:
    """Bytes of a type as it is spelled."""
    if isinstance(kind, Aggregate):
        return sum(_size(inner, names) for _, inner in kind.fields)
    return types.size(names.type(kind))


def _structs(kernel: Kernel, names: Names) -> list[str]:
    texts = [text.strip().rstrip(";") + ";" for _, text in kernel.structs.values()]
    return [re.sub(r"\bfloat(\d?)\b", r"double\1", t) if names.double else t for t in texts]


def _shared(kernel: Kernel, names: Names, wanted: set[Array], behind: set[Array] | None = None) -> list[str]:
    """Declarations of shared arrays; dynamic ones lie behind their shadows."""
    found = []
    for a in kernel.shared:
        kind = _spelled(a.type, names)
        if a in wanted and a in (behind or ()) and a.dynamic:
            found.append(f"{kind}* {a.name} = reinterpret_cast<{kind}*>(grad_{a.name} + {a.sizes[0]});")
        elif a in wanted:
            found.append(f"{'extern ' if a.dynamic else ''}__shared__ {kind} {a.name}{_extents(a)};")
    return found


def _extents(array: Array) -> str:
    return "[]" if array.dynamic else "".join(f"[{size}]" for size in array.sizes)


def _shadows(kernel: Kernel, reverse: Reverse, names: Names) -> list[str]:
    return [
        f"{'extern ' if a.dynamic else ''}__shared__ {_summed(a.type, names)} grad_{a.name}{_extents(a)};"
        for a in kernel.shared
        if a in reverse.shadows
    ]


def _zeroed(kernel: Kernel, reverse: Reverse, names: Names) -> list[str]:
    """Lines that set the shadows to 0, all threads of the block together."""
    found: list[str] = []
    shape = kernel.block
    thread = "threadIdx.x" if shape[1] == shape[2] == 1 else f"threadIdx.x + {shape[0]} * threadIdx.y"
    thread += f" + {shape[0] * shape[1]} * threadIdx.z" if shape[2] != 1 else ""
    for a in kernel.shared:
        if a not in reverse.shadows:
            continue
        count = 1
        for size in a.sizes:
            count *= size
        kind = _summed(a.type, names)
        zero = f"{kind}()" if isinstance(a.type, Aggregate) else number(0.0, kind)
        place = f"grad_{a.name}" if not a.sizes else f"(&grad_{a.name}{'[0]' * len(a.sizes)})[i]"
        place = f"grad_{a.name}[i]" if len(a.sizes) == 1 else place
        threads = shape[0] * shape[1] * shape[2]
        found.append(f"for (int i = {thread}; i < {count}; i += {threads}) {place} = {zero};")
    return [*found, "__syncthreads();"] if found else []
