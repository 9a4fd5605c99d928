; Workers of kernels whose warps never wait, or in rounds: each block's warps run one after the other on the worker's stack.
; A worker has a range of blocks of its own, so that from launch to launch the same core's cache holds the same data.

; Blocks that are neighbors in x, from %start to before %end. This is a function of its own, so that the loops around small
; kernels have all registers; what the warps share is passed by value, as it would be read again after each store.
define internal void @rk_row(ptr %launch, ptr %blk, i32 %start, i32 %end, i32 %y, i32 %z) noinline {
  %pwarps = &Launch.nwarps %launch
  %nwarps = load i32, ptr %pwarps
  %plast = &Launch.last_mask %launch
  %last = load i32, ptr %plast
  %lastwhole = icmp eq i32 %last, -1
  %plastwarp = &Launch.last_warp %launch
  %lastwarp = load i32, ptr %plastwarp
  %partial = select i1 %lastwhole, i32 -1, i32 %lastwarp      ; the warp without all lanes, which lacks the highest
  %part = and i32 %last, 2147483647
  %px = &Block.x %blk
  br label %block
block:
  %x = phi i32 [ %start, %0 ], [ %xnext, %block ]
  store i32 %x, ptr %px
  {block_begins}
  call void @rk_block(ptr %launch, ptr %blk, i32 %nwarps, i32 %partial, i32 %part, i32 %x, i32 %y, i32 %z)
  %xnext = add i32 %x, 1
  %again = icmp ult i32 %xnext, %end
  br i1 %again, label %block, label %done
done:
  ret void
}

define internal void @rk_main(ptr %worker) {
  %plaunch = &Worker.launch %worker
  %launch = load ptr, ptr %plaunch
  %pblk = &Worker.free_blocks %worker
  %blk = load ptr, ptr %pblk
  %pchunk = &Launch.chunk %launch
  %chunk = load i64, ptr %pchunk
  %pgx = &Launch.grid_x %launch
  %gx = load i32, ptr %pgx
  %px = &Block.x %blk
  %py = &Block.y %blk
  %pz = &Block.z %blk
  %pcount = &Launch.nworkers %launch
  %count = load i32, ptr %pcount
  %porder = &Launch.order %launch
  %order = load ptr, ptr %porder
  %inorder = icmp eq ptr %order, null
  %pworkers = &Launch.workers %launch
  %workers = load ptr, ptr %pworkers
  %pself = &Worker.index %worker
  %self = load i32, ptr %pself
  %pcode = &Launch.code %launch
  %run = load ptr, ptr %pcode
  %pdue = alloca i64                              ; blocks until the next look at the clock
  store i64 64, ptr %pdue
  br label %victim
victim:                                           ; its own blocks first, then what the others have left
  %tried = phi i32 [ 0, %0 ], [ %tried1, %exhausted ]
  %number0 = add i32 %self, %tried
  %wraps = icmp uge i32 %number0, %count
  %number1 = sub i32 %number0, %count
  %whose = select i1 %wraps, i32 %number1, i32 %number0
  %from = getelementptr %Worker, ptr %workers, i32 %whose
  %pnext = &Worker.range_next %from
  %pend = &Worker.range_end %from
  %rangeend = load i64, ptr %pend
  br label %take
take:
  %first = atomicrmw add ptr %pnext, i64 %chunk monotonic
  %end = add i64 %first, %chunk
  %clip = icmp ult i64 %end, %rangeend
  %stop = select i1 %clip, i64 %end, i64 %rangeend
  %none = icmp uge i64 %first, %rangeend
  br i1 %none, label %exhausted, label %place
exhausted:
  %tried1 = add i32 %tried, 1
  %over = icmp uge i32 %tried1, %count
  br i1 %over, label %finish, label %victim
place:
  %number = phi i64 [ %first, %take ], [ %beyond, %place ]
  call void @rk_place(ptr %launch, ptr %blk, i64 %number)
  %x = load i32, ptr %px
  %y = load i32, ptr %py
  %z = load i32, ptr %pz
  %left = sub i64 %stop, %number
  %tillrow = sub i32 %gx, %x
  %tillrow64 = zext i32 %tillrow to i64
  %fewer = icmp ult i64 %left, %tillrow64
  %row = select i1 %fewer, i64 %left, i64 %tillrow64
  %blocks = select i1 %inorder, i64 %row, i64 1
  %blocks32 = trunc i64 %blocks to i32
  %xend = add i32 %x, %blocks32
  call void %run(ptr %launch, ptr %blk, i32 %x, i32 %xend, i32 %y, i32 %z)
  %beyond = add i64 %number, %blocks
  %again = icmp ult i64 %beyond, %stop
  br i1 %again, label %place, label %taken
taken:
  %due = load i64, ptr %pdue
  %taken_now = sub i64 %stop, %first
  %left_till = sub i64 %due, %taken_now
  store i64 %left_till, ptr %pdue
  %late = icmp sle i64 %left_till, 0
  br i1 %late, label %poll, label %take
poll:
  store i64 64, ptr %pdue
  call void @rk_poll(ptr %blk, i32 -1, i32 -1)
  br label %take
finish:
  call void @rk_finish(ptr %worker)
  unreachable
}

define internal ptr @rk_stack_top(ptr %blk, i32 %w) {
  %pworker = &Block.worker %blk
  %worker = load ptr, ptr %pworker
  %ptop = &Worker.stack_top %worker
  %top = load ptr, ptr %ptop
  ret ptr %top
}

; Warps that never wait have no states.
define internal void @rk_settle(ptr %blk, i32 %w) alwaysinline {
  ret void
}
