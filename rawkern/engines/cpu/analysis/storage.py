"""Where a module's variables lie: offsets of global, shared and local memory, the functions that use them, and what
kernels need of a GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from rawkern.base.gpus import MAX_THREADS
from rawkern.engines.cpu.needs import ModuleNeeds, Needs
from rawkern.engines.cpu.ptx.data import TYPE_BYTES, Function, Imm, Instr, Mem, Ptx, Reg, Special, Sym, Var, Vec
from rawkern.engines.cpu.ptx.operands import callee
from rawkern.engines.cpu.records import Globals
from rawkern.errors import UnsupportedError

#: Shared memory that CUDA keeps for its own headers, by the name of the special registers that say where it lies.
RESERVED = "%reserved_smem_offset"
RESERVED_BYTES = 1024
TILE_BYTES = 32  # what wmma wants addresses to be multiples of, also in arrays that are not declared so


def align_up(value: int, align: int) -> int:
    return -(-value // align) * align


def lay_out_globals(ptx: Ptx, every: bool = False) -> Globals:
    """Place the variables that any function uses (headers bring a thousand more), or every one."""
    used = {name: None for name, var in ptx.variables.items() if every and var.space != "shared"}
    work = [s for f in ptx.functions.values() for s in symbols(f)]
    while work:
        name = work.pop().removeprefix("generic:")
        var = ptx.variables.get(name)
        if name not in used and var is not None and var.space != "shared":
            used[name] = None
            work += [i.name for i in var.init if isinstance(i, Sym)]
    for name, var in ptx.variables.items():  # named by the user, perhaps only through get_global
        if var.space != "shared" and not name.startswith(("_ZN", "$str", "__unnamed")) and "4cuda" not in name:
            used.setdefault(name)
    offsets, size = {}, 0
    for name in sorted(used):
        var = ptx.variables[name]
        size = align_up(size, max(var.align, 16))
        offsets[name] = size
        size += max(var.size, 1)
    image, pointers = bytearray(size), []
    for name, at in offsets.items():
        var = ptx.variables[name]
        width = TYPE_BYTES[var.type]
        for k, value in enumerate(var.init):
            if isinstance(value, Sym) and value.name.removeprefix("generic:") in offsets:
                pointers.append((at + k * width, value.name.removeprefix("generic:"), value.offset))
            else:
                if isinstance(value, Sym):
                    value = Imm(function_address(value.name.removeprefix("generic:")), "i")
                image[at + k * width : at + (k + 1) * width] = value.bits(8 * width).to_bytes(width, "little")
    sizes = {name: ptx.variables[name].size for name in offsets}
    return Globals(offsets, sizes, size, bytes(image), tuple(pointers))


def function_address(name: str) -> int:
    """A number that stands for a function's address: one for all programs of a module, and no address of memory."""
    return (0x7F << 56) + 16 * int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "little")


def symbols(function: Function) -> Iterator[str]:
    """Names of variables and functions that a function mentions."""
    instrs = (i for i in function.body if isinstance(i, Instr))
    stack = [a for i in instrs for a in i.args if type(a) is not Reg and type(a) is not Imm]
    while stack:
        a = stack.pop()
        if isinstance(a, Sym):
            yield a.name
        elif isinstance(a, Mem):
            if isinstance(a.base, Sym):
                yield a.base.name
        elif isinstance(a, Vec):
            stack += a.items
        elif isinstance(a, list):
            stack += a


def reached(ptx: Ptx, kernel: str) -> list[Function]:
    """A kernel and the functions it can call, by name or through variables.

    Raises
    ------
    UnsupportedError
        Where one of them, or a name that it mentions, was not understood.
    """
    if kernel not in ptx.functions and kernel in ptx.unknown:
        raise UnsupportedError(f"{kernel}: {ptx.unknown[kernel]}")
    entry = ptx.functions[kernel]
    found, work = {entry.name: entry}, [entry]
    tables = [i.name for v in ptx.variables.values() for i in v.init if isinstance(i, Sym)]
    while work:
        function = work.pop()
        mentioned = list(symbols(function))
        lacking = [ptx.unknown[n] for n in mentioned if n in ptx.unknown and not _is_defined(ptx, function, n)]
        if function.rejected or lacking:
            raise UnsupportedError(f"{kernel}: {function.rejected or lacking[0]}")
        for name in [*mentioned, *(tables if _calls_through_pointer(function) else ())]:
            other = ptx.functions.get(name.removeprefix("generic:"))
            if other is not None and other.defined and other.name not in found and not other.entry:
                found[other.name] = other
                work.append(other)
    return list(found.values())


