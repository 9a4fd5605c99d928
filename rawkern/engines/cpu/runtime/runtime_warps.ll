; Warps that can wait (barriers, spin loops): each has a stack.
;
; A warp's state: 0 runnable, 1 yielded in a spin loop, 2 waits at a barrier, 3 done.
; A warp that stops at a barrier or has ended hands over to the next that can run, and only where there is none to
; `rk_run_block`, which sees what the whole block is waiting for.
; As long as warps do nothing but come to barrier 0 in turn, one after the other, their states stay 0 (`rk_sync`).

define internal void @rk_warp_main(ptr %warp) {
  %pblk = &Warp.block %warp
  %blk = load ptr, ptr %pblk
  %plaunch = &Warp.launch %warp
  %launch = load ptr, ptr %plaunch
  %pw = &Warp.index %warp
  %w = load i32, ptr %pw
  %mask = call i32 @rk_lanes(ptr %launch, i32 %w)
  %px = &Block.x %blk
  %x = load i32, ptr %px
  %py = &Block.y %blk
  %y = load i32, ptr %py
  %pz = &Block.z %blk
  %z = load i32, ptr %pz
  call void @rk_body(ptr %launch, ptr %blk, i32 %w, i32 %mask, i32 %x, i32 %y, i32 %z)
  call void @rk_settle(ptr %blk, i32 %w)
  %pstate = &Warp.state %warp
  store i32 3, ptr %pstate
  %pdone = &Block.done %blk
  %done = load i32, ptr %pdone
  %done1 = add i32 %done, 1
  store i32 %done1, ptr %pdone
  %pused = &Block.used %blk
  %used = load i32, ptr %pused
  %pfirst = &Block.first %blk
  %first = load ptr, ptr %pfirst
  %parrived = &Block.arrived %first
  %arrived = load i32, ptr %parrived
  %awaited = icmp ne i32 %arrived, 0
  br i1 %awaited, label %cluster, label %look
cluster:
  call void @rk_cluster_left(ptr %warp, ptr %first)
  br label %look
look:
  %anyused = icmp ne i32 %used, 0
  br i1 %anyused, label %bars, label %leave
bars:                                             ; a warp that ends no longer counts at any barrier
  %id = phi i32 [ 0, %look ], [ %idnext, %nextbar ]
  %bar = getelementptr %Block, ptr %blk, i32 0, i32 {Block.bars}, i32 %id
  %opened = call i32 @rk_try_release(ptr %blk, ptr %bar, i32 %id)
  br label %nextbar
nextbar:
  %idnext = add i32 %id, 1
  %morebars = icmp ult i32 %idnext, 16
  br i1 %morebars, label %bars, label %leave
leave:                                            ; mostly it is the next warp's turn
  %pfollowing = &Warp.following %warp
  %following = load ptr, ptr %pfollowing
  %pnext = &Warp.state %following
  %next = load i32, ptr %pnext
  %ready = icmp eq i32 %next, 0
  br i1 %ready, label %go, label %search
search:
  %pn = &Block.nwarps %blk
  %n = load i32, ptr %pn
  %last = icmp eq i32 %done1, %n
  br i1 %last, label %over, label %choose
over:
  %psched = &Block.sched_sp %blk
  br label %go
choose:
  %other = call ptr @rk_other(ptr %blk, i32 %w)
  br label %go
go:
  %to = phi ptr [ %following, %leave ], [ %psched, %over ], [ %other, %choose ]
  %psp = &Warp.sp %warp
  %back = call ptr @rk_switch_here(ptr %psp, ptr %to)
  unreachable
}

