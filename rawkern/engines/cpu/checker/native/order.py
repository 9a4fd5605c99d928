"""The checker as it runs beside a kernel, the part that follows accesses: compiled by `scalar`, never run as Python.

Every number is a 64-bit unsigned integer. `ck` is the launch's CHECK record, `st` the block's STATE, `s` the SITE of
an instruction, `region` a REGION; `base` is the word of shadow from which on the block's own begin, in shared memory,
where those of earlier blocks stand for nothing; 0 in global memory. What orders accesses is in `check_sync`.
"""
# ruff: noqa: I001
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportUndefinedVariable=false

from __future__ import annotations

from rawkern.engines.cpu.checker.native.asynchronous import rk_check_unfenced
from rawkern.engines.cpu.checker.native.conflicts import (
    NOTHING, rk_check_apart, rk_check_clash, rk_check_is_mine, rk_check_is_observed, rk_check_is_seen, rk_check_race,
    rk_check_replaced,
)  # fmt: skip
from rawkern.engines.cpu.checker.native.layout import (
    CHECK, KEPT, LANE_MASK, MASK_AT, OBSERVER, OTHERS, READ, REGION, REST_AT, RUN_ROW, SITE, SITE_AT, STATE, STRONG_AT,
    TIME_AT, UPDATE, WRITE,
)  # fmt: skip
from rawkern.engines.cpu.checker.native.locks import rk_check_lock, rk_check_may_lock
from rawkern.engines.cpu.checker.native.runtime import rk_check_found_uninitialized
from rawkern.engines.cpu.checker.native.sync import rk_check_limits
from rawkern.engines.cpu.checker.native.scalar import elsewhere, highest_bit, inline, load64, lowest_bit, store64

SITE_SIZE = SITE.size
ALL_SET = 15 << REST_AT
NONE = (1 << 64) - 1
SAME = NONE ^ LANE_MASK ^ (((1 << TIME_AT) - 1) >> SITE_AT << SITE_AT)  # all but the lane and the site
rk_run_read1 = rk_run_read2 = rk_run_write1 = rk_run_write2 = elsewhere  # in check_runs


@inline
def rk_check_trace_even(ck, st, warp, mask, site, s, region, base, stride, run):
    """Follow a warp's access to addresses `stride` bytes apart: as a run of words, or lane by lane."""
    if CHECK.blind[ck]:
        return 0
    size = SITE.size[s]
    what = SITE.what[s]
    if what == READ:
        REGION.read[region] = 1
    runs = CHECK.copying[ck] == 0 and SITE.strong[s] == 0
    CHECK.others[ck] = 0
    if REGION.others[region]:
        CHECK.others[ck] = REGION.plane[region] * OTHERS
    if stride == 0 and what != WRITE:
        word = runs and size == 4 and what == READ and CHECK.others[ck] == 0
        return rk_check_same_address(ck, st, warp, mask, site, s, region, base, run, word)
    runs = runs and stride == size and size < 32 and size > 1 and what != UPDATE and (size * run) & 31 == 0
    if what == WRITE and CHECK.storing[ck]:
        runs = 0
    if runs:
        rk_check_mine(ck, st, warp, site, s, base)
    lane = 0
    k = 0
    spread = 0
    while lane < 32:
        part = ((mask >> lane) & ((1 << run) - 1)) << lane
        a = CHECK.bases[ck, k]
        if part and (runs == 0 or a & 3 or rk_check_run(ck, part, size, what, region, a, lane, size * run) == 0):
            if spread == 0:
                rk_check_spread(ck, stride, run)
                spread = 1
            rk_check_trace(ck, st, warp, part, site, s, region, base)
        lane += run
        k += 1
    return 0


def rk_check_spread(ck, stride, run):
    """Write down the addresses of all lanes."""
    lane = 0
    k = 0
    while lane < 32:
        a = CHECK.bases[ck, k]
        end = lane + run
        while lane < end:
            CHECK.addresses[ck, lane] = a
            a = a + stride
            lane += 1
        k += 1
    return 0


