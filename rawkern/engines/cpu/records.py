"""Layout of the records that Python and the emitted code share, and the scheduler's text made from it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rawkern.base.records import DECLINED, DONE, ROOM, TARGET, UNFINISHED, Record, filled

BAR = Record("Bar", tuple((f, "i32") for f in ("arrived", "expected", "count", "total", "result", "result_total")))
#: One launch. `next_worker`, `finished` and `worked`, nanoseconds of all together, are counters that the workers share,
#: at their start and end alone: what they read all the time lies beside them. `lost` is what several took beyond that.
#: The fields up to `finished` are written for every launch, the others once.
#: `told`: of how much memory Python has told while it runs (MEMORY).
#: `places`: where each of a block's warps runs among them, then which runs at each place.
#: Warp `last_warp` has the threads `last_mask`, the others all. `order`: null where blocks run from first to last.
#: `session` is what an instrument's session has put there, as in a block's record; `begin`, where it is not null, is
#: called with the launch before it runs, under Python's lock, and with its token. `code`: the kernel's
#: `rk_row` or `rk_start_block`. A cluster is `cluster_x` by `cluster_y` by `cluster_z` blocks, one without clusters;
#: `together` of them begin at the same time, on one worker: all where its warps can wait, else one. From the shared
#: memory of one of these to that of the next it is two to the power of `window` bytes.
LAUNCH = Record(
    "Launch",
    (
        ("grid_x", "i32"), ("grid_y", "i32"), ("grid_z", "i32"), ("max_resident", "i32"),
        ("nblocks", "i64"), ("chunk", "i64"), ("worked", "i64"), ("lost", "i64"), ("told", "i64"),
        ("nworkers", "i32"), ("next_worker", "i32"), ("resuming", "i32"), ("finished", "i32"),
        ("block_x", "i32"), ("block_y", "i32"), ("block_z", "i32"), ("nwarps", "i32"),
        ("last_mask", "i32"), ("last_warp", "i32"),
        ("shared_dynamic", "i32"), ("shared_total", "i32"),
        ("cluster_x", "i32"), ("cluster_y", "i32"), ("cluster_z", "i32"), ("explicit_cluster", "i32"),
        ("together", "i64"), ("window", "i64"), ("slice", "ptr"), ("stack_room", "i64"),
        ("workers", "ptr"), ("globals", "ptr"), ("params", "ptr"), ("tids", "ptr"), ("places", "ptr"),
        ("grid_sync", "ptr"),
        ("heap", "ptr"), ("session", "i64"), ("begin", "ptr"), ("order", "ptr"), ("code", "ptr"), ("fork", "ptr"),
    ),
)  # fmt: skip
#: Another order of blocks (`rk_mixed`): so many neighbors are mixed, by a function of these numbers; backwards if all
#: are 0. Or those of a `table`, where there is one.
ORDER = Record(
    "Order",
    (
        *((f, "i64") for f in ("window", "factor0", "term0", "factor1", "term1", "factor2", "term2")),
        ("table", "ptr"),
    ),
)
#: One worker: its blocks, its stacks and what it asks of Python when it suspends. Only the first two fields are looked
#: at by others. Records take whole pairs of the cache's lines, so that no worker waits for what another writes.
WORKER = Record(
    "Worker",
    (
        ("range_next", "i64"), ("range_end", "i64"),
        ("os_sp", "ptr"), ("sp", "ptr"), ("launch", "ptr"), ("state", "i32"), ("reason", "i32"), ("deadline", "i64"),
        ("stack_top", "ptr"), ("free_blocks", "ptr"), ("parked_head", "ptr"), ("parked_tail", "ptr"),
        ("resident", "i32"), ("request_mask", "i32"), ("request_warp", "i32"), ("request_site", "i32"),
        ("turns", "i32"), ("index", "i32"), ("request_block", "ptr"),
        ("request_a", "[32 x i64]"), ("request_b", "[32 x i64]"), ("pad", "i64"),
    ),
)  # fmt: skip
PENDING, OPERATION = 64, 28  # asynchronous operations that a block has at most (`emit/memory/pending`), words of each
#: `first` is the first block of those that begin together, `rank` this one's place among them, `beside` the next one
#: or null. How many of their warps have `arrived` at the cluster's barrier is kept by the first; `left`: have ended
#: since; and its `idle` counts the rounds of all of them, one after the other, in which none has got anywhere.
#: `closes` is the warp that comes last to barrier 0 while all come there in turn (`rk_sync`), else -1.
BLOCK = Record(
    "Block",
    (
        ("worker", "ptr"), ("shared", "ptr"), ("x", "i32"), ("y", "i32"), ("z", "i32"),
        ("nwarps", "i32"), ("done", "i32"), ("used", "i32"), ("sched_sp", "ptr"), ("next", "ptr"), ("warps", "ptr"),
        ("bars", "[16 x %Bar]"), ("session", "i64"), ("moved", "i32"), ("rank", "i32"),
        ("first", "ptr"), ("beside", "ptr"), ("arrived", "i32"), ("left", "i32"),
        ("closes", "i32"), ("pad", "i32"),
        ("idle", "i64"), ("pending", "i64"), ("issued", "i64"), ("operations", f"[{OPERATION * PENDING} x i64]"),
    ),
)  # fmt: skip
READY, YIELDED, WAITING, ENDED = range(4)  # states of a warp
GROUPS = 8  # of products of a warp group (`emit/matrix/wgmma`) of which is known where they end
#: `mbarrier`: while the warp has yielded, that at which it waits (one of its lanes at least) and does nothing else
#: until its phase ends. `products`: how many of its warp group the warp has computed; `groups`: how many groups of them
#: it has committed, and how many products there were at the end of each of the last ones. It has `waited` for so many,
#: and as many of its own have `landed`, for which any warp of the group has; `issued`: where they stand. All from
#: `mbarrier` on is 0 where a block begins; `index`, `block`, `launch`, `stack_top` and the record of the `following`
#: warp, which after the last is the first, are always the same.
WARP = Record(
    "Warp",
    (
        ("sp", "ptr"), ("state", "i32"), ("index", "i32"), ("block", "ptr"), ("stack_top", "ptr"), ("following", "ptr"),
        ("launch", "ptr"), ("mbarrier", "i64"),
        ("barrier", "i32"), ("site", "i32"), ("cluster", "i32"), ("products", "i32"), ("groups", "i32"),
        ("ends", f"[{GROUPS} x i32]"), ("waited", "i32"), ("issued", "ptr"), ("landed", "i32"), ("pad", "i32"),
    ),
)  # fmt: skip
#: What native launches know of a kernel with one shape of block: `grid.Target` fills it. One launch has it at a time;
#: `resident` is 0 for cooperative launches, `blocks` how many run at most.
CPU_TARGET = Record(
    "Target",
    (
        *TARGET.fields,
        ("busy", "i64"), ("nwarps", "i64"), ("most_work", "i64"), ("ns_per_warp", "double"), ("workers", "i64"),
        ("room", "i64"), ("resident", "i64"), ("params_size", "i64"),
        ("launch", "ptr"), ("helpers", "ptr"), ("thread_count", "ptr"), ("save_thread", "ptr"),
        ("restore_thread", "ptr"), ("blocks", "i64"),
    ),
)  # fmt: skip
#: Launches call no other threads before the clock is at `until`, but for work that takes more than `worth` nanoseconds.
HELPERS = Record("Helpers", (("until", "i64"), ("worth", "double")))
#: What launches of a kernel whose accesses are compared know of their memory besides the parameters' extents: ranges in
#: order, each a start and a length, that Python has told of and of the module's variables, and as many again of those
#: that may be written; where among the parameters addresses stand, each with the place of its extents. Before the rows
#: of what was told there is an empty one; `recent` has the number of a row for each access. `tensors` are
#: those that addresses have led to before, `sorted` their rows by start; `recalled` has room for a range of each,
#: of which the last launch had `nrecalled`, or as many of its lists. `listed`: where the address of a launch's `LISTED`
#: stands.
MEMORY = Record(
    "Memory",
    (
        ("told", "ptr"), ("told_writable", "ptr"), ("variables", "ptr"), ("variables_writable", "ptr"),
        ("nvariables", "i64"), ("pointers", "ptr"), ("npointers", "i64"), ("heap", "ptr"), ("table", "ptr"),
        ("recent", "ptr"), ("nrecent", "i64"), ("tensors", "ptr"), ("ntensors", "i64"), ("sorted", "ptr"),
        ("recalled", "ptr"), ("nrecalled", "i64"), ("listed", "ptr"),
    ),
)  # fmt: skip
#: A tensor that an address has led to: `ref` is Python's weak reference to it, its storage has `size` bytes from
#: `start` on. The address is `offset` bytes past that which `base` points to, where there are as many as `extent`
#: points to; or past `base` itself, if `extent` is null, unless what `known` points to says how much memory that
#: address leads to. `live` is its size in launches that may touch it, else 0.
LED_TO = Record(
    "LedTo",
    (
        ("ref", "ptr"), ("start", "i64"), ("size", "i64"), ("base", "ptr"), ("extent", "ptr"), ("offset", "i64"),
        ("known", "ptr"), ("live", "i64"),
    ),
)  # fmt: skip
#: Their device heap: `table` has `count` pieces in order, each a start and its bytes, none where it is free; free
#: pieces of one class of sizes are a chain, through `links`, of their numbers plus one.
HEAP = Record(
    "Heap",
    (
        ("lock", "i64"), ("count", "i64"), ("most", "i64"), ("next", "i64"), ("end", "i64"), ("table", "ptr"),
        ("links", "ptr"), ("free", "[128 x i64]"),
    ),
)  # fmt: skip
#: A call's local variables, in a chain of the warp's: `size` bytes for each lane, from `low` on.
FRAME = Record("Frame", (("before", "i64"), ("low", "i64"), ("size", "i64")))
#: Accesses that are compared together, in the kernel's code: how the lanes' addresses grow, by `stride` or by `scale`
#: times an extended 32-bit sum; where the memory lies that they are meant for (`guard.Range`); whether they write; each
#: one's offset, size, alignment less one, and site. `recent`: its number among those of unknown memory.
TOUCHED = Record(
    "Touched",
    (
        ("count", "i64"), ("service", "ptr"), ("kind", "i64"), ("start", "i64"), ("size", "i64"), ("pitch", "i64"),
        ("stride", "i64"), ("scale", "i64"), ("signed", "i64"), ("writes", "i64"),
        ("recent", "i64"), ("rows", "[4 x i64]"),
    ),
)  # fmt: skip
#: What stands for a barrier's number where a warp arrives at the barrier of its cluster, and where it waits there.
TO_CLUSTER, AT_CLUSTER = 16, 17
RECORDS = {r.name: r for r in (BAR, ORDER, LAUNCH, WORKER, BLOCK, WARP, CPU_TARGET, HELPERS)}

SMALL_NS = 4_000  # work below this is not worth waking other threads for, dividing, nor giving up Python's lock
LATE_NS = 50_000  # a launch that loses more to them has waited for threads that had no core
RATE = 0.3  # how fast the time that a warp takes follows what is measured

NOWHERE = "an unknown source line"  # what messages call the place of code that comes from none

#: Why a worker suspends.
REASONS = {
    "SLICE": 0,
    "NEED_BLOCK": 1,
    "DEADLOCK": 2,
    "PRINTF": 3,
    "ASSERT": 4,
    "TRAP": 5,
    "UNSUPPORTED": 6,
    "POINTER": 7,
    "STACK": 8,
    "PART_OF_WARP": 9,
    "INCOMPLETE": 10,
    "BOUNDS": 11,
    "BAD_FREE": 12,
    "TILE": 13,
    "OTHER_TYPE": 14,
    "COPY": 15,
    "DESCRIPTOR": 16,
    "BULK": 17,
    "TENSOR": 18,
    "CLUSTER": 19,
    "MULTICAST": 20,
    "WARPGROUP": 21,
    "BARRIERS": 22,
    "OPERANDS": 23,
}

# From one stack to another on x86-64, where what was pushed last is the address to go on at: registers are kept there.
_SWAP = """leaq 1f(%rip), %rax
pushq %rax
movq %rsp, (%rdi)
movq (%rsi), %rsp
popq %rcx
jmpq *%rcx
1:"""
# rk_switch(save, to) stores a stack pointer at one address and loads another, or the same, from the other address. It
# keeps the registers that the C calling convention preserves; rk_start calls the function whose address and argument
# rk_fresh put on the stack, or on aarch64 into two of them.
_SWITCH = {
    "x86_64": f"""
