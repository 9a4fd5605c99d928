"""Calls: of the module's functions, through pointers, of the few functions CUDA provides, and of Python."""

from __future__ import annotations

from rawkern.engines.cpu.analysis import prototypes
from rawkern.engines.cpu.analysis.plan import Plan
from rawkern.engines.cpu.analysis.storage import function_address
from rawkern.engines.cpu.emit.forms import LANES
from rawkern.engines.cpu.emit.function import FunctionLowering
from rawkern.engines.cpu.emit.lanes import each_lane
from rawkern.engines.cpu.ir import Emitter, Val, const
from rawkern.engines.cpu.ptx.data import Function, Instr, Reg, Sym
from rawkern.engines.cpu.records import LAUNCH, REASONS

#: Of the function that runs a block: warp `partial` has the threads `lanes`, the others all; -1 where all are whole.
BLOCK_PARAMETERS = "ptr %launch, ptr %blk, i32 %nwarps, i32 %partial, i32 %lanes, i32 %x, i32 %y, i32 %z"
#: What kernels that run in rounds get as well (`emit/rounds`): where the warp's values are; those of the block, and
#: where they go; which part runs; and the loop in which the warp goes on, 0 where it is from the part's start.
PART_PARAMETERS = ("ptr %kept", "ptr %block.in", "ptr %block.out", "i32 %part", "i32 %turn")


def mangle(name: str) -> str:
    """A PTX function's name as LLVM takes it."""
    return f'"k.{name}"'


def signature(plan: Plan, function: Function) -> tuple[str, str]:
    """Name and parameters of a function in LLVM IR.

    A kernel gets the block's index, a device function buffers for its parameters and results; one that waits for other
    threads is told whether lanes of the warp are elsewhere.
    """
    params = ["ptr %launch", "ptr %blk", "i32 %warp", "i32 %initial"]
    if function.entry:
        params += [f"i32 %ctaid.{axis}" for axis in "xyz"]
        params += PART_PARAMETERS if plan.rounds else ()
    else:
        params += ["i1 %divergent"] if function.name in plan.waiting_functions else []
        params += [f"ptr %arg{k}" for k in range(len(function.params) + len(function.returns))]
    return mangle(function.name), ", ".join(params)


def call(f: FunctionLowering, instr: Instr) -> None:
    """``call``: a function of the module, or one of the few that CUDA provides."""
    args = list(instr.args)
    results = args.pop(0) if isinstance(args[0], list) else []
    callee = args.pop(0)
    params = args.pop(0) if args and isinstance(args[0], list) else []
    if not isinstance(callee, Sym):
        _call_through_pointer(f, instr, callee, results, params)
        return
    name = callee.name
    if name in prototypes.SYSTEM:
        _system_call(f, name, instr, results, params)
        return
    function = f.plan.ptx.functions.get(name)
    if function is None or not function.defined:
        raise f.unsupported(f"function {name} has no definition here; device-side libraries cannot be linked")
    _call(f, name, f.lanes.act(), _buffers(f, results, params))


def _call(f: FunctionLowering, name: str, mask: Val, buffers: str) -> None:
    """Call a function for the lanes of `mask`."""
    divergent = f", {elsewhere(f, mask)}" if name in f.plan.waiting_functions else ""
    f.e.line(f"call void @{mangle(name)}(ptr %launch, ptr %blk, i32 %warp, {mask}{divergent}{buffers})")
    f.watch.returned()


def remaining(f: FunctionLowering, lanes: Val) -> Val:
    """The lanes that have not ended or returned; `lanes`, which run, are all of them where none can wait."""
    return f.e.let("i32", 1, "load i32, ptr %alive") if f.analysis.free_running else lanes


def elsewhere(f: FunctionLowering, lanes: Val) -> Val:
    """Whether the warp has lanes that have not ended and are not among `lanes`; for callers of functions that wait."""
    if f.function.entry:
        return f.e.cmp("icmp ne", lanes, remaining(f, lanes))
    return f.e.bin("or", Val("%divergent", "i1"), f.e.cmp("icmp ne", lanes, Val("%initial", "i32")))


def reject_divergent_wait(f: FunctionLowering, instr: Instr, lanes: Val, divergent: Val) -> None:
    """An error where `divergent`: `lanes` wait in a function that calls itself, for lanes that cannot run meanwhile."""
    known = dict(f.cache)
    with f.e.where(divergent, rare=True):
        f.lanes.set_act(lanes)
        service(f, "UNSUPPORTED", instr)
        f.cache = known


def _buffers(f: FunctionLowering, results: list, params: list) -> str:
    return "".join(f", ptr {f.parameters.buffer(s.name)}" for s in [*params, *results])


def _call_through_pointer(f: FunctionLowering, instr: Instr, pointer: Reg, results: list, params: list) -> None:
    """Call each function that lanes name, for those lanes; one of another type is an error."""
    e, act, passed = f.e, f.lanes.act(), prototypes.of_call(f.function, instr)
    targets = e.splat(f.values.value(pointer, 64), LANES)
    left, other = act, const("i32", 0)
    for function in f.plan.functions:
        if function.entry:
            continue
        address = const("i64", function_address(function.name), LANES)
        here = e.bin("and", f.lanes.mask_of(e.cmp("icmp eq", targets, address)), act)
        if prototypes.of_function(function) != passed:
            other = e.bin("or", other, here)
            continue
        with e.where(e.cmp("icmp ne", here, 0)):
            _call(f, function.name, here, _buffers(f, results, params))
        left = e.bin("and", left, e.invert(here))
    with e.where(e.cmp("icmp ne", left, 0), rare=True):
        with e.where(e.cmp("icmp ne", other, 0), rare=True):
            service(f, "OTHER_TYPE", instr, targets, lanes=other)
        service(f, "POINTER", instr, targets, lanes=left)


