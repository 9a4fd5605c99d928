; What a warp's addresses take (counting.py): each lane of %mask, of which there is one at least, accesses %size bytes, a
; power of two, at its address, a multiple of that. An access of 16 bytes or less lies in one sector and one line.

declare i32 @llvm.cttz.i32(i32, i1)
declare i32 @llvm.ctpop.i32(i32)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

define internal void @rk_profile_add(ptr %at, i64 %more) alwaysinline {
  %old = load i64, ptr %at
  %new = add i64 %old, %more
  store i64 %new, ptr %at
  ret void
}

define internal <32 x i64> @rk_profile_spread(i64 %base, i64 %stride) alwaysinline {
  %b0 = insertelement <32 x i64> poison, i64 %base, i64 0
  %b = shufflevector <32 x i64> %b0, <32 x i64> poison, <32 x i32> zeroinitializer
  %s0 = insertelement <32 x i64> poison, i64 %stride, i64 0
  %s = shufflevector <32 x i64> %s0, <32 x i64> poison, <32 x i32> zeroinitializer
  %steps = mul <32 x i64> %s, {LANES}
  %a = add <32 x i64> %b, %steps
  ret <32 x i64> %a
}

; The range that an address lies in.
define internal ptr @rk_profile_range(ptr %launch, i64 %address) {
  %psession = &Launch.session %launch
  %session = load i64, ptr %psession
  %profile = inttoptr i64 %session to ptr
  %pranges = &Profile.ranges %profile
  %first = load ptr, ptr %pranges
  br label %look
look:
  %row = phi ptr [ %first, %0 ], [ %following, %look ]
  %pstart = &Range.start %row
  %start = load i64, ptr %pstart
  %psize = &Range.size %row
  %size = load i64, ptr %psize
  %offset = sub i64 %address, %start
  %here = icmp ult i64 %offset, %size
  %following = getelementptr %Range, ptr %row, i64 1
  br i1 %here, label %found, label %look
found:
  ret ptr %row
}

; Sectors from that of an address on are touched.
define internal void @rk_profile_mark(ptr %row, i64 %address, i64 %count) {
  %pmap = &Range.map %row
  %map = load ptr, ptr %pmap
  %none = icmp eq ptr %map, null
  br i1 %none, label %done, label %find
find:
  %pstart = &Range.start %row
  %start = load i64, ptr %pstart
  %pshift = &Range.shift %row
  %shift = load i64, ptr %pshift
  %low = add i64 %start, %shift
  %low_sector = lshr i64 %low, 5
  %at = add i64 %address, %shift
  %at_sector = lshr i64 %at, 5
  %begin = sub i64 %at_sector, %low_sector
  br label %each
each:
  %k = phi i64 [ 0, %find ], [ %k1, %each ]
  %number = add i64 %begin, %k
  %byte = getelementptr i8, ptr %map, i64 %number
  store i8 1, ptr %byte
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %count
  br i1 %more, label %each, label %done
done:
  ret void
}

define internal i64 @rk_profile_ideal(i32 %mask, i64 %size) alwaysinline {
  %lanes32 = call i32 @llvm.ctpop.i32(i32 %mask)
  %lanes = zext i32 %lanes32 to i64
  %bytes = mul i64 %lanes, %size
  %above = add i64 %bytes, 31
  %ideal = lshr i64 %above, 5
  ret i64 %ideal
}

define internal void @rk_profile_stride(ptr %slot, i64 %stride) alwaysinline {
  %plow = &Access.low %slot
  %low = load i64, ptr %plow
  %low1 = call i64 @llvm.smin.i64(i64 %low, i64 %stride)
  store i64 %low1, ptr %plow
  %phigh = &Access.high %slot
  %high = load i64, ptr %phigh
  %high1 = call i64 @llvm.smax.i64(i64 %high, i64 %stride)
  store i64 %high1, ptr %phigh
  ret void
}

; The same for the first two of the lanes whose addresses are in an array.
define internal void @rk_profile_first_stride(ptr %slot, ptr %addresses, i32 %mask) {
  %less = sub i32 %mask, 1
  %rest = and i32 %mask, %less
  %single = icmp eq i32 %rest, 0
  br i1 %single, label %done, label %two
two:
  %k0 = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %k1 = call i32 @llvm.cttz.i32(i32 %rest, i1 true)
  %p0 = getelementptr i64, ptr %addresses, i32 %k0
  %p1 = getelementptr i64, ptr %addresses, i32 %k1
  %a0 = load i64, ptr %p0
  %a1 = load i64, ptr %p1
  %apart = sub i64 %a1, %a0
  %lanes32 = sub i32 %k1, %k0
  %lanes = zext i32 %lanes32 to i64
  %stride = sdiv i64 %apart, %lanes
  call void @rk_profile_stride(ptr %slot, i64 %stride)
  br label %done
done:
  ret void
}

