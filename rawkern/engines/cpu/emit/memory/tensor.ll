; Tensor copies: how an operation's box lies in the tensor and in shared memory. `%op` has six coordinates (i32), the
; innermost first, from byte 24 on three offsets (i16) of im2col, and from byte 32 on the tensor map
; (`rawkern.arguments.tensor_map`). Bytes move in units of 16, which are not divided in shared memory. A row is what lies
; contiguous: in im2col mode the channels of a pixel.

@rk_tensor_sizes = internal constant [13 x i8] c"\00\01\02\02\03\03\01\02\03\01\02\02\02"

%TensorBox = type { i64, i64, i64, i64, i64 } ; rows; units and bytes of one in shared memory; its first byte; the tensor's bytes

define internal i64 @rk_tensor_shift(ptr %op) alwaysinline {
  %ptype = getelementptr i8, ptr %op, i64 36
  %type = load i8, ptr %ptype
  %at = zext i8 %type to i64
  %p = getelementptr i8, ptr @rk_tensor_sizes, i64 %at
  %shift = load i8, ptr %p
  %wide = zext i8 %shift to i64
  ret i64 %wide
}

; Elements of a box in a dimension: every so many.
define internal i64 @rk_tensor_extent(ptr %op, i64 %k) alwaysinline {
  %box0 = getelementptr i8, ptr %op, i64 120
  %pbox = getelementptr i16, ptr %box0, i64 %k
  %box = load i16, ptr %pbox
  %step0 = getelementptr i8, ptr %op, i64 130
  %pstep = getelementptr i8, ptr %step0, i64 %k
  %step = load i8, ptr %pstep
  %wide = zext i16 %box to i32
  %by = zext i8 %step to i32
  %less = sub i32 %by, 1
  %up = add i32 %wide, %less
  %n = udiv i32 %up, %by
  %result = zext i32 %n to i64
  ret i64 %result
}

define internal i64 @rk_tensor_coordinate(ptr %op, i64 %k) alwaysinline {
  %p = getelementptr i32, ptr %op, i64 %k
  %c = load i32, ptr %p
  %wide = sext i32 %c to i64
  ret i64 %wide
}

define internal i64 @rk_tensor_size(ptr %op, i64 %k) alwaysinline {
  %sizes = getelementptr i8, ptr %op, i64 48
  %p = getelementptr i64, ptr %sizes, i64 %k
  %n = load i64, ptr %p
  ret i64 %n
}

define internal i64 @rk_tensor_swizzle(ptr %op) alwaysinline {
  %p = getelementptr i8, ptr %op, i64 39
  %s = load i8, ptr %p
  %wide = zext i8 %s to i64
  ret i64 %wide
}

define internal %TensorBox @rk_tensor_box(ptr %op) noinline {
  %n0 = call i64 @rk_tensor_extent(ptr %op, i64 0)
  %n1 = call i64 @rk_tensor_extent(ptr %op, i64 1)
  %n2 = call i64 @rk_tensor_extent(ptr %op, i64 2)
  %n3 = call i64 @rk_tensor_extent(ptr %op, i64 3)
  %n4 = call i64 @rk_tensor_extent(ptr %op, i64 4)
  %n12 = mul i64 %n1, %n2
  %n34 = mul i64 %n3, %n4
  %rows = mul i64 %n12, %n34
  %shift = call i64 @rk_tensor_shift(ptr %op)
  %bytes = shl i64 %n0, %shift
  %units = lshr i64 %bytes, 4
  %swizzle = call i64 @rk_tensor_swizzle(ptr %op)
  %none = icmp eq i64 %swizzle, 0
  %span = shl i64 16, %swizzle
  %pitch = select i1 %none, i64 %bytes, i64 %span
  %c0 = call i64 @rk_tensor_coordinate(ptr %op, i64 0)
  %first = shl i64 %c0, %shift
  %size = call i64 @rk_tensor_size(ptr %op, i64 0)
  %length = shl i64 %size, %shift
  %b0 = insertvalue %TensorBox poison, i64 %rows, 0
  %b1 = insertvalue %TensorBox %b0, i64 %units, 1
  %b2 = insertvalue %TensorBox %b1, i64 %pitch, 2
  %b3 = insertvalue %TensorBox %b2, i64 %first, 3
  %b4 = insertvalue %TensorBox %b3, i64 %length, 4
  ret %TensorBox %b4
}