def _system_call(f: FunctionLowering, name: str, instr: Instr, results: list, params: list) -> None:
    if name == "vprintf":
        text, values = (f.parameters.load(p.name, 0, 8) for p in params)
        service(f, "PRINTF", instr, text, values)
        f.parameters.store(results[0].name, 0, const("i32", 0, LANES))
    elif name == "__assertfail":
        message, file = (f.parameters.load(p.name, 0, 8) for p in params[:2])
        service(f, "ASSERT", instr, message, file)
    elif name == "malloc" and f.watch.has_heap:
        f.parameters.store(results[0].name, 0, f.watch.malloc(f.parameters.load(params[0].name, 0, 8)))
    elif f.watch.has_heap:
        f.watch.free(f.parameters.load(params[0].name, 0, 8))
    elif name == "malloc":
        size, heap = f.parameters.load(params[0].name, 0, 8), f.frame.field_address(LAUNCH, "heap")
        f.parameters.store(results[0].name, 0, each_lane(f, "rk_malloc", "i64", heap, [size], _take))
    else:
        address, heap = f.parameters.load(params[0].name, 0, 8), f.frame.field_address(LAUNCH, "heap")
        each_lane(f, "rk_free", None, heap, [address], _give_back)


def _take(e: Emitter, heap: str, args: list[Val]) -> Val:
    """Memory of the device heap, null where more would be held than the limit next to the heap's count allows."""
    _declare_heap(e)
    p = e.let("ptr", 1, f"call ptr @malloc({args[0]})")
    size = e.let("i64", 1, f"call i64 @malloc_usable_size({p})")
    before = e.let("i64", 1, f"atomicrmw add {heap}, {size} monotonic")
    limit = e.let("i64", 1, f"load i64, {e.let('ptr', 1, f'getelementptr i64, {heap}, i32 1')}")
    over = e.cmp("icmp ugt", e.bin("add", before, size), limit)
    back = e.let("i64", 1, f"select {over}, {size}, i64 0")
    e.line(f"{e.fresh('held')} = atomicrmw sub {heap}, {back} monotonic")
    e.line(f"call void @free({e.let('ptr', 1, f'select {over}, {p}, ptr null')})")
    return e.let("i64", 1, f"ptrtoint {e.let('ptr', 1, f'select {over}, ptr null, {p}')} to i64")


def _give_back(e: Emitter, heap: str, args: list[Val]) -> None:
    _declare_heap(e)
    p = e.let("ptr", 1, f"inttoptr {args[0]} to ptr")
    size = e.let("i64", 1, f"call i64 @malloc_usable_size({p})")
    e.line(f"{e.fresh('held')} = atomicrmw sub {heap}, {size} monotonic")
    e.line(f"call void @free({p})")


def _declare_heap(e: Emitter) -> None:
    for name, result, of in (("malloc", "ptr", "i64"), ("free", "void", "ptr"), ("malloc_usable_size", "i64", "ptr")):
        e.module.declare(name, f"declare {result} @{name}({of})")


def service(
    f: FunctionLowering, reason: str, instr: Instr, a: Val | None = None, b: Val | None = None,
    lanes: Val | None = None,
) -> None:  # fmt: skip
    """Let Python do something for the active lanes, or some of them."""
    _service(f, reason, instr.loc, a, b, lanes)


def _service(
    f: FunctionLowering, reason: str, loc: int, a: Val | None = None, b: Val | None = None, lanes: Val | None = None
) -> None:
    zero = const("i64", 0)
    va, vb = (f.e.splat(x or zero, LANES) for x in (a, b))
    where = const("i32", f.plan.site(loc))
    lanes = lanes or f.lanes.act()
    f.e.line(f"call void @rk_service(ptr %blk, i32 {REASONS[reason]}, {lanes}, i32 %warp, {where}, {va}, {vb})")


def trap(f: FunctionLowering, instr: Instr) -> None:
    """``trap``, ``brkpt``: the launch fails."""
    _service(f, "TRAP", _loc_of_trap(f, instr))


def _loc_of_trap(f: FunctionLowering, instr: Instr) -> int:
    """The source line of a trap; of one that the compiler has made, of the branch that leads there."""
    if f.plan.has_line(instr.loc):
        return instr.loc
    blocks = f.flow.blocks
    at = next(i for i, block in enumerate(blocks) if any(each is instr for each in block.instrs))
    seen, todo = {at}, [at]
    while todo:
        at = todo.pop(0)
        known = [i.loc for i in blocks[at].instrs if f.plan.has_line(i.loc)]
        if known:
            return known[-1]
        todo += [p for p in f.flow.predecessors[at] if p not in seen]
        seen.update(todo)
    return 0
