; Workers of kernels whose warps can wait: a block whose warps all wait or yield is parked, and the worker turns to the
; next block. The blocks of a cluster begin and are parked together.

; Look at the clock now and then: it takes longer to read than a small block to run.
define internal void @rk_turn(ptr %blk) {
  %pworker = &Block.worker %blk
  %worker = load ptr, ptr %pworker
  %pturns = &Worker.turns %worker
  %turns = load i32, ptr %pturns
  %turns1 = add i32 %turns, 1
  store i32 %turns1, ptr %pturns
  %low = and i32 %turns1, 15
  %due = icmp eq i32 %low, 0
  br i1 %due, label %look, label %out
look:
  call void @rk_poll(ptr %blk, i32 -1, i32 -1)
  br label %out
out:
  ret void
}

; Run a block and those beside it until all are done (returns 0) or none can go on by itself (returns 1).
define internal i32 @rk_run_together(ptr %first) noinline {
  %pbeside = &Block.beside %first
  %second = load ptr, ptr %pbeside
  %alone = icmp eq ptr %second, null
  br label %pass
pass:
  br label %block
block:
  %blk = phi ptr [ %first, %pass ], [ %next, %block ]
  %before = phi i32 [ 0, %pass ], [ %how, %block ]
  %left = phi ptr [ %first, %pass ], [ %left1, %block ]
  %one = call i32 @rk_run_block(ptr %blk)
  %how = or i32 %before, %one
  %ended = trunc i32 %one to i1
  %left1 = select i1 %ended, ptr %blk, ptr %left  ; one that has not ended
  %pnext = &Block.beside %blk
  %next = load ptr, ptr %pnext
  %last = icmp eq ptr %next, null
  br i1 %last, label %passed, label %block
passed:
  %some = and i32 %how, 1
  %complete = icmp eq i32 %some, 0
  br i1 %complete, label %done, label %going
going:
  %useful = and i32 %how, 4
  %idle = icmp eq i32 %useful, 0
  %stuck = or i1 %idle, %alone
  br i1 %stuck, label %look, label %again
again:                                            ; what one did may let another go on
  call void @rk_turn(ptr %first)
  br label %pass
look:
  %spins = and i32 %how, 2
  %waiting = icmp ne i32 %spins, 0
  br i1 %waiting, label %hopes, label %deadlock
hopes:                                            ; two rounds: in the first a warp may have done something before it waited
  %pidle = &Block.idle %first
  %idle0 = load i64, ptr %pidle
  %idle1 = add i64 %idle0, 1
  %count = select i1 %idle, i64 %idle1, i64 0
  store i64 %count, ptr %pidle
  %often = icmp uge i64 %count, 3
  br i1 %often, label %ask, label %park
ask:
  %hopeless = call i1 @rk_hopeless(ptr %first)
  br i1 %hopeless, label %deadlock, label %park
deadlock:                                         ; every warp waits at a barrier that cannot open
  call void @rk_service(ptr %left1, i32 {DEADLOCK}, i32 0, i32 0, i32 0, <32 x i64> zeroinitializer, <32 x i64> zeroinitializer)
  br label %pass
park:
  ret i32 1
done:
  ret i32 0
}

; Whether all warps of a block and of those beside it have ended, or wait at a barrier or an mbarrier and do nothing else.
define internal i1 @rk_hopeless(ptr %first) noinline {
  br label %block
block:
  %blk = phi ptr [ %first, %0 ], [ %next, %ended ]
  %pn = &Block.nwarps %blk
  %n = load i32, ptr %pn
  %pwarps = &Block.warps %blk
  %warps = load ptr, ptr %pwarps
  br label %warp
warp:
  %w = phi i32 [ 0, %block ], [ %wnext, %waits ]
  %this = getelementptr %Warp, ptr %warps, i32 %w
  %pstate = &Warp.state %this
  %state = load i32, ptr %pstate
  %pmbarrier = &Warp.mbarrier %this
  %mbarrier = load i64, ptr %pmbarrier
  %asleep = icmp uge i32 %state, 2
  %yielded = icmp eq i32 %state, 1
  %at = icmp ne i64 %mbarrier, 0
  %looks = and i1 %yielded, %at
  %stays = or i1 %asleep, %looks
  br i1 %stays, label %waits, label %no
waits:
  %wnext = add i32 %w, 1
  %more = icmp ult i32 %wnext, %n
  br i1 %more, label %warp, label %ended
ended:
  %pnext = &Block.beside %blk
  %next = load ptr, ptr %pnext
  %all = icmp eq ptr %next, null
  br i1 %all, label %yes, label %block
yes:
  ret i1 true
no:
  ret i1 false
}

