"""Layout of the memory that a checked launch's machine code shares with Python, and the numbers both sides use."""

from __future__ import annotations

from rawkern.engines.cpu.records import Record

WARPS = 32  # of a block at most
BARRIERS = 16
_CLOCKS = f"[{WARPS} x i64]"


def _words(names: str) -> tuple[tuple[str, str], ...]:
    """Fields of 64-bit integers."""
    return tuple((name, "i64") for name in names.split())


#: The checker of one launch.
CHECK = Record(
    "Check",
    (
        *_words("unset storing segments nsegments last sites reports nreports max_reports clock serial"),
        *_words("grid_x grid_y shared_total reserved reserved_end order null"),
        *_words("frame frame_bytes frame_init stack_low stack_high"),
        *_words("heap_low heap_next heap_high heap_table heap_count heap_room"),
        ("addresses", "[32 x i64]"),
        ("values", "[128 x i64]"),
    ),
)
#: A piece of memory: `bias` finds its shadow cells (0: none are kept).
ENTRY = Record("Entry", _words("low high flags bias"))
IS_CONST, IS_UNKNOWN, IS_SHARED, IS_FREED = 1, 2, 4, 8  # flags; IS_SHARED: low and high are offsets in shared memory
#: An instruction that touches memory, or at which threads meet.
SITE = Record(
    "Site", _words("root size element align what space strong seen defers unset_address unset_thread unset_block")
)
READ, WRITE, UPDATE = 0, 1, 2  # what
GENERIC, GLOBAL, SHARED, LOCAL, MEETING = range(5)  # space
#: What is known of one block: clocks of its warps, and what of the others' each has seen.
STATE = Record(
    "State",
    (
        *_words("number serial base shadow window"),
        ("clocks", _CLOCKS), ("seen", f"[{WARPS * WARPS} x i64]"), ("fenced", f"[{WARPS * WARPS} x i64]"),
        ("fence_time", _CLOCKS), ("pot", _CLOCKS),
        ("arrived", f"[{BARRIERS * WARPS} x i64]"), ("opened", f"[{BARRIERS * WARPS} x i64]"),
        ("waiting", f"[{BARRIERS} x i64]"), ("first", f"[{BARRIERS} x i64]"), ("first_warp", f"[{BARRIERS} x i64]"),
        ("at", _CLOCKS),
    ),
)  # fmt: skip
#: One finding.
REPORT = Record("Report", _words("kind site block thread address other_site other_block other_thread entry extra"))
#: Shadow of four bytes: the last write and the last reads by two threads, each as who and when.
CELL = 48
#: Parts of "who": block number, thread in the block, which of the four bytes, which hold a value, how, where.
THREAD_AT, MASK_AT, INIT_AT, STRONG_AT, SITE_AT = 28, 38, 42, 46, 47

#: Kinds of findings, as their exceptions are listed in `rawkern.reports`.
KINDS = (
    "NONE", "BOUNDS", "MISALIGNED", "FREED", "READ_ONLY", "UNINITIALIZED", "RACE", "DIVERGENT_BARRIER",
    "DIFFERENT_BARRIERS", "MASK_WITHOUT_SELF", "MASK_NOT_HERE", "INACTIVE_SOURCE", "BAD_FREE",
)  # fmt: skip
BOUNDS, MISALIGNED, FREED_USE, READ_ONLY_WRITE, UNINITIALIZED, RACE = range(1, 7)
DIVERGENT_BARRIER, DIFFERENT_BARRIERS, MASK_WITHOUT_SELF, MASK_NOT_HERE, INACTIVE_SOURCE, BAD_FREE = range(7, 13)
