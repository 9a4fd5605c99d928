"""Layout of the memory that a checked launch's machine code shares with Python, and the numbers both sides use."""

from __future__ import annotations

from rawkern.engines.cpu.records import Record

WARPS = 32  # of a block at most
#: Whose accesses have an order of their own: warps, then the copies that warps have under way, and those of
#: other blocks into this one's shared memory (`INBOUND`). A number of an agent is that of its block times `AGENTS`, and
#: its own. Whose copies the latter are stands where the locks of other times do, with the bit `SENDER`.
AGENTS, INBOUND, SENDER = 128, 65, 1 << 63
#: Of what somebody has seen: a time for each agent of the block, and among them that of the last strong read after
#: which come what other blocks passed on before it.
COLUMNS, LOOKED = 72, 64
BARRIERS, CLUSTER = 17, 16  # of a block and, as the last, that of its cluster
VALUES = 8  # that a lane writes at once, at most
GROUPS = 64  # of copies of a warp that are told apart, and of its products
_CLOCKS = f"[{WARPS} x i64]"
_SEEN = f"[{WARPS * COLUMNS} x i64]"


def _words(names: str) -> tuple[tuple[str, str], ...]:
    """Fields of 64-bit integers."""
    return tuple((name, "i64") for name in names.split())


#: The checker of one launch.
CHECK = Record(
    "Check",
    (
        *_words("uninitialized storing segments nsegments last sites reports nreports max_reports serial"),
        *_words("clock times blind log row runner runner_since owner owner_since copying proxy objects"),
        *_words("grid_x grid_y nwarps weak shared_total reserved reserved_end order null runs unfenced locks held"),
        *_words("limits_of limits_at owned owned_span shared_span own own_span"),
        *_words("window me reader floor span gone need others all_shared lanes"),
        *_words("prior npriors"),
        *_words("frame frame_bytes frame_init stack_low stack_high stack_range"),
        *_words("heap_low heap_next heap_high heap_table heap_count heap_room heap_region heap_held heap_limit"),
        ("bases", "[4 x i64]"),
        ("addresses", "[32 x i64]"),
        ("uninitialized_bytes", "[32 x i64]"),
        ("values", f"[{32 * VALUES} x i64]"),
    ),
)
#: What the launch before this one may have written, if this one may begin before that has ended: `npriors` at `prior`.
PRIOR = Record("Prior", _words("low high"))
#: A piece of memory; `region`: where it is followed (0: it is not).
ENTRY = Record("Entry", _words("low high flags region"))
IS_CONST, IS_UNKNOWN, IS_SHARED, IS_FREED = 1, 2, 4, 8  # flags; IS_SHARED: low and high are offsets in shared memory
#: Memory whose accesses are followed. The shadow of the four bytes at `a` is at `words + 2 * a`: the last write, after
#: `plane` bytes the last read, after as many again one by another thread. `read`: whether there was any. Two more
#: planes are of writes that a strong one has replaced, as accesses that race with them may not with it: the last plain
#: one (`kept`: whether there is any), and the last strong one by another thread (`others`).
REGION = Record("Region", _words("words plane read kept others observed"))
#: One more is of the last strong read of what the last strong writes left (`observed`: whether there was any): who
#: comes after it comes after those.
PLANES, KEPT, OTHERS, OBSERVER = 6, 3, 4, 5  # their number, and those of the last three
#: An instruction that accesses memory, or a collective one.
SITE = Record(
    "Site",
    _words(
        "root size element align what space strong looks weak seen defers uninitialized_address "
        "uninitialized_thread uninitialized_block "
        "start end kept swaps sides"
    ),
)
READ, WRITE, UPDATE = 0, 1, 2  # what
TAKEN, PASSED = 1, 2  # sides of a branch that lanes have gone
#: swaps: it is a compare-and-swap, whose two values the checker is shown; another strong write of one value that it is
#: shown; or one that it is not.
SWAP, SET, OTHER = 1, 2, 3
#: A lock that is known, by its address: the value of who may take it and who holds it (+ 1), and when that value was
#: first there, so that who takes the lock comes after all before. There is room for `LOCKS`.
LOCK = Record("Lock", _words("address value holder since"))
LOCKS = 1024
#: An mbarrier, by its address, of the block that began at the time `stamp`: the site (+ 1) that has initialized it, if
#: it is `live`, and the last phase before which a wait has been `seen` to succeed; for phases that are even and odd,
#: the last time of copies that it was told of in one, the phase and the warp of these (`COPIED_AT`, `OF_PHASE`).
#: There is room for `OBJECTS`.
OBJECT = Record("Object", (*_words("address stamp live seen"), ("copied", "[2 x i64]")))
COPIED_AT, OF_PHASE = 8, 5
OBJECTS = 4096
INIT, INVAL, TEST, ARRIVE = range(4)  # what is done to one
#: weak, why an access that is strong (atomic or volatile) may race with others: it is of block scope; it is volatile,
#: which does not order the lanes of a warp; it is the second half of an update, which loses others' writes; it ends an
#: mbarrier, which races with what other warps do there.
BLOCK_SCOPE, VOLATILE, UPDATES, ENDS = 1, 2, 4, 8
#: How a strong read puts in the past what it saw passed on: at the next fence, at once, or by choice (`unfenced`).
AT_FENCE, AT_ONCE, BY_CHOICE = 0, 1, 2
ON = 2  # of a barrier at which a warp only arrives
NO_FENCE, FENCED, USED = range(3)
#: space; WINDOWS: shared memory of any block of the cluster, in whose window a root of the own is meant
GENERIC, GLOBAL, SHARED, LOCAL, COLLECTIVE, WINDOWS = range(6)
#: What is known of one block: clocks of its warps, and what of all agents each has seen (`seen`), what strong writes
#: of a warp pass on, within the block and to others (`fenced`, `wide`: since when), what such writes have passed on
#: in the block (`pot`), and what strong reads of a warp have found there and a fence has yet to put in its past
#: (`held`, if it is `holding` any; `looked`: when it last read what other blocks pass on). Up to `horizon` a warp has
#: seen all there was in the block, and up to `common` all have. A warp waits `at` a site + 1, the
#: barrier `number_at`. That of its cluster has opened at the time `cluster_opened`. `lock`: that which it holds (+ 1);
#: `tried`: when it last failed to take one; `taken` and, after a fence, `section`: up to when it has seen what others
#: passed on if the order of locks counts. `remote`: other blocks have accessed its shared memory. `inbound`: the time
#: of copies by the agent `sender` (+ 1) that are not handed over yet; `arriving`: the last time of any.
#: `proxied`: the time of the last fence for proxies; `init_fenced`: the warp that has last made barriers visible to the
#: cluster; `told`: what warps of a group were given for the last products; `registers`: whether a warp has had a fence
#: for registers of products (`FENCED`), and a product since (`USED`); `waited`: the block has waited for the launch
#: before.
STATE = Record(
    "State",
    (
        *_words("number serial base shadow window region ordered common remote inbound sender arriving"),
        *_words("proxied init_fenced waited"),
        ("clocks", _CLOCKS), ("before", _CLOCKS), ("horizon", _CLOCKS),
        ("held", _SEEN), ("seen", _SEEN), ("fenced", _SEEN), ("wide", _SEEN),
        ("fence_time", _CLOCKS), ("wide_time", _CLOCKS), ("fence_passed", _CLOCKS), ("wide_passed", _CLOCKS),
        ("holding", _CLOCKS), ("looked", _CLOCKS), ("lock", _CLOCKS), ("tried", _CLOCKS), ("taken", _CLOCKS),
        ("section", _CLOCKS), ("pot", f"[{COLUMNS} x i64]"),
        ("arrived", f"[{BARRIERS * COLUMNS} x i64]"), ("opened", f"[{BARRIERS * COLUMNS} x i64]"),
        ("all_seen", f"[{BARRIERS} x i64]"),
        ("waiting", f"[{BARRIERS} x i64]"), ("wide_waiting", f"[{BARRIERS} x i64]"),
        ("first", f"[{BARRIERS} x i64]"), ("first_warp", f"[{BARRIERS} x i64]"),
        ("at", _CLOCKS), ("number_at", _CLOCKS),
        ("copies", _CLOCKS), ("latest", _CLOCKS), ("met", _CLOCKS), ("groups", _CLOCKS),
        ("cluster_opened", "i64"), ("products", _CLOCKS), ("product_times", f"[{WARPS * GROUPS} x i64]"),
        ("group_times", f"[{WARPS * GROUPS} x i64]"), ("told", f"[{WARPS // 4 * GROUPS * 4} x i64]"),
        ("registers", _CLOCKS),
    ),
)  # fmt: skip
#: One finding.
REPORT = Record("Report", _words("kind site block thread address other_site other_block other_thread entry extra"))
#: A word of shadow: an access by its time, which tells warp and block, and the rest of who, how and where. In words of
#: writes `REST_AT` says which bytes hold a value, in those of reads which warp it was.
WORD, TIME_AT = 8, 32
LANE_MASK, MASK_AT, REST_AT, STRONG_AT, SITE_AT = 31, 5, 9, 14, 15
SITES = 1 << (TIME_AT - SITE_AT)
MARGIN = 1024  # bytes of shadow around what is used, as whole vectors are read
#: The lanes of a warp that accesses neighboring values, for each word of shadow: rows for values of 1, 2, 4, 8 and 16
#: bytes, of `RUN_ROW` bytes. Words of more than one lane have as many runs, one after the other.
RUN_ROW = 1024