; Run a block's warps until all are done or none can go on by itself: in bits whether some are left, whether some of
; these yielded, and whether any did more than that.
define internal i32 @rk_run_block(ptr %blk) noinline {
  %pn = &Block.nwarps %blk
  %n = load i32, ptr %pn
  %pwarps = &Block.warps %blk
  %warps = load ptr, ptr %pwarps
  %psched = &Block.sched_sp %blk
  %pdone = &Block.done %blk
  %pmoved = &Block.moved %blk
  br label %pass
pass:
  %ever = phi i32 [ 0, %0 ], [ 4, %going ]
  store i32 0, ptr %pmoved
  br label %warp
warp:
  %w = phi i32 [ 0, %pass ], [ %wnext, %next ]
  %useful = phi i32 [ 0, %pass ], [ %useful1, %next ]
  %yielded = phi i32 [ 0, %pass ], [ %yielded1, %next ]
  %this = getelementptr %Warp, ptr %warps, i32 %w
  %pstate = &Warp.state %this
  %state = load i32, ptr %pstate
  %ready = icmp ult i32 %state, 2
  br i1 %ready, label %run, label %next
run:
  store i32 0, ptr %pstate
  %psp = &Warp.sp %this
  call void @rk_switch(ptr %psched, ptr %psp)
  %after = load i32, ptr %pstate
  %spun = icmp eq i32 %after, 1
  %s = zext i1 %spun to i32
  %u = sub i32 1, %s
  br label %next
next:
  %du = phi i32 [ 0, %warp ], [ %u, %run ]
  %dy = phi i32 [ 0, %warp ], [ %s, %run ]
  %useful1 = add i32 %useful, %du
  %yielded1 = add i32 %yielded, %dy
  %wnext = add i32 %w, 1
  %more = icmp ult i32 %wnext, %n
  br i1 %more, label %warp, label %passed
passed:
  %done = load i32, ptr %pdone
  %alldone = icmp eq i32 %done, %n
  br i1 %alldone, label %complete, label %going
going:
  call void @rk_turn(ptr %blk)
  %moved = load i32, ptr %pmoved                  ; a warp has seen what it waited for
  %some = or i32 %useful1, %moved
  %progress = icmp ne i32 %some, 0
  br i1 %progress, label %pass, label %stuck
stuck:
  %spins = icmp ne i32 %yielded1, 0
  %left = select i1 %spins, i32 3, i32 1
  %how = or i32 %left, %ever
  ret i32 %how
complete:
  %had = icmp ne i32 %useful1, 0
  %ended = select i1 %had, i32 4, i32 %ever
  ret i32 %ended
}

define internal void @rk_start_block(ptr %launch, ptr %blk, i64 %number) {
  call void @rk_place(ptr %launch, ptr %blk, i64 %number)
  {block_begins}
  %pn = &Launch.nwarps %launch
  %n = load i32, ptr %pn
  %pdone = &Block.done %blk
  store i32 0, ptr %pdone
  %pbars = getelementptr %Block, ptr %blk, i32 0, i32 {Block.bars}
  store <96 x i32> zeroinitializer, ptr %pbars, align 4
  %pused = &Block.used %blk
  store i32 0, ptr %pused
  %ppending = &Block.pending %blk
  store i64 0, ptr %ppending
  %pissued = &Block.issued %blk
  store i64 0, ptr %pissued
  %pidle = &Block.idle %blk
  store i64 0, ptr %pidle
  %pcloses = &Block.closes %blk
  %closes = sub i32 %n, 1
  store i32 %closes, ptr %pcloses
  %parrived = &Block.arrived %blk
  store i32 0, ptr %parrived
  %pleft = &Block.left %blk
  store i32 0, ptr %pleft
  %pbn = &Block.nwarps %blk
  store i32 %n, ptr %pbn
  %pwarps = &Block.warps %blk
  %warps = load ptr, ptr %pwarps
  br label %warp
warp:
  %w = phi i32 [ 0, %0 ], [ %wnext, %warp ]
  %this = getelementptr %Warp, ptr %warps, i32 %w
  %pstate = &Warp.state %this
  store i32 0, ptr %pstate
  %prest = &Warp.mbarrier %this
  store <{CHANGING} x i32> zeroinitializer, ptr %prest, align 8
  %ptop = &Warp.stack_top %this
  %top = load ptr, ptr %ptop
  %sp = call ptr @rk_fresh(ptr %top, ptr @rk_warp_main, ptr %this)
  %psp = &Warp.sp %this
  store ptr %sp, ptr %psp
  %wnext = add i32 %w, 1
  %more = icmp ult i32 %wnext, %n
  br i1 %more, label %warp, label %out
out:
  ret void
}

