"""The checker as it runs beside a kernel, the part that knows locks: compiled by `scalar`, never run as Python.

A lock is a place where a compare-and-swap has found one value and left another, until the same warp sets it back. Who
takes it next comes after who held it before, but by accident: it might have come first. So that order stands between
two accesses only if both are made by who holds the lock and has come to a fence, or if who holds it now has read what
was written by another who held it. Each warp has one lock at a time, which is enough for most; where it has more their
order counts.

Every number is a 64-bit unsigned integer. `ck` is the launch's CHECK record, `st` the block's STATE, `s` the SITE of
an instruction, `k` a LOCK; `who` and `me` are words of shadow.
"""
# ruff: noqa: I001
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportUndefinedVariable=false

from __future__ import annotations

from rawkern.engines.cpu.checker.native.layout import (
    AGENTS, CHECK, LOCK, LOCKS, READ, SET, SITE, SITE_AT, SITES, STATE, SWAP, TIME_AT,
)  # fmt: skip
from rawkern.engines.cpu.checker.native.sync import rk_check_believe, rk_check_tick
from rawkern.engines.cpu.checker.native.scalar import inline, load32, load64

LOCK_SIZE, SITE_SIZE = LOCK.size, SITE.size


@inline
def rk_check_may_lock(ck, a, s):
    """Whether a strong write or an update has to do with locks."""
    return SITE.swaps[s] == SWAP or LOCK.address[CHECK.locks[ck] + ((a >> 2) & (LOCKS - 1)) * LOCK_SIZE] == a


def rk_check_lock(ck, st, warp, lane, a, s, last, base):
    """See whether a strong write or an update at `a`, which `last` wrote to before, takes a lock or sets it back."""
    index = (a >> 2) & (LOCKS - 1)
    k = CHECK.locks[ck] + index * LOCK_SIZE
    mine = STATE.number[st] * AGENTS + warp + 1
    value = CHECK.values[ck, lane]
    known = base == 0 and LOCK.address[k] == a
    if SITE.swaps[s] != SWAP:
        if known and SITE.swaps[s] == SET and LOCK.holder[k] == mine and LOCK.value[k] == value:
            rk_check_unlock(ck, st, k)
        elif known:
            rk_check_forget(ck, st, k)
        return 0
    there = load32(a)
    if SITE.size[s] == 8:
        there = load64(a)
    if base or there != value or value == CHECK.values[ck, 32 + lane]:
        if known and LOCK.holder[k] == mine and there == value:
            return 0
        if SITE.looks[s]:
            STATE.ordered[st] = 1
            STATE.tried[st, warp] = CHECK.clock[ck]
        return 0
    if known and LOCK.holder[k] == mine and LOCK.value[k] == value:  # an earlier lane of this instruction has it
        return 0
    if known and LOCK.holder[k] == mine and LOCK.value[k] == CHECK.values[ck, 32 + lane]:
        rk_check_unlock(ck, st, k)
        return 0
    since = last >> TIME_AT
    if known and LOCK.holder[k] == 0 and LOCK.value[k] == value:
        since = LOCK.since[k]
    elif LOCK.address[k]:
        rk_check_forget(ck, st, k)
    if SITE.looks[s] == 0:
        LOCK.address[k] = 0
        return 0
    STATE.ordered[st] = 1
    if STATE.lock[st, warp]:  # another one
        LOCK.address[k] = 0
        STATE.tried[st, warp] = CHECK.clock[ck]
        return 0
    LOCK.address[k] = a
    LOCK.value[k] = value
    LOCK.holder[k] = mine
    LOCK.since[k] = since
    STATE.taken[st, warp] = CHECK.clock[ck]
    STATE.lock[st, warp] = index + 1
    STATE.tried[st, warp] = 0
    if since > STATE.looked[st, warp]:
        STATE.looked[st, warp] = since
    rk_check_tick(ck, st, warp)
    return 0


def rk_check_unlock(ck, st, k):
    """Who holds a lock, a warp of this block, sets it back."""
    warp = (LOCK.holder[k] - 1) % AGENTS
    LOCK.holder[k] = 0
    STATE.lock[st, warp] = 0
    rk_check_tick(ck, st, warp)
    return 0


def rk_check_forget(ck, st, k):
    """What was taken for a lock is none, or no more."""
    if LOCK.holder[k] and (LOCK.holder[k] - 1) // AGENTS == STATE.number[st]:
        rk_check_believe(st, (LOCK.holder[k] - 1) % AGENTS)
        rk_check_unlock(ck, st, k)
    LOCK.address[k] = 0
    return 0


def rk_check_is_unlocked(ck, st, warp, me, who):
    """Whether nothing orders an access of another block before this one, or only in which order they took a lock."""
    time = who >> TIME_AT
    if STATE.section[st, warp] <= time:
        return 1
    if STATE.lock[st, warp] == 0 or load64(CHECK.held[ck] + time * 8) != STATE.lock[st, warp]:
        return 1
    other = CHECK.sites[ck] + ((who >> SITE_AT) & (SITES - 1)) * SITE_SIZE
    if SITE.what[CHECK.sites[ck] + ((me >> SITE_AT) & (SITES - 1)) * SITE_SIZE] == READ and SITE.what[other] != READ:
        rk_check_believe(st, warp)
    return 0
