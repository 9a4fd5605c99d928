; The device heap of kernels whose accesses are compared with the memory they may touch: linked into those that use it.
; Pieces never move and are never joined, so that an address tells its piece; between two there are 16 bytes of no piece.

declare i64 @llvm.ctlz.i64(i64, i1)

; Bytes that a piece of %size takes.
define internal i64 @rk_heap_room(i64 %size) alwaysinline {
  %up = add i64 %size, 15
  %even = and i64 %up, -16
  %small = icmp ule i64 %size, 512
  %less = sub i64 %size, 1
  %zeros = call i64 @llvm.ctlz.i64(i64 %less, i1 false)
  %bits = sub i64 64, %zeros
  %power = shl i64 1, %bits
  %room = select i1 %small, i64 %even, i64 %power
  ret i64 %room
}

; The chain that it belongs to while it is free.
define internal ptr @rk_heap_chain(ptr %heap, i64 %room) alwaysinline {
  %small = icmp ule i64 %room, 512
  %sixteens = lshr i64 %room, 4
  %zeros = call i64 @llvm.ctlz.i64(i64 %room, i1 false)
  %large = sub i64 127, %zeros
  %class = select i1 %small, i64 %sixteens, i64 %large
  %pfree = &Heap.free %heap
  %chain = getelementptr i64, ptr %pfree, i64 %class
  ret ptr %chain
}

define internal void @rk_heap_lock(ptr %heap) {
  %plock = &Heap.lock %heap
  br label %try
try:
  %was = atomicrmw xchg ptr %plock, i64 1 acquire
  %taken = icmp ne i64 %was, 0
  br i1 %taken, label %try, label %mine
mine:
  ret void
}

define internal void @rk_heap_unlock(ptr %heap) {
  %plock = &Heap.lock %heap
  store atomic i64 0, ptr %plock release, align 8
  ret void
}

; malloc: null where there is no room, or more would be held than the limit allows.
define internal i64 @rk_heap_take(ptr %heap, ptr %held, i64 %size) noinline {
  %wants = sub i64 %size, 1
  %sane = icmp ult i64 %wants, 1099511627776
  br i1 %sane, label %count, label %null
count:
  %room = call i64 @rk_heap_room(i64 %size)
  %before = atomicrmw add ptr %held, i64 %size monotonic
  %now = add i64 %before, %size
  %plimit = getelementptr i64, ptr %held, i64 1
  %limit = load i64, ptr %plimit
  %over = icmp ugt i64 %now, %limit
  br i1 %over, label %back, label %search
search:
  %chain = call ptr @rk_heap_chain(ptr %heap, i64 %room)
  %plinks = &Heap.links %heap
  %links = load ptr, ptr %plinks
  %ptable = &Heap.table %heap
  %table = load ptr, ptr %ptable
  call void @rk_heap_lock(ptr %heap)
  %head = load i64, ptr %chain
  %none = icmp eq i64 %head, 0
  br i1 %none, label %fresh, label %again
again:
  %old = sub i64 %head, 1
  %plink = getelementptr i64, ptr %links, i64 %old
  %link = load i64, ptr %plink
  store i64 %link, ptr %chain
  br label %give
fresh:
  %pcount = &Heap.count %heap
  %number = load i64, ptr %pcount
  %pmost = &Heap.most %heap
  %most = load i64, ptr %pmost
  %many = icmp uge i64 %number, %most
  %pnext = &Heap.next %heap
  %next = load i64, ptr %pnext
  %pend = &Heap.end %heap
  %end = load i64, ptr %pend
  %with = add i64 %room, 16
  %behind = add i64 %next, %with
  %full = icmp ugt i64 %behind, %end
  %cannot = or i1 %many, %full
  br i1 %cannot, label %unlock, label %add
add:
  store i64 %behind, ptr %pnext
  %pstart = getelementptr [2 x i64], ptr %table, i64 %number, i64 0
  store i64 %next, ptr %pstart
  %pfirst = getelementptr [2 x i64], ptr %table, i64 %number, i64 1
  store i64 %size, ptr %pfirst
  %more = add i64 %number, 1
  store atomic i64 %more, ptr %pcount release, align 8
  br label %give
give:
  %piece = phi i64 [ %old, %again ], [ %number, %add ]
  %psize = getelementptr [2 x i64], ptr %table, i64 %piece, i64 1
  store atomic i64 %size, ptr %psize monotonic, align 8
  %pat = getelementptr [2 x i64], ptr %table, i64 %piece, i64 0
  %at = load i64, ptr %pat
  call void @rk_heap_unlock(ptr %heap)
  ret i64 %at
unlock:
  call void @rk_heap_unlock(ptr %heap)
  br label %back
back:
  %undone = atomicrmw sub ptr %held, i64 %size monotonic
  br label %null
null:
  ret i64 0
}

; free: false where that is no address that malloc gave, or one that is free already.
define internal i8 @rk_heap_give(ptr %heap, ptr %held, i64 %address) noinline {
  %nothing = icmp eq i64 %address, 0
  br i1 %nothing, label %good, label %search
search:
  %ptable = &Heap.table %heap
  %table = load ptr, ptr %ptable
  %pcount = &Heap.count %heap
  %count = load atomic i64, ptr %pcount acquire, align 8
  %number = call i64 @rk_guard_last(ptr %table, i64 %count, i64 %address)
  %none = icmp eq i64 %number, 0
  br i1 %none, label %bad, label %compare
compare:
  %piece = sub i64 %number, 1
  %pat = getelementptr [2 x i64], ptr %table, i64 %piece, i64 0
  %at = load i64, ptr %pat
  %same = icmp eq i64 %at, %address
  br i1 %same, label %take, label %bad
take:
  call void @rk_heap_lock(ptr %heap)
  %psize = getelementptr [2 x i64], ptr %table, i64 %piece, i64 1
  %size = load i64, ptr %psize
  %free = icmp eq i64 %size, 0
  br i1 %free, label %twice, label %give
give:
  store atomic i64 0, ptr %psize monotonic, align 8
  %room = call i64 @rk_heap_room(i64 %size)
  %chain = call ptr @rk_heap_chain(ptr %heap, i64 %room)
  %plinks = &Heap.links %heap
  %links = load ptr, ptr %plinks
  %plink = getelementptr i64, ptr %links, i64 %piece
  %head = load i64, ptr %chain
  store i64 %head, ptr %plink
  store i64 %number, ptr %chain
  call void @rk_heap_unlock(ptr %heap)
  %before = atomicrmw sub ptr %held, i64 %size monotonic
  br label %good
twice:
  call void @rk_heap_unlock(ptr %heap)
  br label %bad
good:
  ret i8 1
bad:
  ret i8 0
}
