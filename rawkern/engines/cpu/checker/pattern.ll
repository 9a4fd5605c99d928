; The pattern in uninitialized memory (pattern.py).

; Fill %size bytes, up to the next 16.
define i64 @rk_fill(ptr %start, i64 %size, i64 %value) {
  %some = icmp ne i64 %size, 0
  br i1 %some, label %fill, label %out
fill:
  %v0 = insertelement <8 x i64> poison, i64 %value, i64 0
  %v = shufflevector <8 x i64> %v0, <8 x i64> poison, <8 x i32> zeroinitializer
  %pair = shufflevector <8 x i64> %v, <8 x i64> poison, <2 x i32> zeroinitializer
  %wide = and i64 %size, -64
  %lines = icmp ne i64 %wide, 0
  br i1 %lines, label %line, label %rest
line:
  %at = phi i64 [ 0, %fill ], [ %next, %line ]
  %p = getelementptr i8, ptr %start, i64 %at
  store <8 x i64> %v, ptr %p, align 16
  %next = add i64 %at, 64
  %more = icmp ult i64 %next, %wide
  br i1 %more, label %line, label %rest
rest:
  %from = phi i64 [ 0, %fill ], [ %wide, %line ]
  %left = icmp ult i64 %from, %size
  br i1 %left, label %piece, label %out
piece:
  %at2 = phi i64 [ %from, %rest ], [ %next2, %piece ]
  %p2 = getelementptr i8, ptr %start, i64 %at2
  store <2 x i64> %pair, ptr %p2, align 16
  %next2 = add i64 %at2, 16
  %more2 = icmp ult i64 %next2, %size
  br i1 %more2, label %piece, label %out
out:
  ret i64 0
}

; A block begins: its shared memory, but for what CUDA keeps for itself from %kept to before %beyond. What is less than all
; numbers in one block is greater in the next.
define i64 @rk_begin(ptr %launch, ptr %blk, i64 %kept, i64 %beyond) {
  %px = &Block.x %blk
  %x = load i32, ptr %px
  %low = and i32 %x, 1
  %odd = icmp ne i32 %low, 0
  %value = select i1 %odd, i64 {NEGATIVE}, i64 {POSITIVE}
  %pshared = &Block.shared %blk
  %shared = load ptr, ptr %pshared
  %ptotal = &Launch.shared_total %launch
  %total32 = load i32, ptr %ptotal
  %total = zext i32 %total32 to i64
  %r0 = call i64 @rk_fill(ptr %shared, i64 %kept, i64 %value)
  %after = getelementptr i8, ptr %shared, i64 %beyond
  %rest = sub i64 %total, %beyond
  %r1 = call i64 @rk_fill(ptr %after, i64 %rest, i64 %value)
  ret i64 0
}
