"""The checker as it runs beside a kernel, the part that knows what orders accesses: compiled by `scalar`, never run.

Every number is a 64-bit unsigned integer. `ck` is the launch's CHECK record, `st` the block's STATE. Order follows
PTX's memory model. Each warp has a clock, drawn from the launch's, so that a time tells whose it is (`log`), and knows
how far it has seen the other agents of its block (`seen`): warps, and the copies each has under way. Barriers hand on
what the arriving warps have seen; a fence followed by a strong write hands it to who reads strongly afterwards and then
comes to a fence. Between blocks no addresses are compared, so that an access may be taken for ordered that is not,
never the other way round: what of each agent a block has passed on (`order`) lies in the past of whoever reads strongly
after that.
"""
# ruff: noqa: I001
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportUndefinedVariable=false

from __future__ import annotations

from rawkern.engines.cpu.checker.native.layout import (
    AGENTS, AT_ONCE, BY_CHOICE, CHECK, CLUSTER, COLUMNS, DIFFERENT_BARRIERS, GROUPS, INBOUND, LOOKED, ON, REPORT,
    SENDER, STATE, TIME_AT, WARPS,
)  # fmt: skip
from rawkern.engines.cpu.checker.native.runtime import rk_check_report
from rawkern.engines.cpu.checker.native.scalar import clear, elsewhere, load64, store64
from rawkern.engines.cpu.records import BLOCK

ROW, CLOCKS = 8 * COLUMNS, 8 * WARPS
STATE_HELD, STATE_SEEN, STATE_POT = STATE.offset("held"), STATE.offset("seen"), STATE.offset("pot")
STATE_FENCED, STATE_WIDE = STATE.offset("fenced"), STATE.offset("wide")
STATE_ARRIVED, STATE_OPENED = STATE.offset("arrived"), STATE.offset("opened")
NEVER = 1 << 63
rk_check_join = elsewhere  # in check_runs


def rk_check_limits(ck, st, warp):
    """Which times of its own block a warp has seen without a gap, in words of shadow: from `floor`, and from `own`."""
    id = STATE.number[st] * AGENTS + warp
    if CHECK.limits_of[ck] == id + 1 and CHECK.limits_at[ck] == CHECK.clock[ck]:
        return 0
    CHECK.limits_of[ck] = id + 1
    CHECK.limits_at[ck] = CHECK.clock[ck]
    end = (STATE.horizon[st, warp] + 1) << TIME_AT
    floor = NEVER
    if CHECK.owner[ck] == STATE.number[st]:
        floor = CHECK.owner_since[ck] << TIME_AT
    CHECK.owned[ck] = floor
    CHECK.owned_span[ck] = 0
    if end > floor:
        CHECK.owned_span[ck] = end - floor
    floor = STATE.base[st] << TIME_AT
    CHECK.shared_span[ck] = 0
    if end > floor and STATE.remote[st] == 0:
        CHECK.shared_span[ck] = end - floor
    own = CHECK.runner_since[ck] << TIME_AT
    CHECK.own[ck] = own
    CHECK.own_span[ck] = 0
    if CHECK.runner[ck] == id and STATE.latest[st, warp] <= STATE.met[st, warp]:
        end = (STATE.seen[st, warp * COLUMNS + warp] + 1) << TIME_AT
        if end > own:
            CHECK.own_span[ck] = end - own
    return 0


def rk_check_tick(ck, st, warp):
    """A new time for the warp; what it did up to now is of the past."""
    now = rk_check_draw(ck, st, warp)
    if now:
        STATE.before[st, warp] = STATE.clocks[st, warp]
        STATE.clocks[st, warp] = now
    return STATE.clocks[st, warp]


def rk_check_draw(ck, st, agent):
    """A new time for an agent of the block: a warp, or its copies."""
    now = CHECK.clock[ck] + 1
    if now >= CHECK.times[ck]:
        CHECK.blind[ck] = 1
        return 0
    CHECK.clock[ck] = now
    id = STATE.number[st] * AGENTS + agent
    store64(CHECK.log[ck] + now * 8, id)
    if agent < WARPS and STATE.lock[st, agent] and STATE.taken[st, agent] == 0:  # after a fence
        store64(CHECK.held[ck] + now * 8, STATE.lock[st, agent])
    if CHECK.runner[ck] != id:
        CHECK.runner[ck] = id
        CHECK.runner_since[ck] = now
        if CHECK.owner[ck] != STATE.number[st]:
            CHECK.owner[ck] = STATE.number[st]
            CHECK.owner_since[ck] = now
    return now


