; What the launch of kernels with tables of pointers reads beyond structs.ll: lists of tensors, and the memory that they
; lead to, as the CPU engine is told of it. As there, nothing raises.

; The items of a list or tuple of no subclass, with 1 to %most of them, in a tuple that is held; null for all else.
define internal ptr @rk_items(ptr %table, ptr %object, i64 %most) {
  %ptype = getelementptr i8, ptr %object, i64 {type_offset}
  %type = load ptr, ptr %ptype
  %pl = &Table.list_type %table
  %list = load ptr, ptr %pl
  %is_list = icmp eq ptr %type, %list
  br i1 %is_list, label %copy, label %other
copy:                                             ; as another thread may change the list
  %pf = &Table.PyList_AsTuple %table
  %f = load ptr, ptr %pf
  %copied = call ptr %f(ptr %object)
  %failed = icmp eq ptr %copied, null
  br i1 %failed, label %clear, label %measure
clear:
  call void @rk_clear(ptr %table)
  br label %no
other:
  %pt = &Table.tuple_type %table
  %tuple = load ptr, ptr %pt
  %is_tuple = icmp eq ptr %type, %tuple
  br i1 %is_tuple, label %hold, label %no
hold:
  %pincrease = &Table.Py_IncRef %table
  %increase = load ptr, ptr %pincrease
  call void %increase(ptr %object)
  br label %measure
measure:
  %items = phi ptr [ %copied, %copy ], [ %object, %hold ]
  %ps = &Table.PyTuple_Size %table
  %sizef = load ptr, ptr %ps
  %count = call i64 %sizef(ptr %items)
  %less = sub i64 %count, 1
  %fits = icmp ult i64 %less, %most
  br i1 %fits, label %yes, label %drop
drop:
  call void @rk_release(ptr %table, ptr %items)
  br label %no
yes:
  ret ptr %items
no:
  ret ptr null
}

; Give back what is held, if there is something.
define internal void @rk_release_held(ptr %table, ptr %place) {
  %held = load ptr, ptr %place
  %none = icmp eq ptr %held, null
  br i1 %none, label %done, label %some
some:
  call void @rk_release(ptr %table, ptr %held)
  br label %done
done:
  ret void
}

; Put what is held, if there is something, in the place of the list that it was made of.
define internal void @rk_hand_over(ptr %place, ptr %argument) {
  %held = load ptr, ptr %place
  %none = icmp eq ptr %held, null
  br i1 %none, label %done, label %some
some:
  store ptr %held, ptr %argument
  br label %done
done:
  ret void
}

; Count a change of each tensor of such a tuple.
define internal void @rk_bump_items(ptr %table, ptr %items) {
  %ps = &Table.PyTuple_Size %table
  %sizef = load ptr, ptr %ps
  %count = call i64 %sizef(ptr %items)
  %pg = &Table.PyTuple_GetItem %table
  %getf = load ptr, ptr %pg
  br label %item
item:
  %k = phi i64 [ 0, %0 ], [ %k1, %item ]
  %one = call ptr %getf(ptr %items, i64 %k)
  call void @rk_bump_held(ptr %table, ptr %one)
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %count
  br i1 %more, label %item, label %done
done:
  ret void
}

; Begin with no memory: %read and %written are tables, each after an empty range.
define internal void @rk_no_ranges(ptr %listed, ptr %counts, ptr %read, ptr %written) {
  call void @llvm.memset.p0.i64(ptr align 8 %counts, i8 0, i64 16, i1 false)
  call void @llvm.memset.p0.i64(ptr align 8 %read, i8 0, i64 16, i1 false)
  call void @llvm.memset.p0.i64(ptr align 8 %written, i8 0, i64 16, i1 false)
  %pread = &Listed.readable %listed
  %from_read = getelementptr [2 x i64], ptr %read, i64 1
  store ptr %from_read, ptr %pread
  %pwritten = &Listed.writable %listed
  %from_written = getelementptr [2 x i64], ptr %written, i64 1
  store ptr %from_written, ptr %pwritten
  ret void
}

; Add the memory that %count addresses lead to, by their extents.
define internal void @rk_add_listed(ptr %listed, ptr %counts, ptr %addresses, ptr %extents, i64 %count) {
  %pread = &Listed.readable %listed
  %read = load ptr, ptr %pread
  %pwritten = &Listed.writable %listed
  %written = load ptr, ptr %pwritten
  %second = getelementptr i64, ptr %counts, i64 1
  br label %item
item:
  %k = phi i64 [ 0, %0 ], [ %k1, %item ]
  %pa = getelementptr i64, ptr %addresses, i64 %k
  %address = load i64, ptr %pa
  %pr = getelementptr [2 x i64], ptr %extents, i64 %k, i64 0
  %reads = load i64, ptr %pr
  call void @rk_add_range(ptr %read, ptr %counts, i64 %address, i64 %reads)
  %pw = getelementptr [2 x i64], ptr %extents, i64 %k, i64 1
  %writes = load i64, ptr %pw
  call void @rk_add_range(ptr %written, ptr %second, i64 %address, i64 %writes)
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %count
  br i1 %more, label %item, label %done
done:
  ret void
}

