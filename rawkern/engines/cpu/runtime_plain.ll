; Workers of kernels whose warps never wait: each block's warps run one after the other on the worker's stack.
; A worker has a range of blocks of its own, so that from launch to launch the same core's cache holds the same data.

define internal void @rk_main(ptr %worker) {
  %plaunch = &Worker.launch %worker
  %launch = load ptr, ptr %plaunch
  %pblk = &Worker.free_blocks %worker
  %blk = load ptr, ptr %pblk
  %pchunk = &Launch.chunk %launch
  %chunk = load i64, ptr %pchunk
  %pwarps = &Launch.nwarps %launch
  %nwarps = load i32, ptr %pwarps
  %pgx = &Launch.grid_x %launch
  %gx = load i32, ptr %pgx
  %px = &Block.x %blk
  %pcount = &Launch.nworkers %launch
  %count = load i32, ptr %pcount
  %pworkers = &Launch.workers %launch
  %workers = load ptr, ptr %pworkers
  %pself = &Worker.index %worker
  %self = load i32, ptr %pself
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
  %pn = phi i64 [ %first, %take ], [ %nextnumber, %next ]
  call void @rk_place(ptr %launch, ptr %blk, i64 %pn)
  br label %block
block:
  %number = phi i64 [ %pn, %place ], [ %nextnumber, %step ]
  br label %warp
warp:
  %w = phi i32 [ 0, %block ], [ %wnext, %warp ]
  %mask = call i32 @rk_lanes(ptr %launch, i32 %w)
  call void @rk_body(ptr %launch, ptr %blk, i32 %w, i32 %mask)
  %wnext = add i32 %w, 1
  %more = icmp ult i32 %wnext, %nwarps
  br i1 %more, label %warp, label %blockdone
blockdone:
  %nextnumber = add i64 %number, 1
  %again = icmp ult i64 %nextnumber, %stop
  br i1 %again, label %next, label %poll
next:
  %x = load i32, ptr %px
  %x1 = add i32 %x, 1
  %wrap = icmp uge i32 %x1, %gx
  br i1 %wrap, label %place, label %step
step:
  store i32 %x1, ptr %px
  br label %block
poll:
  call void @rk_poll(ptr %blk)
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
