; The launch of a list of parameter types. {arguments} checks and packs the arguments, {written} counts a change for each
; tensor that was written; both leave for %slow_path, as everything does that is not plain.
{records}
{readings}
{constants}
define ptr @rk_launch(ptr %self, ptr %args, i64 %nargsf, ptr %names) {
  %params = alloca [{size} x i8], align 16
  %pointers = alloca [{count} x ptr]
  %dl = alloca [48 x i8], align 8
  %number = alloca i64
  %device = alloca i64
  %handed = alloca [{handed} x ptr]
  %three = alloca [3 x ptr]
  %error = alloca [3 x ptr]
{lists}
  store i64 -1, ptr %device
  %pplan = &Launcher.plan %self
  %plan = load ptr, ptr %pplan
  %ptable = &Plan.table %plan
  %table = load ptr, ptr %ptable
  %pown = &Launcher.vectorcall %self
  %own = load ptr, ptr %pown
  %pcall = &Plan.call %plan
  %call = load ptr, ptr %pcall
  %pn = &Launcher.n %self
  %n = load i64, ptr %pn
  %pstrided = &Plan.strided %plan
  %strided64 = load i64, ptr %pstrided
  %strided = icmp ne i64 %strided64, 0
  %current = icmp eq ptr %own, %call
  br i1 %current, label %form, label %relay       ; the kernel has other parameters now
form:
  %pattention = &Table.attention %table
  %attention = load i64, ptr %pattention
  %calm = icmp eq i64 %attention, 0
  %nargs = and i64 %nargsf, 9223372036854775807
  %all = icmp eq i64 %nargs, {given}
  %unnamed = icmp eq ptr %names, null
  %definite = icmp sge i64 %n, -1
  %a0 = and i1 %calm, %all
  %a1 = and i1 %unnamed, %definite
  %a2 = and i1 %a0, %a1
  br i1 %a2, label %source, label %slow_path
source:                                           ; as it was read, or not long ago
  %puntil = &Plan.until %plan
  %until = load ptr, ptr %puntil
  %unchanged = call i1 @rk_unchanged(ptr %table, ptr %until)
  br i1 %unchanged, label %arguments, label %slow_path
arguments:
  %extents = getelementptr i8, ptr %params, i64 {extents}
  call void @llvm.memset.p0.i64(ptr align 8 %extents, i8 0, i64 {extents_size}, i1 false)
{no_lists}
{arguments}
{listed}
  br label %packed
packed:
  %given = load i64, ptr %device
  %without = icmp eq i64 %given, -1
  %pdefault = &Table.default_device %table
  %default = load i64, ptr %pdefault
  %where = select i1 %without, i64 %default, i64 %given
  %somewhere = icmp ne i64 %where, 0
  br i1 %somewhere, label %watch, label %slow_path
watch:
  %free = call i1 @rk_unwatched(ptr %table)
  br i1 %free, label %first, label %slow_path
first:
  %ptargets = &Plan.targets %plan
  %target = call ptr @rk_target(ptr %table, ptr %ptargets, i64 %where)
  %nowhere = icmp eq ptr %target, null
  br i1 %nowhere, label %slow_path, label %found
found:
  %covers = icmp sge i64 %n, 0
  br i1 %covers, label %cover, label %explicit
cover:
  %pblock = &Target.block %target
  %block = load i64, ptr %pblock
  %less = sub i64 %block, 1
  %rounded = add i64 %n, %less
  %blocks0 = udiv i64 %rounded, %block
  %pmultiple = &Target.multiple %target
  %multiple = load i64, ptr %pmultiple
  %single = icmp eq i64 %multiple, 1
  br i1 %single, label %whole, label %clusters
clusters:                                         ; whole ones
  %blocks1 = add i64 %blocks0, %multiple
  %blocks2 = sub i64 %blocks1, 1
  %over = urem i64 %blocks2, %multiple
  %blocks3 = sub i64 %blocks2, %over
  br label %whole
whole:
  %blocks = phi i64 [ %blocks0, %cover ], [ %blocks3, %clusters ]
  %many = icmp ugt i64 %blocks, 2147483647
  br i1 %many, label %slow_path, label %covered
covered:
  %blocks32 = trunc i64 %blocks to i32
  %nothing = icmp eq i64 %n, 0
  br i1 %nothing, label %written, label %go
explicit:
  %pgx = &Launcher.grid_x %self
  %gx0 = load i32, ptr %pgx
  %pgy = &Launcher.grid_y %self
  %gy0 = load i32, ptr %pgy
  %pgz = &Launcher.grid_z %self
  %gz0 = load i32, ptr %pgz
  br label %go
go:
  %gx = phi i32 [ %blocks32, %covered ], [ %gx0, %explicit ]
  %gy = phi i32 [ 1, %covered ], [ %gy0, %explicit ]
  %gz = phi i32 [ 1, %covered ], [ %gz0, %explicit ]
  %pgo = &Target.go %target
  %gof = load ptr, ptr %pgo
  %result = call i32 %gof(ptr %target, i32 %gx, i32 %gy, i32 %gz, ptr %params, ptr %pointers)
  switch i32 %result, label %slow_path [ i32 {DONE}, label %written
                                       i32 {UNFINISHED}, label %written ]
written:
  %state = phi i32 [ {DONE}, %covered ], [ %result, %go ], [ %result, %go ]
{written}
  %open = icmp eq i32 %state, {UNFINISHED}
  br i1 %open, label %finish, label %done
finish:
  %pfinish = &Table.finish %table
  %finishf = load ptr, ptr %pfinish
  %pwrap = &Table.PyLong_FromVoidPtr %table
  %wrap = load ptr, ptr %pwrap
  %address = call ptr %wrap(ptr %target)
  store ptr %self, ptr %handed
  %second = getelementptr ptr, ptr %handed, i64 1
  store ptr %address, ptr %second
  %others = getelementptr ptr, ptr %handed, i64 2
  call void @llvm.memcpy.p0.p0.i64(ptr %others, ptr %args, i64 {args_size}, i1 false)
{hand_over}
  %pvectorcall = &Table.PyObject_Vectorcall %table
  %vectorcall = load ptr, ptr %pvectorcall
  %finished = call ptr %vectorcall(ptr %finishf, ptr %handed, i64 {handed}, ptr null)
  %stopped = icmp eq ptr %finished, null
  br i1 %stopped, label %abandon, label %ended
abandon:                                          ; perhaps before Python's code had a chance to give the stacks back
  %kind = getelementptr ptr, ptr %error, i64 0
  %value = getelementptr ptr, ptr %error, i64 1
  %trace = getelementptr ptr, ptr %error, i64 2
  %pfetch = &Table.PyErr_Fetch %table
  %fetch = load ptr, ptr %pfetch
  call void %fetch(ptr %kind, ptr %value, ptr %trace)
  %token = call ptr %wrap(ptr %pointers)
  store ptr %self, ptr %three
  %three1 = getelementptr ptr, ptr %three, i64 1
  store ptr %address, ptr %three1
  %three2 = getelementptr ptr, ptr %three, i64 2
  store ptr %token, ptr %three2
  %pabandon = &Table.abandon %table
  %abandonf = load ptr, ptr %pabandon
  %abandoned = call ptr %vectorcall(ptr %abandonf, ptr %three, i64 3, ptr null)
  call void @rk_release(ptr %table, ptr %token)
  %failed2 = icmp eq ptr %abandoned, null
  br i1 %failed2, label %restore, label %drop
drop:
  call void @rk_release(ptr %table, ptr %abandoned)
  br label %restore
restore:
  %kind0 = load ptr, ptr %kind
  %value0 = load ptr, ptr %value
  %trace0 = load ptr, ptr %trace
  %prestore = &Table.PyErr_Restore %table
  %restoref = load ptr, ptr %prestore
  call void %restoref(ptr %kind0, ptr %value0, ptr %trace0)
  br label %ended
ended:
  call void @rk_release(ptr %table, ptr %address)
{release}
  ret ptr %finished
done:
{release}
  %pnone = &Table.none %table
  %none = load ptr, ptr %pnone
  %pincrease = &Table.Py_IncRef %table
  %increase = load ptr, ptr %pincrease
  call void %increase(ptr %none)
  ret ptr %none
failed:
  ret ptr null
relay:
  %prelay = &Table.relay %table
  %relayf = load ptr, ptr %prelay
  %relayed = tail call ptr %relayf(ptr %self, ptr %args, i64 %nargsf, ptr %names)
  ret ptr %relayed
slow_path:
{release}
  %pforward = &Table.forward %table
  %forward = load ptr, ptr %pforward
  %forwarded = tail call ptr %forward(ptr %self, ptr %args, i64 %nargsf, ptr %names)
  ret ptr %forwarded
}