; Warp %w, whose record is %this, comes to barrier 0 of all threads and waits there; %before comes before it. While all
; warps come to it in turn, each hands over to the next, and the last goes on and is the first to come to the next
; barrier: nothing need be counted nor looked for. Returns the record again (see rk_switch_here).
define internal ptr @rk_sync(ptr %blk, i32 %w, i32 %before, ptr %this, i32 %mask, i32 %site) alwaysinline {
  %pcloses = &Block.closes %blk
  %closes = load i32, ptr %pcloses
  %last = icmp eq i32 %closes, %w
  br i1 %last, label %opens, label %waits
opens:
  store i32 %before, ptr %pcloses
  br label %on
waits:
  %inturn = icmp sge i32 %closes, 0
  br i1 %inturn, label %turn, label %look
turn:
  %psite = &Warp.site %this
  store i32 %site, ptr %psite
  %pfollowing = &Warp.following %this
  %following = load ptr, ptr %pfollowing
  br label %go
look:
  %found = call ptr @rk_barrier(ptr %blk, i32 %w, i32 0, i32 0, i32 %mask, i32 0, i1 true, i32 %site)
  br label %go
go:
  %to = phi ptr [ %following, %turn ], [ %found, %look ]
  %back = call ptr @rk_switch_here(ptr %this, ptr %to)
  br label %on
on:
  %same = phi ptr [ %this, %opens ], [ %back, %go ]
  ret ptr %same
}

; Warp %w, whose record is %this, lets another run that could, mostly the one after it. Returns the record again.
define internal ptr @rk_take_turns(ptr %blk, i32 %w, ptr %this) alwaysinline {
  %pfollowing = &Warp.following %this
  %following = load ptr, ptr %pfollowing
  %pcloses = &Block.closes %blk
  %closes = load i32, ptr %pcloses
  %settled = icmp slt i32 %closes, 0
  %pstate = &Warp.state %following
  %state = load i32, ptr %pstate
  %ready = icmp eq i32 %state, 0
  %can = and i1 %settled, %ready
  br i1 %can, label %go, label %search
search:
  %next = call ptr @rk_next(ptr %blk, i32 %w, i32 1)
  %none = icmp eq ptr %next, null
  %found = select i1 %none, ptr %this, ptr %next
  br label %go
go:
  %to = phi ptr [ %following, %0 ], [ %found, %search ]
  %back = call ptr @rk_switch_here(ptr %this, ptr %to)
  ret ptr %back
}

; Warp %w, which runs, does something else than to come to barrier 0 in turn: write down who waits there already.
define internal void @rk_settle(ptr %blk, i32 %w) alwaysinline {
  %pcloses = &Block.closes %blk
  %closes = load i32, ptr %pcloses
  %inturn = icmp sge i32 %closes, 0
  br i1 %inturn, label %end, label %out
end:
  call void @rk_end_turns(ptr %blk, i32 %w, i32 %closes)
  br label %out
out:
  ret void
}

define internal void @rk_end_turns(ptr %blk, i32 %w, i32 %closes) noinline {
  %pcloses = &Block.closes %blk
  store i32 -1, ptr %pcloses
  %pworker = &Block.worker %blk
  %worker = load ptr, ptr %pworker
  %plaunch = &Worker.launch %worker
  %launch = load ptr, ptr %plaunch
  %pn = &Block.nwarps %blk
  %n = load i32, ptr %pn
  %pwarps = &Block.warps %blk
  %warps = load ptr, ptr %pwarps
  %bar = getelementptr %Block, ptr %blk, i32 0, i32 {Block.bars}, i32 0
  %parrived = &Bar.arrived %bar
  %ptotal = &Bar.total %bar
  %pused = &Block.used %blk
  br label %each
each:
  %v = phi i32 [ %closes, %0 ], [ %next, %waits ]
  %up = add i32 %v, 1
  %past = icmp uge i32 %up, %n
  %next = select i1 %past, i32 0, i32 %up
  %all = icmp eq i32 %next, %w
  br i1 %all, label %out, label %waits
waits:
  %warp = getelementptr %Warp, ptr %warps, i32 %next
  %pstate = &Warp.state %warp
  store i32 2, ptr %pstate
  %pid = &Warp.barrier %warp
  store i32 0, ptr %pid
  %arrived = load i32, ptr %parrived
  %arrived1 = add i32 %arrived, 32
  store i32 %arrived1, ptr %parrived
  %mask = call i32 @rk_lanes(ptr %launch, i32 %next)
  %lanes = call i32 @llvm.ctpop.i32(i32 %mask)
  %total = load i32, ptr %ptotal
  %total1 = add i32 %total, %lanes
  store i32 %total1, ptr %ptotal
  %used = load i32, ptr %pused
  %used1 = or i32 %used, 1
  store i32 %used1, ptr %pused
  br label %each
out:
  ret void
}