; Where a row's first element would be, whether or not that one is in the tensor; 0 where the row is not.
define internal i64 @rk_tensor_row(ptr %op, i64 %row, i64 %first) noinline {
  %paddress = getelementptr i8, ptr %op, i64 40
  %address = load i64, ptr %paddress
  %strides = getelementptr i8, ptr %op, i64 88
  %steps = getelementptr i8, ptr %op, i64 130
  %mode = call i8 @rk_tensor_mode(ptr %op)
  %tile = icmp eq i8 %mode, 0
  br i1 %tile, label %start, label %pixel
pixel:
  %found = call i64 @rk_tensor_pixel(ptr %op, i64 %row, i64 %first)
  ret i64 %found
start:
  br label %each
each:
  %k = phi i64 [ 1, %start ], [ %k1, %inside ]
  %left = phi i64 [ %row, %start ], [ %rest, %inside ]
  %at = phi i64 [ %address, %start ], [ %at1, %inside ]
  %n = call i64 @rk_tensor_extent(ptr %op, i64 %k)
  %n32 = trunc i64 %n to i32
  %left32 = trunc i64 %left to i32
  %i32 = urem i32 %left32, %n32
  %rest32 = udiv i32 %left32, %n32
  %i = zext i32 %i32 to i64
  %rest = zext i32 %rest32 to i64
  %pstep = getelementptr i8, ptr %steps, i64 %k
  %step8 = load i8, ptr %pstep
  %step = zext i8 %step8 to i64
  %further = mul i64 %i, %step
  %c = call i64 @rk_tensor_coordinate(ptr %op, i64 %k)
  %x = add i64 %c, %further
  %size = call i64 @rk_tensor_size(ptr %op, i64 %k)
  %in = icmp ult i64 %x, %size
  br i1 %in, label %inside, label %outside
inside:
  %before = sub i64 %k, 1
  %pstride = getelementptr i64, ptr %strides, i64 %before
  %stride = load i64, ptr %pstride
  %offset = mul i64 %x, %stride
  %at1 = add i64 %at, %offset
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, 5
  br i1 %more, label %each, label %done
outside:
  ret i64 0
done:
  %result = add i64 %at1, %first
  ret i64 %result
}

define internal i8 @rk_tensor_mode(ptr %op) alwaysinline {
  %p = getelementptr i8, ptr %op, i64 137
  %mode = load i8, ptr %p
  ret i8 %mode
}

