; What happens where one comparison does not tell that an access stays inside its memory (guard.py). Each lane of %mask
; accesses %size bytes at its address, a multiple of %align + 1. %service is the kernel's rk_service.

declare i32 @llvm.cttz.i32(i32, i1)
declare i64 @llvm.ctlz.i64(i64, i1)
declare i64 @llvm.vector.reduce.umin.v32i64(<32 x i64>)
declare i64 @llvm.vector.reduce.umax.v32i64(<32 x i64>)
declare i64 @llvm.vector.reduce.or.v32i64(<32 x i64>)

; The lanes' addresses from the first one's and what they grow by.
define internal <32 x i64> @rk_guard_spread(i64 %base, i64 %stride) {
  %b0 = insertelement <32 x i64> poison, i64 %base, i64 0
  %b = shufflevector <32 x i64> %b0, <32 x i64> poison, <32 x i32> zeroinitializer
  %s0 = insertelement <32 x i64> poison, i64 %stride, i64 0
  %s = shufflevector <32 x i64> %s0, <32 x i64> poison, <32 x i32> zeroinitializer
  %steps = mul <32 x i64> %s, {LANES}
  %a = add <32 x i64> %b, %steps
  ret <32 x i64> %a
}

; Accesses near lanes' addresses, as a constant of the kernel says it (guard.Guard._table).
define i64 @rk_guard(ptr %blk, i32 %w, i32 %mask, ptr %table, <32 x i64> %a) {
  %pworker = &Block.worker %blk
  %worker = load ptr, ptr %pworker
  %plaunch = &Worker.launch %worker
  %launch = load ptr, ptr %plaunch
  %pservice = &Touched.service %table
  %service = load ptr, ptr %pservice
  %ppitch = &Touched.pitch %table
  %pitch = load i64, ptr %ppitch
  %prows = &Touched.rows %table
  %pcount = &Touched.count %table
  %count = load i64, ptr %pcount
  %pknown = &Touched.kind %table
  %kind = load i64, ptr %pknown
  %pwrites = &Touched.writes %table
  %writes64 = load i64, ptr %pwrites
  %writes = icmp ne i64 %writes64, 0
  %range = call [2 x i64] @rk_guard_range(ptr %launch, ptr %blk, i32 %w, ptr %table)
  %low = extractvalue [2 x i64] %range, 0
  %extent = extractvalue [2 x i64] %range, 1
  %some = icmp ne i64 %kind, 0
  %first = icmp eq i64 %kind, {FIRST}
  %given = icmp ne i64 %extent, 0
  %must = select i1 %first, i1 %given, i1 true
  %known = and i1 %some, %must                      ; where the memory has to lie
  %b0 = insertelement <32 x i32> poison, i32 %mask, i64 0
  %b = shufflevector <32 x i32> %b0, <32 x i32> poison, <32 x i32> zeroinitializer
  %bits = and <32 x i32> %b, {BITS}
  %on = icmp ne <32 x i32> %bits, zeroinitializer
  br label %one
one:
  %k = phi i64 [ 0, %0 ], [ %k1, %next ]
  %poffset = getelementptr [4 x i64], ptr %prows, i64 %k, i64 0
  %offset = load i64, ptr %poffset
  %psize = getelementptr [4 x i64], ptr %prows, i64 %k, i64 1
  %size = load i64, ptr %psize
  %palign = getelementptr [4 x i64], ptr %prows, i64 %k, i64 2
  %align = load i64, ptr %palign
  %psite = getelementptr [4 x i64], ptr %prows, i64 %k, i64 3
  %site64 = load i64, ptr %psite
  %site = trunc i64 %site64 to i32
  %o0 = insertelement <32 x i64> poison, i64 %offset, i64 0
  %o = shufflevector <32 x i64> %o0, <32 x i64> poison, <32 x i32> zeroinitializer
  %at = add <32 x i64> %a, %o
  br i1 %known, label %lanes, label %span
span:                                             ; mostly all lie in one piece of memory
  %lows = select <32 x i1> %on, <32 x i64> %at, <32 x i64> splat (i64 -1)
  %low1 = call i64 @llvm.vector.reduce.umin.v32i64(<32 x i64> %lows)
  %highs = select <32 x i1> %on, <32 x i64> %at, <32 x i64> zeroinitializer
  %high1 = call i64 @llvm.vector.reduce.umax.v32i64(<32 x i64> %highs)
  %any = call i64 @llvm.vector.reduce.or.v32i64(<32 x i64> %highs)
  %low_bits = and i64 %any, %align
  %aligned = icmp eq i64 %low_bits, 0
  %far = sub i64 %high1, %low1
  %near = icmp ult i64 %far, 1099511627776
  %simple = and i1 %aligned, %near
  br i1 %simple, label %search, label %lanes
search:
  %bytes = add i64 %far, %size
  %found = call i1 @rk_guard_find(ptr %launch, ptr %blk, i64 %low1, i64 %bytes, i1 false, i1 %writes, i32 -1, i64 0)
  br i1 %found, label %note, label %lanes
note:
  %precent = &Touched.recent %table
  %recent = load i64, ptr %precent
  call void @rk_guard_note(ptr %launch, i64 %low1, i64 %bytes, i1 %writes, i64 %recent)
  br label %next
lanes:
  call void @rk_guard_lanes(ptr %launch, ptr %blk, i32 %w, i32 %mask, i32 %site, i64 %size, i64 %align, i1 %known, i1 %writes, i64 %low, i64 %extent, i64 %pitch, <32 x i64> %at, ptr %service)
  br label %next
next:
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %count
  br i1 %more, label %one, label %done
done:
  ret i64 0
}