; The next warp whose state is below %limit, which runs from now on; null where there is none but warp %w.
define internal ptr @rk_next(ptr %blk, i32 %w, i32 %limit) noinline {
  call void @rk_settle(ptr %blk, i32 %w)
  %pn = &Block.nwarps %blk
  %n = load i32, ptr %pn
  %pwarps = &Block.warps %blk
  %warps = load ptr, ptr %pwarps
  br label %each
each:
  %v = phi i32 [ %w, %0 ], [ %next, %look ]
  %up = add i32 %v, 1
  %past = icmp uge i32 %up, %n
  %next = select i1 %past, i32 0, i32 %up
  %alone = icmp eq i32 %next, %w
  br i1 %alone, label %none, label %look
look:
  %other = getelementptr %Warp, ptr %warps, i32 %next
  %pstate = &Warp.state %other
  %state = load i32, ptr %pstate
  %ready = icmp ult i32 %state, %limit
  br i1 %ready, label %go, label %each
go:
  store i32 0, ptr %pstate
  ret ptr %other
none:
  ret ptr null
}

; Where the stack pointer is that warp %w, which cannot go on, hands over to. Those that yielded have their turn as well.
define internal ptr @rk_other(ptr %blk, i32 %w) alwaysinline {
  %next = call ptr @rk_next(ptr %blk, i32 %w, i32 2)
  %none = icmp eq ptr %next, null
  %psched = &Block.sched_sp %blk
  %to = select i1 %none, ptr %psched, ptr %next
  ret ptr %to
}

; Switch to the stack whose pointer is in %to, which may be the own one; warp %w goes on when somebody switches back.
define internal void @rk_switch_warp(ptr %blk, i32 %w, ptr %to) alwaysinline {
  %pwarps = &Block.warps %blk
  %warps = load ptr, ptr %pwarps
  %warp = getelementptr %Warp, ptr %warps, i32 %w
  %psp = &Warp.sp %warp
  %back = call ptr @rk_switch_here(ptr %psp, ptr %to)
  ret void
}

; Open the barrier if all it waits for have arrived: returns 0 if it did not, or else how many waited and one.
define internal i32 @rk_try_release(ptr %blk, ptr %bar, i32 %id) noinline {
  %parrived = &Bar.arrived %bar
  %arrived = load i32, ptr %parrived
  %any = icmp ne i32 %arrived, 0
  br i1 %any, label %count, label %no
count:
  %pexpected = &Bar.expected %bar
  %fixed = load i32, ptr %pexpected
  %pn = &Block.nwarps %blk
  %n = load i32, ptr %pn
  %pdone = &Block.done %blk
  %done = load i32, ptr %pdone
  %alive = sub i32 %n, %done
  %all = mul i32 %alive, 32
  %isfixed = icmp ne i32 %fixed, 0
  %need = select i1 %isfixed, i32 %fixed, i32 %all
  %open = icmp uge i32 %arrived, %need
  br i1 %open, label %release, label %no
release:
  {barrier_opens}
  %bit = shl i32 1, %id
  %clear = xor i32 %bit, -1
  %pused = &Block.used %blk
  %used = load i32, ptr %pused
  %still = and i32 %used, %clear
  store i32 %still, ptr %pused
  store i32 0, ptr %parrived
  store i32 0, ptr %pexpected
  %pcount = &Bar.count %bar
  %cnt = load i32, ptr %pcount
  %presult = &Bar.result %bar
  store i32 %cnt, ptr %presult
  store i32 0, ptr %pcount
  %ptotal = &Bar.total %bar
  %total = load i32, ptr %ptotal
  %presult_total = &Bar.result_total %bar
  store i32 %total, ptr %presult_total
  store i32 0, ptr %ptotal
  %pwarps = &Block.warps %blk
  %warps = load ptr, ptr %pwarps
  br label %each
each:
  %w = phi i32 [ 0, %release ], [ %wnext, %skip ]
  %woken = phi i32 [ 1, %release ], [ %woken1, %skip ]
  %warp = getelementptr %Warp, ptr %warps, i32 %w
  %pstate = &Warp.state %warp
  %state = load i32, ptr %pstate
  %waits = icmp eq i32 %state, 2
  %pid = &Warp.barrier %warp
  %wid = load i32, ptr %pid
  %here = icmp eq i32 %wid, %id
  %wake = and i1 %waits, %here
  br i1 %wake, label %awake, label %skip
awake:
  store i32 0, ptr %pstate
  br label %skip
skip:
  %one = zext i1 %wake to i32
  %woken1 = add i32 %woken, %one
  %wnext = add i32 %w, 1
  %more = icmp ult i32 %wnext, %n
  br i1 %more, label %each, label %yes
yes:
  ret i32 %woken1
no:
  ret i32 0
}

