; The scheduler that is linked into every kernel: blocks to workers, warps of a block to their stacks.
;
; An ampersand before Record.field stands for the address of that field of a pointer (records.py holds the layout).
;
; Each worker runs on a stack of its own, so that a launch can return to Python in the middle of a kernel
; (signals, printf, a further block's memory) and go on later. In kernels that can wait, each warp has a
; stack as well; `rk_switch` is the only way from one to another.

declare void @rk_switch(ptr, ptr)
declare void @rk_start()
declare ptr @memcpy(ptr, ptr, i64)
declare ptr @memset(ptr, i32, i64)
declare i32 @clock_gettime(i32, ptr)
declare i32 @llvm.umin.i32(i32, i32)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.fptoui.sat.i64.f64(double)
declare i32 @llvm.ctpop.i32(i32)
declare ptr @llvm.frameaddress.p0(i32)

; Prepare a stack on which `fn(arg)` starts when it is switched to; returns its stack pointer.
define internal ptr @rk_fresh(ptr %top, ptr %fn, ptr %arg) {
  %t = ptrtoint ptr %top to i64
  %aligned = and i64 %t, -64
  %low = sub i64 %aligned, {frame_bytes}
  %sp = inttoptr i64 %low to ptr
  %pfn = getelementptr i8, ptr %sp, i64 {frame_fn}
  store ptr %fn, ptr %pfn
  %parg = getelementptr i8, ptr %sp, i64 {frame_arg}
  store ptr %arg, ptr %parg
  %pret = getelementptr i8, ptr %sp, i64 {frame_return}
  store ptr @rk_start, ptr %pret
  ret ptr %sp
}

define internal i64 @rk_now() {
  %ts = alloca [2 x i64]
  %r = call i32 @clock_gettime(i32 1, ptr %ts)
  %s = load i64, ptr %ts
  %pn = getelementptr i64, ptr %ts, i64 1
  %n = load i64, ptr %pn
  %ns = mul i64 %s, 1000000000
  %now = add i64 %ns, %n
  ret i64 %now
}

; A launch from its grid and the block of parameters, under Python's lock: {DONE}, or what Python has to do: {DECLINED} another
; launch has this target's stacks or it may not run at all, {ROOM} it needs more workers, {UNFINISHED} workers have suspended or
; came late.
define i32 @rk_go(ptr %target, i32 %gx, i32 %gy, i32 %gz, ptr %params, ptr %pointers) {
  %pbusy = &Target.busy %target
  %was = atomicrmw xchg ptr %pbusy, i64 1 seq_cst
  %taken = icmp ne i64 %was, 0
  br i1 %taken, label %declined, label %count
declined:
  ret i32 {DECLINED}
count:
  %gx64 = zext i32 %gx to i64
  %gy64 = zext i32 %gy to i64
  %gz64 = zext i32 %gz to i64
  %gxy = mul i64 %gx64, %gy64
  %blocks = mul i64 %gxy, %gz64
  %pwarps = &Target.nwarps %target
  %warps = load i64, ptr %pwarps
  %work = mul i64 %blocks, %warps
  %pmost = &Target.most_work %target
  %most = load i64, ptr %pmost
  %toomuch = icmp ugt i64 %work, %most
  br i1 %toomuch, label %giveback, label %expect
giveback:
  store i64 0, ptr %pbusy
  ret i32 {DECLINED}
expect:
  %pns = &Target.ns_per_warp %target
  %ns = load double, ptr %pns
  %workf = uitofp i64 %work to double
  %expected = fmul double %workf, %ns
  %long = fcmp ogt double %expected, {SMALL_NS}
  br i1 %long, label %share, label %start
share:
  %several = icmp ugt i64 %blocks, 1
  %phelpers = &Target.helpers %target
  %helpers = load ptr, ptr %phelpers
  %pworth = &Helpers.worth %helpers
  %worth = load double, ptr %pworth
  %great = fcmp ogt double %expected, %worth
  %puntil = &Helpers.until %helpers
  %until = load i64, ptr %puntil
  %now = call i64 @rk_now()
  %over = icmp sge i64 %now, %until
  %helped = or i1 %great, %over
  %can = and i1 %several, %helped
  br i1 %can, label %threads, label %start
threads:
  %pthreads = &Target.thread_count %target
  %threadsp = load ptr, ptr %pthreads
  %object = call ptr %threadsp(ptr null, ptr null)
  %pnumber = &Target.as_long %target
  %numberp = load ptr, ptr %pnumber
  %number = call i64 %numberp(ptr %object)
  %prelease = &Target.release %target
  %releasep = load ptr, ptr %prelease
  call void %releasep(ptr %object)
  %fewer = icmp ult i64 %blocks, %number
  %workers64 = select i1 %fewer, i64 %blocks, i64 %number
  %pworkers = &Target.workers %target
  store i64 %workers64, ptr %pworkers
  %proom = &Target.room %target
  %room = load i64, ptr %proom
  %little = icmp ugt i64 %workers64, %room
  br i1 %little, label %morestacks, label %start
morestacks:
  store i64 0, ptr %pbusy
  ret i32 {ROOM}
start:
  %workers = phi i64 [ 1, %expect ], [ 1, %share ], [ %workers64, %threads ]
  %pworkers2 = &Target.workers %target
  store i64 %workers, ptr %pworkers2
  %plaunch = &Target.launch %target
  %launch = load ptr, ptr %plaunch
  %x = &Launch.grid_x %launch
  store i32 %gx, ptr %x
  %y = &Launch.grid_y %launch
  store i32 %gy, ptr %y
  %z = &Launch.grid_z %launch
  store i32 %gz, ptr %z
  %president = &Target.resident %target
  %limit = load i64, ptr %president
  %cooperative = icmp eq i64 %limit, 0
  %residents = select i1 %cooperative, i64 %blocks, i64 %limit
  %resident = trunc i64 %residents to i32
  %president2 = &Launch.max_resident %launch
  store i32 %resident, ptr %president2
  %pblocks = &Launch.nblocks %launch
  store i64 %blocks, ptr %pblocks
  %blocksf = uitofp i64 %blocks to double
  %smalls = fmul double %blocksf, {SMALL_NS}
  %few = fdiv double %smalls, %expected
  %few64 = call i64 @llvm.fptoui.sat.i64.f64(double %few)
  %part = call i64 @llvm.umin.i64(i64 %few64, i64 %blocks)
  %chunk = call i64 @llvm.umax.i64(i64 %part, i64 1)
  %pchunk = &Launch.chunk %launch
  store i64 %chunk, ptr %pchunk
  %pworked = &Launch.worked %launch
  store i64 0, ptr %pworked
  %plost = &Launch.lost %launch
  store i64 0, ptr %plost
  %workers32 = trunc i64 %workers to i32
  %pn = &Launch.nworkers %launch
  store i32 %workers32, ptr %pn
  %pnext = &Launch.next_worker %launch
  store i32 0, ptr %pnext
  %presuming = &Launch.resuming %launch
  store i32 0, ptr %presuming
  %pfinished = &Launch.finished %launch
  store i32 0, ptr %pfinished
  %psync = &Launch.grid_sync %launch
  %sync = load ptr, ptr %psync
  br i1 %cooperative, label %clear, label %copy
clear:
  %r0 = call ptr @memset(ptr %sync, i32 0, i64 64)
  br label %copy
copy:
  %psize = &Target.params_size %target
  %size = load i64, ptr %psize
  %pto = &Launch.params %launch
  %to = load ptr, ptr %pto
  %r1 = call ptr @memcpy(ptr %to, ptr %params, i64 %size)
  br i1 %long, label %unlock, label %locked
unlock:
  %psave = &Target.save_thread %target
  %savep = load ptr, ptr %psave
  %state = call ptr %savep()
  call void @rk_launch(ptr %launch)
  %prestore = &Target.restore_thread %target
  %restorep = load ptr, ptr %prestore
  call void %restorep(ptr %state)
  br label %ran
locked:
  call void @rk_launch(ptr %launch)
  br label %ran
ran:
  %finished = load i32, ptr %pfinished
  %ended = icmp eq i32 %finished, %workers32
  br i1 %ended, label %learn, label %unfinished
unfinished:
  ret i32 {UNFINISHED}
learn:
  %worked = load i64, ptr %pworked
  %notable = icmp ugt i64 %worked, {SMALL_INT}
  %learns = or i1 %notable, %long
  br i1 %learns, label %update, label %done
update:
  %workedf = uitofp i64 %worked to double
  %each = fdiv double %workedf, %workf
  %difference = fsub double %each, %ns
  %step = fmul double %difference, {RATE}
  %newns = fadd double %ns, %step
  store double %newns, ptr %pns
  %lost = load i64, ptr %plost
  %late = icmp sgt i64 %lost, {LATE_NS}
  br i1 %late, label %unfinished, label %done
done:
  store atomic i64 0, ptr %pbusy release, align 8
  ret i32 {DONE}
}

; A launch: give each worker an equal part of the blocks, and have them all run, on threads that `fork` (GOMP_parallel or
; one like it) brings if there are several; without `fork` none is run.
define internal void @rk_launch(ptr %launch) {
  %pcount = &Launch.nworkers %launch
  %count = load i32, ptr %pcount
  %count64 = zext i32 %count to i64
  %pblocks = &Launch.nblocks %launch
  %blocks = load i64, ptr %pblocks
  %pworkers = &Launch.workers %launch
  %workers = load ptr, ptr %pworkers
  br label %worker
worker:
  %k = phi i64 [ 0, %0 ], [ %k1, %worker ]
  %first = phi i64 [ 0, %0 ], [ %last, %worker ]
  %this = getelementptr %Worker, ptr %workers, i64 %k
  %k1 = add i64 %k, 1
  %part = mul i64 %blocks, %k1
  %last = udiv i64 %part, %count64
  %pnext = &Worker.range_next %this
  store i64 %first, ptr %pnext
  %pend = &Worker.range_end %this
  store i64 %last, ptr %pend
  %more = icmp ult i64 %k1, %count64
  br i1 %more, label %worker, label %start
start:
  %several = icmp ugt i32 %count, 1
  br i1 %several, label %look, label %alone
alone:
  call void @rk_enter(ptr %launch)
  ret void
look:
  %pfork = &Launch.fork %launch
  %fork = load ptr, ptr %pfork
  %can = icmp ne ptr %fork, null
  br i1 %can, label %all, label %cannot
all:
  %begin = call i64 @rk_now()
  call void %fork(ptr @rk_enter, ptr %launch, i32 %count, i32 0)
  br label %check
check:                                            ; OpenMP may have brought fewer threads
  %pentered = &Launch.next_worker %launch
  %entered = load atomic i32, ptr %pentered monotonic, align 4
  %fewer = icmp ult i32 %entered, %count
  br i1 %fewer, label %again, label %done
again:
  call void @rk_enter(ptr %launch)
  br label %check
done:
  %end = call i64 @rk_now()
  %elapsed = sub i64 %end, %begin
  %pworked = &Launch.worked %launch
  %worked = load i64, ptr %pworked
  %lost = sub i64 %elapsed, %worked
  %plost = &Launch.lost %launch
  store i64 %lost, ptr %plost
  ret void
cannot:
  ret void
}

; Entry of every OS thread of a launch: run or resume the next worker until it ends or suspends.
define void @rk_enter(ptr %launch) {
  %pnext = &Launch.next_worker %launch
  %index = atomicrmw add ptr %pnext, i32 1 monotonic
  %pworkers = &Launch.workers %launch
  %workers = load ptr, ptr %pworkers
  %worker = getelementptr %Worker, ptr %workers, i32 %index
  %psp = &Worker.sp %worker
  %presuming = &Launch.resuming %launch
  %resuming = load i32, ptr %presuming
  %isfresh = icmp eq i32 %resuming, 0
  br i1 %isfresh, label %init, label %again
again:
  %pstate = &Worker.state %worker
  %state = load i32, ptr %pstate
  %ended = icmp eq i32 %state, 2
  br i1 %ended, label %out, label %run
init:
  %ptop = &Worker.stack_top %worker
  %top = load ptr, ptr %ptop
  %fresh = call ptr @rk_fresh(ptr %top, ptr @rk_main, ptr %worker)
  store ptr %fresh, ptr %psp
  br label %run
run:
{float_environment_save}
  %now = call i64 @rk_now()
  %pslice = &Launch.slice_ns %launch
  %slice = load i64, ptr %pslice
  %deadline = add i64 %now, %slice
  %pdeadline = &Worker.deadline %worker
  store i64 %deadline, ptr %pdeadline
  %sp = load ptr, ptr %psp
  %pos = &Worker.os_sp %worker
  call void @rk_switch(ptr %pos, ptr %sp)
{float_environment_restore}
  %end = call i64 @rk_now()
  %took = sub i64 %end, %now
  %pworked = &Launch.worked %launch
  %before = atomicrmw add ptr %pworked, i64 %took monotonic
  br label %out
out:
  ret void
}

; Return to Python with a reason; comes back when Python enters again.
define internal void @rk_suspend(ptr %worker, i32 %reason) noinline {
  %preason = &Worker.reason %worker
  store i32 %reason, ptr %preason
  %pstate = &Worker.state %worker
  store i32 1, ptr %pstate
  %psp = &Worker.sp %worker
  %pos = &Worker.os_sp %worker
  %os = load ptr, ptr %pos
  call void @rk_switch(ptr %psp, ptr %os)
  store i32 0, ptr %preason
  ret void
}

define internal void @rk_finish(ptr %worker) noinline {
  %pstate = &Worker.state %worker
  store i32 2, ptr %pstate
  %plaunch = &Worker.launch %worker
  %launch = load ptr, ptr %plaunch
  %pfinished = &Launch.finished %launch
  %before = atomicrmw add ptr %pfinished, i32 1 acq_rel
  %psp = &Worker.sp %worker
  %pos = &Worker.os_sp %worker
  %os = load ptr, ptr %pos
  call void @rk_switch(ptr %psp, ptr %os)
  unreachable
}

; Called now and then by loops and between blocks: give Python its turn when the time slice is over.
define internal void @rk_poll(ptr %blk) noinline {
  %pworker = &Block.worker %blk
  %worker = load ptr, ptr %pworker
  %now = call i64 @rk_now()
  %pdeadline = &Worker.deadline %worker
  %deadline = load i64, ptr %pdeadline
  %over = icmp sgt i64 %now, %deadline
  br i1 %over, label %suspend, label %out
suspend:
  call void @rk_suspend(ptr %worker, i32 0)
  br label %out
out:
  ret void
}

; Ask Python for a service (see runtime.py); arguments stand in the worker's request fields.
define internal void @rk_service(ptr %blk, i32 %reason, i32 %mask, i32 %warp, i32 %site, <32 x i64> %a, <32 x i64> %b) noinline {
  %pworker = &Block.worker %blk
  %worker = load ptr, ptr %pworker
  %pmask = &Worker.request_mask %worker
  store i32 %mask, ptr %pmask
  %pwarp = &Worker.request_warp %worker
  store i32 %warp, ptr %pwarp
  %psite = &Worker.request_site %worker
  store i32 %site, ptr %psite
  %pblk = &Worker.request_block %worker
  store ptr %blk, ptr %pblk
  %pa = &Worker.request_a %worker
  store <32 x i64> %a, ptr %pa, align 8
  %pb = &Worker.request_b %worker
  store <32 x i64> %b, ptr %pb, align 8
  call void @rk_suspend(ptr %worker, i32 %reason)
  ret void
}

; Called by functions that may call themselves: fail before the stack is full.
define internal void @rk_check_stack(ptr %launch, ptr %blk, i32 %w) noinline {
  %top = call ptr @rk_stack_top(ptr %blk, i32 %w)
  %t = ptrtoint ptr %top to i64
  %frame = call ptr @llvm.frameaddress.p0(i32 0)
  %f = ptrtoint ptr %frame to i64
  %used = sub i64 %t, %f
  %proom = &Launch.stack_room %launch
  %room = load i64, ptr %proom
  %over = icmp ugt i64 %used, %room
  br i1 %over, label %fail, label %out
fail:
  call void @rk_service(ptr %blk, i32 {STACK}, i32 0, i32 %w, i32 0, <32 x i64> zeroinitializer, <32 x i64> zeroinitializer)
  br label %out
out:
  ret void
}

; Mask of the lanes of warp %w that hold threads.
define internal i32 @rk_lanes(ptr %launch, i32 %w) alwaysinline {
  %pn = &Launch.nwarps %launch
  %n = load i32, ptr %pn, !invariant.load !1
  %next = add i32 %w, 1
  %last = icmp eq i32 %next, %n
  %pm = &Launch.last_mask %launch
  %m = load i32, ptr %pm, !invariant.load !1
  %mask = select i1 %last, i32 %m, i32 -1
  ret i32 %mask
}

define internal void @rk_place(ptr %launch, ptr %blk, i64 %number) {
  %pgx = &Launch.grid_x %launch
  %gx32 = load i32, ptr %pgx
  %gx = zext i32 %gx32 to i64
  %pgy = &Launch.grid_y %launch
  %gy32 = load i32, ptr %pgy
  %gy = zext i32 %gy32 to i64
  %x = urem i64 %number, %gx
  %rest = udiv i64 %number, %gx
  %y = urem i64 %rest, %gy
  %z = udiv i64 %rest, %gy
  %x32 = trunc i64 %x to i32
  %y32 = trunc i64 %y to i32
  %z32 = trunc i64 %z to i32
  %px = &Block.x %blk
  store i32 %x32, ptr %px
  %py = &Block.y %blk
  store i32 %y32, ptr %py
  %pz = &Block.z %blk
  store i32 %z32, ptr %pz
  ret void
}