; The same in im2col mode. From the coordinates on pixels of a box in the image are visited in steps, the first dimension
; first; each that comes to the box's end goes on at its beginning, where the next one has gone on by a step, and the last
; dimension by one image. The offsets are added at the end, to all of them.
define internal i64 @rk_tensor_pixel(ptr %op, i64 %pixel, i64 %first) noinline {
  %paddress = getelementptr i8, ptr %op, i64 40
  %address = load i64, ptr %paddress
  %offsets = getelementptr i8, ptr %op, i64 24
  %strides = getelementptr i8, ptr %op, i64 88
  %steps = getelementptr i8, ptr %op, i64 130
  %lowers = getelementptr i8, ptr %op, i64 140
  %uppers = getelementptr i8, ptr %op, i64 146
  %prank = getelementptr i8, ptr %op, i64 37
  %rank8 = load i8, ptr %prank
  %rank = zext i8 %rank8 to i64
  %last = sub i64 %rank, 1
  br label %each
each:
  %k = phi i64 [ 1, %0 ], [ %k1, %inside ]
  %count = phi i64 [ %pixel, %0 ], [ %count1, %inside ]
  %at = phi i64 [ %address, %0 ], [ %at1, %inside ]
  %j = sub i64 %k, 1
  %c = call i64 @rk_tensor_coordinate(ptr %op, i64 %k)
  %size = call i64 @rk_tensor_size(ptr %op, i64 %k)
  %pstride = getelementptr i64, ptr %strides, i64 %j
  %stride = load i64, ptr %pstride
  %image = icmp ult i64 %k, %last
  br i1 %image, label %visit, label %end
visit:
  %plower = getelementptr i16, ptr %lowers, i64 %j
  %lower16 = load i16, ptr %plower
  %lower = sext i16 %lower16 to i64
  %pupper = getelementptr i16, ptr %uppers, i64 %j
  %upper16 = load i16, ptr %pupper
  %upper = sext i16 %upper16 to i64
  %less = sub i64 %size, 1
  %high = add i64 %less, %upper
  %behind1 = add i64 %k, 1 ; where it does not divide the box
  %pstep = getelementptr i8, ptr %steps, i64 %behind1
  %step8 = load i8, ptr %pstep
  %step = zext i8 %step8 to i64
  %ahead = sub i64 %high, %c
  %ahead1 = sdiv i64 %ahead, %step
  %ahead2 = add i64 %ahead1, 1
  %here = call i64 @llvm.smax.i64(i64 %ahead2, i64 1)
  %span = sub i64 %high, %lower
  %span1 = sdiv i64 %span, %step
  %span2 = add i64 %span1, 1
  %each1 = call i64 @llvm.smax.i64(i64 %span2, i64 1)
  %early = icmp ult i64 %count, %here
  %further = mul i64 %count, %step
  %direct = add i64 %c, %further
  %beyond = sub i64 %count, %here
  %part = urem i64 %beyond, %each1
  %partly = mul i64 %part, %step
  %again = add i64 %lower, %partly
  %whole = udiv i64 %beyond, %each1
  %turns = add i64 %whole, 1
  %x = select i1 %early, i64 %direct, i64 %again
  %count1 = select i1 %early, i64 0, i64 %turns
  %poffset = getelementptr i16, ptr %offsets, i64 %j
  %offset16 = load i16, ptr %poffset
  %offset = zext i16 %offset16 to i64
  %y = add i64 %x, %offset
  %in = icmp ult i64 %y, %size
  br i1 %in, label %inside, label %outside
inside:
  %bytes = mul i64 %y, %stride
  %at1 = add i64 %at, %bytes
  %k1 = add i64 %k, 1
  br label %each
end:
  %n = add i64 %c, %count
  %there = icmp ult i64 %n, %size
  br i1 %there, label %done, label %outside
done:
  %images = mul i64 %n, %stride
  %row = add i64 %at, %images
  %result = add i64 %row, %first
  ret i64 %result
outside:
  ret i64 0
}

; How many of a unit's bytes are in the tensor, of a row that is: %at is where it begins in a row of the tensor.
define internal i64 @rk_tensor_inside(i64 %at, i64 %length) alwaysinline {
  %left = call i64 @llvm.usub.sat.i64(i64 %length, i64 %at)
  %n = call i64 @llvm.umin.i64(i64 %left, i64 16)
  ret i64 %n
}

; Where a unit lies in shared memory: bits of its address there are exchanged.
define internal i64 @rk_tensor_place(i64 %to, i64 %base, i64 %swizzle, i64 %offset) alwaysinline {
  %relative = sub i64 %to, %base
  %linear = add i64 %relative, %offset
  %high = lshr i64 %linear, 7
  %bit = shl i64 1, %swizzle
  %mask = sub i64 %bit, 1
  %bits = and i64 %high, %mask
  %moved = shl i64 %bits, 4
  %swizzled = xor i64 %linear, %moved
  %result = add i64 %base, %swizzled
  ret i64 %result
}