; Put a range, unless it is empty, among others in the order of their starts.
define internal void @rk_add_range(ptr %rows, ptr %pcount, i64 %start, i64 %size) {
  %none = icmp eq i64 %size, 0
  br i1 %none, label %done, label %begin
begin:
  %count = load i64, ptr %pcount
  %more = add i64 %count, 1
  store i64 %more, ptr %pcount
  br label %shift
shift:
  %k = phi i64 [ %count, %begin ], [ %before, %move ]
  %first = icmp eq i64 %k, 0
  br i1 %first, label %put, label %look
look:
  %before = sub i64 %k, 1
  %plow = getelementptr [2 x i64], ptr %rows, i64 %before, i64 0
  %low = load i64, ptr %plow
  %after = icmp ugt i64 %low, %start
  br i1 %after, label %move, label %put
move:
  %pbytes = getelementptr [2 x i64], ptr %rows, i64 %before, i64 1
  %bytes = load i64, ptr %pbytes
  %plow1 = getelementptr [2 x i64], ptr %rows, i64 %k, i64 0
  store i64 %low, ptr %plow1
  %pbytes1 = getelementptr [2 x i64], ptr %rows, i64 %k, i64 1
  store i64 %bytes, ptr %pbytes1
  br label %shift
put:
  %pstart = getelementptr [2 x i64], ptr %rows, i64 %k, i64 0
  store i64 %start, ptr %pstart
  %psize = getelementptr [2 x i64], ptr %rows, i64 %k, i64 1
  store i64 %size, ptr %psize
  br label %done
done:
  ret void
}

; Make those that overlap one; how many there are then.
define internal i64 @rk_join_ranges(ptr %rows, i64 %count) {
  br label %row
row:
  %k = phi i64 [ 0, %0 ], [ %k1, %join ], [ %k1, %keep ]
  %n = phi i64 [ 0, %0 ], [ %n, %join ], [ %n1, %keep ]
  %over = icmp eq i64 %k, %count
  br i1 %over, label %done, label %look
look:
  %k1 = add i64 %k, 1
  %pstart = getelementptr [2 x i64], ptr %rows, i64 %k, i64 0
  %start = load i64, ptr %pstart
  %psize = getelementptr [2 x i64], ptr %rows, i64 %k, i64 1
  %size = load i64, ptr %psize
  %end = add i64 %start, %size
  %first = icmp eq i64 %n, 0
  br i1 %first, label %keep, label %compare
compare:
  %last = sub i64 %n, 1
  %plow = getelementptr [2 x i64], ptr %rows, i64 %last, i64 0
  %low = load i64, ptr %plow
  %pbytes = getelementptr [2 x i64], ptr %rows, i64 %last, i64 1
  %bytes = load i64, ptr %pbytes
  %high = add i64 %low, %bytes
  %apart = icmp uge i64 %start, %high
  br i1 %apart, label %keep, label %join
join:
  %further = call i64 @llvm.umax.i64(i64 %high, i64 %end)
  %whole = sub i64 %further, %low
  store i64 %whole, ptr %pbytes
  br label %row
keep:
  %pstart1 = getelementptr [2 x i64], ptr %rows, i64 %n, i64 0
  store i64 %start, ptr %pstart1
  %psize1 = getelementptr [2 x i64], ptr %rows, i64 %n, i64 1
  store i64 %size, ptr %psize1
  %n1 = add i64 %n, 1
  br label %row
done:
  ret i64 %n
}

; Have a table of %from ranges have %to: what comes after the others is empty, and begins after them.
define internal void @rk_fill_up(ptr %rows, i64 %from, i64 %to) {
  br label %row
row:
  %k = phi i64 [ %from, %0 ], [ %k1, %put ]
  %over = icmp uge i64 %k, %to
  br i1 %over, label %done, label %put
put:
  %pstart = getelementptr [2 x i64], ptr %rows, i64 %k, i64 0
  store i64 -1, ptr %pstart
  %psize = getelementptr [2 x i64], ptr %rows, i64 %k, i64 1
  store i64 0, ptr %psize
  %k1 = add i64 %k, 1
  br label %row
done:
  ret void
}

; Put the address of the memory that lists lead to, if there is some, where the engine looks for it.
define internal void @rk_listed(ptr %listed, ptr %counts, ptr %place) {
  %read0 = load i64, ptr %counts
  %none = icmp eq i64 %read0, 0
  br i1 %none, label %done, label %some
some:
  %second = getelementptr i64, ptr %counts, i64 1
  %written0 = load i64, ptr %second
  %pread = &Listed.readable %listed
  %read = load ptr, ptr %pread
  %pwritten = &Listed.writable %listed
  %written = load ptr, ptr %pwritten
  %nread = call i64 @rk_join_ranges(ptr %read, i64 %read0)
  %nwritten = call i64 @rk_join_ranges(ptr %written, i64 %written0)
  %most = call i64 @llvm.umax.i64(i64 %nread, i64 %nwritten)
  call void @rk_fill_up(ptr %read, i64 %nread, i64 %most)
  call void @rk_fill_up(ptr %written, i64 %nwritten, i64 %most)
  %pcount = &Listed.count %listed
  store i64 %most, ptr %pcount
  store ptr %listed, ptr %place
  br label %done
done:
  ret void
}
declare i64 @llvm.umax.i64(i64, i64)