; The same for addresses that grow from lane to lane.
define i64 @rk_guard_line(ptr %blk, i32 %w, i32 %mask, ptr %table, i64 %base) {
  %pstride = &Touched.stride %table
  %stride = load i64, ptr %pstride
  %a = call <32 x i64> @rk_guard_spread(i64 %base, i64 %stride)
  %r = call i64 @rk_guard(ptr %blk, i32 %w, i32 %mask, ptr %table, <32 x i64> %a)
  ret i64 %r
}

; The same where what grows has 32 bits.
define i64 @rk_guard_wide(ptr %blk, i32 %w, i32 %mask, ptr %table, i64 %offset, i32 %inner) {
  %pstride = &Touched.stride %table
  %stride = load i64, ptr %pstride
  %pscale = &Touched.scale %table
  %scale = load i64, ptr %pscale
  %psigned = &Touched.signed %table
  %signed = load i64, ptr %psigned
  %inner64 = zext i32 %inner to i64
  %lanes64 = call <32 x i64> @rk_guard_spread(i64 %inner64, i64 %stride)
  %lanes = trunc <32 x i64> %lanes64 to <32 x i32>
  %s = sext <32 x i32> %lanes to <32 x i64>
  %u = zext <32 x i32> %lanes to <32 x i64>
  %is = icmp ne i64 %signed, 0
  %x = select i1 %is, <32 x i64> %s, <32 x i64> %u
  %c0 = insertelement <32 x i64> poison, i64 %scale, i64 0
  %c = shufflevector <32 x i64> %c0, <32 x i64> poison, <32 x i32> zeroinitializer
  %scaled = mul <32 x i64> %x, %c
  %start = call <32 x i64> @rk_guard_spread(i64 %offset, i64 0)
  %a = add <32 x i64> %scaled, %start
  %r = call i64 @rk_guard(ptr %blk, i32 %w, i32 %mask, ptr %table, <32 x i64> %a)
  ret i64 %r
}

; The same where it is certain that a lane is outside: Python ends the launch.
define i64 @rk_guard_fails(ptr %blk, i32 %w, i32 %mask, ptr %table, <32 x i64> %a) noreturn {
  br label %again
again:
  %r = call i64 @rk_guard(ptr %blk, i32 %w, i32 %mask, ptr %table, <32 x i64> %a)
  br label %again
}

