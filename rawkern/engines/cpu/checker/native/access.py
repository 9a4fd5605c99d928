"""The checker as it runs beside a kernel, the part that looks at addresses: compiled by `scalar`, never run as Python.

Every number is a 64-bit unsigned integer. `ck` is the launch's CHECK record, `st` the block's STATE, `s` the SITE of
an instruction, `e` an ENTRY, `region` a REGION. A checked launch runs on one worker, so nothing here is shared between
threads.
"""
# ruff: noqa: I001
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportUndefinedVariable=false

from __future__ import annotations

from rawkern.engines.cpu.checker.native.layout import (
    BOUNDS, CHECK, ENTRY, FREED_USE, GENERIC, IS_CONST, IS_FREED, IS_SHARED, IS_UNKNOWN, LOCAL, MISALIGNED, READ,
    READ_ONLY_WRITE, SHARED, SITE, STATE, TIME_AT, WINDOWS, WRITE,
)  # fmt: skip
from rawkern.engines.cpu.checker.native.clusters import rk_check_owner, rk_check_reaches
from rawkern.engines.cpu.checker.native.sync import rk_check_send
from rawkern.engines.cpu.checker.native.order import rk_check_cell, rk_check_spread, rk_check_trace, rk_check_trace_even
from rawkern.engines.cpu.checker.native.runtime import rk_check_find, rk_check_found_uninitialized, rk_check_report
from rawkern.engines.cpu.records import BLOCK
from rawkern.engines.cpu.checker.native.scalar import elsewhere, highest_bit, inline, load8, lowest_bit, store8

SITE_SIZE = SITE.size
rk_check_stack_range = elsewhere  # the kernel's own, by its address (check.checker)


def rk_check_even(ck, blk, warp, mask, site, stride, run):
    """Check a warp's access to addresses `stride` bytes apart, each `run` of lanes from a base of its own.

    Returns the lanes that may go on. The bases are in the CHECK record.
    """
    CHECK.uninitialized[ck] = 0
    CHECK.lanes[ck] = mask
    s = CHECK.sites[ck] + site * SITE_SIZE
    st = BLOCK.session[blk]
    e = SITE.root[s]
    if stride >> 63 == 0 and SITE.space[s] != LOCAL:
        if e == 0 and SITE.space[s] == SHARED:
            e = CHECK.all_shared[ck]
        elif e == 0 and run == 32:
            e = rk_check_find(ck, CHECK.bases[ck, 0], 31 * stride + SITE.size[s])
        if e != 0 and rk_check_inside(ck, blk, mask, s, e, stride, run):
            flags = ENTRY.flags[e]
            region = ENTRY.region[e]
            base = 0
            if flags & IS_SHARED:
                region = STATE.region[st]
                base = STATE.base[st] << TIME_AT
            if flags & (IS_UNKNOWN | IS_FREED) == 0 and (flags & IS_CONST == 0 or SITE.what[s] == READ):
                if region:
                    rk_check_trace_even(ck, st, warp, mask, site, s, region, base, stride, run)
                return mask
    rk_check_spread(ck, stride, run)
    rk_check_stack_range(ck, blk, warp)
    return rk_check_lanes(ck, blk, st, warp, mask, site, s)


@inline
def rk_check_inside(ck, blk, mask, s, e, stride, run):
    """Whether all lanes' addresses are aligned and lie in an entry."""
    low = ENTRY.low[e]
    high = ENTRY.high[e]
    if ENTRY.flags[e] & IS_SHARED:
        low = low + BLOCK.shared[blk]
        high = high + BLOCK.shared[blk]
    lane = 0
    k = 0
    while lane < 32:
        part = (mask >> lane) & ((1 << run) - 1)
        if part:
            base = CHECK.bases[ck, k]
            first = base + lowest_bit(part) * stride
            last = base + highest_bit(part) * stride
            if (base | stride) & (SITE.align[s] - 1) or first < low or last < first or last + SITE.size[s] > high:
                return 0
            if last + SITE.size[s] < last:
                return 0
        lane += run
        k += 1
    return 1