; How many values the lanes have between them.
define internal i64 @rk_profile_distinct(<32 x i64> %v, i32 %mask) {
  %values = alloca [32 x i64]
  store <32 x i64> %v, ptr %values, align 8
  br label %each
each:
  %left = phi i32 [ %mask, %0 ], [ %rest, %each ]
  %n = phi i64 [ 0, %0 ], [ %n1, %each ]
  %k = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %p = getelementptr i64, ptr %values, i32 %k
  %x = load i64, ptr %p
  %x0 = insertelement <32 x i64> poison, i64 %x, i64 0
  %xs = shufflevector <32 x i64> %x0, <32 x i64> poison, <32 x i32> zeroinitializer
  %same = icmp ne <32 x i64> %v, %xs
  %others = bitcast <32 x i1> %same to i32
  %rest = and i32 %left, %others
  %n1 = add i64 %n, 1
  %more = icmp ne i32 %rest, 0
  br i1 %more, label %each, label %done
done:
  ret i64 %n1
}

; -- global memory ----------------------------------------------------------------------------------------------------

define i64 @rk_profile_global(ptr %launch, ptr %slot, i32 %mask, i64 %size, <32 x i64> %a) {
  %addresses = alloca [32 x i64]
  store <32 x i64> %a, ptr %addresses, align 8
  call void @rk_profile_first_stride(ptr %slot, ptr %addresses, i32 %mask)
  %k0 = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %p0 = getelementptr i64, ptr %addresses, i32 %k0
  %first = load i64, ptr %p0
  %row = call ptr @rk_profile_range(ptr %launch, i64 %first)
  %pshift = &Range.shift %row
  %shift = load i64, ptr %pshift
  %s0 = insertelement <32 x i64> poison, i64 %shift, i64 0
  %s = shufflevector <32 x i64> %s0, <32 x i64> poison, <32 x i32> zeroinitializer
  %there = add <32 x i64> %a, %s
  %v = lshr <32 x i64> %there, splat (i64 5)
  br label %each
each:
  %left = phi i32 [ %mask, %0 ], [ %rest, %next ]
  %n = phi i64 [ 0, %0 ], [ %n1, %next ]
  %k = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %p = getelementptr i64, ptr %addresses, i32 %k
  %address = load i64, ptr %p
  %at = add i64 %address, %shift
  %x = lshr i64 %at, 5
  %x0 = insertelement <32 x i64> poison, i64 %x, i64 0
  %xs = shufflevector <32 x i64> %x0, <32 x i64> poison, <32 x i32> zeroinitializer
  %differ = icmp ne <32 x i64> %v, %xs
  %others = bitcast <32 x i1> %differ to i32
  %rest = and i32 %left, %others
  %n1 = add i64 %n, 1
  %pstart = &Range.start %row
  %start = load i64, ptr %pstart
  %plength = &Range.size %row
  %length = load i64, ptr %plength
  %offset = sub i64 %address, %start
  %inside = icmp ult i64 %offset, %length
  br i1 %inside, label %mark, label %elsewhere
mark:
  call void @rk_profile_mark(ptr %row, i64 %address, i64 1)
  br label %next
elsewhere:
  %other = call ptr @rk_profile_range(ptr %launch, i64 %address)
  call void @rk_profile_mark(ptr %other, i64 %address, i64 1)
  br label %next
next:
  %more = icmp ne i32 %rest, 0
  br i1 %more, label %each, label %done
done:
  %line = lshr <32 x i64> %there, splat (i64 7)
  %lines = call i64 @rk_profile_distinct(<32 x i64> %line, i32 %mask)
  %ideal = call i64 @rk_profile_ideal(i32 %mask, i64 %size)
  %before32 = zext i32 %k0 to i64
  %before = mul i64 %before32, %size              ; of idle lanes, if all were contiguous
  %begin0 = add i64 %first, %shift
  %begin = sub i64 %begin0, %before
  call void @rk_profile_sum(ptr %slot, i64 %n1, i64 %ideal, i64 %lines, i64 %begin)
  ret i64 0
}

