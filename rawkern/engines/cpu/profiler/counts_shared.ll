; Shared memory, generic addresses, and lanes that access one address (counting.py); linked with counts.ll.

declare i64 @llvm.cttz.i64(i64, i1)
declare i32 @llvm.vector.reduce.umin.v32i32(<32 x i32>)
declare i32 @llvm.vector.reduce.umax.v32i32(<32 x i32>)

; -- shared memory ----------------------------------------------------------------------------------------------------

; Wavefronts of the lanes of %mask, whose accesses fill a row of %banks each: the most in one of them.
define internal i64 @rk_profile_part(<32 x i32> %u, i32 %mask, i32 %banks) {
  %units = alloca [32 x i32]
  %counts = alloca [32 x i8]
  %m = bitcast i32 %mask to <32 x i1>
  store <32 x i32> %u, ptr %units, align 4
  %k0 = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %p0 = getelementptr i32, ptr %units, i32 %k0
  %first = load i32, ptr %p0
  %f0 = insertelement <32 x i32> poison, i32 %first, i64 0
  %f = shufflevector <32 x i32> %f0, <32 x i32> poison, <32 x i32> zeroinitializer
  %known = select <32 x i1> %m, <32 x i32> %u, <32 x i32> %f
  %low = call i32 @llvm.vector.reduce.umin.v32i32(<32 x i32> %known)
  %high = call i32 @llvm.vector.reduce.umax.v32i32(<32 x i32> %known)
  %reach = sub i32 %high, %low
  %near = icmp ult i32 %reach, %banks
  br i1 %near, label %one, label %many
one:
  ret i64 1
many:
  store [32 x i8] zeroinitializer, ptr %counts
  %bits = sub i32 %banks, 1
  br label %each
each:
  %left = phi i32 [ %mask, %many ], [ %rest, %each ]
  %most = phi i8 [ 0, %many ], [ %most1, %each ]
  %k = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %p = getelementptr i32, ptr %units, i32 %k
  %x = load i32, ptr %p
  %x0 = insertelement <32 x i32> poison, i32 %x, i64 0
  %xs = shufflevector <32 x i32> %x0, <32 x i32> poison, <32 x i32> zeroinitializer
  %differ = icmp ne <32 x i32> %u, %xs
  %others = bitcast <32 x i1> %differ to i32
  %rest = and i32 %left, %others
  %bank = and i32 %x, %bits
  %pcount = getelementptr i8, ptr %counts, i32 %bank
  %count = load i8, ptr %pcount
  %count1 = add i8 %count, 1
  store i8 %count1, ptr %pcount
  %higher = icmp ugt i8 %count1, %most
  %most1 = select i1 %higher, i8 %count1, i8 %most
  %more = icmp ne i32 %rest, 0
  br i1 %more, label %each, label %done
done:
  %result = zext i8 %most1 to i64
  ret i64 %result
}

