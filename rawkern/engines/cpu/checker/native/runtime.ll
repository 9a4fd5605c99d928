; What connects kernels with the checker, which knows 64-bit integers only.

declare i64 @llvm.vector.reduce.umin.v32i64(<32 x i64>)
declare i64 @llvm.vector.reduce.umax.v32i64(<32 x i64>)
declare i64 @llvm.vector.reduce.or.v32i64(<32 x i64>)

; Check the accesses of the lanes %m at the addresses %a; returns those that may go on.
define internal i32 @rk_check(i64 %ck, i64 %blk, i64 %warp, i32 %m, i64 %site, <32 x i64> %a) noinline {
  %pck = inttoptr i64 %ck to ptr
  %pa = &Check.addresses %pck
  store <32 x i64> %a, ptr %pa, align 8
  %punset = &Check.uninitialized %pck
  store i64 0, ptr %punset
  %v = bitcast i32 %m to <32 x i1>
  %up = select <32 x i1> %v, <32 x i64> %a, <32 x i64> splat (i64 -1)
  %low = call i64 @llvm.vector.reduce.umin.v32i64(<32 x i64> %up)
  %down = select <32 x i1> %v, <32 x i64> %a, <32 x i64> zeroinitializer
  %high = call i64 @llvm.vector.reduce.umax.v32i64(<32 x i64> %down)
  %bits = call i64 @llvm.vector.reduce.or.v32i64(<32 x i64> %down)
  %m64 = zext i32 %m to i64
  %ok = call i64 @rk_check_access(i64 %ck, i64 %blk, i64 %warp, i64 %m64, i64 %site, i64 %low, i64 %high, i64 %bits)
  %ok32 = trunc i64 %ok to i32
  ret i32 %ok32
}

; Where other functions' variables may lie.
define i64 @rk_stack_range(i64 %ck, i64 %blk, i64 %warp) noinline {
  %pck = inttoptr i64 %ck to ptr
  %pblk = inttoptr i64 %blk to ptr
  %w = trunc i64 %warp to i32
  %top = call ptr @rk_stack_top(ptr %pblk, i32 %w)
  %topi = ptrtoint ptr %top to i64
  %phigh = &Check.stack_high %pck
  store i64 %topi, ptr %phigh
  %frame = call ptr @llvm.frameaddress.p0(i32 0)
  %framei = ptrtoint ptr %frame to i64
  %plow = &Check.stack_low %pck
  store i64 %framei, ptr %plow
  ret i64 0
}

define internal void @rk_check_cluster_opens(ptr %first) {
  %b = ptrtoint ptr %first to i64
  %r = call i64 @rk_check_cluster_open(i64 %b)
  ret void
}

define internal void @rk_check_operation_left(ptr %blk, i32 %warp, i64 %thread, i64 %site) {
  %b = ptrtoint ptr %blk to i64
  %r = call i64 @rk_check_left(i64 %b, i64 %thread, i64 %site)
  ret void
}

define internal void @rk_check_opens(ptr %blk, i32 %id) {
  %b = ptrtoint ptr %blk to i64
  %i = zext i32 %id to i64
  %r = call i64 @rk_check_open(i64 %b, i64 %i)
  ret void
}