@inline
def rk_check_mine(ck, st, warp, site, s, base):
    """Note what an access's words of shadow have in common, and with which others it may conflict (`check_runs`)."""
    rk_check_limits(ck, st, warp)
    me = (STATE.clocks[st, warp] << TIME_AT) | (SITE.strong[s] << STRONG_AT) | (site << SITE_AT)
    CHECK.me[ck] = me
    CHECK.reader[ck] = me | (warp << REST_AT)
    if base:
        CHECK.floor[ck] = base
        CHECK.span[ck] = CHECK.shared_span[ck]
        CHECK.gone[ck] = base
        CHECK.need[ck] = ALL_SET
    else:
        CHECK.floor[ck] = CHECK.owned[ck]
        CHECK.span[ck] = CHECK.owned_span[ck]
        CHECK.gone[ck] = 1
        CHECK.need[ck] = 0
    return 0


@inline
def rk_check_run(ck, mask, size, what, region, a, lane, bytes):
    """Follow lanes, from `lane` on, that access neighboring values from `a` on; 0 if each has to be looked at."""
    words = REGION.words[region] + (a >> 2) * 8
    plane = REGION.plane[region]
    table = CHECK.runs[ck] + lowest_bit(size) * RUN_ROW + lane * size * 2
    if what == READ:
        if size == 2:
            return rk_run_read2(ck, words, plane, table, bytes * 2, mask)
        return rk_run_read1(ck, words, plane, table, bytes * 2, mask)
    CHECK.need[ck] = 0
    if REGION.read[region] == 0:
        plane = 0
    if size == 2:
        return rk_run_write2(ck, words, plane, table, bytes * 2, mask)
    return rk_run_write1(ck, words, plane, table, bytes * 2, mask)


@inline
def rk_check_same_address(ck, st, warp, mask, site, s, region, base, run, word):
    """Follow reads or atomic operations at one address for each run of lanes: of the lanes, the first and the last.

    `word`: they are reads of one word, which need no second look if the warp has seen the last write.
    """
    if word:
        rk_check_mine(ck, st, warp, site, s, base)
    lane = 0
    k = 0
    while lane < 32:
        part = ((mask >> lane) & ((1 << run) - 1)) << lane
        if part:
            first = lowest_bit(part)
            last = highest_bit(part)
            a = CHECK.bases[ck, k]
            cell = REGION.words[region] + (a >> 2) * 8
            plane = REGION.plane[region]
            who = load64(cell)
            if (
                word
                and first != last
                and who & CHECK.need[ck] == CHECK.need[ck]
                and (who - CHECK.floor[ck] < CHECK.span[ck] or who - CHECK.own[ck] < CHECK.own_span[ck])
            ):
                store64(cell + plane, CHECK.reader[ck] | last | (15 << MASK_AT))
                store64(cell + plane + plane, CHECK.reader[ck] | first | (15 << MASK_AT))
            else:
                CHECK.addresses[ck, first] = a
                CHECK.addresses[ck, last] = a
                rk_check_cell(ck, st, warp, first, a, site, s, region, base)
                if last != first:
                    rk_check_cell(ck, st, warp, last, a, site, s, region, base)
        lane += run
        k += 1
    return 0


def rk_check_trace(ck, st, warp, mask, site, s, region, base):
    """Follow the accesses of a warp's lanes; of neighbors that read the same, the first and the last."""
    if CHECK.blind[ck]:
        return 0
    reads = SITE.what[s] == READ
    last = 0
    me = 0  # of an update whose result is not read
    if SITE.what[s] == UPDATE and SITE.size[s] == 4 and (SITE.looks[s] | SITE.swaps[s] | CHECK.weak[ck]) == 0:
        me = (STATE.clocks[st, warp] << TIME_AT) | (1 << STRONG_AT) | (site << SITE_AT) | ALL_SET | (15 << MASK_AT)
    while mask:
        lane = lowest_bit(mask)
        mask = mask & (mask - 1)
        a = CHECK.addresses[ck, lane]
        if me and rk_check_adds(region, a, me | lane, base):
            last = a
        elif reads == 0 or a != last or mask == 0 or CHECK.addresses[ck, lowest_bit(mask)] != a:
            last = a
            rk_check_cell(ck, st, warp, lane, a, site, s, region, base)
    return 0


