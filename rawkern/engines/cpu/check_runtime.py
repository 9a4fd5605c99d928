"""The checker as it runs beside a kernel: compiled by `scalar`, never run as Python.

Every number is a 64-bit unsigned integer. `ck` is the launch's CHECK record, `st` the block's STATE, `s` the SITE of
an instruction, `e` an ENTRY. A checked launch runs on one worker, so nothing here is shared between threads.

Order between accesses follows PTX's memory model. Each warp has a clock, drawn from the launch's, and knows how far it
has seen the others of its block (`seen`). Barriers hand on what the arriving warps have seen; a fence followed by a
strong write hands it to whoever reads strongly afterwards. Between blocks only the times of such pairs are kept, so
that an access may be taken for ordered that is not, never the other way round.
"""
# ruff: noqa: I001
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportUndefinedVariable=false

from __future__ import annotations

from rawkern.engines.cpu.check_layout import (
    BAD_FREE, BOUNDS, CELL, CHECK, DIFFERENT_BARRIERS, ENTRY, FREED_USE, GENERIC, INACTIVE_SOURCE, INIT_AT, MEETING,
    IS_CONST, IS_FREED, IS_SHARED, IS_UNKNOWN, LOCAL, MASK_AT, MISALIGNED, RACE, READ, READ_ONLY_WRITE, REPORT,
    SHARED, SITE, SITE_AT, STATE, STRONG_AT, THREAD_AT, UNINITIALIZED, UPDATE, WRITE,
)  # fmt: skip
from rawkern.engines.cpu.records import BLOCK
from rawkern.engines.cpu.scalar import clear, inline, load8, load16, load32, load64, lowest_bit, store8, store64

ENTRY_SIZE, SITE_SIZE, REPORT_SIZE = ENTRY.size, SITE.size, REPORT.size
BLOCK_MASK = (1 << THREAD_AT) - 1
ORDER_SIZE = 16  # bytes of a block's two times in `order`: of its last fence that was passed on, of its last look
UNSET = 0xFFFF
THREAD_MASK = (1 << MASK_AT) - 1
CLOCKS = 8 * 32
STATE_CLOCKS, STATE_REST = STATE.offset("clocks"), STATE.size - STATE.offset("clocks")
STATE_SEEN, STATE_FENCED, STATE_POT = STATE.offset("seen"), STATE.offset("fenced"), STATE.offset("pot")
STATE_ARRIVED, STATE_OPENED = STATE.offset("arrived"), STATE.offset("opened")


# -- blocks and findings ----------------------------------------------------------------------------------------------


def rk_check_enter(ck, blk):
    """A warp starts: the first of a block makes the block's state new."""
    st = BLOCK.check[blk]
    number = BLOCK.x[blk] + CHECK.grid_x[ck] * (BLOCK.y[blk] + CHECK.grid_y[ck] * BLOCK.z[blk])
    if STATE.number[st] == number and STATE.serial[st] == CHECK.serial[ck]:
        return 0
    STATE.number[st] = number
    STATE.serial[st] = CHECK.serial[ck]
    stamp = CHECK.clock[ck] + 1
    CHECK.clock[ck] = stamp
    STATE.base[st] = stamp
    STATE.window[st] = BLOCK.shared[blk]
    clear(st + STATE_CLOCKS, STATE_REST)
    w = 0
    while w < 32:
        STATE.clocks[st, w] = stamp
        w += 1
    return 0


def rk_check_report(ck, st, kind, site, thread, address, e):
    """Note a finding, once for each site and kind; returns its record, or 0."""
    s = CHECK.sites[ck] + site * SITE_SIZE
    bit = 1 << kind
    n = CHECK.nreports[ck]
    if SITE.seen[s] & bit or n == CHECK.max_reports[ck]:
        return 0
    SITE.seen[s] = SITE.seen[s] | bit
    CHECK.nreports[ck] = n + 1
    r = CHECK.reports[ck] + n * REPORT_SIZE
    REPORT.kind[r] = kind
    REPORT.site[r] = site
    REPORT.block[r] = STATE.number[st]
    REPORT.thread[r] = thread
    REPORT.address[r] = address
    REPORT.entry[r] = e
    return r


# -- which memory an address belongs to -------------------------------------------------------------------------------