; Shared memory begins at %start. Accesses of 4 bytes and less are one part, longer ones a part for each half or quarter of
; the warp; two parts take a wavefront less where each lane's neighbor, or next but one, is idle or has its address.
define i64 @rk_profile_shared(ptr %slot, i32 %mask, i64 %size, i64 %start, <32 x i64> %a) {
  %addresses = alloca [32 x i64]
  store <32 x i64> %a, ptr %addresses, align 8
  call void @rk_profile_first_stride(ptr %slot, ptr %addresses, i32 %mask)
  %narrow = icmp ult i64 %size, 4
  %unit = select i1 %narrow, i64 4, i64 %size
  %by = call i64 @llvm.cttz.i64(i64 %unit, i1 true)
  %s0 = insertelement <32 x i64> poison, i64 %start, i64 0
  %s = shufflevector <32 x i64> %s0, <32 x i64> poison, <32 x i32> zeroinitializer
  %offsets = sub <32 x i64> %a, %s
  %by0 = insertelement <32 x i64> poison, i64 %by, i64 0
  %bys = shufflevector <32 x i64> %by0, <32 x i64> poison, <32 x i32> zeroinitializer
  %wide = lshr <32 x i64> %offsets, %bys
  %u = trunc <32 x i64> %wide to <32 x i32>
  %parts = lshr i64 %unit, 2
  %parts32 = trunc i64 %parts to i32
  %width = udiv i32 32, %parts32
  %up = sub i32 32, %width
  %base = lshr i32 -1, %up
  %twin1 = shufflevector <32 x i32> %u, <32 x i32> poison, <32 x i32> {NEXT1}
  %twin2 = shufflevector <32 x i32> %u, <32 x i32> poison, <32 x i32> {NEXT2}
  %ne1 = icmp ne <32 x i32> %u, %twin1
  %ne2 = icmp ne <32 x i32> %u, %twin2
  %apart1 = bitcast <32 x i1> %ne1 to i32
  %apart2 = bitcast <32 x i1> %ne2 to i32
  %m = bitcast i32 %mask to <32 x i1>
  %there1 = shufflevector <32 x i1> %m, <32 x i1> poison, <32 x i32> {NEXT1}
  %there2 = shufflevector <32 x i1> %m, <32 x i1> poison, <32 x i32> {NEXT2}
  %mask1 = bitcast <32 x i1> %there1 to i32
  %mask2 = bitcast <32 x i1> %there2 to i32
  %both1 = and i32 %mask, %mask1
  %both2 = and i32 %mask, %mask2
  %bad1 = and i32 %both1, %apart1
  %bad2 = and i32 %both2, %apart2
  br label %each
each:
  %g = phi i32 [ 0, %0 ], [ %g1, %next ]
  %sum = phi i64 [ 0, %0 ], [ %sum2, %next ]
  %ideal = phi i64 [ 0, %0 ], [ %ideal2, %next ]
  %before = phi i32 [ 0, %0 ], [ %own, %next ]
  %at = mul i32 %g, %width
  %group = shl i32 %base, %at
  %own = and i32 %mask, %group
  %none = icmp eq i32 %own, 0
  br i1 %none, label %next, label %count
count:
  %n = call i64 @rk_profile_part(<32 x i32> %u, i32 %own, i32 %width)
  %sum1 = add i64 %sum, %n
  %ideal1 = add i64 %ideal, 1
  %odd0 = and i32 %g, 1
  %odd = icmp ne i32 %odd0, 0
  %two = icmp ne i32 %before, 0
  %pair = and i1 %odd, %two
  %lanes = or i32 %own, %before
  %here1 = and i32 %bad1, %lanes
  %here2 = and i32 %bad2, %lanes
  %fine1 = icmp eq i32 %here1, 0
  %fine2 = icmp eq i32 %here2, 0
  %fine = or i1 %fine1, %fine2
  %less0 = and i1 %pair, %fine
  %less = zext i1 %less0 to i64
  %sum_less = sub i64 %sum1, %less
  %ideal_less = sub i64 %ideal1, %less
  br label %next
next:
  %sum2 = phi i64 [ %sum, %each ], [ %sum_less, %count ]
  %ideal2 = phi i64 [ %ideal, %each ], [ %ideal_less, %count ]
  %g1 = add i32 %g, 1
  %more = icmp ult i32 %g1, %parts32
  br i1 %more, label %each, label %done
done:
  call void @rk_profile_wavefronts(ptr %slot, i64 %sum2, i64 %ideal2)
  %extra = sub i64 %sum2, %ideal2
  %r = call i64 @rk_profile_pattern(ptr %slot, i32 %mask, i64 %extra, i64 %start, <32 x i64> %a)
  ret i64 0
}

; Keep where the lanes of a request are that takes %extra wavefronts too many, if none before took as many.
define i64 @rk_profile_pattern(ptr %slot, i32 %mask, i64 %extra, i64 %start, <32 x i64> %a) {
  %pworst = &Access.worst %slot
  %worst = load i64, ptr %pworst
  %here = add i64 %extra, 1
  %more = icmp ugt i64 %here, %worst
  br i1 %more, label %keep, label %done
keep:
  store i64 %here, ptr %pworst
  %pmask = &Access.mask %slot
  %wide = zext i32 %mask to i64
  store i64 %wide, ptr %pmask
  %s0 = insertelement <32 x i64> poison, i64 %start, i64 0
  %s = shufflevector <32 x i64> %s0, <32 x i64> poison, <32 x i32> zeroinitializer
  %offsets = sub <32 x i64> %a, %s
  %short = trunc <32 x i64> %offsets to <32 x i32>
  %planes = &Access.lanes %slot
  store <32 x i32> %short, ptr %planes, align 4
  br label %done
done:
  ret i64 0
}