; What is wrong with an operation, 0 for nothing: an instruction for so many dimensions; `%kinds`: bits of the types.
define internal i64 @rk_tensor_wrong(ptr %op, i64 %to, i64 %base, i64 %rank, i64 %kinds, i8 %mode, i1 %loads) noinline {
  %map = getelementptr i8, ptr %op, i64 32
  %magic = load i32, ptr %map
  %known = icmp eq i32 %magic, {magic}
  br i1 %known, label %made, label %unknown
made:
  %prank = getelementptr i8, ptr %op, i64 37
  %rank8 = load i8, ptr %prank
  %own = zext i8 %rank8 to i64
  %same = icmp eq i64 %own, %rank
  br i1 %same, label %ranked, label %other
ranked:
  %has = call i8 @rk_tensor_mode(ptr %op)
  %meant = icmp eq i8 %has, %mode
  br i1 %meant, label %right, label %unmeant
right:
  %ptype = getelementptr i8, ptr %op, i64 36
  %type8 = load i8, ptr %ptype
  %type = zext i8 %type8 to i64
  %taken = lshr i64 %kinds, %type
  %bit = trunc i64 %taken to i1
  br i1 %bit, label %typed, label %untyped
typed:
  %relative = sub i64 %to, %base
  %low = and i64 %relative, 127
  %aligned = icmp eq i64 %low, 0
  br i1 %aligned, label %placed, label %misplaced
placed:
  %c0 = call i64 @rk_tensor_coordinate(ptr %op, i64 0)
  %shift = call i64 @rk_tensor_shift(ptr %op)
  %first = shl i64 %c0, %shift
  %part = and i64 %first, 15
  %whole = icmp eq i64 %part, 0
  br i1 %whole, label %even, label %uneven
even: ; coordinates beyond the rank are 0
  %c1 = call i64 @rk_tensor_coordinate(ptr %op, i64 1)
  %c2 = call i64 @rk_tensor_coordinate(ptr %op, i64 2)
  %c3 = call i64 @rk_tensor_coordinate(ptr %op, i64 3)
  %c4 = call i64 @rk_tensor_coordinate(ptr %op, i64 4)
  %or1 = or i64 %c0, %c1
  %or2 = or i64 %or1, %c2
  %or3 = or i64 %or2, %c3
  %signs = or i64 %or3, %c4
  %negative = icmp slt i64 %signs, 0
  %stores = xor i1 %loads, true
  %before = and i1 %negative, %stores
  %code = select i1 %before, i64 7, i64 0
  ret i64 %code
uneven:
  ret i64 5
unmeant:
  ret i64 6
unknown:
  ret i64 1
other:
  ret i64 2
untyped:
  ret i64 3
misplaced:
  ret i64 4
}

; Bytes of all units, those outside the tensor among them.
define internal i64 @rk_tensor_bytes(ptr %op) noinline {
  %box = call %TensorBox @rk_tensor_box(ptr %op)
  %rows = extractvalue %TensorBox %box, 0
  %units = extractvalue %TensorBox %box, 1
  %all = mul i64 %rows, %units
  %bytes = shl i64 %all, 4
  ret i64 %bytes
}

; A unit by its number: where it lies in shared memory and in the tensor, and how many of its bytes are there.
define internal void @rk_tensor_unit(ptr %op, i64 %to, i64 %base, i64 %k, i1 %loads, ptr %out) noinline {
  %box = call %TensorBox @rk_tensor_box(ptr %op)
  %units = extractvalue %TensorBox %box, 1
  %pitch = extractvalue %TensorBox %box, 2
  %first = extractvalue %TensorBox %box, 3
  %length = extractvalue %TensorBox %box, 4
  %r = udiv i64 %k, %units
  %u = urem i64 %k, %units
  %row = call i64 @rk_tensor_row(ptr %op, i64 %r, i64 %first)
  %bytes = shl i64 %u, 4
  %down = mul i64 %r, %pitch
  %offset = add i64 %down, %bytes
  %swizzle = call i64 @rk_tensor_swizzle(ptr %op)
  %place = call i64 @rk_tensor_place(i64 %to, i64 %base, i64 %swizzle, i64 %offset)
  %at = add i64 %first, %bytes
  %some = call i64 @rk_tensor_inside(i64 %at, i64 %length)
  %none = icmp eq i64 %row, 0
  %n = select i1 %none, i64 0, i64 %some
  %address = add i64 %row, %bytes
  store i64 %place, ptr %out
  %p1 = getelementptr i64, ptr %out, i64 1
  store i64 %address, ptr %p1
  %p2 = getelementptr i64, ptr %out, i64 2
  store i64 %n, ptr %p2
  ret void
}

; The outermost of a row's units in shared memory: the first, or the last, of those from %u0 to before %u1.
define internal i64 @rk_tensor_outermost(ptr %op, i64 %to, i64 %base, i64 %down, i64 %u0, i64 %u1, i1 %start) noinline {
  %swizzle = call i64 @rk_tensor_swizzle(ptr %op)
  %none = select i1 %start, i64 -1, i64 0
  br label %unit
unit:
  %u = phi i64 [ %u0, %0 ], [ %next, %unit ]
  %best = phi i64 [ %none, %0 ], [ %better, %unit ]
  %ub = shl i64 %u, 4
  %offset = add i64 %down, %ub
  %place = call i64 @rk_tensor_place(i64 %to, i64 %base, i64 %swizzle, i64 %offset)
  %low = call i64 @llvm.umin.i64(i64 %best, i64 %place)
  %high = call i64 @llvm.umax.i64(i64 %best, i64 %place)
  %better = select i1 %start, i64 %low, i64 %high
  %next = add i64 %u, 1
  %more = icmp ult i64 %next, %u1
  br i1 %more, label %unit, label %out
out:
  ret i64 %better
}