def rk_check_fence(ck, blk, warp, wide):
    """A fence: strong writes from now on pass on what happened before it, to other blocks if it is `wide`.

    And what strong reads before it saw lies in the past from now on.
    """
    st = BLOCK.session[blk]
    STATE.ordered[st] = 1
    rk_check_acquire(ck, st, warp, wide)
    fenced = st + STATE_FENCED + warp * ROW
    rk_check_join(fenced, st + STATE_SEEN + warp * ROW, CHECK.row[ck])
    store64(fenced + warp * 8, STATE.clocks[st, warp])
    STATE.fence_time[st, warp] = rk_check_tick(ck, st, warp)
    if wide:
        rk_check_join(st + STATE_WIDE + warp * ROW, fenced, CHECK.row[ck])
        STATE.wide_time[st, warp] = STATE.fence_time[st, warp]
    return 0


def rk_check_pass_on(ck, blk, warp, wide):
    """A strong write: others may see what happened before the last fence; `wide`: those of other blocks as well."""
    st = BLOCK.session[blk]
    if STATE.fence_time[st, warp] != STATE.fence_passed[st, warp]:
        STATE.fence_passed[st, warp] = STATE.fence_time[st, warp]
        rk_check_join(st + STATE_POT, st + STATE_FENCED + warp * ROW, CHECK.row[ck])
    if wide and STATE.wide_time[st, warp] != STATE.wide_passed[st, warp]:
        STATE.wide_passed[st, warp] = STATE.wide_time[st, warp]
        rk_check_join(CHECK.order[ck] + STATE.number[st] * ROW, st + STATE_WIDE + warp * ROW, CHECK.row[ck])
    return 0


def rk_check_look(ck, blk, warp, wide, how):
    """A strong read: what others have passed on will lie in the past; `wide`: those of other blocks as well."""
    st = BLOCK.session[blk]
    if STATE.ordered[st] and STATE.holding[st, warp]:
        rk_check_join(st + STATE_HELD + warp * ROW, st + STATE_POT, CHECK.row[ck])
    elif STATE.ordered[st]:
        clear(st + STATE_HELD + warp * ROW, ROW)
        rk_check_join(st + STATE_HELD + warp * ROW, st + STATE_POT, CHECK.row[ck])
        STATE.holding[st, warp] = 1
    if wide:
        STATE.ordered[st] = 1
        STATE.looked[st, warp] = CHECK.clock[ck]
    if how == AT_ONCE or (how == BY_CHOICE and CHECK.unfenced[ck]):
        rk_check_acquire(ck, st, warp, wide)
    return 0


def rk_check_acquire(ck, st, warp, wide):
    """What strong reads of a warp saw lies in its past from now on, that of other blocks only if this is `wide`."""
    if STATE.holding[st, warp]:
        STATE.holding[st, warp] = 0
        CHECK.limits_of[ck] = 0
        held = st + STATE_HELD + warp * ROW
        rk_check_join(st + STATE_SEEN + warp * ROW, held, CHECK.row[ck])
        if load64(held + CLOCKS + warp * 8) > STATE.met[st, warp]:
            STATE.met[st, warp] = load64(held + CLOCKS + warp * 8)
    if wide and STATE.tried[st, warp]:
        STATE.looked[st, warp] = STATE.tried[st, warp]
        STATE.tried[st, warp] = 0
    if wide and STATE.taken[st, warp]:
        STATE.section[st, warp] = STATE.taken[st, warp]
        STATE.taken[st, warp] = 0
    if wide and STATE.looked[st, warp] > STATE.seen[st, warp * COLUMNS + LOOKED]:
        STATE.seen[st, warp * COLUMNS + LOOKED] = STATE.looked[st, warp]
    return 0


def rk_check_believe(st, warp):
    """A warp took a lock after others, and not by accident: what they passed on lies in its past."""
    if STATE.section[st, warp] > STATE.seen[st, warp * COLUMNS + LOOKED]:
        STATE.seen[st, warp * COLUMNS + LOOKED] = STATE.section[st, warp]
    return 0


def rk_check_warp_sync(ck, blk, warp):
    """Lanes of a warp have met."""
    st = BLOCK.session[blk]
    STATE.ordered[st] = 1
    rk_check_acquire(ck, st, warp, 1)
    STATE.seen[st, warp * COLUMNS + warp] = STATE.clocks[st, warp]
    STATE.met[st, warp] = STATE.seen[st, warp * COLUMNS + WARPS + warp]
    rk_check_tick(ck, st, warp)
    return 0