@inline
def rk_check_adds(region, a, me, base):
    """Follow an update of a word that the warp has just updated; 0 if more may stand against it."""
    cell = REGION.words[region] + (a >> 2) * 8
    who = load64(cell)
    if (who ^ me) & SAME or a & 3 or load64(cell + REGION.plane[region]) > base:
        return 0
    if REGION.kept[region] | REGION.observed[region]:
        return 0
    if who != me:
        if (who ^ me) & LANE_MASK:
            REGION.others[region] = 1
            store64(cell + REGION.plane[region] * OTHERS, who)
        store64(cell, me)
    return 1


def rk_check_cell(ck, st, warp, lane, a, site, s, region, base):
    """Follow one lane's access: compare it with the last ones of these bytes, and be the last."""
    end = a + SITE.size[s]
    if SITE.swaps[s] and rk_check_may_lock(ck, a, s):
        rk_check_lock(ck, st, warp, lane, a, s, load64(REGION.words[region] + (a >> 2) * 8), base)
    now = STATE.clocks[st, warp]
    if CHECK.copying[ck]:
        now = CHECK.copying[ck]
    me = (now << TIME_AT) | (SITE.strong[s] << STRONG_AT) | (site << SITE_AT) | lane
    plane = REGION.plane[region]
    if SITE.what[s] == READ:
        REGION.read[region] = 1
    uninitialized = 1
    while a < end:
        offset = a & 3
        bytes = end - a
        if bytes > 4 - offset:
            bytes = 4 - offset
        part = ((1 << bytes) - 1) << offset
        cell = REGION.words[region] + (a >> 2) * 8
        if SITE.what[s] == READ:
            uninitialized &= rk_check_read(ck, st, warp, lane, a, site, region, cell, plane, me, part, base)
        else:
            if rk_check_write(ck, st, warp, lane, a, site, s, region, cell, plane, me, part, base):
                REGION.read[region] = 1
        a = (a & (0 - 4)) + 4
    if uninitialized and SITE.what[s] == READ:
        rk_check_found_uninitialized(
            ck, st, warp * 32 + lane, end - SITE.size[s] - STATE.window[st], site, s, SITE.root[s]
        )
    return 0


@inline
def rk_check_read(ck, st, warp, lane, a, site, region, cell, plane, me, part, base):
    """Follow a read of one word; returns whether nothing of it is set."""
    who = load64(cell)
    if who < base:
        who = 0
    uninitialized = 0
    if base != 0 and (who >> REST_AT) & part == 0:
        uninitialized = 1
    elif (who >> MASK_AT) & part and rk_check_apart(ck, st, warp, me, who):
        if rk_check_is_observed(ck, st, warp, cell, plane, me, who, base) == 0:
            rk_check_race(ck, st, warp, lane, a, site, who)
    elif REGION.kept[region] | REGION.others[region]:
        who = rk_check_replaced(ck, st, warp, cell, plane, me, part, base)
        if who:
            rk_check_race(ck, st, warp, lane, a, site, who)
    if CHECK.proxy[ck] and base and (who >> MASK_AT) & part:
        rk_check_unfenced(ck, st, warp, lane, a, site, who)
    if SITE.looks[CHECK.sites[ck] + site * SITE_SIZE]:
        REGION.observed[region] = 1
        store64(cell + plane * OBSERVER, me)
    rk_check_note_read(ck, st, warp, cell, plane, me, part, base)
    return uninitialized


@inline
def rk_check_note_read(ck, st, warp, cell, plane, me, part, base):
    """Be the last to read a word."""
    first = load64(cell + plane)
    if first >= base and first:
        weaker = (me >> STRONG_AT) & (first >> STRONG_AT ^ 1) & 1  # more stands against that one than against this
        if weaker == 0 and rk_check_is_mine(ck, st, warp, me, first):
            if (first ^ me) >> TIME_AT == 0 and (first ^ me) >> STRONG_AT & 1 == 0:
                part = part | ((first >> MASK_AT) & 15)
        elif weaker or rk_check_is_seen(ck, st, warp, first) == 0:  # who has seen this read has seen that one
            second = load64(cell + plane + plane)
            if first >> STRONG_AT & 1 == 0 or second < base or second == 0 or second >> STRONG_AT & 1:
                store64(cell + plane + plane, first)
    store64(cell + plane, me | (part << MASK_AT) | (warp << REST_AT))
    return 0


