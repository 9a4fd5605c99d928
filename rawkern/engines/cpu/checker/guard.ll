; Linked into every kernel whose accesses are compared with the memory they may touch (bounds.py): what happens where one
; comparison does not do. Each lane of %mask accesses %size bytes at its address, a multiple of %align + 1.

declare i32 @llvm.cttz.i32(i32, i1)

; The lanes' addresses from the first one's and what they grow by.
define internal <32 x i64> @rk_guard_spread(i64 %base, i64 %stride) cold noinline {
  %b0 = insertelement <32 x i64> poison, i64 %base, i64 0
  %b = shufflevector <32 x i64> %b0, <32 x i64> poison, <32 x i32> zeroinitializer
  %s0 = insertelement <32 x i64> poison, i64 %stride, i64 0
  %s = shufflevector <32 x i64> %s0, <32 x i64> poison, <32 x i32> zeroinitializer
  %steps = mul <32 x i64> %s, {LANES}
  %a = add <32 x i64> %b, %steps
  ret <32 x i64> %a
}

; Accesses near the lanes' addresses: %table has the offset, size, alignment less one, and site of each.
define internal void @rk_guard(ptr %launch, ptr %blk, i32 %w, i32 %mask, i1 %known, i64 %low, i64 %extent, i64 %pitch, <32 x i64> %a, ptr %table, i64 %count) cold noinline {
  br label %one
one:
  %k = phi i64 [ 0, %0 ], [ %k1, %one ]
  %poffset = getelementptr [4 x i64], ptr %table, i64 %k, i64 0
  %offset = load i64, ptr %poffset
  %psize = getelementptr [4 x i64], ptr %table, i64 %k, i64 1
  %size = load i64, ptr %psize
  %palign = getelementptr [4 x i64], ptr %table, i64 %k, i64 2
  %align = load i64, ptr %palign
  %psite = getelementptr [4 x i64], ptr %table, i64 %k, i64 3
  %site64 = load i64, ptr %psite
  %site = trunc i64 %site64 to i32
  %o0 = insertelement <32 x i64> poison, i64 %offset, i64 0
  %o = shufflevector <32 x i64> %o0, <32 x i64> poison, <32 x i32> zeroinitializer
  %at = add <32 x i64> %a, %o
  call void @rk_guard_lanes(ptr %launch, ptr %blk, i32 %w, i32 %mask, i32 %site, i64 %size, i64 %align, i1 %known, i64 %low, i64 %extent, i64 %pitch, <32 x i64> %at)
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %count
  br i1 %more, label %one, label %done
done:
  ret void
}

define internal void @rk_guard_lanes(ptr %launch, ptr %blk, i32 %w, i32 %mask, i32 %site, i64 %size, i64 %align, i1 %known, i64 %low, i64 %extent, i64 %pitch, <32 x i64> %a) cold noinline {
  %addresses = alloca [32 x i64]
  store <32 x i64> %a, ptr %addresses, align 8
  %enough = icmp uge i64 %extent, %size
  %may = and i1 %known, %enough
  %last = sub i64 %extent, %size
  br label %lane
lane:
  %left = phi i32 [ %mask, %0 ], [ %rest, %next ]
  %bad = phi i32 [ 0, %0 ], [ %bad1, %next ]
  %over = icmp eq i32 %left, 0
  br i1 %over, label %all, label %test
test:
  %k = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %k64 = zext i32 %k to i64
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %pa = getelementptr i64, ptr %addresses, i32 %k
  %address = load i64, ptr %pa
  %low_bits = and i64 %address, %align
  %aligned = icmp eq i64 %low_bits, 0
  br i1 %aligned, label %range, label %fails
range:
  %ahead = mul i64 %pitch, %k64
  %start = add i64 %low, %ahead
  %offset = sub i64 %address, %start
  %inside0 = icmp ule i64 %offset, %last
  %inside = and i1 %may, %inside0
  br i1 %inside, label %next, label %search
search:
  %found = call i1 @rk_guard_find(ptr %launch, ptr %blk, i64 %address, i64 %size, i1 %known, i32 %w, i64 %k64)
  br i1 %found, label %next, label %fails
fails:
  %bit = shl i32 1, %k
  %bad0 = or i32 %bad, %bit
  br label %next
next:
  %bad1 = phi i32 [ %bad, %range ], [ %bad, %search ], [ %bad0, %fails ]
  br label %lane
all:
  %fine = icmp eq i32 %bad, 0
  br i1 %fine, label %done, label %ask
ask:                                              ; Python ends the launch, or adds the memory to the launch's
  %starts = call <32 x i64> @rk_guard_spread(i64 %low, i64 %pitch)
  call void @rk_service(ptr %blk, i32 {BOUNDS}, i32 %bad, i32 %w, i32 %site, <32 x i64> %a, <32 x i64> %starts)
  call void @rk_guard_lanes(ptr %launch, ptr %blk, i32 %w, i32 %bad, i32 %site, i64 %size, i64 %align, i1 %known, i64 %low, i64 %extent, i64 %pitch, <32 x i64> %a)
  br label %done
done:
  ret void
}