def rk_check_arrive(ck, blk, warp, number, site, same):
    """A warp comes to a barrier; `same`: to that instruction all the block's warps must come (`ON`: it goes on)."""
    st = BLOCK.session[blk]
    STATE.ordered[st] = 1
    rk_check_acquire(ck, st, warp, 1)
    if STATE.lock[st, warp]:  # which the whole block may hold
        rk_check_believe(st, warp)
    if number != CLUSTER:
        number = number & 15
    STATE.at[st, warp] = site + 1
    if same & ON:
        STATE.at[st, warp] = 0
        same = same ^ ON
    STATE.number_at[st, warp] = number
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
    arrived = st + STATE_ARRIVED + number * ROW
    rk_check_join(arrived, st + STATE_SEEN + warp * ROW, CHECK.row[ck])
    rk_check_join(arrived, st + STATE_FENCED + warp * ROW, CHECK.row[ck])
    store64(arrived + warp * 8, STATE.clocks[st, warp])
    if STATE.fence_time[st, warp] > STATE.waiting[st, number]:
        STATE.waiting[st, number] = STATE.fence_time[st, warp]
    if STATE.wide_time[st, warp] > STATE.wide_waiting[st, number]:
        STATE.wide_waiting[st, number] = STATE.wide_time[st, warp]
    STATE.met[st, warp] = STATE.seen[st, warp * COLUMNS + WARPS + warp]
    rk_check_tick(ck, st, warp)
    return 0


def rk_check_open(blk, number):
    """A barrier opens: up to `all_seen` whoever leaves it has seen all there was in the block."""
    st = BLOCK.session[blk]
    arrived = st + STATE_ARRIVED + number * ROW
    opened = st + STATE_OPENED + number * ROW
    rk_check_join(opened, arrived, ROW)
    clear(arrived, ROW)
    STATE.first[st, number] = 0
    all = NEVER
    everyone = 1
    w = 0
    while w < BLOCK.nwarps[blk]:
        everyone = everyone and STATE.at[st, w] and STATE.number_at[st, w] == number
        seen = load64(opened + w * 8)
        first = seen + 1  # of the warp's times that are not seen
        if seen >= STATE.before[st, w]:
            first = STATE.clocks[st, w]
        if first <= all:
            all = first - 1
        if STATE.latest[st, w] > load64(opened + CLOCKS + w * 8) and load64(opened + CLOCKS + w * 8) < all:
            all = load64(opened + CLOCKS + w * 8)
        w += 1
    if STATE.arriving[st] > load64(opened + INBOUND * 8) and load64(opened + INBOUND * 8) < all:
        all = load64(opened + INBOUND * 8)
    STATE.all_seen[st, number] = all
    if everyone:
        STATE.common[st] = all
    return 0


def rk_check_depart(ck, blk, warp, number):
    """A warp continues after a barrier; a fence of any warp that arrived there serves all."""
    st = BLOCK.session[blk]
    if number != CLUSTER:
        number = number & 15
    STATE.at[st, warp] = 0
    CHECK.limits_of[ck] = 0
    opened = st + STATE_OPENED + number * ROW
    rk_check_join(st + STATE_SEEN + warp * ROW, opened, CHECK.row[ck])
    if STATE.all_seen[st, number] > STATE.horizon[st, warp]:
        STATE.horizon[st, warp] = STATE.all_seen[st, number]
    fence = STATE.waiting[st, number]
    if fence > STATE.fence_time[st, warp]:
        STATE.fence_time[st, warp] = fence
        rk_check_join(st + STATE_FENCED + warp * ROW, opened, CHECK.row[ck])
    if STATE.wide_waiting[st, number] > STATE.wide_time[st, warp]:
        STATE.wide_time[st, warp] = STATE.wide_waiting[st, number]
        rk_check_join(st + STATE_WIDE + warp * ROW, opened, CHECK.row[ck])
    return 0


# -- copies that are under way ----------------------------------------------------------------------------------------


def rk_check_copy(ck, blk, warp):
    """A warp starts copies: until it waits for them nothing orders them, not even for the threads that copy."""
    st = BLOCK.session[blk]
    if STATE.copies[st, warp] == 0:
        STATE.ordered[st] = 1
        STATE.copies[st, warp] = rk_check_draw(ck, st, WARPS + warp)
        STATE.latest[st, warp] = STATE.copies[st, warp]
    CHECK.copying[ck] = STATE.copies[st, warp]
    return 0


def rk_check_copied(ck, blk, warp):
    """Accesses that follow are the warp's own again."""
    CHECK.copying[ck] = 0
    CHECK.proxy[ck] = 0
    return 0


