; A launcher as Python's object: what `kernel[grid, block]` and `kernel.forall(n)` return. Calling it enters the native
; function of the kernel's parameter types, which finds everything else through the launcher's plan.

; The first call of a launcher, and the first after the kernel has got other parameters.
define ptr @rk_relay(ptr %self, ptr %args, i64 %nargsf, ptr %names) {
  %pplan = &Launcher.plan %self
  %plan = load ptr, ptr %pplan
  %pcall = &Plan.call %plan
  %call = load ptr, ptr %pcall
  %none = icmp eq ptr %call, null
  br i1 %none, label %forward, label %enter
enter:
  %pown = &Launcher.vectorcall %self
  store ptr %call, ptr %pown
  %r0 = tail call ptr %call(ptr %self, ptr %args, i64 %nargsf, ptr %names)
  ret ptr %r0
forward:
  %r1 = call ptr @rk_forward(ptr %self, ptr %args, i64 %nargsf, ptr %names)
  ret ptr %r1
}

; The slow path: a function of Python's, called with the launcher and its arguments.
define ptr @rk_forward(ptr %self, ptr %args, i64 %nargsf, ptr %names) {
  %pplan = &Launcher.plan %self
  %plan = load ptr, ptr %pplan
  %ptable = &Plan.table %plan
  %table = load ptr, ptr %ptable
  %nargs = and i64 %nargsf, 9223372036854775807
  %named = icmp ne ptr %names, null
  br i1 %named, label %count, label %copy
count:
  %psize = &Table.PyTuple_Size %table
  %sizef = load ptr, ptr %psize
  %keywords = call i64 %sizef(ptr %names)
  br label %copy
copy:
  %more = phi i64 [ 0, %0 ], [ %keywords, %count ]
  %total = add i64 %nargs, %more
  %room = add i64 %total, 1
  %vector = alloca ptr, i64 %room
  store ptr %self, ptr %vector
  %rest = getelementptr ptr, ptr %vector, i64 1
  %bytes = mul i64 %total, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %rest, ptr %args, i64 %bytes, i1 false)
  %pslow_path = &Table.slow_path %table
  %slow_path = load ptr, ptr %pslow_path
  %pvectorcall = &Table.PyObject_Vectorcall %table
  %vectorcall = load ptr, ptr %pvectorcall
  %positional = add i64 %nargs, 1
  %result = call ptr %vectorcall(ptr %slow_path, ptr %vector, i64 %positional, ptr %names)
  ret ptr %result
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; A new launcher of a plan; null with Python's error where there is no memory.
define internal ptr @rk_new(ptr %plan, ptr %table) {
  %palloc = &Table.PyType_GenericAlloc %table
  %alloc = load ptr, ptr %palloc
  %ptype = &Table.launcher_type %table
  %type = load ptr, ptr %ptype
  %new = call ptr %alloc(ptr %type, i64 0)
  %none = icmp eq ptr %new, null
  br i1 %none, label %out, label %fill
fill:
  %pobject = &Plan.object %plan
  %object = load ptr, ptr %pobject
  %pincrease = &Table.Py_IncRef %table
  %increase = load ptr, ptr %pincrease
  call void %increase(ptr %object)
  %pown = &Launcher.object %new
  store ptr %object, ptr %pown
  %pplan = &Launcher.plan %new
  store ptr %plan, ptr %pplan
  %ptable = &Launcher.table %new
  store ptr %table, ptr %ptable
  %pcall = &Plan.call %plan
  %call = load ptr, ptr %pcall
  %early = icmp eq ptr %call, null
  %entry = select i1 %early, ptr @rk_relay, ptr %call
  %pvectorcall = &Launcher.vectorcall %new
  store ptr %entry, ptr %pvectorcall
  %pn = &Launcher.n %new
  store i64 -1, ptr %pn
  br label %out
out:
  ret ptr %new
}