; A warp arrives at barrier %id; %count threads are expected, or all of the block's where it is 0.
; %pred holds the predicate of bar.red by lane, %site is the instruction's. Returns where the pointer of the
; stack to go on with is: another one if the warp has to wait (%wait).
define internal ptr @rk_barrier(ptr %blk, i32 %w, i32 %rawid, i32 %expected, i32 %mask, i32 %pred, i1 %wait, i32 %site) noinline {
  call void @rk_settle(ptr %blk, i32 %w)
  %pwarps = &Block.warps %blk
  %warps = load ptr, ptr %pwarps
  %warp = getelementptr %Warp, ptr %warps, i32 %w
  %id = and i32 %rawid, 15
  %bar = getelementptr %Block, ptr %blk, i32 0, i32 {Block.bars}, i32 %id
  %parrived = &Bar.arrived %bar
  %arrived = load i32, ptr %parrived
  %arrived1 = add i32 %arrived, 32
  store i32 %arrived1, ptr %parrived
  %bit = shl i32 1, %id
  %pused = &Block.used %blk
  %used = load i32, ptr %pused
  %used1 = or i32 %used, %bit
  store i32 %used1, ptr %pused
  %pexpected = &Bar.expected %bar
  store i32 %expected, ptr %pexpected
  %true_lanes = and i32 %mask, %pred
  %trues = call i32 @llvm.ctpop.i32(i32 %true_lanes)
  %lanes = call i32 @llvm.ctpop.i32(i32 %mask)
  %pcount = &Bar.count %bar
  %cnt = load i32, ptr %pcount
  %cnt1 = add i32 %cnt, %trues
  store i32 %cnt1, ptr %pcount
  %ptotal = &Bar.total %bar
  %total = load i32, ptr %ptotal
  %total1 = add i32 %total, %lanes
  store i32 %total1, ptr %ptotal
  %pn = &Block.nwarps %blk
  %n = load i32, ptr %pn
  %pdone = &Block.done %blk
  %done = load i32, ptr %pdone
  %alive = sub i32 %n, %done
  %all = mul i32 %alive, 32
  %isfixed = icmp ne i32 %expected, 0
  %need = select i1 %isfixed, i32 %expected, i32 %all
  %enough = icmp uge i32 %arrived1, %need
  br i1 %enough, label %complete, label %early
complete:
  %woken = call i32 @rk_try_release(ptr %blk, ptr %bar, i32 %id)
  %closed = icmp eq i32 %woken, 0
  br i1 %closed, label %early, label %open
open:
  %every = icmp eq i32 %woken, %n                 ; all others waited here, so they can take turns from here on
  br i1 %every, label %turns, label %out
turns:
  %first = icmp eq i32 %w, 0
  %after = select i1 %first, i32 %n, i32 %w
  %before = sub i32 %after, 1
  %pcloses = &Block.closes %blk
  store i32 %before, ptr %pcloses
  br label %out
early:
  br i1 %wait, label %sleep, label %out
sleep:
  %pstate = &Warp.state %warp
  store i32 2, ptr %pstate
  %pid = &Warp.barrier %warp
  store i32 %id, ptr %pid
  %psite = &Warp.site %warp
  store i32 %site, ptr %psite
  %up = add i32 %w, 1
  %past = icmp uge i32 %up, %n
  br i1 %past, label %search, label %look
look:                                             ; mostly it is the next warp's turn
  %other = getelementptr %Warp, ptr %warps, i32 %up
  %pother = &Warp.state %other
  %state = load i32, ptr %pother
  %ready = icmp eq i32 %state, 0
  br i1 %ready, label %go, label %search
go:
  ret ptr %other
search:
  %to = call ptr @rk_other(ptr %blk, i32 %w)
  ret ptr %to
out:
  ret ptr %warp
}

