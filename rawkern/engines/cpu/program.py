"""A kernel with the functions it calls as one LLVM module."""

from __future__ import annotations

from dataclasses import dataclass, field

from rawkern.engines.cpu import check
from rawkern.engines.cpu.calls import signature
from rawkern.engines.cpu.control import lower_function
from rawkern.engines.cpu.instructions import HANDLERS
from rawkern.engines.cpu.ir import Module
from rawkern.engines.cpu.plan import Plan

# Branches that are hardly ever taken, loads of what never changes, and branches that are nearly always taken.
_METADATA = """!0 = !{!"branch_weights", i32 1, i32 4095}
!1 = !{}
!2 = !{!"branch_weights", i32 64, i32 1}"""


@dataclass
class Lowered:
    """A kernel's LLVM IR and what the launcher must know about it."""

    text: str
    waiting: bool
    shared_static: int
    frame_bytes: int  # that a call takes on the stack at least
    recursive: bool
    sites: list[str] = field(default_factory=list)
    checks: dict | None = None  # what the checker names, of a checked build


def lower(plan: Plan, features: frozenset[str] = frozenset()) -> Lowered:
    """Emit the LLVM IR of a kernel; `features` as `ir.Module` has them."""
    module = Module(features=features)
    for function in plan.functions:
        module.functions.append(lower_function(plan, module, function, HANDLERS))
    name, params = signature(plan.ptx.functions[plan.kernel])
    inline = "" if plan.waiting else " alwaysinline"
    module.functions.append(
        f"define internal void @rk_body({params}){inline} {{\n  call void @{name}({params})\n  ret void\n}}"
    )
    return Lowered(
        f"{module.text()}\n{_METADATA}",
        plan.waiting,
        plan.shared_static,
        module.frame,
        bool(plan.recursive),
        plan.sites,
        check.table(plan) if plan.checked else None,
    )