; The first row (%start), or the last, that is in the tensor; there has to be one.
define internal i64 @rk_tensor_end(ptr %op, i64 %rows, i1 %start) noinline {
  %last = sub i64 %rows, 1
  %from = select i1 %start, i64 0, i64 %last
  %by = select i1 %start, i64 1, i64 -1
  br label %look
look:
  %r = phi i64 [ %from, %0 ], [ %r1, %look ]
  %row = call i64 @rk_tensor_row(ptr %op, i64 %r, i64 0)
  %r1 = add i64 %r, %by
  %outside = icmp eq i64 %row, 0
  %there = icmp ult i64 %r1, %rows
  %again = and i1 %outside, %there
  br i1 %again, label %look, label %out
out:
  ret i64 %r
}

; Where the first row (%start), or the last, of those in the tensor begins there, in im2col mode; 0 without any.
define internal i64 @rk_tensor_reach(ptr %op, i64 %rows, i1 %start) noinline {
  %none = select i1 %start, i64 -1, i64 0
  br label %look
look:
  %r = phi i64 [ 0, %0 ], [ %r1, %look ]
  %best = phi i64 [ %none, %0 ], [ %better, %look ]
  %row = call i64 @rk_tensor_row(ptr %op, i64 %r, i64 0)
  %outside = icmp eq i64 %row, 0
  %low = call i64 @llvm.umin.i64(i64 %best, i64 %row)
  %high = call i64 @llvm.umax.i64(i64 %best, i64 %row)
  %further = select i1 %start, i64 %low, i64 %high
  %better = select i1 %outside, i64 %best, i64 %further
  %r1 = add i64 %r, 1
  %more = icmp ult i64 %r1, %rows
  br i1 %more, label %look, label %out
out:
  %nothing = icmp eq i64 %better, %none
  %result = select i1 %nothing, i64 0, i64 %better
  ret i64 %result
}