; Whether an access lies in memory of the launch: that Python has told of, or, unless it is %known where it has to be, that
; of an argument, a variable or a call under way, the block's shared memory or memory from malloc.
define internal i1 @rk_guard_find(ptr %launch, ptr %blk, i64 %address, i64 %size, i1 %known, i32 %w, i64 %lane) cold noinline {
  %psession = &Launch.session %launch
  %session = load i64, ptr %psession
  %memory = inttoptr i64 %session to ptr
  %pcount = &Launch.told %launch
  %told = load i64, ptr %pcount
  %pranges = &Memory.told %memory
  %ranges = load ptr, ptr %pranges
  %here0 = call i1 @rk_guard_among(ptr %ranges, i64 %told, i64 %address, i64 %size)
  %over = or i1 %here0, %known
  br i1 %over, label %answer, label %shared
shared:
  %ptotal = &Launch.shared_total %launch
  %total32 = load i32, ptr %ptotal
  %total = zext i32 %total32 to i64
  %pshared = &Block.shared %blk
  %shared_at = load i64, ptr %pshared
  %here1 = call i1 @rk_guard_in(i64 %shared_at, i64 %total, i64 %address, i64 %size)
  br i1 %here1, label %yes, label %variables
variables:
  %pcount2 = &Memory.nvariables %memory
  %count2 = load i64, ptr %pcount2
  %pvariables = &Memory.variables %memory
  %variables_at = load ptr, ptr %pvariables
  %here2 = call i1 @rk_guard_among(ptr %variables_at, i64 %count2, i64 %address, i64 %size)
  br i1 %here2, label %yes, label %calls
calls:
  %pheads = &Block.session %blk
  %heads = load i64, ptr %pheads
  %framed = icmp ne i64 %heads, 0
  br i1 %framed, label %frames, label %heap
frames:
  %heads_at = inttoptr i64 %heads to ptr
  %phead = getelementptr i64, ptr %heads_at, i32 %w
  %head = load i64, ptr %phead
  br label %frame
frame:
  %node = phi i64 [ %head, %frames ], [ %before, %frame_at ]
  %outermost = icmp eq i64 %node, 0
  br i1 %outermost, label %heap, label %frame_at
frame_at:
  %frame_p = inttoptr i64 %node to ptr
  %pbefore = &Frame.before %frame_p
  %before = load i64, ptr %pbefore
  %plow4 = &Frame.low %frame_p
  %low4 = load i64, ptr %plow4
  %psize4 = &Frame.size %frame_p
  %size4 = load i64, ptr %psize4
  %ahead4 = mul i64 %size4, %lane
  %own4 = add i64 %low4, %ahead4
  %here4 = call i1 @rk_guard_in(i64 %own4, i64 %size4, i64 %address, i64 %size)
  br i1 %here4, label %yes, label %frame
heap:
  %pheap = &Memory.heap %memory
  %heap_p = load ptr, ptr %pheap
  %ppieces = &Heap.table %heap_p
  %pieces = load ptr, ptr %ppieces
  %pcount5 = &Heap.count %heap_p
  %count5 = load atomic i64, ptr %pcount5 acquire, align 8
  %here5 = call i1 @rk_guard_among(ptr %pieces, i64 %count5, i64 %address, i64 %size)
  br i1 %here5, label %yes, label %parameters
parameters:
  %pparams = &Launch.params %launch
  %params = load ptr, ptr %pparams
  %pcount3 = &Memory.npointers %memory
  %count3 = load i64, ptr %pcount3
  %ppointers = &Memory.pointers %memory
  %pointers = load ptr, ptr %ppointers
  br label %pointer
pointer:
  %k = phi i64 [ 0, %parameters ], [ %k1, %other ]
  %end = icmp eq i64 %k, %count3
  br i1 %end, label %no, label %one
one:                                              ; where among the parameters an address and its extent stand
  %pplace = getelementptr [2 x i64], ptr %pointers, i64 %k, i64 0
  %place = load i64, ptr %pplace
  %pextent_at = getelementptr [2 x i64], ptr %pointers, i64 %k, i64 1
  %extent_at = load i64, ptr %pextent_at
  %paddress = getelementptr i8, ptr %params, i64 %place
  %low = load i64, ptr %paddress
  %pextent = getelementptr i8, ptr %params, i64 %extent_at
  %extent = load i64, ptr %pextent
  %here3 = call i1 @rk_guard_in(i64 %low, i64 %extent, i64 %address, i64 %size)
  br i1 %here3, label %yes, label %other
other:
  %k1 = add i64 %k, 1
  br label %pointer
answer:
  ret i1 %here0
yes:
  ret i1 true
no:
  ret i1 false
}