; A callable of a plan that enters here: complete before Python sees it, and the plan lives as long as it does.
define ptr @rk_make(ptr %plan, ptr %entry) {
  %ptable = &Plan.table %plan
  %table = load ptr, ptr %ptable
  %new = call ptr @rk_new(ptr %plan, ptr %table)
  %none = icmp eq ptr %new, null
  br i1 %none, label %out, label %fill
fill:
  %pvectorcall = &Launcher.vectorcall %new
  store ptr %entry, ptr %pvectorcall
  br label %out
out:
  ret ptr %new
}

; Python's int, no subclass of it, in the range from %low to %high; -1 for all else.
define internal i64 @rk_size(ptr %table, ptr %object, i64 %low, i64 %high) {
  %overflow = alloca i32
  %ptype = getelementptr i8, ptr %object, i64 {type_offset}
  %type = load ptr, ptr %ptype
  %pint = &Table.int_type %table
  %int = load ptr, ptr %pint
  %is = icmp eq ptr %type, %int
  br i1 %is, label %read, label %no
read:
  %pf = &Table.PyLong_AsLongLongAndOverflow %table
  %f = load ptr, ptr %pf
  %value = call i64 %f(ptr %object, ptr %overflow)
  %over = load i32, ptr %overflow
  %fits = icmp eq i32 %over, 0
  %least = icmp sge i64 %value, %low
  %most = icmp sle i64 %value, %high
  %good0 = and i1 %fits, %least
  %good = and i1 %good0, %most
  br i1 %good, label %yes, label %no
yes:
  ret i64 %value
no:
  ret i64 -1
}

define internal ptr @rk_none(ptr %table) {
  %pnone = &Table.none %table
  %none = load ptr, ptr %pnone
  %pincrease = &Table.Py_IncRef %table
  %increase = load ptr, ptr %pincrease
  call void %increase(ptr %none)
  ret ptr %none
}

; `maker(n)`: a launcher whose grid covers n elements; None for what the slow path has to look at.
define ptr @rk_cover(ptr %self, ptr %args, i64 %nargsf, ptr %names) {
  %pplan = &Launcher.plan %self
  %plan = load ptr, ptr %pplan
  %ptable = &Plan.table %plan
  %table = load ptr, ptr %ptable
  %n0 = load ptr, ptr %args
  %pmost = &Plan.most %plan
  %most = load i64, ptr %pmost
  %n = call i64 @rk_size(ptr %table, ptr %n0, i64 0, i64 %most)
  %bad = icmp slt i64 %n, 0
  br i1 %bad, label %none, label %make
make:
  %new = call ptr @rk_new(ptr %plan, ptr %table)
  %failed = icmp eq ptr %new, null
  br i1 %failed, label %out, label %fill
fill:
  %pn = &Launcher.n %new
  store i64 %n, ptr %pn
  br label %out
out:
  ret ptr %new
none:
  %r = call ptr @rk_none(ptr %table)
  ret ptr %r
}

; `maker(grid, block)`: a launcher with this grid. The block is the plan's, or only equal to it, as 64.0 is to 64.
define ptr @rk_grid(ptr %self, ptr %args, i64 %nargsf, ptr %names) {
  %sizes = alloca [3 x i64]
  %pplan = &Launcher.plan %self
  %plan = load ptr, ptr %pplan
  %ptable = &Plan.table %plan
  %table = load ptr, ptr %ptable
  %grid = load ptr, ptr %args
  %pblock = getelementptr ptr, ptr %args, i64 1
  %block = load ptr, ptr %pblock
  %good0 = call i1 @rk_sizes(ptr %table, ptr %block, ptr %sizes)
  br i1 %good0, label %look, label %none
look:
  %good1 = call i1 @rk_sizes(ptr %table, ptr %grid, ptr %sizes)
  br i1 %good1, label %make, label %none
make:
  %new = call ptr @rk_new(ptr %plan, ptr %table)
  %failed = icmp eq ptr %new, null
  br i1 %failed, label %out, label %fill
fill:
  %x64 = load i64, ptr %sizes
  %x = trunc i64 %x64 to i32
  %sy = getelementptr i64, ptr %sizes, i64 1
  %y64 = load i64, ptr %sy
  %y = trunc i64 %y64 to i32
  %sz = getelementptr i64, ptr %sizes, i64 2
  %z64 = load i64, ptr %sz
  %z = trunc i64 %z64 to i32
  %px = &Launcher.grid_x %new
  store i32 %x, ptr %px
  %py = &Launcher.grid_y %new
  store i32 %y, ptr %py
  %pz = &Launcher.grid_z %new
  store i32 %z, ptr %pz
  br label %out
out:
  ret ptr %new
none:
  %r = call ptr @rk_none(ptr %table)
  ret ptr %r
}

