; How a launch begins and ends.

declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.fptoui.sat.i64.f64(double)
declare ptr @memset(ptr, i32, i64)
declare ptr @memcpy(ptr, ptr, i64)

; A launch from its grid and the block of parameters, under Python's lock: {DONE}, or what Python has to do: {DECLINED} another
; launch has this target's stacks or it may not run at all, as of a grid that is not made of whole clusters, {ROOM} it needs more workers, {UNFINISHED} workers have suspended or
; came late. It has the stacks by the address of its pointers, whether they are read or not; that of an unusual launch
; (`Session.usual`) is odd.
define i32 @rk_go(ptr %target, i32 %gx, i32 %gy, i32 %gz, ptr %params, ptr %pointers) {
  %plaunch = &Target.launch %target
  %launch = load ptr, ptr %plaunch
  %pexplicit = &Launch.explicit_cluster %launch
  %explicit = load i32, ptr %pexplicit
  %single = icmp eq i32 %explicit, 0
  br i1 %single, label %take, label %clusters
clusters:
  %pcx = &Launch.cluster_x %launch
  %cx = load i32, ptr %pcx
  %overx = urem i32 %gx, %cx
  %pcy = &Launch.cluster_y %launch
  %cy = load i32, ptr %pcy
  %overy = urem i32 %gy, %cy
  %pcz = &Launch.cluster_z %launch
  %cz = load i32, ptr %pcz
  %overz = urem i32 %gz, %cz
  %overxy = or i32 %overx, %overy
  %over3 = or i32 %overxy, %overz
  %whole = icmp eq i32 %over3, 0
  br i1 %whole, label %take, label %declined
take:
  %pbusy = &Target.busy %target
  %token = ptrtoint ptr %pointers to i64
  %exchanged = cmpxchg ptr %pbusy, i64 0, i64 %token seq_cst seq_cst
  %had = extractvalue { i64, i1 } %exchanged, 1
  br i1 %had, label %count, label %declined
declined:
  ret i32 {DECLINED}
count:
  %gx64 = zext i32 %gx to i64
  %gy64 = zext i32 %gy to i64
  %gz64 = zext i32 %gz to i64
  %gxy = mul i64 %gx64, %gy64
  %every = mul i64 %gxy, %gz64
  %pchosen = &Target.blocks %target
  %chosen = load i64, ptr %pchosen
  %blocks = call i64 @llvm.umin.i64(i64 %every, i64 %chosen)
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
  %number32 = call i32 %threadsp()
  %number = zext i32 %number32 to i64
  %fewer = icmp ult i64 %blocks, %number
  %workers64 = select i1 %fewer, i64 %blocks, i64 %number
  br label %start
start:
  %workers = phi i64 [ 1, %expect ], [ 1, %share ], [ %workers64, %threads ]
  %pworkers = &Target.workers %target
  store i64 %workers, ptr %pworkers
  %proom = &Target.room %target
  %room = load i64, ptr %proom
  %little = icmp ugt i64 %workers, %room
  br i1 %little, label %morestacks, label %begin
morestacks:
  store i64 0, ptr %pbusy
  ret i32 {ROOM}
begin:
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
  %ptold = &Launch.told %launch
  store i64 0, ptr %ptold
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
  %pbegin = &Launch.begin %launch
  %begins = load ptr, ptr %pbegin
  %plain = icmp eq ptr %begins, null
  br i1 %plain, label %prepared, label %prepare
prepare:
  call void %begins(ptr %launch, i64 %token)
  br label %prepared
prepared:
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
  %ptogether = &Launch.together %launch
  %together = load i64, ptr %ptogether
  br label %worker
worker:
  %k = phi i64 [ 0, %0 ], [ %k1, %worker ]
  %first = phi i64 [ 0, %0 ], [ %last, %worker ]
  %this = getelementptr %Worker, ptr %workers, i64 %k
  %k1 = add i64 %k, 1
  %part = mul i64 %blocks, %k1
  %share = udiv i64 %part, %count64
  %apart = urem i64 %share, %together             ; blocks that begin together are not divided
  %last = sub i64 %share, %apart
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
