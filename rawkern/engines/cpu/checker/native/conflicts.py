"""The checker as it runs beside a kernel, the part that judges two accesses: compiled by `scalar`, never run as Python.

Every number is a 64-bit unsigned integer. `ck` is the launch's CHECK record, `st` the block's STATE, `s` the SITE of
an instruction; `me` and `who` are words of shadow, this access and an earlier one.
"""
# ruff: noqa: I001
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportUndefinedVariable=false

from __future__ import annotations

from rawkern.engines.cpu.checker.native.layout import (
    AGENTS, BLOCK_SCOPE, CHECK, COLUMNS, ENDS, INBOUND, KEPT, LANE_MASK, LOOKED, MASK_AT, OBSERVER, OTHERS, RACE, READ,
    REPORT, SENDER, SITE, SITE_AT, SITES, STATE, STRONG_AT, TIME_AT, UPDATES, VOLATILE, WARPS, WRITE,
)  # fmt: skip
from rawkern.engines.cpu.checker.native.locks import rk_check_is_unlocked
from rawkern.engines.cpu.checker.native.runtime import rk_check_report
from rawkern.engines.cpu.checker.native.sync import ROW
from rawkern.engines.cpu.checker.native.scalar import inline, load8, load64, lowest_bit

SITE_SIZE = SITE.size
MEMORY = 32  # in place of a lane
NOTHING = 9  # in place of READ and WRITE


@inline
def rk_check_is_mine(ck, st, warp, me, who):
    """Whether an access is by this thread."""
    return (who ^ me) & LANE_MASK == 0 and load64(CHECK.log[ck] + (who >> TIME_AT) * 8) == STATE.number[
        st
    ] * AGENTS + warp


@inline
def rk_check_is_seen(ck, st, warp, who):
    """Whether an access is by the warp's own block, and the warp has seen it."""
    other = load64(CHECK.log[ck] + (who >> TIME_AT) * 8)
    seen = STATE.seen[st, warp * COLUMNS + other % AGENTS]
    if other % AGENTS == WARPS + warp:
        seen = STATE.met[st, warp]
    return other // AGENTS == STATE.number[st] and who >> TIME_AT <= seen


def rk_check_is_sound(ck, mine, me, other, who):
    """Whether two atomic or volatile accesses, by the agents `mine` and `other`, do not race whatever their order."""
    s = CHECK.sites[ck] + ((me >> SITE_AT) & (SITES - 1)) * SITE_SIZE
    o = CHECK.sites[ck] + ((who >> SITE_AT) & (SITES - 1)) * SITE_SIZE
    either = SITE.weak[s] | SITE.weak[o]
    if either & BLOCK_SCOPE and mine // AGENTS != other // AGENTS:
        return 0
    if SITE.weak[s] & SITE.weak[o] & VOLATILE and mine == other:
        return 0
    if either & ENDS and mine != other:
        return 0
    return either & UPDATES == 0 or SITE.what[s] == READ or SITE.what[o] == READ


@inline
def rk_check_apart(ck, st, warp, me, who):
    """Whether an access is by another thread and nothing orders it before this one."""
    time = who >> TIME_AT
    strong = (who >> STRONG_AT) & (me >> STRONG_AT) & 1
    if time == 0 or (strong and CHECK.weak[ck] == 0):
        return 0
    other = load64(CHECK.log[ck] + time * 8)
    if strong and rk_check_is_sound(ck, STATE.number[st] * AGENTS + warp, me, other, who):
        return 0
    mine = STATE.number[st]
    if (who ^ me) & LANE_MASK == 0 and other == mine * AGENTS + warp:
        return 0
    block = other // AGENTS
    if block == mine:
        if other % AGENTS == WARPS + warp and (who ^ me) & LANE_MASK:  # a copy by another lane
            return time > STATE.met[st, warp]
        return time > STATE.seen[st, warp * COLUMNS + other % AGENTS]
    passed = load64(CHECK.order[ck] + block * ROW + other % AGENTS * 8)
    if passed < time:
        return 1
    return STATE.seen[st, warp * COLUMNS + LOOKED] <= time and rk_check_is_unlocked(ck, st, warp, me, who)


def rk_check_replaced(ck, st, warp, cell, plane, me, part, base):
    """A write that a later strong one has replaced, if nothing orders it before this access; else 0.

    Who comes after the strong write comes after the plain ones before it, but strong accesses need not come after it.
    """
    if (me >> STRONG_AT) & 1:
        who = load64(cell + plane * KEPT)
        if who >= base and (who >> MASK_AT) & part and rk_check_apart(ck, st, warp, me, who):
            return who
        if CHECK.weak[ck] == 0:
            return 0
    who = load64(cell + plane * OTHERS)
    if who < base or (who >> MASK_AT) & part == 0 or rk_check_apart(ck, st, warp, me, who) == 0:
        return 0
    if rk_check_is_observed(ck, st, warp, cell, plane, me, who, base):
        return 0
    return who


