; What is called before each launch of a kernel that Python has told of memory once: rows of that are forgotten.
;
; Tensors that addresses have led to in launches before (recall.py): before a launch runs, those that may be touched again
; are made the memory that it has been told of. A tensor may be if it is still there with the same memory, and its address
; stands where it did.

define void @rk_recall(ptr %launch, i64 %token) {
  %psession = &Launch.session %launch
  %session = load i64, ptr %psession
  %memory = inttoptr i64 %session to ptr
  %ptable = &Memory.table %memory
  %table = load ptr, ptr %ptable
  %prows = &Memory.tensors %memory
  %rows = load ptr, ptr %prows
  %pcount = &Memory.ntensors %memory
  %all = load i64, ptr %pcount
  %unusual = trunc i64 %token to i1                 ; as Session.usual has it
  %count = select i1 %unusual, i64 0, i64 %all
  %psorted = &Memory.sorted %memory
  %sorted = load ptr, ptr %psorted
  %pout = &Memory.recalled %memory
  %out = load ptr, ptr %pout
  %pget = &Table.PyWeakref_GetObject %table
  %get = load ptr, ptr %pget
  %pnone = &Table.none %table
  %none = load ptr, ptr %pnone
  %pread = &Memory.told %memory
  %reading = load ptr, ptr %pread
  %pbefore = &Memory.nrecalled %memory
  %before = load i64, ptr %pbefore
  %pplace = &Memory.listed %memory
  %place = load ptr, ptr %pplace
  %listed = load ptr, ptr %place
  %unlisted = icmp eq ptr %listed, null
  br i1 %unlisted, label %begin, label %told_of_lists
told_of_lists:                                    ; rows have the numbers that they had if there are as many, there
  %plisted_read = &Listed.readable %listed
  %listed_read = load ptr, ptr %plisted_read
  %plisted_written = &Listed.writable %listed
  %listed_written = load ptr, ptr %plisted_written
  %pnlisted = &Listed.count %listed
  %nlisted = load i64, ptr %pnlisted
  %elsewhere = icmp ne ptr %reading, %listed_read
  %other_count = icmp ne i64 %nlisted, %before
  %listed_new = or i1 %elsewhere, %other_count
  br i1 %listed_new, label %forget, label %put_down
begin:
  %other = icmp ne ptr %reading, %out
  br label %row
row:                                              ; an address may be in a tensor of an earlier row
  %k = phi i64 [ 0, %begin ], [ %k1, %next ]
  %over = icmp eq i64 %k, %count
  br i1 %over, label %order, label %look
look:
  %this = getelementptr %LedTo, ptr %rows, i64 %k
  %k1 = add i64 %k, 1
  %pref = &LedTo.ref %this
  %ref = load ptr, ptr %pref
  %object = call ptr %get(ptr %ref)
  %failed = icmp eq ptr %object, null
  br i1 %failed, label %clear, label %referred
clear:
  call void @rk_clear(ptr %table)
  br label %next
referred:
  %gone = icmp eq ptr %object, %none
  br i1 %gone, label %next, label %storage
storage:
  %holder = call ptr @rk_storage(ptr %object)
  %pdata = getelementptr i8, ptr %holder, i64 {data_offset}
  %data = load i64, ptr %pdata
  %pbytes = getelementptr i8, ptr %holder, i64 {nbytes_offset}
  %bytes = load i64, ptr %pbytes
  %pstart = &LedTo.start %this
  %start = load i64, ptr %pstart
  %psize = &LedTo.size %this
  %size = load i64, ptr %psize
  %same0 = icmp eq i64 %data, %start
  %same1 = icmp eq i64 %bytes, %size
  %same = and i1 %same0, %same1
  br i1 %same, label %word, label %next
word:
  %pbase = &LedTo.base %this
  %base = load ptr, ptr %pbase
  %pextent = &LedTo.extent %this
  %extent = load ptr, ptr %pextent
  %poffset = &LedTo.offset %this
  %offset = load i64, ptr %poffset
  %direct = icmp eq ptr %extent, null
  br i1 %direct, label %own, label %inside
own:                                              ; an argument may tell what its address leads to
  %pknown = &LedTo.known %this
  %known = load ptr, ptr %pknown
  %tells_none = icmp eq ptr %known, null
  br i1 %tells_none, label %read, label %told
told:
  %size_told = load i64, ptr %known
  %open = icmp eq i64 %size_told, 0
  br i1 %open, label %read, label %next
inside:
  %there = load i64, ptr %extent
  %end = add i64 %offset, 8
  %enough = icmp uge i64 %there, %end
  br i1 %enough, label %follow, label %next
follow:
  %holding = load ptr, ptr %base
  br label %read
read:
  %from = phi ptr [ %base, %own ], [ %base, %told ], [ %holding, %follow ]
  %at = getelementptr i8, ptr %from, i64 %offset
  %address = load i64, ptr %at, align 1
  %beyond = sub i64 %address, %start
  %leads = icmp ult i64 %beyond, %size
  %reached = select i1 %leads, i64 %size, i64 0
  br label %next
next:
  %live = phi i64 [ 0, %clear ], [ 0, %referred ], [ 0, %storage ], [ 0, %told ], [ 0, %inside ], [ %reached, %read ]
  %plive = &LedTo.live %this
  store i64 %live, ptr %plive
  br label %row
order:
  %j = phi i64 [ 0, %row ], [ %j1, %counted ]
  %n = phi i64 [ 0, %row ], [ %n1, %counted ]
  %new = phi i1 [ %other, %row ], [ %new1, %counted ]
  %done = icmp eq i64 %j, %count
  br i1 %done, label %tell, label %one
one:
  %pone = getelementptr ptr, ptr %sorted, i64 %j
  %j1 = add i64 %j, 1
  %led = load ptr, ptr %pone
  %plive2 = &LedTo.live %led
  %live2 = load i64, ptr %plive2
  %dead = icmp eq i64 %live2, 0
  br i1 %dead, label %counted, label %put
put:
  %pstart2 = &LedTo.start %led
  %start2 = load i64, ptr %pstart2
  %pto = getelementptr [2 x i64], ptr %out, i64 %n, i64 0
  %was = load i64, ptr %pto
  store i64 %start2, ptr %pto
  %pmuch = getelementptr [2 x i64], ptr %out, i64 %n, i64 1
  %much = load i64, ptr %pmuch
  %differs0 = icmp ne i64 %was, %start2
  %differs1 = icmp ne i64 %much, %live2
  %differs2 = or i1 %differs0, %differs1
  %differs = or i1 %new, %differs2
  store i64 %live2, ptr %pmuch
  %more = add i64 %n, 1
  br label %counted
counted:
  %n1 = phi i64 [ %n, %one ], [ %more, %put ]
  %new1 = phi i1 [ %new, %one ], [ %differs, %put ]
  br label %order
tell:                                             ; rows that are the same keep their numbers
  %count_differs = icmp ne i64 %n, %before
  %changed = or i1 %new, %count_differs
  br i1 %changed, label %forget, label %put_down
forget:
  %n_forget = phi i64 [ %n, %tell ], [ %nlisted, %told_of_lists ]
  %read_forget = phi ptr [ %out, %tell ], [ %listed_read, %told_of_lists ]
  %written_forget = phi ptr [ %out, %tell ], [ %listed_written, %told_of_lists ]
  %recalled_forget = phi i64 [ %n, %tell ], [ %nlisted, %told_of_lists ]
  %precent = &Memory.recent %memory
  %recent = load ptr, ptr %precent
  %pnrecent = &Memory.nrecent %memory
  %nrecent = load i64, ptr %pnrecent
  %recent_bytes = mul i64 %nrecent, 8
  call void @llvm.memset.p0.i64(ptr %recent, i8 0, i64 %recent_bytes, i1 false)
  store i64 %recalled_forget, ptr %pbefore
  br label %put_down
put_down:
  %n_put = phi i64 [ %n, %tell ], [ %nlisted, %told_of_lists ], [ %n_forget, %forget ]
  %read_put = phi ptr [ %out, %tell ], [ %listed_read, %told_of_lists ], [ %read_forget, %forget ]
  %written_put = phi ptr [ %out, %tell ], [ %listed_written, %told_of_lists ], [ %written_forget, %forget ]
  store ptr %read_put, ptr %pread
  %pwritten = &Memory.told_writable %memory
  store ptr %written_put, ptr %pwritten
  %ptold = &Launch.told %launch
  store i64 %n_put, ptr %ptold
  ret void
}