define internal void @rk_profile_sum(ptr %slot, i64 %sectors, i64 %ideal, i64 %lines, i64 %begin) alwaysinline {
  %prequests = &Access.requests %slot
  call void @rk_profile_add(ptr %prequests, i64 1)
  %psectors = &Access.sectors %slot
  call void @rk_profile_add(ptr %psectors, i64 %sectors)
  %pideal = &Access.ideal %slot
  call void @rk_profile_add(ptr %pideal, i64 %ideal)
  %plines = &Access.lines %slot
  call void @rk_profile_add(ptr %plines, i64 %lines)
  %pmisaligned = &Access.misaligned %slot
  %bits = and i64 %begin, 31
  %known = load i64, ptr %pmisaligned
  %now = or i64 %known, %bits
  store i64 %now, ptr %pmisaligned
  ret void
}

; The same where addresses grow by %stride from lane to lane.
define i64 @rk_profile_global_line(ptr %launch, ptr %slot, i32 %mask, i64 %size, i64 %base, i64 %stride) {
  %full = icmp eq i32 %mask, -1
  %near = icmp eq i64 %stride, %size
  %fast = and i1 %full, %near
  br i1 %fast, label %neighbors, label %others
neighbors:
  %bytes = shl i64 %size, 5
  %row = call ptr @rk_profile_range(ptr %launch, i64 %base)
  %pshift = &Range.shift %row
  %shift = load i64, ptr %pshift
  %begin = add i64 %base, %shift
  %after = add i64 %begin, %bytes
  %last = sub i64 %after, 1
  %sector0 = lshr i64 %begin, 5
  %sector1 = lshr i64 %last, 5
  %apart = sub i64 %sector1, %sector0
  %sectors = add i64 %apart, 1
  %line0 = lshr i64 %begin, 7
  %line1 = lshr i64 %last, 7
  %lines_apart = sub i64 %line1, %line0
  %lines = add i64 %lines_apart, 1
  call void @rk_profile_mark(ptr %row, i64 %base, i64 %sectors)
  call void @rk_profile_sum(ptr %slot, i64 %sectors, i64 %size, i64 %lines, i64 %begin)
  call void @rk_profile_stride(ptr %slot, i64 %stride)
  ret i64 0
others:
  %same = icmp eq i64 %stride, 0
  br i1 %same, label %one, label %lanes
one:
  %row1 = call ptr @rk_profile_range(ptr %launch, i64 %base)
  %pshift1 = &Range.shift %row1
  %shift1 = load i64, ptr %pshift1
  %begin1 = add i64 %base, %shift1
  %ideal1 = call i64 @rk_profile_ideal(i32 %mask, i64 %size)
  call void @rk_profile_mark(ptr %row1, i64 %base, i64 1)
  call void @rk_profile_sum(ptr %slot, i64 1, i64 %ideal1, i64 1, i64 %begin1)
  call void @rk_profile_stride(ptr %slot, i64 0)
  ret i64 0
lanes:
  %a = call <32 x i64> @rk_profile_spread(i64 %base, i64 %stride)
  %r = call i64 @rk_profile_global(ptr %launch, ptr %slot, i32 %mask, i64 %size, <32 x i64> %a)
  ret i64 0
}

; -- local memory: words of 32 bits of all lanes are contiguous -----------------------------------------------------------

; A call's variables begin at %low for lane 0, and %pitch bytes further for each lane.
define i64 @rk_profile_local(ptr %slot, i32 %mask, i64 %size, i64 %low, i64 %pitch, <32 x i64> %a) {
  %starts = call <32 x i64> @rk_profile_spread(i64 %low, i64 %pitch)
  %offsets = sub <32 x i64> %a, %starts
  %words = lshr <32 x i64> %offsets, splat (i64 2)
  %rows = shl <32 x i64> %words, splat (i64 2)
  %quarters = lshr <32 x i64> {LANES}, splat (i64 3)
  %sectors = add <32 x i64> %rows, %quarters
  %n = call i64 @rk_profile_distinct(<32 x i64> %sectors, i32 %mask)
  %lines = call i64 @rk_profile_distinct(<32 x i64> %words, i32 %mask)
  %above = add i64 %size, 3
  %each = lshr i64 %above, 2
  %sum = mul i64 %n, %each
  %sum_lines = mul i64 %lines, %each
  %ideal = call i64 @rk_profile_ideal(i32 %mask, i64 %size)
  call void @rk_profile_sum(ptr %slot, i64 %sum, i64 %ideal, i64 %sum_lines, i64 0)
  ret i64 0
}