@inline
def rk_check_write(ck, st, warp, lane, a, site, s, region, cell, plane, me, part, base):
    """Follow a write of one word, or an atomic operation on it; returns whether it counts as a read."""
    who = load64(cell)
    if who < base:
        who = 0
    if SITE.what[s] == UPDATE and base != 0 and (who >> REST_AT) & part != part:
        rk_check_found_uninitialized(ck, st, warp * 32 + lane, a - STATE.window[st], site, s, SITE.root[s])
    set = part
    if SITE.what[s] == WRITE and (CHECK.storing[ck] >> lane) & 1:  # what is not set is stored
        set = part & (((CHECK.uninitialized_bytes[ck, lane] >> (a - CHECK.addresses[ck, lane])) << (a & 3)) ^ 15)
    writer = 0  # accesses that this one is not ordered after
    if (who >> MASK_AT) & part and rk_check_apart(ck, st, warp, me, who):
        if rk_check_is_observed(ck, st, warp, cell, plane, me, who, base) == 0:
            writer = who
    elif REGION.kept[region] or (REGION.others[region] and (SITE.strong[s] == 0 or CHECK.weak[ck])):
        writer = rk_check_replaced(ck, st, warp, cell, plane, me, part, base)
    reader = 0
    if (writer >> MASK_AT) & part != part:
        reader = load64(cell + plane)
        if reader < base or (reader >> MASK_AT) & part == 0 or rk_check_apart(ck, st, warp, me, reader) == 0:
            reader = load64(cell + plane + plane)
        if reader < base or (reader >> MASK_AT) & part == 0 or rk_check_apart(ck, st, warp, me, reader) == 0:
            reader = 0
    if writer or reader:
        counts = rk_check_clash(ck, st, warp, lane, a, site, s, me, part, writer, reader)
        if counts == NOTHING:
            return 0
        if counts == READ and who:
            store64(cell, who | (set << REST_AT))
            rk_check_note_read(ck, st, warp, cell, plane, me, part, base)
            return 1
    if SITE.strong[s]:
        rk_check_keep(ck, st, warp, region, s, cell, plane, me, who, base)
    set = set | ((who >> REST_AT) & (part ^ 15))
    if (who ^ me) >> TIME_AT == 0 and (who ^ me) & LANE_MASK == 0 and ((who | me) >> STRONG_AT) & 1 == 0:
        part = part | ((who >> MASK_AT) & 15)  # the same lane has written these bytes since it last met others
    store64(cell, me | (part << MASK_AT) | (set << REST_AT))
    return 0


@inline
def rk_check_keep(ck, st, warp, region, s, cell, plane, me, who, base):
    """Keep a write that a strong one replaces, where an access that comes after the latter may race with the former."""
    looks = SITE.looks[s]
    if who and who >> STRONG_AT & 1 == 0:
        if base == 0 or who >> TIME_AT > STATE.common[st]:
            REGION.kept[region] = 1
            store64(cell + plane * KEPT, who)
    elif who and (  # of the same time it is by another lane of the warp, which have not met since
        ((who ^ me) >> TIME_AT == 0 and (who ^ me) & LANE_MASK)
        or (rk_check_is_mine(ck, st, warp, me, who) == 0 and rk_check_is_seen(ck, st, warp, who) == 0)
    ):
        plain = me & (NONE ^ (1 << STRONG_AT))
        observed = looks
        if observed == 0 and REGION.observed[region]:
            observed = rk_check_is_observed(ck, st, warp, cell, plane, plain, who, base)
        if observed == 0:
            REGION.others[region] = 1
            store64(cell + plane * OTHERS, who)
    if looks:
        REGION.observed[region] = 1
        store64(cell + plane * OBSERVER, me)
    elif REGION.observed[region]:
        store64(cell + plane * OBSERVER, 0)
    return 0