def rk_check_find(ck, address, size):
    """The entry of the launch's memory, or of the device heap, that holds an access; 0 where none does."""
    e = CHECK.last[ck]
    if ENTRY.low[e] <= address and address + size <= ENTRY.high[e]:
        return e
    table = CHECK.segments[ck]
    n = CHECK.nsegments[ck]
    if CHECK.heap_low[ck] <= address and address < CHECK.heap_next[ck]:
        table = CHECK.heap_table[ck]
        n = CHECK.heap_count[ck]
    first = 0
    while first < n:  # the last entry that begins at or before the address
        middle = (first + n) >> 1
        if ENTRY.low[table + middle * ENTRY_SIZE] <= address:
            first = middle + 1
        else:
            n = middle
    if first == 0:
        return 0
    e = table + (first - 1) * ENTRY_SIZE
    if address + size <= ENTRY.high[e]:
        CHECK.last[ck] = e
        return e
    return 0


def rk_check_access(ck, blk, warp, mask, site, low, high, bits):
    """Check a warp's access; returns the lanes that may go on.

    `low` and `high` are the lowest and highest of the active lanes' addresses, `bits` all of them or-ed; the addresses
    stand in the CHECK record.
    """
    s = CHECK.sites[ck] + site * SITE_SIZE
    st = BLOCK.check[blk]
    size = SITE.size[s]
    e = SITE.root[s]
    if bits & (SITE.align[s] - 1) == 0 and e != 0 and SITE.space[s] != LOCAL:
        base = 0
        if ENTRY.flags[e] & IS_SHARED:
            base = BLOCK.shared[blk]
        if ENTRY.low[e] + base <= low and high + size <= ENTRY.high[e] + base:
            if ENTRY.flags[e] & IS_SHARED:
                rk_check_trace(ck, st, warp, mask, site, s, STATE.shadow[st] - (base >> 2) * CELL, 1)
                return mask
            if ENTRY.flags[e] & (IS_CONST | IS_UNKNOWN) == 0:
                if ENTRY.bias[e]:
                    rk_check_trace(ck, st, warp, mask, site, s, ENTRY.bias[e], 0)
                return mask
            if ENTRY.flags[e] & IS_CONST and SITE.what[s] == READ:
                return mask
    return rk_check_lanes(ck, blk, st, warp, mask, site, s)


def rk_check_lanes(ck, blk, st, warp, mask, site, s):
    """The careful way: lane by lane."""
    ok = 0
    rest = mask
    while rest:
        lane = lowest_bit(rest)
        rest = rest & (rest - 1)
        a = CHECK.addresses[ck, lane]
        if rk_check_lane(ck, blk, st, warp, lane, a, site, s):
            ok = ok | (1 << lane)
    return ok


def rk_check_lane(ck, blk, st, warp, lane, a, site, s):
    """Whether one lane may access its address; what it does there is followed."""
    size = SITE.size[s]
    thread = warp * 32 + lane
    if a & (SITE.align[s] - 1):
        rk_check_report(ck, st, MISALIGNED, site, thread, a, SITE.root[s])
        return 0
    base = BLOCK.shared[blk]
    root = SITE.root[s]
    frame = CHECK.frame[ck] + CHECK.frame_bytes[ck] * lane
    if SITE.space[s] == LOCAL or (SITE.space[s] == GENERIC and a - CHECK.frame[ck] < CHECK.frame_bytes[ck] * 32):
        if a - frame + size <= CHECK.frame_bytes[ck] and a - frame < CHECK.frame_bytes[ck]:
            return rk_check_local(ck, st, thread, a, site, s)
        if root == 0 and CHECK.stack_low[ck] <= a and a < CHECK.stack_high[ck]:
            return 1  # perhaps another function's variable
        rk_check_report(ck, st, BOUNDS, site, thread, a - frame, 0)
        return 0
    if root:
        flags = ENTRY.flags[root]
        if flags & IS_SHARED:
            if ENTRY.low[root] + base <= a and a + size <= ENTRY.high[root] + base:
                rk_check_cell(ck, st, warp, lane, a, site, s, STATE.shadow[st] - (base >> 2) * CELL, 1)
                return 1
            rk_check_report(ck, st, BOUNDS, site, thread, a - base, root)
            return 0
        if flags & IS_UNKNOWN == 0:
            if a < ENTRY.low[root] or a + size > ENTRY.high[root] or a + size < a:
                rk_check_report(ck, st, BOUNDS, site, thread, a, root)
                return 0
            return rk_check_entry(ck, st, warp, lane, a, site, s, root)
    if SITE.space[s] == SHARED or (SITE.space[s] == GENERIC and a - base < CHECK.shared_total[ck]):
        if a - base < CHECK.shared_total[ck] and a - base + size <= CHECK.shared_total[ck]:
            rk_check_cell(ck, st, warp, lane, a, site, s, STATE.shadow[st] - (base >> 2) * CELL, 1)
            return 1
        rk_check_report(ck, st, BOUNDS, site, thread, a - base, 0)
        return 0
    if SITE.space[s] == GENERIC and CHECK.stack_low[ck] <= a and a < CHECK.stack_high[ck]:
        return 1  # another function's variable
    e = rk_check_find(ck, a, size)
    if e == 0:
        rk_check_report(ck, st, BOUNDS, site, thread, a, 0)
        return 0
    if ENTRY.flags[e] & IS_FREED:
        rk_check_report(ck, st, FREED_USE, site, thread, a, e)
        return 0
    return rk_check_entry(ck, st, warp, lane, a, site, s, e)