; Start and size of the memory that is meant; lane 0's own where each has its own.
define internal [2 x i64] @rk_guard_range(ptr %launch, ptr %blk, i32 %w, ptr %table) {
  %pkind = &Touched.kind %table
  %kind = load i64, ptr %pkind
  %pstart = &Touched.start %table
  %start = load i64, ptr %pstart
  %psize = &Touched.size %table
  %size = load i64, ptr %psize
  switch i64 %kind, label %unknown [ i64 {SHARED}, label %shared i64 {LOCAL}, label %local i64 {VARIABLE}, label %variable i64 {PARAM}, label %param i64 {FIRST}, label %param ]
unknown:
  ret [2 x i64] zeroinitializer
shared:
  %pshared = &Block.shared %blk
  %shared_at = load i64, ptr %pshared
  %ptotal = &Launch.shared_total %launch
  %total32 = load i32, ptr %ptotal
  %total = zext i32 %total32 to i64
  %rest = sub i64 %total, %start
  %dynamic = icmp eq i64 %size, 0
  %shared_size = select i1 %dynamic, i64 %rest, i64 %size
  br label %known
local:                                            ; of the call under way
  %pheads = &Block.session %blk
  %heads = load ptr, ptr %pheads
  %phead = getelementptr i64, ptr %heads, i32 %w
  %head = load ptr, ptr %phead
  %plow = &Frame.low %head
  %frame = load i64, ptr %plow
  br label %known
variable:
  %pglobals = &Launch.globals %launch
  %globals = load i64, ptr %pglobals
  br label %known
param:                                            ; its address and its extent stand among the parameters
  %pparams = &Launch.params %launch
  %params = load ptr, ptr %pparams
  %paddress = getelementptr i8, ptr %params, i64 %start
  %address = load i64, ptr %paddress
  %pextent = getelementptr i8, ptr %params, i64 %size
  %extent = load i64, ptr %pextent
  %given0 = insertvalue [2 x i64] poison, i64 %address, 0
  %given = insertvalue [2 x i64] %given0, i64 %extent, 1
  ret [2 x i64] %given
known:
  %base = phi i64 [ %shared_at, %shared ], [ %frame, %local ], [ %globals, %variable ]
  %bytes = phi i64 [ %shared_size, %shared ], [ %size, %local ], [ %size, %variable ]
  %low = add i64 %base, %start
  %found0 = insertvalue [2 x i64] poison, i64 %low, 0
  %found = insertvalue [2 x i64] %found0, i64 %bytes, 1
  ret [2 x i64] %found
}

define internal void @rk_guard_lanes(ptr %launch, ptr %blk, i32 %w, i32 %mask, i32 %site, i64 %size, i64 %align, i1 %known, i1 %writes, i64 %low, i64 %extent, i64 %pitch, <32 x i64> %a, ptr %service) {
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
  br i1 %inside, label %next, label %elsewhere
elsewhere:                                        ; no extent: of a number, or of what Python alone knows
  %settled = icmp ne i64 %extent, 0
  %exact = and i1 %known, %settled
  br i1 %exact, label %fails, label %search
search:
  %found = call i1 @rk_guard_find(ptr %launch, ptr %blk, i64 %address, i64 %size, i1 %known, i1 %writes, i32 %w, i64 %k64)
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
  call void %service(ptr %blk, i32 {BOUNDS}, i32 %bad, i32 %w, i32 %site, <32 x i64> %a, <32 x i64> %starts)
  call void @rk_guard_lanes(ptr %launch, ptr %blk, i32 %w, i32 %bad, i32 %site, i64 %size, i64 %align, i1 %known, i1 %writes, i64 %low, i64 %extent, i64 %pitch, <32 x i64> %a, ptr %service)
  br label %done
done:
  ret void
}

