"""The checker as it runs beside a kernel, the part that all others use: compiled by `scalar`, never run as Python.

Every number is a 64-bit unsigned integer. `ck` is the launch's CHECK record, `st` the block's STATE, `s` the SITE of
an instruction, `e` an ENTRY, `region` a REGION. A checked launch runs on one worker, so nothing here is shared between
threads.
"""
# ruff: noqa: I001
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportUndefinedVariable=false

from __future__ import annotations

from rawkern.engines.cpu.checker.native.layout import (
    AGENTS, BAD_FREE, CHECK, COLUMNS, ENTRY, INACTIVE_SOURCE, IS_FREED, LOCAL, COLLECTIVE, NO_FENCE, PASSED, REGION,
    REPORT, SITE, STATE, TAKEN, UNINITIALIZED, WORD,
)  # fmt: skip
from rawkern.engines.cpu.records import BLOCK
from rawkern.engines.cpu.checker.native.scalar import clear, lowest_bit, store64

ENTRY_SIZE, SITE_SIZE, REPORT_SIZE = ENTRY.size, SITE.size, REPORT.size
ONLY_MOVED = 0xFFFF
ROW = 8 * COLUMNS
STATE_SEEN, STATE_FENCED, STATE_WIDE = STATE.offset("seen"), STATE.offset("fenced"), STATE.offset("wide")
STATE_REST, REST_SIZE = STATE.offset("fence_time"), STATE.offset("group_times") - STATE.offset("fence_time")


def rk_check_enter(ck, blk):
    """A warp starts: the first of a block makes the block's state new."""
    st = BLOCK.session[blk]
    number = BLOCK.x[blk] + CHECK.grid_x[ck] * (BLOCK.y[blk] + CHECK.grid_y[ck] * BLOCK.z[blk])
    if STATE.number[st] == number and STATE.serial[st] == CHECK.serial[ck]:
        return 0
    STATE.number[st] = number
    STATE.serial[st] = CHECK.serial[ck]
    n = CHECK.nwarps[ck]
    if STATE.ordered[st]:
        clear(st + STATE_SEEN, n * ROW)
        clear(st + STATE_FENCED, n * ROW)
        clear(st + STATE_WIDE, n * ROW)
        clear(st + STATE_REST, REST_SIZE)
        STATE.ordered[st] = 0
    stamp = CHECK.clock[ck] + 1
    if stamp + n > CHECK.times[ck]:
        CHECK.blind[ck] = 1
        return 0
    STATE.base[st] = stamp
    STATE.common[st] = 0
    STATE.remote[st] = 0
    STATE.sender[st] = 0
    STATE.arriving[st] = 0
    STATE.proxied[st] = 0
    STATE.waited[st] = 0
    STATE.window[st] = BLOCK.shared[blk]
    REGION.words[STATE.region[st]] = STATE.shadow[st] - (BLOCK.shared[blk] >> 2) * WORD
    w = 0
    while w < n:
        STATE.clocks[st, w] = stamp + w
        STATE.before[st, w] = 0
        STATE.horizon[st, w] = 0
        STATE.registers[st, w] = NO_FENCE
        store64(CHECK.log[ck] + (stamp + w) * 8, number * AGENTS + w)
        w += 1
    CHECK.clock[ck] = stamp + n - 1
    CHECK.runner[ck] = number * AGENTS + n - 1
    CHECK.runner_since[ck] = stamp + n - 1
    CHECK.owner[ck] = number
    CHECK.owner_since[ck] = stamp
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