define internal void @rk_main(ptr %worker) {
  %plaunch = &Worker.launch %worker
  %launch = load ptr, ptr %plaunch
  %pcount = &Launch.nworkers %launch
  %count = load i32, ptr %pcount
  %pworkers = &Launch.workers %launch
  %workers = load ptr, ptr %pworkers
  %pself = &Worker.index %worker
  %self = load i32, ptr %pself
  %pfree = &Worker.free_blocks %worker
  %phead = &Worker.parked_head %worker
  %ptail = &Worker.parked_tail %worker
  %president = &Worker.resident %worker
  %pmax = &Launch.max_resident %launch
  %max = load i32, ptr %pmax
  %ptogether = &Launch.together %launch
  %together = load i64, ptr %ptogether
  %ptried = alloca i32                            ; workers whose blocks have all been taken: itself, those after it
  store i32 0, ptr %ptried
  br label %turn
turn:
  %resident = load i32, ptr %president
  %room = icmp ult i32 %resident, %max
  br i1 %room, label %look, label %revisit
look:                                             ; its own blocks first, in order, then what the others have left
  %tried = load i32, ptr %ptried
  %over = icmp uge i32 %tried, %count
  br i1 %over, label %revisit, label %claim
claim:
  %number0 = add i32 %self, %tried
  %wraps = icmp uge i32 %number0, %count
  %number1 = sub i32 %number0, %count
  %whose = select i1 %wraps, i32 %number1, i32 %number0
  %from = getelementptr %Worker, ptr %workers, i32 %whose
  %pnext = &Worker.range_next %from
  %pend = &Worker.range_end %from
  %rangeend = load i64, ptr %pend
  %number = atomicrmw add ptr %pnext, i64 %together monotonic
  %mine = icmp ult i64 %number, %rangeend
  br i1 %mine, label %memory, label %exhausted
exhausted:
  %tried1 = add i32 %tried, 1
  store i32 %tried1, ptr %ptried
  br label %look
memory:
  %have = load ptr, ptr %pfree
  %lacks = icmp eq ptr %have, null
  br i1 %lacks, label %ask, label %begin
ask:
  call void @rk_suspend(ptr %worker, i32 {NEED_BLOCK})
  br label %memory
begin:
  %afternext = &Block.next %have
  %rest = load ptr, ptr %afternext
  store ptr %rest, ptr %pfree
  %resident1 = add i32 %resident, 1
  store i32 %resident1, ptr %president
  %pcode = &Launch.code %launch
  %start = load ptr, ptr %pcode
  br label %each
each:
  %one = phi ptr [ %have, %begin ], [ %beside, %each ]
  call void %start(ptr %launch, ptr %one, i64 %number)
  %pbeside = &Block.beside %one
  %beside = load ptr, ptr %pbeside
  %all = icmp eq ptr %beside, null
  br i1 %all, label %run, label %each
revisit:
  %head = load ptr, ptr %phead
  %empty = icmp eq ptr %head, null
  br i1 %empty, label %finish, label %unpark
unpark:
  %pheadnext = &Block.next %head
  %follow = load ptr, ptr %pheadnext
  store ptr %follow, ptr %phead
  br label %run
run:
  %blk = phi ptr [ %have, %each ], [ %head, %unpark ]
  %pblknext = &Block.next %blk
  %how = call i32 @rk_run_together(ptr %blk)
  %ended = icmp eq i32 %how, 0
  br i1 %ended, label %recycle, label %park
recycle:
  %oldfree = load ptr, ptr %pfree
  store ptr %oldfree, ptr %pblknext
  store ptr %blk, ptr %pfree
  %r = load i32, ptr %president
  %r1 = sub i32 %r, 1
  store i32 %r1, ptr %president
  br label %poll
park:
  store ptr null, ptr %pblknext
  %oldhead = load ptr, ptr %phead
  %first = icmp eq ptr %oldhead, null
  br i1 %first, label %alone, label %append
alone:
  store ptr %blk, ptr %phead
  store ptr %blk, ptr %ptail
  br label %poll
append:
  %tail = load ptr, ptr %ptail
  %ptailnext = &Block.next %tail
  store ptr %blk, ptr %ptailnext
  store ptr %blk, ptr %ptail
  br label %poll
poll:
  call void @rk_turn(ptr %blk)
  br label %turn
finish:
  call void @rk_finish(ptr %worker)
  unreachable
}

define internal ptr @rk_stack_top(ptr %blk, i32 %w) {
  %pwarps = &Block.warps %blk
  %warps = load ptr, ptr %pwarps
  %warp = getelementptr %Warp, ptr %warps, i32 %w
  %ptop = &Warp.stack_top %warp
  %top = load ptr, ptr %ptop
  ret ptr %top
}