; Whether an access lies in memory of the launch that it may touch, and write if it %writes: that Python has told of, or,
; unless it is %known where it has to be, that of an argument, a variable or a call under way, the block's shared memory or
; memory from malloc. A warp %w of -1 stands for lanes together, whose own variables are not looked at.
define internal i1 @rk_guard_find(ptr %launch, ptr %blk, i64 %address, i64 %size, i1 %known, i1 %writes, i32 %w, i64 %lane) {
  %psession = &Launch.session %launch
  %session = load i64, ptr %psession
  %memory = inttoptr i64 %session to ptr
  %pcount = &Launch.told %launch
  %told = load i64, ptr %pcount
  %pread = &Memory.told %memory
  %pwritten = &Memory.told_writable %memory
  %pranges = select i1 %writes, ptr %pwritten, ptr %pread
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
  br i1 %here1, label %yes, label %cluster
cluster:                                          ; or that of another block of the cluster
  %pfirst = &Block.first %blk
  %first = load ptr, ptr %pfirst
  %ptogether = &Launch.together %launch
  %together = load i64, ptr %ptogether
  %pwindow = &Launch.window %launch
  %window = load i64, ptr %pwindow
  %pfirst_shared = &Block.shared %first
  %windows = load i64, ptr %pfirst_shared
  %into = sub i64 %address, %windows
  %rank = lshr i64 %into, %window
  %known_rank = icmp ult i64 %rank, %together
  %before_it = shl i64 %rank, %window
  %its = add i64 %windows, %before_it
  %there = call i1 @rk_guard_in(i64 %its, i64 %total, i64 %address, i64 %size)
  %beside = and i1 %known_rank, %there
  br i1 %beside, label %yes, label %variables
variables:
  %pcount2 = &Memory.nvariables %memory
  %count2 = load i64, ptr %pcount2
  %pvariables_read = &Memory.variables %memory
  %pvariables_written = &Memory.variables_writable %memory
  %pvariables = select i1 %writes, ptr %pvariables_written, ptr %pvariables_read
  %variables_at = load ptr, ptr %pvariables
  %here2 = call i1 @rk_guard_among(ptr %variables_at, i64 %count2, i64 %address, i64 %size)
  br i1 %here2, label %yes, label %calls
calls:
  %pheads = &Block.session %blk
  %heads = load i64, ptr %pheads
  %some = icmp ne i64 %heads, 0
  %single = icmp ne i32 %w, -1
  %framed = and i1 %some, %single
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
  %which = select i1 %writes, i64 8, i64 0
  br label %pointer
pointer:
  %k = phi i64 [ 0, %parameters ], [ %k1, %other ]
  %end = icmp eq i64 %k, %count3
  br i1 %end, label %no, label %one
one:                                              ; where among the parameters an address and its extents stand
  %pplace = getelementptr [2 x i64], ptr %pointers, i64 %k, i64 0
  %place = load i64, ptr %pplace
  %pextent_at = getelementptr [2 x i64], ptr %pointers, i64 %k, i64 1
  %extent_at = load i64, ptr %pextent_at
  %paddress = getelementptr i8, ptr %params, i64 %place
  %low = load i64, ptr %paddress
  %extents = getelementptr i8, ptr %params, i64 %extent_at
  %pextent = getelementptr i8, ptr %extents, i64 %which
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

; Have an access, by its number, compared the next time first with the row of what Python has told of in which this one was found, if it was
; there: rows are the launch's own, and `begin` forgets them.
define internal void @rk_guard_note(ptr %launch, i64 %address, i64 %size, i1 %writes, i64 %access) {
  %psession = &Launch.session %launch
  %session = load i64, ptr %psession
  %memory = inttoptr i64 %session to ptr
  %pbegin = &Launch.begin %launch
  %begin = load ptr, ptr %pbegin
  %never = icmp eq ptr %begin, null
  br i1 %never, label %done, label %search
search:
  %pcount = &Launch.told %launch
  %told = load i64, ptr %pcount
  %pread = &Memory.told %memory
  %pwritten = &Memory.told_writable %memory
  %pranges = select i1 %writes, ptr %pwritten, ptr %pread
  %ranges = load ptr, ptr %pranges
  %number = call i64 @rk_guard_last(ptr %ranges, i64 %told, i64 %address)
  %here = call i1 @rk_guard_among(ptr %ranges, i64 %told, i64 %address, i64 %size)
  br i1 %here, label %put, label %done
put:
  %precent = &Memory.recent %memory
  %recent = load ptr, ptr %precent
  %slot = getelementptr i64, ptr %recent, i64 %access
  store atomic i64 %number, ptr %slot monotonic, align 8
  br label %done
done:
  ret void
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
define internal i1 @rk_guard_among(ptr %ranges, i64 %count, i64 %address, i64 %size) {
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
define internal i64 @rk_guard_last(ptr %ranges, i64 %count, i64 %address) {
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
  %beyond = icmp ule i64 %start, %address
  %next = add i64 %middle, 1
  %first1 = select i1 %beyond, i64 %next, i64 %first
  %after1 = select i1 %beyond, i64 %after, i64 %middle
  br label %halve
found:
  ret i64 %first
}

; The device heap. Pieces never move and are never joined, so that an address tells its piece; between two there are 16
; bytes of no piece.

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
define i64 @rk_heap_take(ptr %heap, ptr %held, i64 %size) {
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
  %beyond = add i64 %next, %with
  %full = icmp ugt i64 %beyond, %end
  %cannot = or i1 %many, %full
  br i1 %cannot, label %unlock, label %add
add:
  store i64 %beyond, ptr %pnext
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

; free: false where that is not an address that malloc gave, or one that is free already.
define i64 @rk_heap_give(ptr %heap, ptr %held, i64 %address) {
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
  ret i64 1
bad:
  ret i64 0
}