; The same of the first (%k is 0) and the last unit in shared memory of those that a copy touches, which are all if it
; %loads, and the first and the last byte in the tensor.
define internal void @rk_tensor_ends(ptr %op, i64 %to, i64 %base, i64 %k, i1 %loads, ptr %out) noinline {
  %box = call %TensorBox @rk_tensor_box(ptr %op)
  %rows = extractvalue %TensorBox %box, 0
  %units = extractvalue %TensorBox %box, 1
  %pitch = extractvalue %TensorBox %box, 2
  %first = extractvalue %TensorBox %box, 3
  %length = extractvalue %TensorBox %box, 4
  %bytes = shl i64 %units, 4
  %beyond = add i64 %first, %bytes
  %from = call i64 @llvm.smax.i64(i64 %first, i64 0)
  %until = call i64 @llvm.smin.i64(i64 %beyond, i64 %length)
  %some = icmp slt i64 %from, %until
  %final = sub i64 %until, 1
  %start = icmp eq i64 %k, 0
  %byte = select i1 %start, i64 %from, i64 %final
  %paddress = getelementptr i8, ptr %op, i64 40
  %address = load i64, ptr %paddress
  %at0 = add i64 %address, %byte
  %strides = getelementptr i8, ptr %op, i64 88
  %steps = getelementptr i8, ptr %op, i64 130
  %mode = call i8 @rk_tensor_mode(ptr %op)
  %tile = icmp eq i8 %mode, 0
  br i1 %tile, label %box_, label %pixels
pixels:
  %reached0 = call i64 @rk_tensor_reach(ptr %op, i64 %rows, i1 %start)
  %none = icmp eq i64 %reached0, 0
  %visited = xor i1 %none, true
  %touched = and i1 %some, %visited
  %at_pixel = add i64 %reached0, %byte
  br label %done
box_:
  br label %each
each:
  %d = phi i64 [ 1, %box_ ], [ %d1, %each ]
  %at = phi i64 [ %at0, %box_ ], [ %at1, %each ]
  %any = phi i1 [ %some, %box_ ], [ %anywhere, %each ]
  %c = call i64 @rk_tensor_coordinate(ptr %op, i64 %d)
  %n = call i64 @rk_tensor_extent(ptr %op, i64 %d)
  %size = call i64 @rk_tensor_size(ptr %op, i64 %d)
  %pstep = getelementptr i8, ptr %steps, i64 %d
  %step8 = load i8, ptr %pstep
  %step = zext i8 %step8 to i64
  %short = sub i64 0, %c ; elements before the tensor, and how many steps lead into it
  %skip = call i64 @llvm.smax.i64(i64 %short, i64 0)
  %less = sub i64 %step, 1
  %skipup = add i64 %skip, %less
  %low = udiv i64 %skipup, %step
  %room = sub i64 %size, %c
  %fits = sub i64 %room, 1
  %reached = call i64 @llvm.smax.i64(i64 %fits, i64 0)
  %most = udiv i64 %reached, %step
  %n1 = sub i64 %n, 1
  %high = call i64 @llvm.umin.i64(i64 %most, i64 %n1)
  %inside = icmp sgt i64 %room, 0
  %order = icmp ule i64 %low, %high
  %here = and i1 %inside, %order
  %anywhere = and i1 %any, %here
  %i = select i1 %start, i64 %low, i64 %high
  %further = mul i64 %i, %step
  %x = add i64 %c, %further
  %before = sub i64 %d, 1
  %pstride = getelementptr i64, ptr %strides, i64 %before
  %stride = load i64, ptr %pstride
  %offset = mul i64 %x, %stride
  %at1 = add i64 %at, %offset
  %d1 = add i64 %d, 1
  %more = icmp ult i64 %d1, 5
  br i1 %more, label %each, label %done
done:
  %edge_ = phi i64 [ %at1, %each ], [ %at_pixel, %pixels ]
  %any1 = phi i1 [ %anywhere, %each ], [ %touched, %pixels ]
  %p1 = getelementptr i64, ptr %out, i64 1
  store i64 %edge_, ptr %p1
  %p2 = getelementptr i64, ptr %out, i64 2
  %one = zext i1 %any1 to i64
  store i64 %one, ptr %p2
  %p = or i1 %any1, %loads
  br i1 %p, label %touch, label %nothing
touch:
  br i1 %loads, label %whole, label %part
whole:
  %end = sub i64 %rows, 1
  %edge = select i1 %start, i64 0, i64 %end
  br label %placed
part:
  %some1 = call i64 @rk_tensor_end(ptr %op, i64 %rows, i1 %start)
  %skipped = sub i64 %from, %first
  %ustart = lshr i64 %skipped, 4
  %reach = sub i64 %until, %first
  %reachup = add i64 %reach, 15
  %ustop = lshr i64 %reachup, 4
  br label %placed
placed:
  %r = phi i64 [ %edge, %whole ], [ %some1, %part ]
  %u0 = phi i64 [ 0, %whole ], [ %ustart, %part ]
  %u1 = phi i64 [ %units, %whole ], [ %ustop, %part ]
  %down = mul i64 %r, %pitch
  %place = call i64 @rk_tensor_outermost(ptr %op, i64 %to, i64 %base, i64 %down, i64 %u0, i64 %u1, i1 %start)
  store i64 %place, ptr %out
  ret void
nothing:
  store i64 %to, ptr %out
  ret void
}

; Elements of float32 rounded to tf32: to nearest, ties away from zero; one NaN.
define internal <4 x i32> @rk_tensor_tf32(<4 x i32> %x) alwaysinline {
  %magnitude = and <4 x i32> %x, splat (i32 2147483647)
  %nan = icmp ugt <4 x i32> %magnitude, splat (i32 2139095040)
  %up = add <4 x i32> %x, splat (i32 4096)
  %cut = and <4 x i32> %up, splat (i32 -8192)
  %result = select <4 x i1> %nan, <4 x i32> splat (i32 2147475456), <4 x i32> %cut
  ret <4 x i32> %result
}

