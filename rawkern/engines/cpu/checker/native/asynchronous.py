"""The checker as it runs beside a kernel, the part that knows Hopper's asynchronous operations: compiled by `scalar`.

What orders their accesses is in `sync`; here are the rules for mbarriers, proxies and products of warp groups. Every
number is a 64-bit unsigned integer. `ck` is the launch's CHECK record, `st` the block's STATE, `o` an OBJECT.
"""
# ruff: noqa: I001
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportUndefinedVariable=false

from __future__ import annotations

from rawkern.engines.cpu.checker.native.clusters import rk_check_cluster_arrive, rk_check_owner
from rawkern.engines.cpu.checker.native.layout import (
    AGENTS, CHECK, COLUMNS, COPIED_AT, DESCRIPTORS, FENCED, GROUPS, INIT, INITIALIZED, INVAL, LANE_MASK, NO_FENCE,
    NO_PRODUCT_FENCE, NO_PROXY_FENCE, NOT_WAITED, OBJECT, OBJECTS, OF_PHASE, OPERATION_LEFT, PRIOR, REPORT, SITE,
    SITE_AT, SITES, STATE, TEST, TIME_AT, UNSEEN_PHASE, USED, WARPS,
)  # fmt: skip
from rawkern.engines.cpu.checker.native.runtime import rk_check_report
from rawkern.engines.cpu.checker.native.scalar import load64, lowest_bit
from rawkern.engines.cpu.checker.native.sync import rk_check_copy, rk_check_copies_arrive, rk_check_tick
from rawkern.engines.cpu.records import BLOCK, LAUNCH, WORKER

OBJECT_SIZE, SITE_SIZE, PRIOR_SIZE = OBJECT.size, SITE.size, PRIOR.size
PHASE_AT, PHASES = 40, 8  # of a barrier's bits (`emit/memory/mbarrier`)
TOLD = 4  # words that are kept of a product


# -- proxies ----------------------------------------------------------------------------------------------------------


def rk_check_bulk_copy(ck, blk, warp):
    """A warp starts bulk copies, which access memory in the asynchronous proxy."""
    CHECK.proxy[ck] = 1
    return rk_check_copy(ck, blk, warp)


def rk_check_proxy_fence(ck, blk, warp):
    """What a warp has seen written is there for asynchronous operations that come after it."""
    st = BLOCK.session[blk]
    STATE.ordered[st] = 1
    STATE.proxied[st] = rk_check_tick(ck, st, warp)
    return 0


def rk_check_init_fence(ck, blk, warp):
    """Barriers that a warp has initialized are visible to threads that go on after the barrier of the cluster."""
    STATE.init_fenced[BLOCK.session[blk]] = STATE.serial[BLOCK.session[blk]] * WARPS + warp + 1
    return 0


def rk_check_cluster_relaxed(ck, blk, warp, site):
    """A warp arrives at the barrier of its cluster, which passes on nothing but what that fence is for."""
    st = BLOCK.session[blk]
    if STATE.init_fenced[st] == STATE.serial[st] * WARPS + warp + 1:
        return rk_check_cluster_arrive(ck, blk, warp, site)
    return 0


def rk_check_unfenced(ck, st, warp, lane, a, site, who):
    """Report an asynchronous read of what an ordinary write has left, with no fence for proxies in the block since.

    Whose fence it is does not count: it may be that of any thread on the way from the write to the read.
    """
    other = load64(CHECK.log[ck] + (who >> TIME_AT) * 8)
    if other // AGENTS != STATE.number[st] or other % AGENTS >= WARPS or who >> TIME_AT < STATE.proxied[st]:
        return 0
    s = CHECK.sites[ck] + site * SITE_SIZE
    r = rk_check_report(ck, st, NO_PROXY_FENCE, site, warp * 32 + lane, a - STATE.window[st], SITE.root[s])
    if r:
        REPORT.other_site[r] = (who >> SITE_AT) & (SITES - 1)
        REPORT.other_block[r] = other // AGENTS
        REPORT.other_thread[r] = (other % WARPS) * 32 + (who & LANE_MASK)
    return 0


# -- mbarriers --------------------------------------------------------------------------------------------------------


def rk_check_object(ck, blk, warp, what, mask, site):
    """Lanes do something to the barriers at their addresses, `what` as in `layout`; of tests those that were true."""
    while mask:
        lane = lowest_bit(mask)
        mask = mask & (mask - 1)
        a = CHECK.addresses[ck, lane]
        owner = rk_check_owner(ck, blk, a, 8)
        o = 0
        if owner:
            o = rk_check_find_object(ck, a, STATE.base[BLOCK.session[owner]])
        if o:
            phase = (load64(a) >> PHASE_AT) & (PHASES - 1)
            if what == INIT:
                if OBJECT.live[o]:
                    r = rk_check_report(ck, BLOCK.session[blk], INITIALIZED, site, warp * 32 + lane, 0, 0)
                    if r:
                        REPORT.extra[r] = OBJECT.live[o] - 1
                OBJECT.live[o] = site + 1
                OBJECT.seen[o] = 0
            elif what == INVAL:
                OBJECT.live[o] = 0
            elif OBJECT.live[o]:
                if what != TEST and OBJECT.seen[o] != phase:
                    rk_check_report(ck, BLOCK.session[blk], UNSEEN_PHASE, site, warp * 32 + lane, 0, 0)
                OBJECT.seen[o] = phase
            if what == TEST:
                rk_check_see_copies(ck, BLOCK.session[blk], warp, OBJECT.copied[o, 0], phase)
                rk_check_see_copies(ck, BLOCK.session[blk], warp, OBJECT.copied[o, 1], phase)
    return 0