def rk_check_entry(ck, st, warp, lane, a, site, s, e):
    """An access inside an entry of global memory."""
    if ENTRY.flags[e] & IS_CONST and SITE.what[s] != READ:
        rk_check_report(ck, st, READ_ONLY_WRITE, site, warp * 32 + lane, a, e)
        return 0
    if ENTRY.bias[e]:
        rk_check_cell(ck, st, warp, lane, a, site, s, ENTRY.bias[e], 0)
    return 1


def rk_check_local(ck, st, thread, a, site, s):
    """An access to a variable of the function's own: is any of what it reads set? (Unions and padding are in part.)"""
    init = CHECK.frame_init[ck] + (a - CHECK.frame[ck])
    k = 0
    some = 0
    while k < SITE.size[s]:
        some = some | load8(init + k)
        k += 1
    if SITE.what[s] != WRITE and some == 0:
        rk_check_found_unset(ck, st, thread, a - CHECK.frame[ck], site, s, 0)
    k = 0
    set = 1
    if SITE.what[s] == WRITE:
        set = ((CHECK.storing[ck] >> (thread & 31)) & 1) ^ 1
    while SITE.what[s] != READ and k < SITE.size[s]:
        store8(init + k, set)
        k += 1
    return 1


def rk_check_found_unset(ck, st, thread, address, site, s, e):
    """A read of what is not set: reported at once, or when the value is used."""
    if SITE.space[s] != LOCAL and address >= CHECK.reserved[ck] and address < CHECK.reserved_end[ck]:
        return 0  # CUDA's own part of shared memory, which is zero at first
    if SITE.defers[s]:
        CHECK.unset[ck] = CHECK.unset[ck] | (1 << (thread & 31))
        if SITE.unset_thread[s] == 0:
            SITE.unset_address[s] = address
            SITE.unset_thread[s] = thread + 1
            SITE.unset_block[s] = STATE.number[st]
        return 0
    rk_check_report(ck, st, UNINITIALIZED, site, thread, address, e)
    return 0


# -- order of accesses ------------------------------------------------------------------------------------------------


def rk_check_trace(ck, st, warp, mask, site, s, bias, shared):
    """Follow the accesses of a warp's lanes; of neighbours that read the same, the first and the last."""
    if SITE.what[s] == READ and SITE.size[s] <= 4:
        return rk_check_words(ck, st, warp, mask, site, s, bias, shared)
    while mask:
        lane = lowest_bit(mask)
        mask = mask & (mask - 1)
        rk_check_cell(ck, st, warp, lane, CHECK.addresses[ck, lane], site, s, bias, shared)
    return 0


def rk_check_words(ck, st, warp, mask, site, s, bias, shared):
    """Follow reads of one word or less, which are the most there are."""
    mine = STATE.number[st] | (warp << (THREAD_AT + 5)) | (SITE.strong[s] << STRONG_AT) | (site << SITE_AT)
    now = STATE.clocks[st, warp]
    base = 0
    if shared:
        base = STATE.base[st]
    bits = (1 << SITE.size[s]) - 1
    last = 0
    while mask:
        lane = lowest_bit(mask)
        mask = mask & (mask - 1)
        a = CHECK.addresses[ck, lane]
        if a != last or mask == 0 or CHECK.addresses[ck, lowest_bit(mask)] != a:
            last = a
            cell = bias + (a >> 2) * CELL
            if rk_check_read(ck, st, warp, lane, a, site, cell, mine | (lane << THREAD_AT), now, bits << (a & 3), base):
                rk_check_found_unset(ck, st, warp * 32 + lane, a - STATE.window[st], site, s, SITE.root[s])
    return 0


