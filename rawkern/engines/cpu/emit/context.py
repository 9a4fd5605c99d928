"""Where the code of a PTX function is emitted, and what is made there once per call: slots, fields of the records."""

from __future__ import annotations

from rawkern.engines.cpu.analysis.plan import Plan
from rawkern.engines.cpu.ir import Emitter, Module, Val
from rawkern.engines.cpu.ptx.data import Function, Instr
from rawkern.engines.cpu.records import Record
from rawkern.errors import UnsupportedError

_ARGUMENT = {"Launch": "%launch", "Block": "%blk"}  # which argument of every function points to a record


class Context:
    """A function being emitted; `function.FunctionLowering` adds what its registers hold."""

    def __init__(self, plan: Plan, module: Module, function: Function):
        self.plan, self.module, self.function = plan, module, function
        self.e = Emitter(module)
        self.entry: list[str] = []  # allocas and values made once per call
        self.once = Emitter(module, self.entry, "once")
        self.entry_cache: dict[str, Val] = {}
        self.instr: Instr | None = None

    def unsupported(self, why: str = "") -> UnsupportedError:
        """The error for the instruction at hand; raise it."""
        op, where = (self.instr.op, self.plan.where(self.instr.loc)) if self.instr else ("?", self.plan.where(0))
        text = f"{self.plan.kernel}: the PTX instruction {op} is not supported on the CPU engine"
        return UnsupportedError(f"{text}{f' ({why})' if why else ''}; it comes from {where}")

    def alloca(self, text: str, prefix: str = "l") -> str:
        """Reserve a slot on the stack for the whole call."""
        ref = self.e.fresh(prefix)
        self.entry.append(f"{ref} = alloca {text}")
        return ref

    def field(self, record: Record, name: str) -> Val:
        """A field of the launch or the block, read once per call."""
        key = f"{record.name}.{name}"
        if key not in self.entry_cache:
            ty, once = dict(record.fields)[name], self.once
            place = f"ptr {_ARGUMENT[record.name]}, i32 0, i32 {record.index(name)}"
            at = once.let("ptr", 1, f"getelementptr %{record.name}, {place}")
            # What kernels read of a launch does not change while it runs. Said to LLVM, these loads leave the loop over
            # warps, where each would wait for stores in flight whose addresses look alike.
            fixed = ", !invariant.load !1" if record.name == "Launch" else ""
            self.entry_cache[key] = once.let(ty, 1, f"load {ty}, {at}{fixed}")
        return self.entry_cache[key]

    def field_address(self, record: Record, name: str) -> Val:
        """A pointer among the fields as a number."""
        key = f"{record.name}.{name}.address"
        if key not in self.entry_cache:
            self.entry_cache[key] = self.once.let("i64", 1, f"ptrtoint {self.field(record, name)} to i64")
        return self.entry_cache[key]
