"""The checker as it runs beside a kernel, the part that knows clusters: compiled by `scalar`, never run as Python.

Every number is a 64-bit unsigned integer. `ck` is the launch's CHECK record, `st` the block's STATE.
"""
# ruff: noqa: I001
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportUndefinedVariable=false

from __future__ import annotations

from rawkern.engines.cpu.checker.native.layout import (
    CHECK, CLUSTER, COLUMNS, ENDED, LOOKED, NOT_BEGUN, ON, STATE,
)  # fmt: skip
from rawkern.engines.cpu.checker.native.runtime import rk_check_report
from rawkern.engines.cpu.checker.native.sync import (
    rk_check_arrive, rk_check_depart, rk_check_fence, rk_check_open, rk_check_pass_on, rk_check_tick,
)  # fmt: skip
from rawkern.engines.cpu.records import BLOCK, LAUNCH, WORKER


def rk_check_cluster_arrive(ck, blk, warp, site):
    """A warp arrives at the barrier of its cluster, which passes on what happened before, to other blocks as well."""
    rk_check_fence(ck, blk, warp, 1)
    rk_check_pass_on(ck, blk, warp, 1)
    return rk_check_arrive(ck, blk, warp, CLUSTER, site, ON)


def rk_check_cluster_wait(ck, blk, warp, site):
    """A warp comes to wait for the others of its cluster."""
    st = BLOCK.session[blk]
    STATE.ordered[st] = 1
    STATE.at[st, warp] = site + 1
    STATE.number_at[st, warp] = CLUSTER
    return 0


def rk_check_cluster_open(first):
    """The barrier of a cluster opens, by its first block."""
    ck = LAUNCH.session[WORKER.launch[BLOCK.worker[first]]]
    blk = first
    while blk:
        rk_check_open(blk, CLUSTER)
        STATE.cluster_opened[BLOCK.session[blk]] = CHECK.clock[ck]
        blk = BLOCK.beside[blk]
    return 0


def rk_check_cluster_depart(ck, blk, warp):
    """A warp continues after the barrier of its cluster: what other blocks did before it lies in the past."""
    st = BLOCK.session[blk]
    rk_check_depart(ck, blk, warp, CLUSTER)
    if STATE.cluster_opened[st] >= STATE.seen[st, warp * COLUMNS + LOOKED]:
        STATE.seen[st, warp * COLUMNS + LOOKED] = STATE.cluster_opened[st] + 1
    rk_check_tick(ck, st, warp)
    return 0


# -- shared memory of other blocks ------------------------------------------------------------------------------------


def rk_check_owner(ck, blk, a, size):
    """The block of the cluster in whose shared memory an access lies; 0 where it is none's."""
    other = BLOCK.first[blk]
    while other:
        at = a - BLOCK.shared[other]
        if at < CHECK.shared_total[ck] and at + size <= CHECK.shared_total[ck]:
            return other
        other = BLOCK.beside[other]
    return 0


def rk_check_reaches(ck, st, warp, lane, a, site, other):
    """Whether another block's shared memory can be accessed now: the block has begun, and has not ended."""
    their = BLOCK.session[other]
    number = BLOCK.x[other] + CHECK.grid_x[ck] * (BLOCK.y[other] + CHECK.grid_y[ck] * BLOCK.z[other])
    kind = 0
    if STATE.number[their] != number or STATE.serial[their] != CHECK.serial[ck]:
        kind = NOT_BEGUN
    elif BLOCK.done[other] == BLOCK.nwarps[other]:
        kind = ENDED
    if kind:
        rk_check_report(ck, st, kind, site, warp * 32 + lane, a - BLOCK.shared[other], 0)
        return 0
    if STATE.clocks[st, warp] < STATE.base[their]:  # or the access would stand for nothing there
        rk_check_tick(ck, st, warp)
    if STATE.remote[their] == 0:
        STATE.remote[their] = 1
        CHECK.limits_of[ck] = 0
    return 1