; One to three positive sizes, an int or a tuple of ints: as a grid may have them. Others are 1. A subclass of tuples
; that iterates as they do, such as a named tuple or torch's sizes, is one.
define internal i1 @rk_sizes(ptr %table, ptr %object, ptr %sizes) {
  %py = getelementptr i64, ptr %sizes, i64 1
  %pz = getelementptr i64, ptr %sizes, i64 2
  store i64 1, ptr %py
  store i64 1, ptr %pz
  %ptype = getelementptr i8, ptr %object, i64 {type_offset}
  %type = load ptr, ptr %ptype
  %ptuple = &Table.tuple_type %table
  %tuple = load ptr, ptr %ptuple
  %many = icmp eq ptr %type, %tuple
  br i1 %many, label %count, label %others
others:
  %pint = &Table.int_type %table
  %int = load ptr, ptr %pint
  %number = icmp eq ptr %type, %int
  br i1 %number, label %single, label %subclass
subclass:
  %pslot = &Table.PyType_GetSlot %table
  %slotf = load ptr, ptr %pslot
  %iter = call ptr %slotf(ptr %type, i32 {iter})
  %pown = &Table.tuple_iter %table
  %own = load ptr, ptr %pown
  %alike = icmp eq ptr %iter, %own
  br i1 %alike, label %count, label %bad
single:
  %x = call i64 @rk_size(ptr %table, ptr %object, i64 1, i64 2147483647)
  store i64 %x, ptr %sizes
  %good = icmp sgt i64 %x, 0
  ret i1 %good
count:
  %psize = &Table.PyTuple_Size %table
  %sizef = load ptr, ptr %psize
  %length = call i64 %sizef(ptr %object)
  %over = icmp ugt i64 %length, 3
  %no = icmp eq i64 %length, 0
  %wrong = or i1 %over, %no
  br i1 %wrong, label %bad, label %loop
loop:
  %k = phi i64 [ 0, %count ], [ %next, %stored ]
  %pitem = &Table.PyTuple_GetItem %table
  %itemf = load ptr, ptr %pitem
  %item = call ptr %itemf(ptr %object, i64 %k)
  %first = icmp eq i64 %k, 0
  %most = select i1 %first, i64 2147483647, i64 65535
  %size = call i64 @rk_size(ptr %table, ptr %item, i64 1, i64 %most)
  %fine = icmp sgt i64 %size, 0
  br i1 %fine, label %stored, label %bad
stored:
  %place = getelementptr i64, ptr %sizes, i64 %k
  store i64 %size, ptr %place
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, %length
  br i1 %more, label %loop, label %done
done:
  ret i1 true
bad:
  ret i1 false
}

define void @rk_dealloc(ptr %self) {
  %ptable = &Launcher.table %self
  %table = load ptr, ptr %ptable
  %pobject = &Launcher.object %self
  %object = load ptr, ptr %pobject
  %ptype = getelementptr i8, ptr %self, i64 {type_offset}
  %type = load ptr, ptr %ptype
  %pfree = &Table.PyObject_Free %table
  %free = load ptr, ptr %pfree
  call void %free(ptr %self)
  %pdecrease = &Table.Py_DecRef %table
  %decrease = load ptr, ptr %pdecrease
  call void %decrease(ptr %type)
  call void %decrease(ptr %object)
  ret void
}