define internal void @rk_profile_wavefronts(ptr %slot, i64 %wavefronts, i64 %ideal) alwaysinline {
  %pshared = &Access.shared %slot
  call void @rk_profile_add(ptr %pshared, i64 1)
  %pwavefronts = &Access.wavefronts %slot
  call void @rk_profile_add(ptr %pwavefronts, i64 %wavefronts)
  %pideal = &Access.wavefronts_ideal %slot
  call void @rk_profile_add(ptr %pideal, i64 %ideal)
  ret void
}

; The same where addresses grow by %stride from lane to lane.
define i64 @rk_profile_shared_line(ptr %slot, i32 %mask, i64 %size, i64 %start, i64 %base, i64 %stride) {
  %full = icmp eq i32 %mask, -1
  %same = icmp eq i64 %stride, 0
  %near = icmp eq i64 %stride, %size
  %known = or i1 %same, %near
  %fast = and i1 %full, %known
  br i1 %fast, label %parts, label %lanes
parts:
  %narrow = icmp ult i64 %size, 4
  %words = lshr i64 %size, 2
  %parts0 = select i1 %narrow, i64 1, i64 %words
  %halves = add i64 %parts0, 1
  %half = lshr i64 %halves, 1
  %n = select i1 %same, i64 %half, i64 %parts0
  call void @rk_profile_wavefronts(ptr %slot, i64 %n, i64 %n)
  call void @rk_profile_stride(ptr %slot, i64 %stride)
  ret i64 0
lanes:
  %a = call <32 x i64> @rk_profile_spread(i64 %base, i64 %stride)
  %r = call i64 @rk_profile_shared(ptr %slot, i32 %mask, i64 %size, i64 %start, <32 x i64> %a)
  ret i64 0
}

; -- both ---------------------------------------------------------------------------------------------------------------

; Lanes whose addresses lie in the block's shared memory, %total bytes, and the others.
define i64 @rk_profile_generic(ptr %launch, ptr %slot, i32 %mask, i64 %size, i64 %start, i64 %total, <32 x i64> %a) {
  %s0 = insertelement <32 x i64> poison, i64 %start, i64 0
  %s = shufflevector <32 x i64> %s0, <32 x i64> poison, <32 x i32> zeroinitializer
  %t0 = insertelement <32 x i64> poison, i64 %total, i64 0
  %t = shufflevector <32 x i64> %t0, <32 x i64> poison, <32 x i32> zeroinitializer
  %offsets = sub <32 x i64> %a, %s
  %inside = icmp ult <32 x i64> %offsets, %t
  %bits = bitcast <32 x i1> %inside to i32
  %near = and i32 %mask, %bits
  %far = xor i32 %mask, %near
  %some = icmp ne i32 %near, 0
  br i1 %some, label %shared, label %others
shared:
  %r1 = call i64 @rk_profile_shared(ptr %slot, i32 %near, i64 %size, i64 %start, <32 x i64> %a)
  br label %others
others:
  %rest = icmp ne i32 %far, 0
  br i1 %rest, label %global, label %done
global:
  %r2 = call i64 @rk_profile_global(ptr %launch, ptr %slot, i32 %far, i64 %size, <32 x i64> %a)
  br label %done
done:
  ret i64 0
}

; The most lanes with one address.
define i64 @rk_profile_collisions(ptr %slot, i32 %mask, <32 x i64> %a) {
  %addresses = alloca [32 x i64]
  store <32 x i64> %a, ptr %addresses, align 8
  br label %each
each:
  %left = phi i32 [ %mask, %0 ], [ %rest, %each ]
  %most = phi i32 [ 0, %0 ], [ %most1, %each ]
  %k = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %p = getelementptr i64, ptr %addresses, i32 %k
  %x = load i64, ptr %p
  %x0 = insertelement <32 x i64> poison, i64 %x, i64 0
  %xs = shufflevector <32 x i64> %x0, <32 x i64> poison, <32 x i32> zeroinitializer
  %same = icmp eq <32 x i64> %a, %xs
  %equal = bitcast <32 x i1> %same to i32
  %here = and i32 %left, %equal
  %rest = xor i32 %left, %here
  %count = call i32 @llvm.ctpop.i32(i32 %here)
  %higher = icmp ugt i32 %count, %most
  %most1 = select i1 %higher, i32 %count, i32 %most
  %more = icmp ne i32 %rest, 0
  br i1 %more, label %each, label %done
done:
  %result = zext i32 %most1 to i64
  %pcollisions = &Access.collisions %slot
  call void @rk_profile_add(ptr %pcollisions, i64 %result)
  ret i64 0
}