; What a copy into shared memory has for a unit of which so many bytes are in the tensor.
define internal <4 x i32> @rk_tensor_value(ptr %from, i64 %n, <4 x i32> %fill, i1 %rounds) alwaysinline {
  %room = alloca <4 x i32>
  %whole = icmp eq i64 %n, 16
  br i1 %whole, label %all, label %part
all:
  %x = load <4 x i32>, ptr %from, align 1
  %tx = call <4 x i32> @rk_tensor_tf32(<4 x i32> %x)
  %rx = select i1 %rounds, <4 x i32> %tx, <4 x i32> %x
  ret <4 x i32> %rx
part:
  store <4 x i32> %fill, ptr %room
  call void @llvm.memcpy.p0.p0.i64(ptr %room, ptr %from, i64 %n, i1 false)
  %y = load <4 x i32>, ptr %room
  %ty = call <4 x i32> @rk_tensor_tf32(<4 x i32> %y)
  %n32 = trunc i64 %n to i32
  %n1 = insertelement <4 x i32> poison, i32 %n32, i64 0
  %ns = shufflevector <4 x i32> %n1, <4 x i32> poison, <4 x i32> zeroinitializer
  %in = icmp ult <4 x i32> <i32 0, i32 4, i32 8, i32 12>, %ns
  %ry = select <4 x i1> %in, <4 x i32> %ty, <4 x i32> %y
  %result = select i1 %rounds, <4 x i32> %ry, <4 x i32> %y
  ret <4 x i32> %result
}

define internal void @rk_tensor_load(ptr %entry) noinline {
  %op = getelementptr i64, ptr %entry, i64 {more}
  %pto = getelementptr i64, ptr %entry, i64 {to}
  %to = load i64, ptr %pto
  %pbase = getelementptr i64, ptr %entry, i64 {from}
  %base = load i64, ptr %pbase
  %pbytes = getelementptr i64, ptr %entry, i64 {bytes}
  %bytes = load i64, ptr %pbytes
  %dropped = icmp eq i64 %bytes, 0
  br i1 %dropped, label %out, label %go
go:
  %box = call %TensorBox @rk_tensor_box(ptr %op)
  %rows = extractvalue %TensorBox %box, 0
  %units = extractvalue %TensorBox %box, 1
  %pitch = extractvalue %TensorBox %box, 2
  %first = extractvalue %TensorBox %box, 3
  %length = extractvalue %TensorBox %box, 4
  %swizzle = call i64 @rk_tensor_swizzle(ptr %op)
  %ptype = getelementptr i8, ptr %op, i64 36
  %type = load i8, ptr %ptype
  %rounds = icmp uge i8 %type, 11
  %pfill = getelementptr i8, ptr %op, i64 135
  %fill8 = load i8, ptr %pfill
  %zero = icmp eq i8 %fill8, 0
  %fill = select i1 %zero, <4 x i32> zeroinitializer, <4 x i32> splat (i32 2146926583)
  %plain0 = icmp eq i64 %swizzle, 0
  %exact = xor i1 %rounds, true
  %plain1 = and i1 %plain0, %exact
  %rowbytes = shl i64 %units, 4
  %end = add i64 %first, %rowbytes
  %begins = icmp sge i64 %first, 0
  %ends = icmp sle i64 %end, %length
  %within = and i1 %begins, %ends
  %plain = and i1 %plain1, %within
  br label %each
each:
  %r = phi i64 [ 0, %go ], [ %r1, %next ]
  %row = call i64 @rk_tensor_row(ptr %op, i64 %r, i64 %first)
  %down = mul i64 %r, %pitch
  %none = icmp eq i64 %row, 0
  %there = xor i1 %none, true
  %whole = and i1 %plain, %there
  br i1 %whole, label %copy, label %unit
copy:
  %linear = add i64 %to, %down
  %pl = inttoptr i64 %linear to ptr
  %pr = inttoptr i64 %row to ptr
  call void @llvm.memcpy.p0.p0.i64(ptr %pl, ptr %pr, i64 %rowbytes, i1 false)
  br label %next
unit:
  %u = phi i64 [ 0, %each ], [ %u1, %store ]
  %ub = shl i64 %u, 4
  %offset = add i64 %down, %ub
  %place = call i64 @rk_tensor_place(i64 %to, i64 %base, i64 %swizzle, i64 %offset)
  %at = add i64 %first, %ub
  %some = call i64 @rk_tensor_inside(i64 %at, i64 %length)
  %n = select i1 %none, i64 0, i64 %some
  %nothing = icmp eq i64 %n, 0
  br i1 %nothing, label %store, label %read
read:
  %address = add i64 %row, %ub
  %from = inttoptr i64 %address to ptr
  %got = call <4 x i32> @rk_tensor_value(ptr %from, i64 %n, <4 x i32> %fill, i1 %rounds)
  br label %store
store:
  %value = phi <4 x i32> [ %fill, %unit ], [ %got, %read ]
  %pplace = inttoptr i64 %place to ptr
  store <4 x i32> %value, ptr %pplace, align 16
  %u1 = add i64 %u, 1
  %again = icmp ult i64 %u1, %units
  br i1 %again, label %unit, label %next
next:
  %r1 = add i64 %r, 1
  %more = icmp ult i64 %r1, %rows
  br i1 %more, label %each, label %out
out:
  ret void
}