def rk_check_cell(ck, st, warp, lane, a, site, s, bias, shared):
    """Follow one lane's access: compare it with the last ones of these bytes, and be the last."""
    end = a + SITE.size[s]
    thread = warp * 32 + lane
    me = STATE.number[st] | (thread << THREAD_AT) | (SITE.strong[s] << STRONG_AT) | (site << SITE_AT)
    now = STATE.clocks[st, warp]
    base = 0
    if shared:
        base = STATE.base[st]
    unset = 1
    while a < end:
        offset = a & 3
        bytes = end - a
        if bytes > 4 - offset:
            bytes = 4 - offset
        part = ((1 << bytes) - 1) << offset
        cell = bias + (a >> 2) * CELL
        if SITE.what[s] == READ:
            unset = unset & rk_check_read(ck, st, warp, lane, a, site, cell, me, now, part, base)
        else:
            rk_check_write(ck, st, warp, lane, a, site, s, cell, me, now, part, base)
        a = (a & (0 - 4)) + 4
    if unset and SITE.what[s] == READ:
        rk_check_found_unset(ck, st, thread, end - SITE.size[s] - STATE.window[st], site, s, SITE.root[s])
    return 0


@inline
def rk_check_read(ck, st, warp, lane, a, site, cell, me, now, part, base):
    """Follow a read of one word; returns whether nothing of it is set."""
    who = load64(cell)
    when = load64(cell + 8)
    if when < base:
        who = 0
    unset = 0
    if base != 0 and (who >> INIT_AT) & part == 0:
        unset = 1
    elif (who >> MASK_AT) & part and rk_check_apart(ck, st, warp, lane, me, who, when):
        rk_check_race(ck, st, warp, lane, a, site, who, 0)
    first = load64(cell + 16)
    if (first ^ me) & THREAD_MASK != 0:
        store64(cell + 32, first)
        store64(cell + 40, load64(cell + 24))
    elif load64(cell + 24) == now:
        part = part | ((first >> MASK_AT) & 15)
    store64(cell + 16, me | (part << MASK_AT))
    store64(cell + 24, now)
    return unset


@inline
def rk_check_write(ck, st, warp, lane, a, site, s, cell, me, now, part, base):
    """Follow a write of one word, or an atomic operation on it."""
    who = load64(cell)
    when = load64(cell + 8)
    if when < base:
        who = 0
        when = 0
    if SITE.what[s] == UPDATE and base != 0 and (who >> INIT_AT) & part != part:
        rk_check_found_unset(ck, st, warp * 32 + lane, a - STATE.window[st], site, s, SITE.root[s])
    if (who >> MASK_AT) & part and rk_check_apart(ck, st, warp, lane, me, who, when):
        if rk_check_same(ck, lane, s, a, who, me):
            return 0
        rk_check_race(ck, st, warp, lane, a, site, who, 1)
    else:
        reader = load64(cell + 16)
        time = load64(cell + 24)
        if time < base or (reader >> MASK_AT) & part == 0 or rk_check_apart(ck, st, warp, lane, me, reader, time) == 0:
            reader = load64(cell + 32)
            time = load64(cell + 40)
        if time >= base and (reader >> MASK_AT) & part and rk_check_apart(ck, st, warp, lane, me, reader, time):
            if rk_check_same(ck, lane, s, a, 0, me):
                return 0
            rk_check_race(ck, st, warp, lane, a, site, reader, 0)
    init = ((who >> INIT_AT) | part) & 15
    if SITE.what[s] == WRITE and (CHECK.storing[ck] >> lane) & 1:  # what is not set is stored
        init = init & (part ^ 15)
    store64(cell, me | (part << MASK_AT) | (init << INIT_AT))
    store64(cell + 8, now)
    return 0


@inline
def rk_check_apart(ck, st, warp, lane, me, who, when):
    """Whether an access (`who`, `when`) is by another thread and nothing orders it before this one."""
    if when == 0 or (who >> STRONG_AT) & (me >> STRONG_AT) & 1:
        return 0
    if (who ^ me) & THREAD_MASK == 0:
        return 0
    if (who ^ me) & BLOCK_MASK == 0:
        other = (who >> (THREAD_AT + 5)) & 31
        return when > STATE.seen[st, warp * 32 + other]
    order = CHECK.order[ck]
    passed = load64(order + (who & BLOCK_MASK) * ORDER_SIZE)
    looked = load64(order + (me & BLOCK_MASK) * ORDER_SIZE + 8)
    return passed <= when or looked <= when