def _is_defined(ptx: Ptx, function: Function, name: str) -> bool:
    return name in ptx.functions or name in ptx.variables or name in function.local_vars


def _calls_through_pointer(function: Function) -> bool:
    return any(isinstance(i, Instr) and i.op.base == "call" and callee(i) is None for i in function.body)


def lay_out_shared(ptx: Ptx, functions: list[Function]) -> tuple[dict[str, int], int]:
    """Offsets of the ``.shared`` variables that functions use, and their size; dynamic shared memory follows."""
    offsets, size, dynamic = {}, 0, []
    variables = shared_variables(ptx, functions)
    for name, var in variables.items():
        if var.extern or var.size == 0:
            dynamic.append(name)
            continue
        size = align_up(size, max(var.align, TILE_BYTES))
        offsets[name] = size
        size += var.size
    size = align_up(size, max([TILE_BYTES, *(v.align for v in variables.values())]))
    if any(_reads_reserved(function) for function in functions):
        offsets[RESERVED] = size
        size += RESERVED_BYTES
    return offsets | dict.fromkeys(dynamic, size), size


def shared_variables(ptx: Ptx, functions: list[Function]) -> dict[str, Var]:
    """The ``.shared`` variables that functions use, by name."""
    variables: dict[str, Var] = {}
    for function in functions:
        variables |= {n: v for n, v in function.local_vars.items() if v.space == "shared"}
        for name in symbols(function):
            var = ptx.variables.get(name)
            if var is not None and var.space == "shared":
                variables[name] = var
    return variables


def _reads_reserved(function: Function) -> bool:
    args = (a for i in function.body if isinstance(i, Instr) for a in i.args)
    return any(isinstance(a, Special) and a.name.startswith(RESERVED) for a in args)


def laid_out(variables: Iterable[Var]) -> tuple[dict[str, int], int]:
    """Offsets of variables that lie one after the other, each as its alignment wants, and where the last ends."""
    offsets, size = {}, 0
    for var in variables:
        offsets[var.name] = align_up(size, var.align)
        size = offsets[var.name] + var.size
    return offsets, size


def _local(function: Function) -> tuple[dict[str, int], int]:
    return laid_out(v for v in function.local_vars.values() if v.space == "local")


def local_frame(function: Function) -> int:
    """Bytes of one thread's ``.local`` variables, laid out in order of declaration."""
    return align_up(_local(function)[1], 16)


def local_offset(function: Function, name: str) -> int:
    """Where a ``.local`` variable lies in a thread's frame."""
    return _local(function)[0][name]


def parameter_offset(function: Function, name: str) -> int | None:
    """Where a kernel's parameter lies among them all; None if there is none of that name."""
    return laid_out(function.params)[0].get(name)


def needs_of(ptx: Ptx) -> ModuleNeeds:
    """Find out what the kernels of a module need."""
    kernels = {}
    for name, function in ptx.functions.items():
        if not function.entry or not function.defined:
            continue
        try:
            functions = reached(ptx, name)
        except UnsupportedError:  # a launch of it says why
            continue
        static = (var for var in shared_variables(ptx, functions).values() if not var.extern)
        kernels[name] = Needs(
            _packed(static),
            max(map(local_frame, functions)),
            laid_out(function.params)[1],
            min(function.max_threads or MAX_THREADS, MAX_THREADS),
            bool(function.max_threads),
            function.cluster,
        )
    constant = _packed(var for var in ptx.variables.values() if var.space == "const")
    return ModuleNeeds(kernels, constant, ptx.version, ptx.target)


def _packed(variables: Iterable[Var]) -> int:
    """Bytes of variables in their order, each at the next multiple of its alignment."""
    size = 0
    for var in variables:
        size = align_up(size, var.align) + var.size
    return size