; A warp that ends while others of its cluster have arrived at their barrier.
define internal void @rk_cluster_left(ptr %warp, ptr %first) noinline {
  %pcluster = &Warp.cluster %warp
  %cluster = load i32, ptr %pcluster
  %itself = icmp eq i32 %cluster, 1
  %pleft = &Block.left %first
  %left = load i32, ptr %pleft
  %more = zext i1 %itself to i32
  %left1 = add i32 %left, %more
  store i32 %left1, ptr %pleft
  call void @rk_cluster_release(ptr %first)
  ret void
}

; Open the barrier of a cluster, by its first block, if all warps have arrived or ended.
define internal void @rk_cluster_release(ptr %first) noinline {
  %parrived = &Block.arrived %first
  %arrived = load i32, ptr %parrived
  %pleft = &Block.left %first
  %left = load i32, ptr %pleft
  %came = sub i32 %arrived, %left
  br label %count
count:
  %blk = phi ptr [ %first, %0 ], [ %beside, %count ]
  %missing = phi i32 [ 0, %0 ], [ %missing1, %count ]
  %pn = &Block.nwarps %blk
  %n = load i32, ptr %pn
  %pdone = &Block.done %blk
  %done = load i32, ptr %pdone
  %alive = sub i32 %n, %done
  %missing1 = add i32 %missing, %alive
  %pbeside = &Block.beside %blk
  %beside = load ptr, ptr %pbeside
  %last = icmp eq ptr %beside, null
  br i1 %last, label %compare, label %count
compare:
  %open = icmp uge i32 %came, %missing1
  br i1 %open, label %release, label %out
release:
  {cluster_opens}
  store i32 0, ptr %parrived
  store i32 0, ptr %pleft
  br label %block
block:
  %b = phi ptr [ %first, %release ], [ %bnext, %nextblock ]
  %pwarps = &Block.warps %b
  %warps = load ptr, ptr %pwarps
  br label %each
each:
  %w = phi i32 [ 0, %block ], [ %wnext, %nextwarp ]
  %warp = getelementptr %Warp, ptr %warps, i32 %w
  %pcluster = &Warp.cluster %warp
  %cluster = load i32, ptr %pcluster
  %had = icmp eq i32 %cluster, 1
  br i1 %had, label %wake, label %nextwarp
wake:
  %pstate = &Warp.state %warp
  %state = load i32, ptr %pstate
  %asleep = icmp eq i32 %state, 2
  %pid = &Warp.barrier %warp
  %id = load i32, ptr %pid
  %here = icmp eq i32 %id, {AT_CLUSTER}
  %waits = and i1 %asleep, %here
  %after = select i1 %waits, i32 0, i32 2
  store i32 %after, ptr %pcluster
  %state1 = select i1 %waits, i32 0, i32 %state
  store i32 %state1, ptr %pstate
  br label %nextwarp
nextwarp:
  %wnext = add i32 %w, 1
  %more = icmp ult i32 %wnext, %n
  br i1 %more, label %each, label %nextblock
nextblock:
  %pbnext = &Block.beside %b
  %bnext = load ptr, ptr %pbnext
  %end = icmp eq ptr %bnext, null
  br i1 %end, label %out, label %block
out:
  ret void
}