def rk_check_is_observed(ck, st, warp, cell, plane, me, who, base):
    """Whether a plain access comes after a strong read of what a strong write left, and so after that as well."""
    if who >> STRONG_AT & 1 == 0 or me >> STRONG_AT & 1:
        return 0
    observer = load64(cell + plane * OBSERVER)
    return observer and observer >= base and rk_check_apart(ck, st, warp, me, observer) == 0


def rk_check_clash(ck, st, warp, lane, a, site, s, me, part, writer, reader):
    """Report a write that is not ordered after others, unless it writes the same; returns what it counts as.

    What another has written may be written again. Such a write counts as a read, as one who writes something else has
    to come after both. So may what another lane writes by the same instruction. Readers race with either.
    """
    if writer:
        if rk_check_differs(ck, st, warp, lane, a, site, s, me, part, writer):
            return WRITE
        if rk_check_is_beside(ck, s, lane, me, writer) and (writer >> MASK_AT) & part == part:
            return NOTHING
    if reader:
        if rk_check_differs(ck, st, warp, lane, a, site, s, me, part, reader):
            return WRITE
        if rk_check_is_beside(ck, s, lane, me, reader) and (reader >> MASK_AT) & part == part:
            return NOTHING
    if rk_check_equal(ck, s, lane, a, part, MEMORY):
        return READ
    return WRITE


def rk_check_differs(ck, st, warp, lane, a, site, s, me, part, who):
    """Report a write, unless an earlier write has left the bytes as they are."""
    if SITE.what[CHECK.sites[ck] + ((who >> SITE_AT) & (SITES - 1)) * SITE_SIZE] == READ:  # it may read what was before
        rk_check_race(ck, st, warp, lane, a, site, who)
        return 1
    part = part & (who >> MASK_AT)
    other = MEMORY
    if rk_check_is_beside(ck, s, lane, me, who):
        other = who & LANE_MASK
    if rk_check_equal(ck, s, lane, a, part, other):
        return 0
    rk_check_race(ck, st, warp, lane, a, site, who)
    return 1


@inline
def rk_check_is_beside(ck, s, lane, me, who):
    """Whether an access is by a lane that now writes to the same address, by the same instruction."""
    other = who & LANE_MASK
    if SITE.kept[s] == 0:
        return 0
    if (who ^ me) >> SITE_AT or (CHECK.lanes[ck] >> other) & 1 == 0:  # the same time tells warp and block
        return 0
    return CHECK.addresses[ck, other] == CHECK.addresses[ck, lane]


def rk_check_equal(ck, s, lane, a, bytes, other):
    """Whether some bytes of the word at `a` that a lane writes are what another lane writes, or what is in memory."""
    if SITE.kept[s] == 0:
        return 0
    a = a & (0 - 4)
    k = 0
    while k < 4:
        if (bytes >> k) & 1:
            offset = a + k - CHECK.addresses[ck, lane]
            item = (offset >> lowest_bit(SITE.element[s])) * 32
            shift = (offset & (SITE.element[s] - 1)) * 8
            there = load8(a + k)
            if other != MEMORY:
                there = (CHECK.values[ck, item + other] >> shift) & 255
            if (CHECK.values[ck, item + lane] >> shift) & 255 != there:
                return 0
        k += 1
    return 1


def rk_check_race(ck, st, warp, lane, a, site, who):
    """Note a race with an earlier access."""
    e = 0
    if a - STATE.window[st] < CHECK.shared_total[ck]:
        a = a - STATE.window[st]
        if a >= CHECK.reserved[ck] and a < CHECK.reserved_end[ck]:
            return 0
        e = SITE.root[CHECK.sites[ck] + site * SITE_SIZE]
    elif CHECK.window[ck]:
        a = a - CHECK.window[ck]
    r = rk_check_report(ck, st, RACE, site, warp * 32 + lane, a, e)
    if r:
        other = load64(CHECK.log[ck] + (who >> TIME_AT) * 8)
        if other % AGENTS == INBOUND:
            other = load64(CHECK.held[ck] + (who >> TIME_AT) * 8) ^ SENDER
        REPORT.other_site[r] = (who >> SITE_AT) & (SITES - 1)
        REPORT.other_block[r] = other // AGENTS
        REPORT.other_thread[r] = (other % WARPS) * 32 + (who & LANE_MASK)
        if other // AGENTS != STATE.number[st] and STATE.section[st, warp] > who >> TIME_AT:
            REPORT.extra[r] = 1
    return 0