.text
.p2align 4
.globl rk_switch
rk_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
{_SWAP}
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
.p2align 4
.globl rk_start
rk_start:
  popq %rdi
  popq %rax
  callq *%rax
  ud2
""",
    "aarch64": """
.text
.p2align 4
.globl rk_switch
rk_switch:
  sub x9, sp, #160
  stp x19, x20, [x9, #0]
  stp x21, x22, [x9, #16]
  stp x23, x24, [x9, #32]
  stp x25, x26, [x9, #48]
  stp x27, x28, [x9, #64]
  stp x29, x30, [x9, #80]
  stp d8, d9, [x9, #96]
  stp d10, d11, [x9, #112]
  stp d12, d13, [x9, #128]
  stp d14, d15, [x9, #144]
  str x9, [x0]
  ldr x1, [x1]
  ldp x19, x20, [x1, #0]
  ldp x21, x22, [x1, #16]
  ldp x23, x24, [x1, #32]
  ldp x25, x26, [x1, #48]
  ldp x27, x28, [x1, #64]
  ldp x29, x30, [x1, #80]
  ldp d8, d9, [x1, #96]
  ldp d10, d11, [x1, #112]
  ldp d12, d13, [x1, #128]
  ldp d14, d15, [x1, #144]
  add sp, x1, #160
  ret
.p2align 4
.globl rk_start
rk_start:
  mov x0, x19
  blr x20
  brk #1
""",
}
# The same in place, where a call would be: what the CPU remembers of calls to predict returns stays in order, and each
# place has a jump of its own, which mostly goes where it went before. Of the registers only those in use are kept.
_SWITCH_HERE = f"""leaq -128(%rsp), %rsp
pushq %rbp
{_SWAP}
popq %rbp
leaq 128(%rsp), %rsp"""
#: Bytes of a fresh stack's frame, and where in it the function, its argument and the return address lie.
_FRAME = {
    "x86_64": {"frame_bytes": 24, "frame_fn": 16, "frame_arg": 8, "frame_return": 0},
    "aarch64": {"frame_bytes": 160, "frame_fn": 8, "frame_arg": 0, "frame_return": 88},
}
# Threads of the host may run with subnormals flushed or another rounding mode; kernels get the IEEE default.
_FLOAT_SAVE = {
    "x86_64": """  %csr = alloca [2 x i32]
  %csr_ieee = getelementptr i32, ptr %csr, i64 1
  call void @llvm.x86.sse.stmxcsr(ptr %csr)
  store i32 8064, ptr %csr_ieee
  call void @llvm.x86.sse.ldmxcsr(ptr %csr_ieee)""",
    "aarch64": """  %fpcr = call i64 @llvm.aarch64.get.fpcr()
  call void @llvm.aarch64.set.fpcr(i64 0)""",
}
_FLOAT_RESTORE = {
    "x86_64": "  call void @llvm.x86.sse.ldmxcsr(ptr %csr)",
    "aarch64": "  call void @llvm.aarch64.set.fpcr(i64 %fpcr)",
}
_FLOAT_DECLARE = {
    "x86_64": "declare void @llvm.x86.sse.stmxcsr(ptr)\ndeclare void @llvm.x86.sse.ldmxcsr(ptr)",
    "aarch64": "declare i64 @llvm.aarch64.get.fpcr()\ndeclare void @llvm.aarch64.set.fpcr(i64)",
}


def _switch_here(machine: str, wide: bool, in_place: bool) -> str:
    """``rk_switch_here``: `rk_switch`, where it is called if `in_place`; `wide`: with AVX-512's registers.

    It returns where the stack pointer was that somebody has switched back with: `save`, but in a register. What is read
    through it need not wait for the new stack, so that what the next switch needs is there when the next warp runs.
    """
    call, back = "call void @rk_switch(ptr %save, ptr %to)", "%save"
    if machine == "x86_64" and in_place:
        names = ["rax", "rbx", "rcx", "rdx", "rdi", *(f"r{k}" for k in range(8, 16))]
        names += [*(f"xmm{k}" for k in range(32 if wide else 16)), *(f"k{k}" for k in range(8) if wide)]
        lost = "".join(f",~{{{name}}}" for name in [*names, "memory", "dirflag", "fpsr", "flags"])
        text = _SWITCH_HERE.replace("\n", "\\0A")
        call = f'%back = call ptr asm sideeffect "{text}", "={{rsi}},{{rdi}},0{lost}"(ptr %save, ptr %to)'
        back = "%back"
    return f"define internal ptr @rk_switch_here(ptr %save, ptr %to) alwaysinline {{\n  {call}\n  ret ptr {back}\n}}"


#: How many rows of the block a warp's threads lie in, by the shape of the block (`grid.shape_of`).
SEGMENTS = {"line": 1, "rows": 1, "halves": 2, "quarters": 4}


@dataclass(frozen=True)
class Globals:
    """A module's ``.global`` and ``.const`` variables in one block of memory, and what it starts with."""

    offsets: dict[str, int]
    sizes: dict[str, int]  # of each variable, in bytes
    size: int
    image: bytes
    pointers: tuple[tuple[int, str, int], ...]  # (offset, variable, addend): addresses to fill in
    moved: str = ""  # tells code apart whose variables lie elsewhere than those of the program alone would


_NUMBERS = {"DONE": DONE, "DECLINED": DECLINED, "ROOM": ROOM, "UNFINISHED": UNFINISHED, "LATE_NS": LATE_NS}
_NUMBERS |= {"AT_CLUSTER": AT_CLUSTER, "CHANGING": (WARP.size - WARP.offset("mbarrier")) // 4}
_NUMBERS |= {
    "SMALL_INT": SMALL_NS,
    "SMALL_NS": f"{SMALL_NS}.0",
    "RATE": f"0x{struct.unpack('<Q', struct.pack('<d', RATE))[0]:016X}",
}


@cache
def runtime(
    waiting: bool,
    machine: str,
    barrier_opens: str = "",
    cluster_opens: str = "",
    block_begins: str = "",
    assembler: bool = True,
    wide: bool = False,
    quick: bool = False,
) -> str:
    """LLVM IR of the scheduler for ``"x86_64"`` or ``"aarch64"``; `waiting`: the one with a stack for every warp.

    `barrier_opens`, `cluster_opens`, `block_begins`: what else happens where a barrier or a block does. Without an
    `assembler` the routine that switches stacks is left out. `wide`: the CPU has AVX-512. `quick`: warps switch by
    calls, as LLVM looks up each register that assembly in place overwrites: a third of generating a small kernel.
    """
    kind = ("warps", "waiting") if waiting else ("plain",)
    names = "runtime.ll", *(f"runtime_{part}.ll" for part in ("launch", *kind))
    folder = Path(__file__).with_name("runtime")
    values = {**_FRAME[machine], **REASONS, **_NUMBERS, "barrier_opens": barrier_opens, "cluster_opens": cluster_opens}
    values["block_begins"] = block_begins
    values |= {"float_environment_save": _FLOAT_SAVE[machine], "float_environment_restore": _FLOAT_RESTORE[machine]}
    text = filled("\n".join((folder / n).read_text() for n in names), RECORDS.values(), values)
    assembly = "\n".join(f'module asm "{line}"' for line in _SWITCH[machine].strip().splitlines() if assembler)
    here = [_switch_here(machine, wide, assembler and not quick)] if waiting else []
    return "\n".join([assembly, *(r.llvm for r in RECORDS.values()), _FLOAT_DECLARE[machine], *here, text])