def rk_check_same(ck, lane, s, a, who, me):
    """Whether a write changes nothing: it writes what is there, or what another lane of this access writes there."""
    if SITE.what[s] != WRITE:
        return 0
    start = CHECK.addresses[ck, lane]
    k = (a - start) // SITE.element[s]
    size = SITE.element[s]
    at = start + k * size
    value = CHECK.values[ck, k * 32 + lane]
    if ((who ^ me) >> SITE_AT) == 0 and (((who ^ me) >> (THREAD_AT + 5)) & 31) == 0 and ((who ^ me) & BLOCK_MASK) == 0:
        other = (who >> THREAD_AT) & 31
        if CHECK.addresses[ck, other] == start:
            return value == CHECK.values[ck, k * 32 + other]
    if size == 1:
        return load8(at) == value
    if size == 2:
        return load16(at) == value
    if size == 4:
        return load32(at) == value
    return load64(at) == value


def rk_check_race(ck, st, warp, lane, a, site, who, wrote):
    """Note a race with an earlier access."""
    e = 0
    if a - STATE.window[st] < CHECK.shared_total[ck]:
        a = a - STATE.window[st]
        if a >= CHECK.reserved[ck] and a < CHECK.reserved_end[ck]:
            return 0
        e = SITE.root[CHECK.sites[ck] + site * SITE_SIZE]
    r = rk_check_report(ck, st, RACE, site, warp * 32 + lane, a, e)
    if r:
        REPORT.other_site[r] = who >> SITE_AT
        REPORT.other_block[r] = who & BLOCK_MASK
        REPORT.other_thread[r] = (who >> THREAD_AT) & 1023
    return 0


# -- what orders accesses ---------------------------------------------------------------------------------------------


def rk_check_join(into, what):
    """See what another has seen."""
    v = 0
    while v < CLOCKS:
        if load64(what + v) > load64(into + v):
            store64(into + v, load64(what + v))
        v += 8
    return 0


def rk_check_tick(ck, st, warp):
    """A new time for the warp; what it did up to now is of the past."""
    now = CHECK.clock[ck] + 1
    CHECK.clock[ck] = now
    STATE.clocks[st, warp] = now
    return now


def rk_check_fence(ck, blk, warp):
    """A fence: strong writes from now on pass on what happened before it."""
    st = BLOCK.check[blk]
    fenced = st + STATE_FENCED + warp * CLOCKS
    rk_check_join(fenced, st + STATE_SEEN + warp * CLOCKS)
    store64(fenced + warp * 8, STATE.clocks[st, warp])
    STATE.fence_time[st, warp] = rk_check_tick(ck, st, warp)
    return 0


def rk_check_pass_on(ck, blk, warp):
    """A strong write: others may see what happened before the last fence."""
    st = BLOCK.check[blk]
    rk_check_join(st + STATE_POT, st + STATE_FENCED + warp * CLOCKS)
    at = CHECK.order[ck] + STATE.number[st] * ORDER_SIZE
    if STATE.fence_time[st, warp] > load64(at):
        store64(at, STATE.fence_time[st, warp])
    return 0


def rk_check_look(ck, blk, warp):
    """A strong read: what others have passed on lies in the past now."""
    st = BLOCK.check[blk]
    rk_check_join(st + STATE_SEEN + warp * CLOCKS, st + STATE_POT)
    now = CHECK.clock[ck] + 1
    CHECK.clock[ck] = now
    store64(CHECK.order[ck] + STATE.number[st] * ORDER_SIZE + 8, now)
    return 0


def rk_check_warp_sync(ck, blk, warp):
    """Lanes of a warp have met."""
    st = BLOCK.check[blk]
    STATE.seen[st, warp * 33] = STATE.clocks[st, warp]
    rk_check_tick(ck, st, warp)
    return 0


def rk_check_blame(ck, blk, warp, lanes, site, kind, other):
    """Report the first of some lanes, if there are any."""
    if lanes:
        r = rk_check_report(ck, BLOCK.check[blk], kind, site, warp * 32 + lowest_bit(lanes), 0, 0)
        if r:
            REPORT.extra[r] = other
    return 0


