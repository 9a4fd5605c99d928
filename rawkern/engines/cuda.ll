; A launch through the driver, under Python's lock: {DONE}, or {DECLINED} for what the slow path has to look at.
define i32 @rk_cuda(ptr %target, i32 %gx, i32 %gy, i32 %gz, ptr %params, ptr %pointers) {
  %context = alloca ptr
  %stream = alloca ptr
  %config = alloca [7 x i64]                      ; CUlaunchConfig
  %pforked = &Target.forked %target
  %forkedp = load ptr, ptr %pforked
  %forked = load i64, ptr %forkedp
  %gone = icmp ne i64 %forked, 0
  br i1 %gone, label %declined, label %limit
limit:
  %pmost = &Target.most_blocks %target
  %most = load i64, ptr %pmost
  %limited = icmp ne i64 %most, 0
  br i1 %limited, label %count, label %thread
count:
  %x64 = zext i32 %gx to i64
  %y64 = zext i32 %gy to i64
  %z64 = zext i32 %gz to i64
  %xy = mul i64 %x64, %y64
  %blocks = mul i64 %xy, %z64
  %over = icmp ugt i64 %blocks, %most
  br i1 %over, label %declined, label %thread
thread:                                           ; the kernel's context has to be the thread's
  %pcurrent = &Target.current_context %target
  %current = load ptr, ptr %pcurrent
  %status0 = call i32 %current(ptr %context)
  %found = load ptr, ptr %context
  %pown = &Target.context %target
  %own = load ptr, ptr %pown
  %same = icmp eq ptr %found, %own
  %known = icmp eq i32 %status0, 0
  %ours = and i1 %same, %known
  br i1 %ours, label %ask, label %declined
ask:
  %pstreamof = &Target.stream_of %target
  %streamof = load ptr, ptr %pstreamof
  %pindex = &Target.index %target
  %index = load i32, ptr %pindex
  %status1 = call i32 %streamof(i32 {CUDA}, i32 %index, ptr %stream)
  %has = icmp eq i32 %status1, 0
  br i1 %has, label %fill, label %clear
clear:
  %pclear = &Target.clear %target
  %clearf = load ptr, ptr %pclear
  call void %clearf()
  br label %declined
fill:
  store i32 %gx, ptr %config
  %c1 = getelementptr i32, ptr %config, i64 1
  store i32 %gy, ptr %c1
  %c2 = getelementptr i32, ptr %config, i64 2
  store i32 %gz, ptr %c2
  %pblock = &Target.block_x %target
  %block = load i64, ptr %pblock, align 4         ; x and y
  %c3 = getelementptr i32, ptr %config, i64 3
  store i64 %block, ptr %c3, align 4
  %prest = &Target.block_z %target
  %rest = load i64, ptr %prest, align 4           ; z and the shared memory
  %c5 = getelementptr i32, ptr %config, i64 5
  store i64 %rest, ptr %c5, align 4
  %c8 = getelementptr i64, ptr %config, i64 4
  %handle = load ptr, ptr %stream
  store ptr %handle, ptr %c8
  %pattributes = &Target.attributes %target
  %attributes = load ptr, ptr %pattributes
  %c10 = getelementptr i64, ptr %config, i64 5
  store ptr %attributes, ptr %c10
  %pnumber = &Target.count %target
  %number = load i32, ptr %pnumber
  %c12 = getelementptr i64, ptr %config, i64 6
  store i32 %number, ptr %c12
  %pfunction = &Target.function %target
  %function = load ptr, ptr %pfunction
  %plaunch = &Target.launch %target
  %launch = load ptr, ptr %plaunch
  %psave = &Target.save_thread %target
  %save = load ptr, ptr %psave
  %prestore = &Target.restore_thread %target
  %restore = load ptr, ptr %prestore
  %state = call ptr %save()
  %status2 = call i32 %launch(ptr %config, ptr %function, ptr %pointers, ptr null)
  call void %restore(ptr %state)
  %good = icmp eq i32 %status2, 0
  br i1 %good, label %done, label %declined
done:
  ret i32 {DONE}
declined:
  ret i32 {DECLINED}
}