define internal i1 @rk_guard_in(i64 %low, i64 %extent, i64 %address, i64 %size) alwaysinline {
  %offset = sub i64 %address, %low
  %enough = icmp uge i64 %extent, %size
  %last = sub i64 %extent, %size
  %near = icmp ule i64 %offset, %last
  %in = and i1 %enough, %near
  ret i1 %in
}

; Whether one of %count ranges in order, each a start and a length, holds %size bytes at an address.
define internal i1 @rk_guard_among(ptr %ranges, i64 %count, i64 %address, i64 %size) cold noinline {
  %number = call i64 @rk_guard_last(ptr %ranges, i64 %count, i64 %address)
  %none = icmp eq i64 %number, 0
  br i1 %none, label %no, label %candidate
candidate:
  %before = sub i64 %number, 1
  %pl = getelementptr [2 x i64], ptr %ranges, i64 %before, i64 0
  %low = load i64, ptr %pl
  %pe = getelementptr [2 x i64], ptr %ranges, i64 %before, i64 1
  %extent = load i64, ptr %pe
  %in = call i1 @rk_guard_in(i64 %low, i64 %extent, i64 %address, i64 %size)
  ret i1 %in
no:
  ret i1 false
}

; How many of them start at an address or before it.
define internal i64 @rk_guard_last(ptr %ranges, i64 %count, i64 %address) cold noinline {
  br label %halve
halve:
  %first = phi i64 [ 0, %0 ], [ %first1, %look ]
  %after = phi i64 [ %count, %0 ], [ %after1, %look ]
  %done = icmp uge i64 %first, %after
  br i1 %done, label %found, label %look
look:
  %sum = add i64 %first, %after
  %middle = lshr i64 %sum, 1
  %pm = getelementptr [2 x i64], ptr %ranges, i64 %middle, i64 0
  %start = load i64, ptr %pm
  %behind = icmp ule i64 %start, %address
  %next = add i64 %middle, 1
  %first1 = select i1 %behind, i64 %next, i64 %first
  %after1 = select i1 %behind, i64 %after, i64 %middle
  br label %halve
found:
  ret i64 %first
}
