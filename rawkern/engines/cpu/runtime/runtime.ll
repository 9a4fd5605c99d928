; The scheduler: blocks to workers, warps of a block to their stacks. What calls the kernel's body, and what is inlined,
; is in every kernel; the rest is one object file for all (scheduler.py).
;
; An ampersand before Record.field stands for the address of that field of a pointer (records.py holds the layout).
;
; Each worker runs on a stack of its own, so that a launch can return to Python in the middle of a kernel
; (signals, printf, a further block's memory) and go on later. In kernels that can wait, each warp has a
; stack as well; `rk_switch` is the only way from one to another.

declare void @rk_switch(ptr, ptr)
declare void @rk_start()
declare i32 @clock_gettime(i32, ptr)
declare i32 @llvm.umin.i32(i32, i32)
declare i32 @llvm.ctpop.i32(i32)
declare i64 @llvm.ctlz.i64(i64, i1)
declare ptr @llvm.frameaddress.p0(i32)

; Prepare a stack on which `fn(arg)` starts when it is switched to; returns its stack pointer.
define internal ptr @rk_fresh(ptr %top, ptr %fn, ptr %arg) alwaysinline {
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
  %pslice = &Launch.slice %launch
  %slicep = load ptr, ptr %pslice
  %slice = load i64, ptr %slicep
  %deadline = add i64 %now, %slice
  %pdeadline = &Worker.deadline %worker
  store i64 %deadline, ptr %pdeadline
  %pos = &Worker.os_sp %worker
  call void @rk_switch(ptr %pos, ptr %psp)
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
  call void @rk_switch(ptr %psp, ptr %pos)
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
  call void @rk_switch(ptr %psp, ptr %pos)
  unreachable
}

; Called now and then by loops and between blocks: give Python its turn when the time slice is over. A warp that is in a loop
; says which it is, and the loop's site; between blocks both are -1.
define internal void @rk_poll(ptr %blk, i32 %warp, i32 %site) noinline {
  %pworker = &Block.worker %blk
  %worker = load ptr, ptr %pworker
  %now = call i64 @rk_now()
  %pdeadline = &Worker.deadline %worker
  %deadline = load i64, ptr %pdeadline
  %over = icmp sgt i64 %now, %deadline
  br i1 %over, label %suspend, label %out
suspend:
  call void @rk_settle(ptr %blk, i32 %warp)
  %pwarp = &Worker.request_warp %worker
  store i32 %warp, ptr %pwarp
  %psite = &Worker.request_site %worker
  store i32 %site, ptr %psite
  %pblk = &Worker.request_block %worker
  store ptr %blk, ptr %pblk
  call void @rk_suspend(ptr %worker, i32 0)
  br label %out
out:
  ret void
}

; Ask Python for a service (see runtime.py); arguments are in the worker's request fields.
define internal void @rk_service(ptr %blk, i32 %reason, i32 %mask, i32 %warp, i32 %site, <32 x i64> %a, <32 x i64> %b) noinline {
  call void @rk_settle(ptr %blk, i32 %warp)
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
  %pn = &Launch.last_warp %launch
  %n = load i32, ptr %pn, !invariant.load !1
  %last = icmp eq i32 %w, %n
  %pm = &Launch.last_mask %launch
  %m = load i32, ptr %pm, !invariant.load !1
  %mask = select i1 %last, i32 %m, i32 -1
  ret i32 %mask
}

; The block that runs in place of the one of a number, where another order is asked for: from the last to the first, or the
; number is scrambled among so many as have its bits, until it is one of those that are mixed.
define internal i64 @rk_mixed(ptr %order, i64 %nblocks, i64 %claimed) noinline {
  %pwindow = &Order.window %order
  %window = load i64, ptr %pwindow
  %place = urem i64 %claimed, %window
  %base = sub i64 %claimed, %place
  %rest = sub i64 %nblocks, %base
  %n = call i64 @llvm.umin.i64(i64 %rest, i64 %window)
  %top = sub i64 %n, 1
  %alone = icmp eq i64 %top, 0
  br i1 %alone, label %same, label %several
same:
  ret i64 %claimed
several:
  %pf0 = &Order.factor0 %order
  %f0 = load i64, ptr %pf0
  %backwards = icmp eq i64 %f0, 0
  br i1 %backwards, label %back, label %scramble
back:
  %opposite = sub i64 %top, %place
  br label %found
scramble:
  %zeros = call i64 @llvm.ctlz.i64(i64 %top, i1 true)
  %mask = lshr i64 -1, %zeros
  %bits = sub i64 65, %zeros
  %half = lshr i64 %bits, 1
  %pt0 = &Order.term0 %order
  %t0 = load i64, ptr %pt0
  %pf1 = &Order.factor1 %order
  %f1 = load i64, ptr %pf1
  %pt1 = &Order.term1 %order
  %t1 = load i64, ptr %pt1
  %pf2 = &Order.factor2 %order
  %f2 = load i64, ptr %pf2
  %pt2 = &Order.term2 %order
  %t2 = load i64, ptr %pt2
  br label %walk
walk:
  %x = phi i64 [ %place, %scramble ], [ %z, %walk ]
  %x1 = mul i64 %x, %f0
  %x2 = add i64 %x1, %t0
  %x3 = and i64 %x2, %mask
  %x4 = lshr i64 %x3, %half
  %y = xor i64 %x3, %x4
  %y1 = mul i64 %y, %f1
  %y2 = add i64 %y1, %t1
  %y3 = and i64 %y2, %mask
  %y4 = lshr i64 %y3, %half
  %y5 = xor i64 %y3, %y4
  %z1 = mul i64 %y5, %f2
  %z2 = add i64 %z1, %t2
  %z = and i64 %z2, %mask
  %inside = icmp ult i64 %z, %n
  br i1 %inside, label %found, label %walk
found:
  %chosen = phi i64 [ %opposite, %back ], [ %z, %walk ]
  %number = add i64 %base, %chosen
  ret i64 %number
}

; Settle which block runs next, by the number that was claimed; of blocks that begin together, that of the first.
define internal void @rk_place(ptr %launch, ptr %blk, i64 %first) {
  %ptogether = &Launch.together %launch
  %together = load i64, ptr %ptogether
  %alone = icmp eq i64 %together, 1
  br i1 %alone, label %begin, label %cluster
cluster:
  %quotient = udiv i64 %first, %together
  br label %begin
begin:
  %claimed = phi i64 [ %first, %0 ], [ %quotient, %cluster ]
  %porder = &Launch.order %launch
  %order = load ptr, ptr %porder
  %inorder = icmp eq ptr %order, null
  br i1 %inorder, label %known, label %other
other:
  %ptable = &Order.table %order
  %table = load ptr, ptr %ptable
  %none = icmp eq ptr %table, null
  br i1 %none, label %mix, label %take
take:
  %pnumber = getelementptr i64, ptr %table, i64 %claimed
  %chosen = load i64, ptr %pnumber
  br label %known
mix:
  %pblocks = &Launch.nblocks %launch
  %nblocks = load i64, ptr %pblocks
  %count = udiv i64 %nblocks, %together
  %mixed = call i64 @rk_mixed(ptr %order, i64 %count, i64 %claimed)
  br label %known
known:
  %number = phi i64 [ %claimed, %begin ], [ %chosen, %take ], [ %mixed, %mix ]
  %pgx = &Launch.grid_x %launch
  %gx32 = load i32, ptr %pgx
  %gx = zext i32 %gx32 to i64
  %pgy = &Launch.grid_y %launch
  %gy32 = load i32, ptr %pgy
  %gy = zext i32 %gy32 to i64
  br i1 %alone, label %grid, label %clusters
grid:
  %gx1 = urem i64 %number, %gx
  %gx2 = udiv i64 %number, %gx
  %gy1 = urem i64 %gx2, %gy
  %gz1 = udiv i64 %gx2, %gy
  br label %placed
clusters:                                         ; the cluster's place among clusters, and the block's in it
  %pcx = &Launch.cluster_x %launch
  %cx32 = load i32, ptr %pcx
  %cx = zext i32 %cx32 to i64
  %pcy = &Launch.cluster_y %launch
  %cy32 = load i32, ptr %pcy
  %cy = zext i32 %cy32 to i64
  %pcz = &Launch.cluster_z %launch
  %cz32 = load i32, ptr %pcz
  %cz = zext i32 %cz32 to i64
  %prank = &Block.rank %blk
  %rank32 = load i32, ptr %prank
  %rank = zext i32 %rank32 to i64
  %nx = udiv i64 %gx, %cx
  %ny = udiv i64 %gy, %cy
  %fx = urem i64 %number, %nx
  %fx1 = udiv i64 %number, %nx
  %fy = urem i64 %fx1, %ny
  %fz = udiv i64 %fx1, %ny
  %rx = urem i64 %rank, %cx
  %rx1 = udiv i64 %rank, %cx
  %ry = urem i64 %rx1, %cy
  %rz = udiv i64 %rx1, %cy
  %bx = mul i64 %fx, %cx
  %by = mul i64 %fy, %cy
  %bz = mul i64 %fz, %cz
  %ux = add i64 %bx, %rx
  %uy = add i64 %by, %ry
  %uz = add i64 %bz, %rz
  br label %placed
placed:
  %x = phi i64 [ %gx1, %grid ], [ %ux, %clusters ]
  %y = phi i64 [ %gy1, %grid ], [ %uy, %clusters ]
  %z = phi i64 [ %gz1, %grid ], [ %uz, %clusters ]
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