; A warp comes to the cluster's barrier to arrive or to wait (%number is AT_CLUSTER), which it does in turns: its `cluster` is 1
; when it has arrived, 2 when the barrier has opened since. Returns where the pointer of the stack to go on with is.
define internal ptr @rk_cluster_barrier(ptr %blk, i32 %w, i32 %number, i32 %mask, i32 %site) noinline {
  call void @rk_settle(ptr %blk, i32 %w)
  %pwarps = &Block.warps %blk
  %warps = load ptr, ptr %pwarps
  %warp = getelementptr %Warp, ptr %warps, i32 %w
  %pcluster = &Warp.cluster %warp
  %cluster = load i32, ptr %pcluster
  %waits = icmp eq i32 %number, {AT_CLUSTER}
  %fresh = icmp eq i32 %cluster, 0
  %wrong = icmp eq i1 %waits, %fresh
  br i1 %wrong, label %fail, label %go
fail:
  %number64 = zext i32 %number to i64
  %what = insertelement <32 x i64> zeroinitializer, i64 %number64, i32 0
  call void @rk_service(ptr %blk, i32 {CLUSTER}, i32 %mask, i32 %w, i32 %site, <32 x i64> %what, <32 x i64> zeroinitializer)
  br label %on
go:
  br i1 %waits, label %wait, label %arrive
arrive:
  store i32 1, ptr %pcluster
  %pfirst = &Block.first %blk
  %first = load ptr, ptr %pfirst
  %parrived = &Block.arrived %first
  %arrived = load i32, ptr %parrived
  %arrived1 = add i32 %arrived, 1
  store i32 %arrived1, ptr %parrived
  call void @rk_cluster_release(ptr %first)
  br label %on
wait:
  %opened = icmp eq i32 %cluster, 2
  br i1 %opened, label %pass, label %sleep
pass:
  store i32 0, ptr %pcluster
  br label %on
sleep:
  %pstate = &Warp.state %warp
  store i32 2, ptr %pstate
  %pid = &Warp.barrier %warp
  store i32 {AT_CLUSTER}, ptr %pid
  %psite = &Warp.site %warp
  store i32 %site, ptr %psite
  %to = call ptr @rk_other(ptr %blk, i32 %w)
  ret ptr %to
on:
  ret ptr %warp
}

; A spin loop, %site, found nothing new: let the other warps run. Returns where the pointer of the stack to go on with is.
define internal ptr @rk_yield(ptr %blk, i32 %w, i32 %site) noinline {
  call void @rk_settle(ptr %blk, i32 %w)
  %pwarps = &Block.warps %blk
  %warps = load ptr, ptr %pwarps
  %warp = getelementptr %Warp, ptr %warps, i32 %w
  %pstate = &Warp.state %warp
  store i32 1, ptr %pstate
  %psite = &Warp.site %warp
  store i32 %site, ptr %psite
  %pn = &Block.nwarps %blk
  %n = load i32, ptr %pn
  %up = add i32 %w, 1
  %past = icmp uge i32 %up, %n
  br i1 %past, label %back, label %look
look:                                             ; mostly the next warp has not come so far
  %other = getelementptr %Warp, ptr %warps, i32 %up
  %pother = &Warp.state %other
  %ready = load i32, ptr %pother
  %fresh = icmp eq i32 %ready, 0
  br i1 %fresh, label %go, label %back
go:
  ret ptr %other
back:
  %psched = &Block.sched_sp %blk
  ret ptr %psched
}