def rk_check_access(ck, blk, warp, mask, site, low, high, bits):
    """Check a warp's access; returns the lanes that may go on.

    `low` and `high` are the lowest and highest of the active lanes' addresses, `bits` all of them or-ed; the addresses
    are in the CHECK record.
    """
    CHECK.lanes[ck] = mask
    s = CHECK.sites[ck] + site * SITE_SIZE
    st = BLOCK.session[blk]
    size = SITE.size[s]
    e = SITE.root[s]
    if bits & (SITE.align[s] - 1) == 0 and e != 0 and SITE.space[s] != LOCAL:
        base = 0
        if ENTRY.flags[e] & IS_SHARED:
            base = BLOCK.shared[blk]
        if ENTRY.low[e] + base <= low and high + size <= ENTRY.high[e] + base:
            if ENTRY.flags[e] & IS_SHARED:
                rk_check_trace(ck, st, warp, mask, site, s, STATE.region[st], STATE.base[st] << TIME_AT)
                return mask
            if ENTRY.flags[e] & IS_UNKNOWN == 0 and (ENTRY.flags[e] & IS_CONST == 0 or SITE.what[s] == READ):
                if ENTRY.region[e]:
                    rk_check_trace(ck, st, warp, mask, site, s, ENTRY.region[e], 0)
                return mask
    rk_check_stack_range(ck, blk, warp)
    return rk_check_lanes(ck, blk, st, warp, mask, site, s)


def rk_check_lanes(ck, blk, st, warp, mask, site, s):
    """The slow path: lane by lane."""
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
    base = BLOCK.shared[blk]
    root = SITE.root[s]
    frame = CHECK.frame[ck] + CHECK.frame_bytes[ck] * lane
    if a & (SITE.align[s] - 1):
        start = 0  # what reports count from
        e = root
        if SITE.space[s] == LOCAL:
            start = frame
            e = 0
        elif root == 0:
            if SITE.space[s] == SHARED:
                start = base
        elif ENTRY.flags[root] & IS_SHARED:
            start = base
        rk_check_report(ck, st, MISALIGNED, site, thread, a - start, e)
        return 0
    if SITE.space[s] == LOCAL or (SITE.space[s] == GENERIC and a - CHECK.frame[ck] < CHECK.frame_bytes[ck] * 32):
        if a - frame + size <= CHECK.frame_bytes[ck] and a - frame < CHECK.frame_bytes[ck]:
            if SITE.end[s] and (a - frame < SITE.start[s] or a - frame + size > SITE.end[s]):
                rk_check_report(ck, st, BOUNDS, site, thread, a - frame, 0)
                return 0
            return rk_check_local(ck, st, thread, a, site, s)
        if root == 0 and CHECK.stack_low[ck] <= a and a < CHECK.stack_high[ck]:
            return 1  # perhaps another function's variable
        rk_check_report(ck, st, BOUNDS, site, thread, a - frame, 0)
        return 0
    other = 0
    if SITE.space[s] == WINDOWS:
        other = rk_check_owner(ck, blk, a, size)
        at = a - base
        if other:
            at = a - BLOCK.shared[other]
        if other == 0 or (root and (at < ENTRY.low[root] or at + size > ENTRY.high[root])):
            rk_check_report(ck, st, BOUNDS, site, thread, at, root)
            return 0
    elif root:
        flags = ENTRY.flags[root]
        if flags & IS_SHARED:
            if ENTRY.low[root] + base <= a and a + size <= ENTRY.high[root] + base:
                rk_check_cell(ck, st, warp, lane, a, site, s, STATE.region[st], STATE.base[st] << TIME_AT)
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
            rk_check_cell(ck, st, warp, lane, a, site, s, STATE.region[st], STATE.base[st] << TIME_AT)
            return 1
        rk_check_report(ck, st, BOUNDS, site, thread, a - base, 0)
        return 0
    if SITE.space[s] == GENERIC:
        other = rk_check_owner(ck, blk, a, size)
    if other == blk:
        rk_check_cell(ck, st, warp, lane, a, site, s, STATE.region[st], STATE.base[st] << TIME_AT)
        return 1
    if other:
        if rk_check_reaches(ck, st, warp, lane, a, site, other) == 0:
            return 0
        st2 = BLOCK.session[other]
        CHECK.window[ck] = BLOCK.shared[other]
        own = CHECK.copying[ck]
        if own and SITE.what[s] != READ:
            CHECK.copying[ck] = rk_check_send(ck, st, warp, st2)
        rk_check_cell(ck, st, warp, lane, a, site, s, STATE.region[st2], STATE.base[st2] << TIME_AT)
        CHECK.copying[ck] = own
        CHECK.window[ck] = 0
        return 1
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
    if ENTRY.region[e]:
        rk_check_cell(ck, st, warp, lane, a, site, s, ENTRY.region[e], 0)
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
        rk_check_found_uninitialized(ck, st, thread, a - CHECK.frame[ck], site, s, 0)
    k = 0
    uninitialized = 0
    if SITE.what[s] == WRITE and (CHECK.storing[ck] >> (thread & 31)) & 1:
        uninitialized = CHECK.uninitialized_bytes[ck, thread & 31]
    while SITE.what[s] != READ and k < SITE.size[s]:
        store8(init + k, ((uninitialized >> k) & 1) ^ 1)
        k += 1
    return 1