def rk_check_see_copies(ck, st, warp, copied, phase):
    """A warp has waited at a barrier, which is in a phase now: it sees copies of the phases before."""
    if copied == 0 or (copied >> OF_PHASE) & (PHASES - 1) == phase:
        return 0
    agent = WARPS + copied % WARPS
    time = copied >> COPIED_AT
    if time > STATE.seen[st, warp * COLUMNS + agent]:
        CHECK.limits_of[ck] = 0
        STATE.seen[st, warp * COLUMNS + agent] = time
    if agent == WARPS + warp and time > STATE.met[st, warp]:
        STATE.met[st, warp] = time
    return 0


def rk_check_completes_at(ck, blk, warp, mask):
    """Lanes' copies so far will be seen by who waits for the present phases of barriers, at the lanes' addresses.

    If those are another block's, or are told of copies of several warps in one phase, by who waits at any.
    """
    st = BLOCK.session[blk]
    STATE.ordered[st] = 1
    others = 0
    while mask:
        a = CHECK.addresses[ck, lowest_bit(mask)]
        mask = mask & (mask - 1)
        o = 0
        if rk_check_owner(ck, blk, a, 8) == blk:
            o = rk_check_find_object(ck, a, STATE.base[st])
        if o:
            phase = (load64(a) >> PHASE_AT) & (PHASES - 1)
            whose = (phase << OF_PHASE) + warp
            before = OBJECT.copied[o, phase & 1]
            if before and (before >> OF_PHASE) & (PHASES - 1) == phase and before % WARPS != warp:
                others = 1
            else:
                OBJECT.copied[o, phase & 1] = (STATE.latest[st, warp] << COPIED_AT) + whose
        else:
            others = 1
    if others:
        return rk_check_copies_arrive(ck, blk, warp)
    STATE.copies[st, warp] = 0
    return 0


def rk_check_find_object(ck, a, stamp):
    """What is known of the barrier at an address, of the block that began at `stamp`; 0 where the table is full."""
    k = 0
    while k < OBJECTS:
        o = CHECK.objects[ck] + (((a >> 3) + k) % OBJECTS) * OBJECT_SIZE
        if OBJECT.address[o] == 0 or OBJECT.address[o] == a:
            if OBJECT.stamp[o] != stamp:
                OBJECT.address[o] = a
                OBJECT.stamp[o] = stamp
                OBJECT.live[o] = 0
                OBJECT.copied[o, 0] = 0
                OBJECT.copied[o, 1] = 0
            return o
        k += 1
    return 0


# -- products of warp groups ------------------------------------------------------------------------------------------


def rk_check_descriptors(ck, blk, warp, site, number, a, b):
    """A warp, of this number in its block, is about to compute a product: its group's others have the same operands."""
    st = BLOCK.session[blk]
    index = STATE.products[st, warp]
    at = ((number >> 2) * GROUPS + index % GROUPS) * TOLD
    stamp = (STATE.base[st] << 32) + index + 1
    if STATE.told[st, at] != stamp:
        STATE.told[st, at] = stamp
        STATE.told[st, at + 1] = a
        STATE.told[st, at + 2] = b
        STATE.told[st, at + 3] = site * WARPS + warp
    elif STATE.told[st, at + 1] != a or STATE.told[st, at + 2] != b:
        r = rk_check_report(ck, st, DESCRIPTORS, site, warp * 32, 0, 0)
        if r:
            REPORT.other_site[r] = STATE.told[st, at + 3] // WARPS
            REPORT.other_block[r] = STATE.number[st]
            REPORT.other_thread[r] = STATE.told[st, at + 3] % WARPS * 32
    return 0


def rk_check_product_fence(ck, blk, warp):
    """Registers that a warp has written are those that its next products take."""
    STATE.registers[BLOCK.session[blk], warp] = FENCED
    return 0


def rk_check_fenced_product(ck, blk, warp, site, rewritten):
    """A warp computes a product, some of whose registers may be `rewritten` since the one before."""
    st = BLOCK.session[blk]
    had = STATE.registers[st, warp]
    if had == NO_FENCE or (had == USED and rewritten):
        rk_check_report(ck, st, NO_PRODUCT_FENCE, site, warp * 32, 0, 0)
    STATE.registers[st, warp] = USED
    return 0


# -- the launch before ------------------------------------------------------------------------------------------------


def rk_check_dependency(ck, blk, warp):
    """A warp waits till the launch before this one has ended; its block goes on after that."""
    STATE.waited[BLOCK.session[blk]] = 1
    return 0


def rk_check_early(ck, blk, warp, mask, site):
    """Lanes access memory at their addresses, which that launch may still write."""
    st = BLOCK.session[blk]
    s = CHECK.sites[ck] + site * SITE_SIZE
    k = 0
    while k < CHECK.npriors[ck] and STATE.waited[st] == 0:
        p = CHECK.prior[ck] + k * PRIOR_SIZE
        lanes = mask
        while lanes:
            lane = lowest_bit(lanes)
            lanes = lanes & (lanes - 1)
            a = CHECK.addresses[ck, lane]
            if a < PRIOR.high[p] and a + SITE.size[s] > PRIOR.low[p]:
                rk_check_report(ck, st, NOT_WAITED, site, warp * 32 + lane, a, SITE.root[s])
                lanes = 0
        k += 1
    return 0


# -- what is left at the end ------------------------------------------------------------------------------------------


def rk_check_left(blk, thread, site):
    """A thread ends while an operation that it has started, at site + 1, may still run."""
    if site:
        ck = LAUNCH.session[WORKER.launch[BLOCK.worker[blk]]]
        rk_check_report(ck, BLOCK.session[blk], OPERATION_LEFT, site - 1, thread, 0, 0)
    return 0