def runs() -> list[int]:
    """The table of `RUN_ROW`."""
    table = []
    for size in (1, 2, 4, 8, 16):
        row = []
        for k in range(max(4 // size, 1)):  # lanes of one word
            bytes_of = (1 << size) - 1 << k * size if size < 4 else 15
            for word in range(8 * size):
                lane = word * 4 // size + k if size < 4 else word * 4 // size
                row.append(lane | bytes_of << MASK_AT)
        table += row + [0] * (RUN_ROW // 8 - len(row))
    return table


#: Kinds of findings, as their exceptions are listed in `rawkern.launch.reports`.
KINDS = (
    "NONE", "BOUNDS", "MISALIGNED", "FREED", "READ_ONLY", "UNINITIALIZED", "RACE", "DIVERGENT_BARRIER",
    "DIFFERENT_BARRIERS", "MASK_WITHOUT_SELF", "MASK_NOT_HERE", "INACTIVE_SOURCE", "BAD_FREE",
    "SKIPPED_BARRIER", "NOT_BEGUN", "ENDED", "EARLY_READ",
    "NO_PROXY_FENCE", "INITIALIZED", "UNSEEN_PHASE", "DESCRIPTORS", "OPERATION_LEFT", "NO_PRODUCT_FENCE",
    "NOT_WAITED",
)  # fmt: skip
BOUNDS, MISALIGNED, FREED_USE, READ_ONLY_WRITE, UNINITIALIZED, RACE = range(1, 7)
DIVERGENT_BARRIER, DIFFERENT_BARRIERS, MASK_WITHOUT_SELF, MASK_NOT_HERE, INACTIVE_SOURCE, BAD_FREE = range(7, 13)
NOT_BEGUN, ENDED = 14, 15
NO_PROXY_FENCE, INITIALIZED, UNSEEN_PHASE, DESCRIPTORS, OPERATION_LEFT, NO_PRODUCT_FENCE, NOT_WAITED = range(17, 24)