; What is done to units in the tensor, with their address there, their place in shared memory and bytes to be written:
; all of a unit that is there in part, as a GPU does it, up to the end of the memory.
define internal void @rk_tensor_each(ptr %entry, ptr %does) noinline {
  %op = getelementptr i64, ptr %entry, i64 {more}
  %pto = getelementptr i64, ptr %entry, i64 {to}
  %to = load i64, ptr %pto
  %pbase = getelementptr i64, ptr %entry, i64 {from}
  %base = load i64, ptr %pbase
  %pbytes = getelementptr i64, ptr %entry, i64 {bytes}
  %bytes = load i64, ptr %pbytes
  %dropped = icmp eq i64 %bytes, 0
  br i1 %dropped, label %out, label %go
go:
  %box = call %TensorBox @rk_tensor_box(ptr %op)
  %rows = extractvalue %TensorBox %box, 0
  %units = extractvalue %TensorBox %box, 1
  %pitch = extractvalue %TensorBox %box, 2
  %first = extractvalue %TensorBox %box, 3
  %length = extractvalue %TensorBox %box, 4
  %swizzle = call i64 @rk_tensor_swizzle(ptr %op)
  %pend = getelementptr i8, ptr %op, i64 152
  %end = load i64, ptr %pend
  br label %each
each:
  %r = phi i64 [ 0, %go ], [ %r1, %next ]
  %row = call i64 @rk_tensor_row(ptr %op, i64 %r, i64 %first)
  %down = mul i64 %r, %pitch
  %none = icmp eq i64 %row, 0
  br i1 %none, label %next, label %unit
unit:
  %u = phi i64 [ 0, %each ], [ %u1, %done ]
  %ub = shl i64 %u, 4
  %at = add i64 %first, %ub
  %some = call i64 @rk_tensor_inside(i64 %at, i64 %length)
  %nothing = icmp eq i64 %some, 0
  br i1 %nothing, label %done, label %write
write:
  %offset = add i64 %down, %ub
  %place = call i64 @rk_tensor_place(i64 %to, i64 %base, i64 %swizzle, i64 %offset)
  %address = add i64 %row, %ub
  %left = sub i64 %end, %address
  %n = call i64 @llvm.umin.i64(i64 %left, i64 16)
  call void %does(i64 %address, i64 %place, i64 %n, ptr %op)
  br label %done
done:
  %u1 = add i64 %u, 1
  %again = icmp ult i64 %u1, %units
  br i1 %again, label %unit, label %next
next:
  %r1 = add i64 %r, 1
  %more = icmp ult i64 %r1, %rows
  br i1 %more, label %each, label %out
out:
  ret void
}

define internal void @rk_tensor_write(i64 %address, i64 %place, i64 %n, ptr %op) {
  %to = inttoptr i64 %address to ptr
  %from = inttoptr i64 %place to ptr
  %whole = icmp eq i64 %n, 16
  br i1 %whole, label %all, label %part
all:
  %x = load i128, ptr %from, align 16
  store i128 %x, ptr %to, align 16
  ret void
part:
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %n, i1 false)
  ret void
}

define internal void @rk_tensor_store(ptr %entry) noinline {
  call void @rk_tensor_each(ptr %entry, ptr @rk_tensor_write)
  ret void
}