def rk_check_unset(ck, blk, warp, lanes, site):
    """Report lanes that use what has not been set: the place where they first computed with it, else this one."""
    while lanes:
        lane = lowest_bit(lanes)
        lanes = lanes & (lanes - 1)
        first = CHECK.addresses[ck, lane]
        at = site
        if first != UNSET:
            at = first - 1
        s = CHECK.sites[ck] + at * SITE_SIZE
        root = 0
        if SITE.space[s] != LOCAL:
            root = SITE.root[s]
        thread = warp * 32 + lane
        if SITE.unset_thread[s]:
            thread = SITE.unset_thread[s] - 1
        kind = UNINITIALIZED
        if SITE.space[s] == MEETING:
            kind = INACTIVE_SOURCE
        r = rk_check_report(ck, BLOCK.check[blk], kind, at, thread, SITE.unset_address[s], root)
        if r and SITE.unset_thread[s]:
            REPORT.block[r] = SITE.unset_block[s]
    return 0


def rk_check_arrive(ck, blk, warp, number, site, same):
    """A warp comes to a barrier; `same`: to that instruction all the block's warps must come."""
    st = BLOCK.check[blk]
    number = number & 15
    STATE.at[st, warp] = site + 1
    first = STATE.first[st, number]
    if same and first and first != site + 1:
        r = rk_check_report(ck, st, DIFFERENT_BARRIERS, site, warp * 32, 0, 0)
        if r:
            REPORT.other_site[r] = first - 1
            REPORT.other_block[r] = STATE.number[st]
            REPORT.other_thread[r] = STATE.first_warp[st, number] * 32
    if same and first == 0:
        STATE.first[st, number] = site + 1
        STATE.first_warp[st, number] = warp
    arrived = st + STATE_ARRIVED + number * CLOCKS
    rk_check_join(arrived, st + STATE_SEEN + warp * CLOCKS)
    rk_check_join(arrived, st + STATE_FENCED + warp * CLOCKS)
    store64(arrived + warp * 8, STATE.clocks[st, warp])
    if STATE.fence_time[st, warp] > STATE.waiting[st, number]:
        STATE.waiting[st, number] = STATE.fence_time[st, warp]
    rk_check_tick(ck, st, warp)
    return 0


def rk_check_open(blk, number):
    """A barrier opens."""
    st = BLOCK.check[blk]
    arrived = st + STATE_ARRIVED + number * CLOCKS
    rk_check_join(st + STATE_OPENED + number * CLOCKS, arrived)
    clear(arrived, CLOCKS)
    STATE.first[st, number] = 0
    return 0


def rk_check_depart(ck, blk, warp, number):
    """A warp goes on behind a barrier; fences of any that met there serve all."""
    st = BLOCK.check[blk]
    number = number & 15
    STATE.at[st, warp] = 0
    opened = st + STATE_OPENED + number * CLOCKS
    rk_check_join(st + STATE_SEEN + warp * CLOCKS, opened)
    fence = STATE.waiting[st, number]
    if fence > STATE.fence_time[st, warp]:
        STATE.fence_time[st, warp] = fence
        rk_check_join(st + STATE_FENCED + warp * CLOCKS, opened)
    return 0


# -- the device heap --------------------------------------------------------------------------------------------------


def rk_check_malloc(ck, size):
    """Memory for a thread; never used a second time, so that what is freed can be told. 0 when there is no more."""
    low = CHECK.heap_next[ck]
    room = (size + 31) & (0 - 16)  # a gap behind each piece
    if (
        size > CHECK.heap_high[ck] - low
        or room > CHECK.heap_high[ck] - low
        or CHECK.heap_count[ck] == CHECK.heap_room[ck]
    ):
        return 0
    e = CHECK.heap_table[ck] + CHECK.heap_count[ck] * ENTRY_SIZE
    ENTRY.low[e] = low
    ENTRY.high[e] = low + size
    ENTRY.flags[e] = 0
    ENTRY.bias[e] = 0
    CHECK.heap_next[ck] = low + room
    CHECK.heap_count[ck] += 1
    return low


def rk_check_free(ck, blk, thread, address, site):
    """Take memory back; what is no live piece is reported."""
    if address == 0:
        return 0
    e = 0
    if CHECK.heap_low[ck] <= address and address < CHECK.heap_next[ck]:
        e = rk_check_find(ck, address, 0)
    if e == 0 or ENTRY.low[e] != address or ENTRY.flags[e] & IS_FREED:
        rk_check_report(ck, BLOCK.check[blk], BAD_FREE, site, thread, address, e)
        return 0
    ENTRY.flags[e] = IS_FREED
    return 0