def rk_check_found_uninitialized(ck, st, thread, address, site, s, e):
    """A read of what is not set: reported at once, or when the value is used."""
    if SITE.space[s] != LOCAL and address >= CHECK.reserved[ck] and address < CHECK.reserved_end[ck]:
        return 0  # CUDA's own part of shared memory, which is zero at first
    if SITE.defers[s]:
        CHECK.uninitialized[ck] = CHECK.uninitialized[ck] | (1 << (thread & 31))
        if SITE.uninitialized_thread[s] == 0:
            SITE.uninitialized_address[s] = address
            SITE.uninitialized_thread[s] = thread + 1
            SITE.uninitialized_block[s] = STATE.number[st]
        return 0
    rk_check_report(ck, st, UNINITIALIZED, site, thread, address, e)
    return 0


def rk_check_blame(ck, blk, warp, lanes, site, kind, other):
    """Report the first of some lanes, if there are any."""
    if lanes:
        r = rk_check_report(ck, BLOCK.session[blk], kind, site, warp * 32 + lowest_bit(lanes), 0, 0)
        if r:
            REPORT.extra[r] = other
    return 0


def rk_check_branch(ck, blk, warp, site, taken, rest):
    """Lanes choose between the sides of a branch."""
    s = CHECK.sites[ck] + site * SITE_SIZE
    sides = SITE.sides[s]
    if taken:
        sides = sides | TAKEN
    if rest:
        sides = sides | PASSED
    SITE.sides[s] = sides
    return 0


def rk_check_uninitialized(ck, blk, warp, lanes, site):
    """Report lanes that use what has not been set: the place where they first computed with it, else this one."""
    while lanes:
        lane = lowest_bit(lanes)
        lanes = lanes & (lanes - 1)
        first = CHECK.addresses[ck, lane]
        at = site
        if first != ONLY_MOVED:
            at = first - 1
        s = CHECK.sites[ck] + at * SITE_SIZE
        root = 0
        if SITE.space[s] != LOCAL:
            root = SITE.root[s]
        thread = warp * 32 + lane
        if SITE.uninitialized_thread[s]:
            thread = SITE.uninitialized_thread[s] - 1
        kind = UNINITIALIZED
        if SITE.space[s] == COLLECTIVE:
            kind = INACTIVE_SOURCE
        r = rk_check_report(ck, BLOCK.session[blk], kind, at, thread, SITE.uninitialized_address[s], root)
        if r and SITE.uninitialized_thread[s]:
            REPORT.block[r] = SITE.uninitialized_block[s]
    return 0


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


# -- the device heap --------------------------------------------------------------------------------------------------


def rk_check_malloc(ck, size):
    """Memory for a thread; never used a second time, so that what is freed can be told. 0 when there is no more."""
    low = CHECK.heap_next[ck]
    room = (size + 31) & (0 - 16)  # a gap after each piece
    if (
        size > CHECK.heap_high[ck] - low
        or room > CHECK.heap_high[ck] - low
        or CHECK.heap_count[ck] == CHECK.heap_room[ck]
        or CHECK.heap_held[ck] + size > CHECK.heap_limit[ck]
    ):
        return 0
    e = CHECK.heap_table[ck] + CHECK.heap_count[ck] * ENTRY_SIZE
    ENTRY.low[e] = low
    ENTRY.high[e] = low + size
    ENTRY.flags[e] = 0
    ENTRY.region[e] = CHECK.heap_region[ck]
    CHECK.heap_next[ck] = low + room
    CHECK.heap_count[ck] += 1
    CHECK.heap_held[ck] += size
    return low


def rk_check_free(ck, blk, thread, address, site):
    """Take memory back; report what is not a live piece."""
    if address == 0:
        return 0
    e = 0
    if CHECK.heap_low[ck] <= address and address < CHECK.heap_next[ck]:
        e = rk_check_find(ck, address, 0)
    if e == 0 or ENTRY.low[e] != address or ENTRY.flags[e] & IS_FREED:
        rk_check_report(ck, BLOCK.session[blk], BAD_FREE, site, thread, address, e)
        return 0
    ENTRY.flags[e] = IS_FREED
    CHECK.heap_held[ck] -= ENTRY.high[e] - ENTRY.low[e]
    return 0