def rk_check_commit(ck, blk, warp):
    """The copies so far are a group. Lanes that commit on ways of their own count as a group of the warp each time."""
    st = BLOCK.session[blk]
    STATE.ordered[st] = 1
    n = STATE.groups[st, warp]
    STATE.group_times[st, warp * GROUPS + n % GROUPS] = STATE.latest[st, warp]
    STATE.groups[st, warp] = n + 1
    STATE.copies[st, warp] = 0
    return 0


def rk_check_wait(ck, blk, warp, pending):
    """A warp waits till no more than so many of its groups are pending; each lane sees its own copies then."""
    st = BLOCK.session[blk]
    n = STATE.groups[st, warp]
    if pending >= n:
        return 0
    time = STATE.latest[st, warp]
    if pending < GROUPS:
        time = STATE.group_times[st, warp * GROUPS + (n - pending - 1) % GROUPS]
    CHECK.limits_of[ck] = 0
    if time > STATE.seen[st, warp * COLUMNS + WARPS + warp]:
        STATE.seen[st, warp * COLUMNS + WARPS + warp] = time
    return 0


def rk_check_wait_all(ck, blk, warp):
    """A warp waits for all its copies."""
    rk_check_commit(ck, blk, warp)
    return rk_check_wait(ck, blk, warp, 0)


def rk_check_product(ck, blk, warp):
    """A warp's part of a product of its group begins: until a warp waits for all four nothing orders what it reads.

    It is one of the warp's copies, so far as these are not waited for by groups of their own.
    """
    st = BLOCK.session[blk]
    STATE.ordered[st] = 1
    CHECK.proxy[ck] = 1
    CHECK.copying[ck] = rk_check_draw(ck, st, WARPS + warp)
    STATE.latest[st, warp] = CHECK.copying[ck]
    n = STATE.products[st, warp]
    STATE.product_times[st, warp * GROUPS + n % GROUPS] = CHECK.copying[ck]
    STATE.products[st, warp] = n + 1
    return 0


def rk_check_products_seen(ck, blk, warp, count, w0, w1, w2, w3):
    """A warp has waited for the first so many products of its group's warps."""
    st = BLOCK.session[blk]
    CHECK.limits_of[ck] = 0
    rk_check_product_seen(st, warp, count, w0)
    rk_check_product_seen(st, warp, count, w1)
    rk_check_product_seen(st, warp, count, w2)
    rk_check_product_seen(st, warp, count, w3)
    if STATE.seen[st, warp * COLUMNS + WARPS + warp] > STATE.met[st, warp]:
        STATE.met[st, warp] = STATE.seen[st, warp * COLUMNS + WARPS + warp]
    return 0


def rk_check_product_seen(st, warp, count, other):
    """It has seen the first so many products of one of them."""
    if count == 0 or STATE.products[st, other] - count >= GROUPS:
        return 0
    time = STATE.product_times[st, other * GROUPS + (count - 1) % GROUPS]
    if time > STATE.seen[st, warp * COLUMNS + WARPS + other]:
        STATE.seen[st, warp * COLUMNS + WARPS + other] = time
    return 0


def rk_check_copies_arrive(ck, blk, warp):
    """Copies so far will be seen by whoever waits at an mbarrier."""
    st = BLOCK.session[blk]
    STATE.ordered[st] = 1
    if STATE.latest[st, warp] > STATE.pot[st, WARPS + warp]:
        STATE.pot[st, WARPS + warp] = STATE.latest[st, warp]
    STATE.copies[st, warp] = 0
    other = BLOCK.first[blk]
    while other:
        their = BLOCK.session[other]
        if STATE.sender[their] == STATE.number[st] * AGENTS + warp + 1:
            STATE.ordered[their] = 1
            STATE.pot[their, INBOUND] = STATE.arriving[their]
            STATE.sender[their] = 0
        other = BLOCK.beside[other]
    return 0


def rk_check_send(ck, st, warp, their):
    """The time of copies that a warp has under way into another block's shared memory."""
    sender = STATE.number[st] * AGENTS + warp
    if STATE.sender[their] != sender + 1:
        STATE.sender[their] = sender + 1
        STATE.ordered[their] = 1
        STATE.inbound[their] = rk_check_draw(ck, their, INBOUND)
        STATE.arriving[their] = STATE.inbound[their]
        store64(CHECK.held[ck] + STATE.inbound[their] * 8, sender | SENDER)  # whose they are, for reports
    return STATE.inbound[their]
