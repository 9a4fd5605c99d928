"""A kernel with the functions it calls as one LLVM module."""

from __future__ import annotations

from dataclasses import dataclass, field

from rawkern.engines.cpu.analysis.plan import Plan
from rawkern.engines.cpu.emit.calls import BLOCK_PARAMETERS, signature
from rawkern.engines.cpu.emit.control import lower_function
from rawkern.engines.cpu.emit.instructions import HANDLERS
from rawkern.engines.cpu.emit.instrument import Instrument
from rawkern.engines.cpu.emit.library import split
from rawkern.engines.cpu.emit.memory import pending
from rawkern.engines.cpu.ir import Module

#: Warps that never wait run one after the other.
_ONE_BY_ONE = f"""define internal void @rk_block({BLOCK_PARAMETERS}) alwaysinline {{
  br label %warp
warp:
  %w = phi i32 [ 0, %0 ], [ %next, %warp ]
  %last = icmp eq i32 %w, %partial
  %mask = select i1 %last, i32 %lanes, i32 -1
  call void @rk_body(ptr %launch, ptr %blk, i32 %w, i32 %mask, i32 %x, i32 %y, i32 %z)
  %next = add i32 %w, 1
  %more = icmp ult i32 %next, %nwarps
  br i1 %more, label %warp, label %done
done:
  ret void
}}"""


@dataclass
class Lowered:
    """A kernel's LLVM IR and what the launcher must know about it."""

    text: str
    library: dict[str, str]  # the functions that it shares with other kernels (`emit.library`)
    waiting: bool
    shared_static: int
    frame_bytes: int  # that a call takes on the stack at least
    recursive: bool
    block_begins: str  # LLVM IR for the scheduler, of the instrument
    sites: list[str] = field(default_factory=list)
    table: dict | None = None  # of the instrument
    instrument: type[Instrument] = Instrument


def lower(
    plan: Plan,
    features: frozenset[str] = frozenset(),
    instrument: type[Instrument] = Instrument,
    target: str = "",
    rounds: bool = True,
) -> Lowered:
    """Emit the LLVM IR of a kernel; `features` as `ir.Module` has them, `target` as `library.split`.

    `rounds`: blocks may run in rounds, as LLVM's passes are there to simplify the parts.
    """
    if rounds and instrument.rounds and not instrument.barrier_opens:
        plan = plan.in_rounds()
    module, build = Module(features=features), instrument(plan)
    for function in plan.functions:
        module.functions.append(lower_function(plan, module, function, HANDLERS, build))
    name, params = signature(plan, plan.ptx.functions[plan.kernel])
    body = [f"call void @{name}({params})", "ret void"]
    if pending.used(plan):
        body = [*pending.begin(plan), body[0], pending.finish(module, build.operation_left), body[1]]
    lines = "\n  ".join(body)
    if plan.rounds is None:
        module.functions.append(f"define internal void @rk_body({params}) alwaysinline {{\n  {lines}\n}}")
        module.functions.append("" if plan.waiting else _ONE_BY_ONE)
    library = split(module, target)
    return Lowered(
        library.text,
        library.functions,
        plan.waiting,
        plan.shared_static,
        module.frame,
        bool(plan.recursive),
        build.block_begins(),
        plan.sites,
        build.table(),
        instrument,
    )
