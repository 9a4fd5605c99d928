; What operators do in machine code: `quiet`, `look`, `fit`, `fresh`, the calls of `Map` and `Calls`, and forwards and backwards of autograd
; functions, as builtin functions of Python's. The bytes that a function has as self hold the address of its record.

; Whether nothing watches torch's calls on this thread but autograd.
define internal i1 @rk_quiet(ptr %watch, ptr %table) {
  %none = call i1 @rk_unwatched(ptr %table)
  br i1 %none, label %functions, label %no
functions:
  %pf = &Table.function_modes %table
  %f = load ptr, ptr %pf
  %count = call i64 %f()
  %empty = icmp eq i64 %count, 0
  br i1 %empty, label %peek, label %no
peek:                                             ; nothing is kept there before the thread's first transform
  %pstate = &Table.transform_state %table
  %state = load ptr, ptr %pstate
  %shared = call ptr %state()
  %inside = load ptr, ptr %shared
  %never = icmp eq ptr %inside, null
  br i1 %never, label %forward, label %ask
ask:
  %pt = &Watch.transforms %watch
  %t = load ptr, ptr %pt
  %pv = &Table.PyObject_Vectorcall %table
  %v = load ptr, ptr %pv
  %active = call ptr %v(ptr %t, ptr null, i64 0, ptr null)
  %e1 = icmp eq ptr %active, null
  br i1 %e1, label %clear, label %answered
answered:
  call void @rk_release(ptr %table, ptr %active)
  %pfalse = &Table.false %table
  %false = load ptr, ptr %pfalse
  %outside = icmp eq ptr %active, %false
  br i1 %outside, label %forward, label %no
forward:
  %level = call ptr @rk_item(ptr %watch, ptr getelementptr (%Watch, ptr null, i32 0, i32 {Watch.forward_mode}))
  %pleast = &Watch.no_level %watch
  %least = load ptr, ptr %pleast
  %off = icmp eq ptr %level, %least
  br i1 %off, label %profiler, label %no
profiler:
  %profiles = call ptr @rk_item(ptr %watch, ptr getelementptr (%Watch, ptr null, i32 0, i32 {Watch.profiler}))
  %pidle = &Table.false %table
  %idle = load ptr, ptr %pidle
  %alone = icmp eq ptr %profiles, %idle
  ret i1 %alone
clear:
  call void @rk_clear(ptr %table)
  br label %no
no:
  ret i1 false
}

; The value of a name in a dict, both of which are in %watch from %at on; borrowed, null without an error if none.
define internal ptr @rk_item(ptr %watch, ptr %at) alwaysinline {
  %offset = ptrtoint ptr %at to i64
  %pdict = getelementptr i8, ptr %watch, i64 %offset
  %dict = load ptr, ptr %pdict
  %pname = getelementptr ptr, ptr %pdict, i64 1
  %name = load ptr, ptr %pname
  %pget = &Watch.PyDict_GetItem %watch
  %get = load ptr, ptr %pget
  %value = call ptr %get(ptr %dict, ptr %name)
  ret ptr %value
}

define internal ptr @rk_new_reference(ptr %table, ptr %object) alwaysinline {
  %p = &Table.Py_IncRef %table
  %f = load ptr, ptr %p
  call void %f(ptr %object)
  ret ptr %object
}

define internal ptr @rk_record(ptr %self) alwaysinline {
  %p = getelementptr i8, ptr %self, i64 {bytes_offset}
  %record = load ptr, ptr %p
  ret ptr %record
}

; `quiet()`: whether nothing but autograd watches.
define ptr @rk_op_quiet(ptr %self, ptr %args, i64 %count, ptr %names) {
  %watch = call ptr @rk_record(ptr %self)
  %ptable = &Watch.table %watch
  %table = load ptr, ptr %ptable
  %is = call i1 @rk_quiet(ptr %watch, ptr %table)
  %ptrue = &Table.true %table
  %true = load ptr, ptr %ptrue
  %pfalse = &Table.false %table
  %false = load ptr, ptr %pfalse
  %answer = select i1 %is, ptr %true, ptr %false
  %result = call ptr @rk_new_reference(ptr %table, ptr %answer)
  ret ptr %result
}

; The device of a plain tensor as DLPack has it, kind and index; -1 for others.
define internal i64 @rk_place(ptr %table, ptr %object) {
  %dl = alloca [48 x i8], align 8
  %kind = call i32 @rk_kind(ptr %table, ptr %object)
  %cpu = icmp eq i32 %kind, {CPU}
  br i1 %cpu, label %here, label %ask
here:
  ret i64 {CPU}
ask:
  %plain = call i1 @rk_tensor(ptr %table, ptr %object, ptr %dl)
  br i1 %plain, label %read, label %no
read:
  %pdevice = getelementptr i8, ptr %dl, i64 8
  %device = load i64, ptr %pdevice
  ret i64 %device
no:
  ret i64 -1
}

; `look(*tensors)`: None unless nothing watches, no launch has to go the slow path, and all are plain tensors on one device, there being one; else whether
; autograd has to know of a call with them. An argument of None counts as none.
define ptr @rk_op_look(ptr %self, ptr %args, i64 %count, ptr %names) {
  %watch = call ptr @rk_record(ptr %self)
  %ptable = &Watch.table %watch
  %table = load ptr, ptr %ptable
  %pnone = &Table.none %table
  %none = load ptr, ptr %pnone
  %pattention = &Table.attention %table
  %attention = load i64, ptr %pattention
  %calm = icmp eq i64 %attention, 0
  br i1 %calm, label %watch_out, label %no
watch_out:
  %is = call i1 @rk_quiet(ptr %watch, ptr %table)
  br i1 %is, label %loop, label %no
loop:
  %k = phi i64 [ 0, %watch_out ], [ %k1, %next ], [ %k1, %item ]
  %device = phi i64 [ -1, %watch_out ], [ %here, %next ], [ %device, %item ]
  %recorded = phi i1 [ false, %watch_out ], [ %either, %next ], [ %recorded, %item ]
  %over = icmp sge i64 %k, %count
  br i1 %over, label %end, label %item
item:
  %k1 = add i64 %k, 1
  %pobject = getelementptr ptr, ptr %args, i64 %k
  %object = load ptr, ptr %pobject
  %absent = icmp eq ptr %object, %none
  br i1 %absent, label %loop, label %tensor
tensor:
  %here = call i64 @rk_place(ptr %table, ptr %object)
  %plain = icmp ne i64 %here, -1
  br i1 %plain, label %place, label %no
place:
  %first = icmp eq i64 %device, -1
  %same = icmp eq i64 %device, %here
  %fits = or i1 %first, %same
  br i1 %fits, label %next, label %no
next:
  %records = call i1 @rk_recorded(ptr %table, ptr %object)
  %either = or i1 %recorded, %records
  br label %loop
end:
  %somewhere = icmp ne i64 %device, -1
  br i1 %somewhere, label %answer, label %no
answer:
  %ptrue = &Table.true %table
  %true = load ptr, ptr %ptrue
  %pfalse = &Table.false %table
  %false = load ptr, ptr %pfalse
  %found = select i1 %recorded, ptr %true, ptr %false
  %result = call ptr @rk_new_reference(ptr %table, ptr %found)
  ret ptr %result
no:
  %nothing = call ptr @rk_new_reference(ptr %table, ptr %none)
  ret ptr %nothing
}

; Whether two tensors have one dtype, device and shape.
define internal i1 @rk_alike(ptr %a, ptr %b) {
  %pta = getelementptr i8, ptr %a, i64 8              ; device, number of dimensions and dtype in three words
  %ptb = getelementptr i8, ptr %b, i64 8
  %da = load i128, ptr %pta, align 8
  %db = load i128, ptr %ptb, align 8
  %kind = icmp eq i128 %da, %db
  br i1 %kind, label %shapes, label %no
shapes:
  %pn = getelementptr i8, ptr %a, i64 16
  %ndim = load i32, ptr %pn
  %psa = getelementptr i8, ptr %a, i64 24
  %sa = load ptr, ptr %psa
  %psb = getelementptr i8, ptr %b, i64 24
  %sb = load ptr, ptr %psb
  br label %loop
loop:
  %k = phi i32 [ 0, %shapes ], [ %k1, %look ]
  %over = icmp sge i32 %k, %ndim
  br i1 %over, label %yes, label %look
look:
  %pa = getelementptr i64, ptr %sa, i32 %k
  %va = load i64, ptr %pa
  %pb = getelementptr i64, ptr %sb, i32 %k
  %vb = load i64, ptr %pb
  %same = icmp eq i64 %va, %vb
  %k1 = add i32 %k, 1
  br i1 %same, label %loop, label %no
yes:
  ret i1 true
no:
  ret i1 false
}

; `fit(a, b, ...)`: whether the first of each two is None, or both are plain tensors of one dtype, device and shape.
define ptr @rk_op_fit(ptr %self, ptr %args, i64 %count, ptr %names) {
  %one = alloca [48 x i8], align 8
  %two = alloca [48 x i8], align 8
  %watch = call ptr @rk_record(ptr %self)
  %ptable = &Watch.table %watch
  %table = load ptr, ptr %ptable
  %pnone = &Table.none %table
  %none = load ptr, ptr %pnone
  br label %loop
loop:
  %k = phi i64 [ 0, %0 ], [ %k2, %pair ], [ %k2, %compare ]
  %over = icmp sge i64 %k, %count
  br i1 %over, label %end, label %pair
pair:
  %k2 = add i64 %k, 2
  %pa = getelementptr ptr, ptr %args, i64 %k
  %a = load ptr, ptr %pa
  %pb = getelementptr ptr, ptr %pa, i64 1
  %b = load ptr, ptr %pb
  %absent = icmp eq ptr %a, %none
  br i1 %absent, label %loop, label %tensor
tensor:
  %plain0 = call i1 @rk_tensor(ptr %table, ptr %a, ptr %one)
  br i1 %plain0, label %other, label %end
other:
  %plain1 = call i1 @rk_tensor(ptr %table, ptr %b, ptr %two)
  br i1 %plain1, label %compare, label %end
compare:
  %alike = call i1 @rk_alike(ptr %one, ptr %two)
  br i1 %alike, label %loop, label %end
end:
  %yes = phi i1 [ true, %loop ], [ false, %tensor ], [ false, %other ], [ false, %compare ]
  %ptrue = &Table.true %table
  %true = load ptr, ptr %ptrue
  %pfalse = &Table.false %table
  %false = load ptr, ptr %pfalse
  %answer = select i1 %yes, ptr %true, ptr %false
  %result = call ptr @rk_new_reference(ptr %table, ptr %answer)
  ret ptr %result
}

; The storage of a plain tensor, null for what is none.
define internal ptr @rk_storage_of(ptr %table, ptr %object) {
  %kind = call i32 @rk_kind(ptr %table, ptr %object)
  %strange = icmp eq i32 %kind, 0
  br i1 %strange, label %no, label %yes
yes:
  %storage = call ptr @rk_storage(ptr %object)
  ret ptr %storage
no:
  ret ptr null
}

; One of the results that are a tuple, or the only one.
define internal ptr @rk_result(ptr %table, ptr %results, i1 %many, i64 %k) {
  br i1 %many, label %item, label %one
item:
  %pget = &Table.PyTuple_GetItem %table
  %get = load ptr, ptr %pget
  %object = call ptr %get(ptr %results, i64 %k)
  ret ptr %object
one:
  ret ptr %results
}

; `fresh(results, *inputs)`: whether a result, or each of a tuple of them, is a plain tensor in a storage that is neither another's
; nor that of an input. Inputs may be None; if another is not a plain tensor, the answer is false.
define ptr @rk_op_fresh(ptr %self, ptr %args, i64 %count, ptr %names) {
  %watch = call ptr @rk_record(ptr %self)
  %ptable = &Watch.table %watch
  %table = load ptr, ptr %ptable
  %pnone = &Table.none %table
  %none = load ptr, ptr %pnone
  %given = load ptr, ptr %args
  %ptype = getelementptr i8, ptr %given, i64 {type_offset}
  %type = load ptr, ptr %ptype
  %ptuple = &Table.tuple_type %table
  %tuple = load ptr, ptr %ptuple
  %many = icmp eq ptr %type, %tuple
  br i1 %many, label %ask, label %start
ask:
  %psize = &Table.PyTuple_Size %table
  %size = load ptr, ptr %psize
  %asked = call i64 %size(ptr %given)
  br label %start
start:
  %results = phi i64 [ 1, %0 ], [ %asked, %ask ]
  br label %next
next:
  %k = phi i64 [ 0, %start ], [ %k1, %inputs ]
  %over = icmp sge i64 %k, %results
  br i1 %over, label %end, label %result
result:
  %k1 = add i64 %k, 1
  %object = call ptr @rk_result(ptr %table, ptr %given, i1 %many, i64 %k)
  %storage = call ptr @rk_storage_of(ptr %table, ptr %object)
  %strange = icmp eq ptr %storage, null
  br i1 %strange, label %end, label %others
others:                                           ; the results after it
  %j = phi i64 [ %k1, %result ], [ %j1, %other ]
  %last = icmp sge i64 %j, %results
  br i1 %last, label %inputs, label %other
other:
  %j1 = add i64 %j, 1
  %object2 = call ptr @rk_result(ptr %table, ptr %given, i1 %many, i64 %j)
  %storage2 = call ptr @rk_storage_of(ptr %table, ptr %object2)
  %twice = icmp eq ptr %storage, %storage2
  br i1 %twice, label %end, label %others
inputs:
  %i = phi i64 [ 1, %others ], [ %i1, %input ], [ %i1, %compare ]
  %all = icmp sge i64 %i, %count
  br i1 %all, label %next, label %input
input:
  %i1 = add i64 %i, 1
  %pinput = getelementptr ptr, ptr %args, i64 %i
  %object3 = load ptr, ptr %pinput
  %absent = icmp eq ptr %object3, %none
  br i1 %absent, label %inputs, label %compare
compare:
  %storage3 = call ptr @rk_storage_of(ptr %table, ptr %object3)
  %strange3 = icmp eq ptr %storage3, null
  %same = icmp eq ptr %storage, %storage3
  %wrong = or i1 %strange3, %same
  br i1 %wrong, label %end, label %inputs
end:
  %yes = phi i1 [ true, %next ], [ false, %result ], [ false, %other ], [ false, %compare ]
  %ptrue = &Table.true %table
  %true = load ptr, ptr %ptrue
  %pfalse = &Table.false %table
  %false = load ptr, ptr %pfalse
  %answer = select i1 %yes, ptr %true, ptr %false
  %found = call ptr @rk_new_reference(ptr %table, ptr %answer)
  ret ptr %found
}

define internal i64 @rk_elements(ptr %dl) {
  %pndim = getelementptr i8, ptr %dl, i64 16
  %ndim = load i32, ptr %pndim
  %pshape = getelementptr i8, ptr %dl, i64 24
  %shape = load ptr, ptr %pshape
  br label %loop
loop:
  %k = phi i32 [ 0, %0 ], [ %k1, %look ]
  %n = phi i64 [ 1, %0 ], [ %more, %look ]
  %over = icmp sge i32 %k, %ndim
  br i1 %over, label %end, label %look
look:
  %p = getelementptr i64, ptr %shape, i32 %k
  %size = load i64, ptr %p
  %more = mul i64 %n, %size
  %k1 = add i32 %k, 1
  br label %loop
end:
  ret i64 %n
}

; Store the address of a tensor's elements, and tell whether they lie in order and aligned.
define internal i1 @rk_put_elements(ptr %dl, i64 %itemsize, i1 %one, ptr %at) {
  %data = load i64, ptr %dl
  %poffset = getelementptr i8, ptr %dl, i64 40
  %offset = load i64, ptr %poffset
  %address = add i64 %data, %offset
  store i64 %address, ptr %at
  %mask = sub i64 %itemsize, 1
  %low = and i64 %address, %mask
  %aligned = icmp eq i64 %low, 0
  br i1 %one, label %done, label %all
all:
  %dense = call i1 @rk_contiguous(ptr %dl)
  %both = and i1 %aligned, %dense
  ret i1 %both
done:
  ret i1 %aligned
}

; Whether a tensor is one element that is expanded to more.
define internal i1 @rk_expanded(ptr %dl) {
  %pndim = getelementptr i8, ptr %dl, i64 16
  %ndim = load i32, ptr %pndim
  %pshape = getelementptr i8, ptr %dl, i64 24
  %shape = load ptr, ptr %pshape
  %pstrides = getelementptr i8, ptr %dl, i64 32
  %strides = load ptr, ptr %pstrides
  br label %loop
loop:
  %k = phi i32 [ 0, %0 ], [ %k1, %look ]
  %several = phi i1 [ false, %0 ], [ %several1, %look ]
  %over = icmp sge i32 %k, %ndim
  br i1 %over, label %end, label %look
look:
  %k1 = add i32 %k, 1
  %p = getelementptr i64, ptr %shape, i32 %k
  %size = load i64, ptr %p
  %ps = getelementptr i64, ptr %strides, i32 %k
  %stride = load i64, ptr %ps
  %many = icmp sgt i64 %size, 1
  %empty = icmp eq i64 %size, 0
  %steps = icmp ne i64 %stride, 0
  %apart = and i1 %many, %steps
  %other = or i1 %apart, %empty
  %several1 = or i1 %several, %many
  br i1 %other, label %no, label %loop
end:
  ret i1 %several
no:
  ret i1 false
}

; A tuple of ints; null with Python's error where there is no memory.
define internal ptr @rk_ints(ptr %table, ptr %values, i32 %count32) {
  %count = sext i32 %count32 to i64
  %pnew = &Table.PyTuple_New %table
  %new = load ptr, ptr %pnew
  %tuple = call ptr %new(i64 %count)
  %pint = &Table.PyLong_FromLongLong %table
  %int = load ptr, ptr %pint
  %pset = &Table.PyTuple_SetItem %table
  %set = load ptr, ptr %pset
  %failed = icmp eq ptr %tuple, null
  br i1 %failed, label %out, label %loop
loop:
  %k = phi i64 [ 0, %0 ], [ %k1, %put ]
  %over = icmp sge i64 %k, %count
  br i1 %over, label %out, label %one
one:
  %p = getelementptr i64, ptr %values, i64 %k
  %value = load i64, ptr %p
  %object = call ptr %int(i64 %value)
  %lost = icmp eq ptr %object, null
  br i1 %lost, label %drop, label %put
put:
  %kept = call i32 %set(ptr %tuple, i64 %k, ptr %object)
  %k1 = add i64 %k, 1
  br label %loop
drop:
  call void @rk_release(ptr %table, ptr %tuple)
  ret ptr null
out:
  ret ptr %tuple
}

; A new tensor like the first of %args, whose DLTensor is %dl; null with Python's error where there is no memory.
define internal ptr @rk_like(ptr %watch, ptr %table, ptr %args, ptr %dl, ptr %row) {
  %three = alloca [3 x ptr]
  %pv = &Table.PyObject_Vectorcall %table
  %v = load ptr, ptr %pv
  %pstrided = &Row.empty_strided %row
  %strided = load ptr, ptr %pstrided
  %slow = icmp eq ptr %strided, null
  br i1 %slow, label %any, label %quick
any:
  %like = call ptr @rk_item(ptr %watch, ptr getelementptr (%Watch, ptr null, i32 0, i32 {Watch.torch}))
  %r0 = call ptr %v(ptr %like, ptr %args, i64 1, ptr null)
  ret ptr %r0
quick:
  %pndim = getelementptr i8, ptr %dl, i64 16
  %ndim = load i32, ptr %pndim
  %pshape = getelementptr i8, ptr %dl, i64 24
  %shape = load ptr, ptr %pshape
  %pstrides = getelementptr i8, ptr %dl, i64 32
  %strides = load ptr, ptr %pstrides
  %a = call ptr @rk_ints(ptr %table, ptr %shape, i32 %ndim)
  %none0 = icmp eq ptr %a, null
  br i1 %none0, label %none, label %second
second:
  %b = call ptr @rk_ints(ptr %table, ptr %strides, i32 %ndim)
  %none1 = icmp eq ptr %b, null
  br i1 %none1, label %drop, label %make
make:
  store ptr %a, ptr %three
  %pb = getelementptr ptr, ptr %three, i64 1
  store ptr %b, ptr %pb
  %pdtype = &Row.torch_dtype %row
  %dtype = load ptr, ptr %pdtype
  %pd = getelementptr ptr, ptr %three, i64 2
  store ptr %dtype, ptr %pd
  %r1 = call ptr %v(ptr %strided, ptr %three, i64 3, ptr null)
  call void @rk_release(ptr %table, ptr %b)
  br label %drop
drop:
  %r2 = phi ptr [ null, %second ], [ %r1, %make ]
  call void @rk_release(ptr %table, ptr %a)
  ret ptr %r2
none:
  ret ptr null
}

; The call of a `Map`: new tensors from plain ones of one dtype and shape, each contiguous or one element expanded.
define ptr @rk_op_map(ptr %self, ptr %args, i64 %count, ptr %names) {
  %first = alloca [48 x i8], align 8
  %other = alloca [48 x i8], align 8
  %params = alloca [{WORDS} x i64]
  %pointers = alloca [{MOST} x ptr]
  %outs = alloca [{MOST} x ptr]
  %two = alloca [2 x ptr]
  %handed = alloca [{MOST} x ptr]
  %map = call ptr @rk_record(ptr %self)
  %pwatch = &Map.watch %map
  %watch = load ptr, ptr %pwatch
  %ptable = &Watch.table %watch
  %table = load ptr, ptr %ptable
  %pinputs = &Map.inputs %map
  %inputs = load i64, ptr %pinputs
  %poutputs = &Map.outputs %map
  %outputs = load i64, ptr %poutputs
  %pnumbers = &Map.numbers %map
  %numbers = load i64, ptr %pnumbers
  %pattention = &Table.attention %table
  %attention = load i64, ptr %pattention
  %calm = icmp eq i64 %attention, 0
  %all = icmp eq i64 %count, %inputs
  %unnamed = icmp eq ptr %names, null
  %a0 = and i1 %calm, %all
  %a1 = and i1 %a0, %unnamed
  br i1 %a1, label %lead, label %slow_path
lead:                                             ; the first tensor that is not one element expanded
  %j = phi i64 [ 0, %0 ], [ %j1, %candidate ], [ %j1, %layout ]
  %j1 = add i64 %j, 1
  %nothing = icmp eq i64 %j, %inputs
  br i1 %nothing, label %slow_path, label %candidate
candidate:
  %jbit = shl i64 1, %j
  %jmasked = and i64 %numbers, %jbit
  %jnumber = icmp ne i64 %jmasked, 0
  br i1 %jnumber, label %lead, label %look
look:
  %plead = getelementptr ptr, ptr %args, i64 %j
  %leader = load ptr, ptr %plead
  %plain0 = call i1 @rk_tensor(ptr %table, ptr %leader, ptr %first)
  br i1 %plain0, label %layout, label %slow_path
layout:
  %single0 = call i1 @rk_expanded(ptr %first)
  br i1 %single0, label %lead, label %leading
leading:
  %pdevice = getelementptr i8, ptr %first, i64 8
  %device = load i64, ptr %pdevice
  %kind = trunc i64 %device to i32
  %pdtype = getelementptr i8, ptr %first, i64 20
  %dtype = load i32, ptr %pdtype
  %bits0 = lshr i32 %dtype, 11
  %bytes32 = and i32 %bits0, 31
  %itemsize = zext i32 %bytes32 to i64
  br label %argument
argument:
  %k = phi i64 [ 0, %leading ], [ %k1, %taken ], [ %k1, %number ]
  %ones = phi i64 [ 0, %leading ], [ %ones1, %taken ], [ %ones, %number ]
  %recorded = phi i1 [ false, %leading ], [ %recorded1, %taken ], [ %recorded, %number ]
  %done = icmp eq i64 %k, %inputs
  br i1 %done, label %rows, label %what
what:
  %k1 = add i64 %k, 1
  %bit = shl i64 1, %k
  %masked = and i64 %numbers, %bit
  %pgiven = getelementptr ptr, ptr %args, i64 %k
  %object = load ptr, ptr %pgiven
  %at = getelementptr i64, ptr %params, i64 %k
  %is = icmp ne i64 %masked, 0
  br i1 %is, label %number, label %tensor
number:
  %good0 = call i1 @rk_double(ptr %table, ptr %object, ptr %at)
  br i1 %good0, label %argument, label %slow_path
tensor:
  %leads = icmp eq i64 %k, %j
  br i1 %leads, label %elements, label %compare
compare:
  %plain = call i1 @rk_tensor(ptr %table, ptr %object, ptr %other)
  br i1 %plain, label %likeness, label %slow_path
likeness:
  %alike = call i1 @rk_alike(ptr %first, ptr %other)
  br i1 %alike, label %count_one, label %slow_path
count_one:
  %single1 = call i1 @rk_expanded(ptr %other)
  br label %elements
elements:
  %dl = phi ptr [ %first, %tensor ], [ %other, %count_one ]
  %one_element = phi i1 [ false, %tensor ], [ %single1, %count_one ]
  %good1 = call i1 @rk_put_elements(ptr %dl, i64 %itemsize, i1 %one_element, ptr %at)
  br i1 %good1, label %taken, label %slow_path
taken:
  %marked = select i1 %one_element, i64 %bit, i64 0
  %records = call i1 @rk_recorded(ptr %table, ptr %object)
  %ones1 = or i64 %ones, %marked
  %recorded1 = or i1 %recorded, %records
  br label %argument
rows:
  %prows = &Map.rows %map
  %cell0 = load ptr, ptr %prows
  br label %row
row:
  %cell = phi ptr [ %cell0, %rows ], [ %pnext, %known ]
  %one = load ptr, ptr %cell
  %unknown = icmp eq ptr %one, null
  br i1 %unknown, label %slow_path, label %known
known:
  %pnext = &Row.next %one
  %prd = &Row.dtype %one
  %rd = load i32, ptr %prd
  %prk = &Row.kind %one
  %rk = load i32, ptr %prk
  %pro = &Row.ones %one
  %ro = load i64, ptr %pro
  %m0 = icmp eq i32 %rd, %dtype
  %m1 = icmp eq i32 %rk, %kind
  %m2 = icmp eq i64 %ro, %ones
  %m3 = and i1 %m0, %m1
  %match = and i1 %m3, %m2
  br i1 %match, label %watched, label %row
watched:
  %quiet = call i1 @rk_quiet(ptr %watch, ptr %table)
  %pplan = &Row.plan %one
  %plan = load ptr, ptr %pplan
  br i1 %quiet, label %noted, label %slow_path
noted:
  br i1 %recorded, label %record, label %source
record:                                           ; `apply(run, *inputs)` of the autograd function, where there is one
  %papply = &Map.apply %map
  %apply = load ptr, ptr %papply
  %noone = icmp eq ptr %apply, null
  br i1 %noone, label %slow_path, label %hand
hand:
  %prun = &Map.run %map
  %run = load ptr, ptr %prun
  store ptr %run, ptr %handed
  %beyond = getelementptr ptr, ptr %handed, i64 1
  %inputs_size = shl i64 %inputs, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %beyond, ptr %args, i64 %inputs_size, i1 false)
  %with_run = add i64 %inputs, 1
  %pv4 = &Table.PyObject_Vectorcall %table
  %v4 = load ptr, ptr %pv4
  %applied = call ptr %v4(ptr %apply, ptr %handed, i64 %with_run, ptr null)
  ret ptr %applied
source:
  %puntil = &Plan.until %plan
  %until = load ptr, ptr %puntil
  %unchanged = call i1 @rk_unchanged(ptr %table, ptr %until)
  br i1 %unchanged, label %start, label %slow_path
start:
  %ptargets = &Plan.targets %plan
  %target = call ptr @rk_target(ptr %table, ptr %ptargets, i64 %device)
  %nowhere = icmp eq ptr %target, null
  br i1 %nowhere, label %slow_path, label %grid
grid:
  %n = call i64 @rk_elements(ptr %first)
  %pwidth = &Row.width %one
  %width = load i64, ptr %pwidth
  %w0 = sub i64 %width, 1
  %w1 = add i64 %n, %w0
  %packs = udiv i64 %w1, %width
  %pblock = &Target.block %target
  %block = load i64, ptr %pblock
  %b0 = sub i64 %block, 1
  %b1 = add i64 %packs, %b0
  %blocks = udiv i64 %b1, %block
  %some = icmp ne i64 %n, 0
  %few = icmp ule i64 %blocks, 2147483647
  %sized = and i1 %some, %few
  br i1 %sized, label %allocate, label %slow_path
allocate:
  %o = phi i64 [ 0, %grid ], [ %o1, %made ]
  %enough = icmp eq i64 %o, %outputs
  br i1 %enough, label %fill, label %new
new:
  %o1 = add i64 %o, 1
  %out = call ptr @rk_like(ptr %watch, ptr %table, ptr %plead, ptr %first, ptr %one)
  %pout = getelementptr ptr, ptr %outs, i64 %o
  store ptr %out, ptr %pout
  %failed = icmp eq ptr %out, null
  br i1 %failed, label %out_of_memory, label %describe
out_of_memory:
  call void @rk_drop(ptr %table, ptr %outs, i64 %o)
  br label %none
describe:
  %described = call i1 @rk_tensor(ptr %table, ptr %out, ptr %other)
  %slot = add i64 %inputs, %o
  %pslot = getelementptr i64, ptr %params, i64 %slot
  br i1 %described, label %made, label %stranger
made:
  %placed = call i1 @rk_put_elements(ptr %other, i64 1, i1 false, ptr %pslot)
  br label %allocate
stranger:
  call void @rk_drop(ptr %table, ptr %outs, i64 %o1)
  br label %slow_path
fill:
  %last = add i64 %inputs, %outputs
  %pn = getelementptr i64, ptr %params, i64 %last
  store i64 %n, ptr %pn
  %total = add i64 %last, 1
  %bytes = mul i64 %n, %itemsize
  br label %pointer
pointer:
  %p = phi i64 [ 0, %fill ], [ %p1, %pointer ]
  %pp = getelementptr ptr, ptr %pointers, i64 %p
  %value = getelementptr i64, ptr %params, i64 %p
  store ptr %value, ptr %pp
  %tensor_p = icmp ult i64 %p, %last
  %mark_p = shl i64 1, %p
  %marked_p = and i64 %ones, %mark_p
  %one_p = icmp ne i64 %marked_p, 0
  %bytes_p = select i1 %one_p, i64 %itemsize, i64 %bytes
  %extent = select i1 %tensor_p, i64 %bytes_p, i64 0
  %p2 = shl i64 %p, 1
  %behind_p = add i64 %total, %p2
  %pread = getelementptr i64, ptr %params, i64 %behind_p
  store i64 %extent, ptr %pread
  %pwrite = getelementptr i64, ptr %pread, i64 1
  %out_p = icmp uge i64 %p, %inputs
  %written_p = select i1 %out_p, i64 %extent, i64 0
  store i64 %written_p, ptr %pwrite
  %p1 = add i64 %p, 1
  %filled = icmp eq i64 %p1, %total
  br i1 %filled, label %go, label %pointer
go:                                               ; there are no lists of tensors
  %words = mul i64 %total, 3
  %plisted = getelementptr i64, ptr %params, i64 %words
  store i64 0, ptr %plisted
  %blocks32 = trunc i64 %blocks to i32
  %pgo = &Target.go %target
  %gof = load ptr, ptr %pgo
  %state = call i32 %gof(ptr %target, i32 %blocks32, i32 1, i32 1, ptr %params, ptr %pointers)
  switch i32 %state, label %declined [ i32 {DONE}, label %result
                                       i32 {UNFINISHED}, label %finish ]
declined:
  call void @rk_drop(ptr %table, ptr %outs, i64 %outputs)
  br label %slow_path
finish:
  %pwrap = &Table.PyLong_FromVoidPtr %table
  %wrap = load ptr, ptr %pwrap
  %address = call ptr %wrap(ptr %target)
  %pobject = &Plan.object %plan
  %planobject = load ptr, ptr %pobject
  store ptr %planobject, ptr %two
  %second = getelementptr ptr, ptr %two, i64 1
  store ptr %address, ptr %second
  %pfinish = &Watch.finish %watch
  %finishf = load ptr, ptr %pfinish
  %pv2 = &Table.PyObject_Vectorcall %table
  %v2 = load ptr, ptr %pv2
  %finished = call ptr %v2(ptr %finishf, ptr %two, i64 2, ptr null)
  call void @rk_release(ptr %table, ptr %address)
  %error = icmp eq ptr %finished, null
  br i1 %error, label %lost, label %ended
lost:
  call void @rk_drop(ptr %table, ptr %outs, i64 %outputs)
  br label %none
ended:
  call void @rk_release(ptr %table, ptr %finished)
  br label %result
result:
  %single = icmp eq i64 %outputs, 1
  %out0 = load ptr, ptr %outs
  br i1 %single, label %return, label %many
return:
  ret ptr %out0
many:
  %ptuple = &Table.PyTuple_New %table
  %tuplef = load ptr, ptr %ptuple
  %tuple = call ptr %tuplef(i64 %outputs)
  %pset = &Table.PyTuple_SetItem %table
  %set = load ptr, ptr %pset
  br label %put
put:
  %t = phi i64 [ 0, %many ], [ %t1, %put ]
  %pmine = getelementptr ptr, ptr %outs, i64 %t
  %mine = load ptr, ptr %pmine
  %ignored = call i32 %set(ptr %tuple, i64 %t, ptr %mine)
  %t1 = add i64 %t, 1
  %whole = icmp eq i64 %t1, %outputs
  br i1 %whole, label %together, label %put
together:
  ret ptr %tuple
none:
  ret ptr null
slow_path:
  %pslow_path = &Map.slow_path %map
  %slow_pathf = load ptr, ptr %pslow_path
  %pv3 = &Table.PyObject_Vectorcall %table
  %v3 = load ptr, ptr %pv3
  %answer = tail call ptr %v3(ptr %slow_pathf, ptr %args, i64 %count, ptr %names)
  ret ptr %answer
}

; Give up the first tensors made.
define internal void @rk_drop(ptr %table, ptr %outs, i64 %count) {
  br label %loop
loop:
  %k = phi i64 [ 0, %0 ], [ %k1, %drop ]
  %over = icmp sge i64 %k, %count
  br i1 %over, label %end, label %drop
drop:
  %p = getelementptr ptr, ptr %outs, i64 %k
  %out = load ptr, ptr %p
  call void @rk_release(ptr %table, ptr %out)
  %k1 = add i64 %k, 1
  br label %loop
end:
  ret void
}

; `forward(ctx, run, *inputs)` of an autograd function: runs, and saves inputs and outputs by their places among both. It
; does so for the one `run` that it knows, and leaves all others to Python.
define ptr @rk_op_forward(ptr %self, ptr %args, i64 %count, ptr %names) {
  %saved = alloca [{MOST} x ptr]
  %forward = call ptr @rk_record(ptr %self)
  %pwatch = &Forward.watch %forward
  %watch = load ptr, ptr %pwatch
  %ptable = &Watch.table %watch
  %table = load ptr, ptr %ptable
  %pv = &Table.PyObject_Vectorcall %table
  %v = load ptr, ptr %pv
  %pinputs = &Forward.inputs %forward
  %inputs = load i64, ptr %pinputs
  %wanted = add i64 %inputs, 2
  %all = icmp eq i64 %count, %wanted
  br i1 %all, label %runs, label %slow_path
runs:
  %pgiven = getelementptr ptr, ptr %args, i64 1
  %given = load ptr, ptr %pgiven
  %pknown = &Forward.run %forward
  %known = load ptr, ptr %pknown
  %own = icmp eq ptr %given, %known
  br i1 %own, label %run, label %slow_path
run:
  %ctx = load ptr, ptr %args
  %first = getelementptr ptr, ptr %args, i64 2
  %results = call ptr %v(ptr %known, ptr %first, i64 %inputs, ptr null)
  %failed = icmp eq ptr %results, null
  br i1 %failed, label %none, label %gather
gather:
  store ptr %ctx, ptr %saved
  %poutputs = &Forward.outputs %forward
  %outputs = load i64, ptr %poutputs
  %many = icmp ne i64 %outputs, 1
  %psaves = &Forward.saves %forward
  %saves = load i64, ptr %psaves
  %pplaces = &Forward.places %forward
  %places = load ptr, ptr %pplaces
  br label %next
next:
  %k = phi i64 [ 0, %gather ], [ %k1, %put ]
  %over = icmp sge i64 %k, %saves
  br i1 %over, label %save, label %which
which:
  %k1 = add i64 %k, 1
  %pplace = getelementptr i64, ptr %places, i64 %k
  %place = load i64, ptr %pplace
  %is_input = icmp slt i64 %place, %inputs
  br i1 %is_input, label %input, label %output
input:
  %pinput = getelementptr ptr, ptr %first, i64 %place
  %object0 = load ptr, ptr %pinput
  br label %put
output:
  %index = sub i64 %place, %inputs
  %object1 = call ptr @rk_result(ptr %table, ptr %results, i1 %many, i64 %index)
  br label %put
put:
  %object = phi ptr [ %object0, %input ], [ %object1, %output ]
  %pslot = getelementptr ptr, ptr %saved, i64 %k1
  store ptr %object, ptr %pslot
  br label %next
save:
  %pmethod = &Watch.PyObject_VectorcallMethod %watch
  %method = load ptr, ptr %pmethod
  %psave = &Watch.save_for_backward %watch
  %save_name = load ptr, ptr %psave
  %with_ctx = add i64 %saves, 1
  %kept = call ptr %method(ptr %save_name, ptr %saved, i64 %with_ctx, ptr null)
  %lost = icmp eq ptr %kept, null
  br i1 %lost, label %drop, label %settle
settle:
  call void @rk_release(ptr %table, ptr %kept)
  %pset = &Watch.PyObject_SetAttr %watch
  %set = load ptr, ptr %pset
  %pname = &Watch.materialize_grads %watch
  %name = load ptr, ptr %pname
  %pfalse = &Table.false %table
  %false = load ptr, ptr %pfalse
  %state = call i32 %set(ptr %ctx, ptr %name, ptr %false)
  %rejected = icmp ne i32 %state, 0
  br i1 %rejected, label %drop, label %done
done:
  ret ptr %results
drop:
  call void @rk_release(ptr %table, ptr %results)
  br label %none
none:
  ret ptr null
slow_path:
  %ppython = &Forward.python %forward
  %python = load ptr, ptr %ppython
  %answer = tail call ptr %v(ptr %python, ptr %args, i64 %count, ptr %names)
  ret ptr %answer
}

; Add the sizes of a tensor to a number that tells shapes apart (`native._mixed`).
define internal i64 @rk_mixed(ptr %dl, i64 %before) {
  %pndim = getelementptr i8, ptr %dl, i64 16
  %ndim = load i32, ptr %pndim
  %pshape = getelementptr i8, ptr %dl, i64 24
  %shape = load ptr, ptr %pshape
  br label %loop
loop:
  %k = phi i32 [ 0, %0 ], [ %k1, %look ]
  %sum = phi i64 [ %before, %0 ], [ %sum1, %look ]
  %over = icmp sge i32 %k, %ndim
  br i1 %over, label %end, label %look
look:
  %p = getelementptr i64, ptr %shape, i32 %k
  %size = load i64, ptr %p
  %times = mul i64 %sum, 31
  %sum1 = add i64 %times, %size
  %k1 = add i32 %k, 1
  br label %loop
end:
  %low = and i64 %sum, 4294967295
  ret i64 %low
}

; How a tensor's elements are aligned.
define internal i64 @rk_alignment(ptr %dl) {
  %data = load i64, ptr %dl
  %poffset = getelementptr i8, ptr %dl, i64 40
  %offset = load i64, ptr %poffset
  %address = add i64 %data, %offset
  %low = and i64 %address, {ALIGNMENT_MASK}
  ret i64 %low
}

; Whether two objects are one, or floats, ints, or lists or tuples of such, of one value; 0.0 is not -0.0.
define internal i1 @rk_equal(ptr %watch, ptr %table, ptr %a, ptr %b) {
  %na = alloca i64
  %nb = alloca i64
  %one = icmp eq ptr %a, %b
  br i1 %one, label %yes, label %types
types:
  %pta = getelementptr i8, ptr %a, i64 {type_offset}
  %ta = load ptr, ptr %pta
  %ptb = getelementptr i8, ptr %b, i64 {type_offset}
  %tb = load ptr, ptr %ptb
  %alike = icmp eq ptr %ta, %tb
  br i1 %alike, label %kind, label %no
kind:
  %pfloat = &Table.float_type %table
  %float = load ptr, ptr %pfloat
  %is_float = icmp eq ptr %ta, %float
  br i1 %is_float, label %floats, label %others
floats:
  %fa = call i1 @rk_double(ptr %table, ptr %a, ptr %na)
  %fb = call i1 @rk_double(ptr %table, ptr %b, ptr %nb)
  br label %compare
others:
  %ia = call i1 @rk_int(ptr %table, ptr %a, ptr %na)
  %ib = call i1 @rk_int(ptr %table, ptr %b, ptr %nb)
  %both = and i1 %ia, %ib
  br i1 %both, label %compare, label %many
compare:
  %va = load i64, ptr %na
  %vb = load i64, ptr %nb
  %same = icmp eq i64 %va, %vb
  ret i1 %same
many:
  %plist = &Table.list_type %table
  %list = load ptr, ptr %plist
  %is_list = icmp eq ptr %ta, %list
  %ptuple = &Table.tuple_type %table
  %tuple = load ptr, ptr %ptuple
  %is_tuple = icmp eq ptr %ta, %tuple
  %psize = &Watch.size_type %watch
  %size = load ptr, ptr %psize
  %is_size = icmp eq ptr %ta, %size
  %fixed = or i1 %is_tuple, %is_size
  %items = or i1 %fixed, %is_list
  br i1 %items, label %lengths, label %no
lengths:
  %pl0 = &Table.PyList_Size %table
  %pl1 = &Table.PyTuple_Size %table
  %pl = select i1 %is_list, ptr %pl0, ptr %pl1
  %length = load ptr, ptr %pl
  %pg0 = &Table.PyList_GetItem %table
  %pg1 = &Table.PyTuple_GetItem %table
  %pg = select i1 %is_list, ptr %pg0, ptr %pg1
  %item = load ptr, ptr %pg
  %la = call i64 %length(ptr %a)
  %lb = call i64 %length(ptr %b)
  %as_long = icmp eq i64 %la, %lb
  br i1 %as_long, label %loop, label %no
loop:
  %k = phi i64 [ 0, %lengths ], [ %k1, %look ]
  %over = icmp sge i64 %k, %la
  br i1 %over, label %yes, label %look
look:
  %k1 = add i64 %k, 1
  %oa = call ptr %item(ptr %a, i64 %k)
  %ob = call ptr %item(ptr %b, i64 %k)
  %equal = call i1 @rk_equal(ptr %watch, ptr %table, ptr %oa, ptr %ob)
  br i1 %equal, label %loop, label %no
yes:
  ret i1 true
no:
  ret i1 false
}

; Whether an argument is as one of a call that is known: a tensor of its layout, whose DLTensor is %dl, or such a value.
define internal i1 @rk_met(ptr %watch, ptr %table, ptr %argument, ptr %object, i1 %tensor, ptr %dl) {
  %pwanted = &Argument.object %argument
  %wanted = load ptr, ptr %pwanted
  %is_tensor = icmp eq ptr %wanted, null
  %kinds = icmp eq i1 %is_tensor, %tensor
  br i1 %kinds, label %kind, label %no
kind:
  br i1 %tensor, label %layout, label %value
value:
  %equal = call i1 @rk_equal(ptr %watch, ptr %table, ptr %object, ptr %wanted)
  ret i1 %equal
layout:
  %alike = call i1 @rk_alike(ptr %argument, ptr %dl)
  br i1 %alike, label %alignment, label %no
alignment:
  %low = call i64 @rk_alignment(ptr %dl)
  %pkept = &Argument.alignment %argument
  %kept = load i64, ptr %pkept
  %aligned = icmp eq i64 %low, %kept
  br i1 %aligned, label %steps, label %no
steps:
  %pndim = getelementptr i8, ptr %dl, i64 16
  %ndim = load i32, ptr %pndim
  %pa = getelementptr i8, ptr %argument, i64 32
  %a = load ptr, ptr %pa
  %pb = getelementptr i8, ptr %dl, i64 32
  %b = load ptr, ptr %pb
  br label %loop
loop:
  %k = phi i32 [ 0, %steps ], [ %k1, %look ]
  %over = icmp sge i32 %k, %ndim
  br i1 %over, label %yes, label %look
look:
  %pva = getelementptr i64, ptr %a, i32 %k
  %va = load i64, ptr %pva
  %pvb = getelementptr i64, ptr %b, i32 %k
  %vb = load i64, ptr %pvb
  %same = icmp eq i64 %va, %vb
  %k1 = add i32 %k, 1
  br i1 %same, label %loop, label %no
yes:
  ret i1 true
no:
  ret i1 false
}

; What is at one of the places, where -1 is None.
define internal ptr @rk_at(ptr %none, ptr %all, ptr %places, i64 %k) alwaysinline {
  %pplace = getelementptr i64, ptr %places, i64 %k
  %place = load i64, ptr %pplace
  %nowhere = icmp slt i64 %place, 0
  br i1 %nowhere, label %absent, label %there
absent:
  ret ptr %none
there:
  %p = getelementptr ptr, ptr %all, i64 %place
  %object = load ptr, ptr %p
  ret ptr %object
}

; Whether autocast is on for the CPU or for GPUs, on this thread.
define internal i1 @rk_autocast(ptr %watch, ptr %table) {
  %pf = &Watch.autocast %watch
  %f = load ptr, ptr %pf
  %unknown = icmp eq ptr %f, null
  br i1 %unknown, label %ask, label %both
both:                                             ; c10::DeviceType
  %cpu = call i1 %f(i8 signext 0)
  %cuda = call i1 %f(i8 signext 1)
  %either = or i1 %cpu, %cuda
  ret i1 %either
ask:
  %pany = &Watch.autocast_enabled %watch
  %any = load ptr, ptr %pany
  %pv = &Table.PyObject_Vectorcall %table
  %v = load ptr, ptr %pv
  %answer = call ptr %v(ptr %any, ptr null, i64 0, ptr null)
  %failed = icmp eq ptr %answer, null
  br i1 %failed, label %clear, label %answered
answered:
  call void @rk_release(ptr %table, ptr %answer)
  %pfalse = &Table.false %table
  %false = load ptr, ptr %pfalse
  %is = icmp ne ptr %answer, %false
  ret i1 %is
clear:
  call void @rk_clear(ptr %table)
  ret i1 true
}

; The entry of a call that is known, for plain tensors and values that the function was called with before; null for others, or
; where anything but autograd watches. Stores whether autograd has to know of the call.
define internal ptr @rk_find(ptr %calls, ptr %watch, ptr %table, ptr %args, i64 %count, ptr %pautograd) {
  %dls = alloca [{LONGEST} x [6 x i64]], align 8
  %pcount = &Calls.count %calls
  %wanted = load i64, ptr %pcount
  %pattention = &Table.attention %table
  %attention = load i64, ptr %pattention
  %calm = icmp eq i64 %attention, 0
  %every = icmp eq i64 %count, %wanted
  %c0 = and i1 %calm, %every
  br i1 %c0, label %watched, label %unknown
watched:
  %quiet = call i1 @rk_quiet(ptr %watch, ptr %table)
  br i1 %quiet, label %casts, label %unknown
casts:
  %autocast = call i1 @rk_autocast(ptr %watch, ptr %table)
  br i1 %autocast, label %unknown, label %argument
argument:
  %k = phi i64 [ 0, %casts ], [ %k1, %value ], [ %k1, %tensor ]
  %mask = phi i64 [ 0, %casts ], [ %mask, %value ], [ %mask1, %tensor ]
  %hash = phi i64 [ 0, %casts ], [ %hash, %value ], [ %hash1, %tensor ]
  %autograd = phi i1 [ false, %casts ], [ %autograd, %value ], [ %either, %tensor ]
  %taken = icmp eq i64 %k, %count
  br i1 %taken, label %find, label %what
what:
  %k1 = add i64 %k, 1
  %pobject = getelementptr ptr, ptr %args, i64 %k
  %object = load ptr, ptr %pobject
  %dl = getelementptr [6 x i64], ptr %dls, i64 %k
  %plain = call i1 @rk_tensor(ptr %table, ptr %object, ptr %dl)
  br i1 %plain, label %tensor, label %value
value:                                            ; a tensor of another kind is none that is known
  br label %argument
tensor:
  %recorded = call i1 @rk_recorded(ptr %table, ptr %object)
  %either = or i1 %autograd, %recorded
  %bit = shl i64 1, %k
  %mask1 = or i64 %mask, %bit
  %hash1 = call i64 @rk_mixed(ptr %dl, i64 %hash)
  br label %argument
find:
  store i1 %autograd, ptr %pautograd
  %pcells = &Calls.cells %calls
  %cells = load ptr, ptr %pcells
  %row = and i64 %hash, {ROWS_MASK}
  %first = getelementptr ptr, ptr %cells, i64 %row
  br label %candidate
candidate:
  %cell = phi ptr [ %first, %find ], [ %pnext, %compare ]
  %entry = load ptr, ptr %cell
  %nothing = icmp eq ptr %entry, null
  br i1 %nothing, label %unknown, label %try
try:
  %pnext = &Entry.next %entry
  %pwanteds = &Entry.arguments %entry
  %wanteds = load ptr, ptr %pwanteds
  br label %each
each:
  %j = phi i64 [ 0, %try ], [ %j1, %compare ]
  %all_met = icmp eq i64 %j, %count
  br i1 %all_met, label %found, label %compare_one
compare_one:
  %j1 = add i64 %j, 1
  %pj = getelementptr ptr, ptr %args, i64 %j
  %oj = load ptr, ptr %pj
  %dlj = getelementptr [6 x i64], ptr %dls, i64 %j
  %pa = getelementptr ptr, ptr %wanteds, i64 %j
  %a = load ptr, ptr %pa
  %shifted = lshr i64 %mask, %j
  %tj = trunc i64 %shifted to i1
  %met = call i1 @rk_met(ptr %watch, ptr %table, ptr %a, ptr %oj, i1 %tj, ptr %dlj)
  br label %compare
compare:
  br i1 %met, label %each, label %candidate
found:
  ret ptr %entry
unknown:
  ret ptr null
}

define internal i1 @rk_launches(ptr %entry) alwaysinline {
  %pmemories = &Entry.memories %entry
  %memories = load i64, ptr %pmemories
  %is = icmp sge i64 %memories, 0
  ret i1 %is
}

; Make a call by its entry; null with Python's error, or without one where the function itself has to be called.
define internal ptr @rk_make(ptr %watch, ptr %table, ptr %entry, ptr %args, i64 %count) {
  %dls = alloca [6 x i64], align 8
  %all = alloca [{TWICE} x ptr]
  %given = alloca [{LONGEST} x ptr]
  %pnone = &Table.none %table
  %none = load ptr, ptr %pnone
  %pv = &Table.PyObject_Vectorcall %table
  %v = load ptr, ptr %pv
  %pmemories = &Entry.memories %entry
  %memories = load i64, ptr %pmemories
  br label %hold
hold:                                             ; another thread may forget the call while this one makes it
  %powner = &Entry.owner %entry
  %owner = load ptr, ptr %powner
  %held = call ptr @rk_new_reference(ptr %table, ptr %owner)
  %args_size = shl i64 %count, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %all, ptr %args, i64 %args_size, i1 false)
  %made = getelementptr ptr, ptr %all, i64 %count
  %pmakes = &Entry.makes %entry
  %makes = load ptr, ptr %pmakes
  br label %allocate
allocate:
  %m = phi i64 [ 0, %hold ], [ %m1, %placed ]
  %enough = icmp eq i64 %m, %memories
  br i1 %enough, label %launches, label %new
new:
  %m1 = add i64 %m, 1
  %pmake = getelementptr ptr, ptr %makes, i64 %m
  %make = load ptr, ptr %pmake
  %pfunction = &Make.function %make
  %function = load ptr, ptr %pfunction
  %phow = &Make.given %make
  %how = load ptr, ptr %phow
  %phow_many = &Make.count %make
  %how_many = load i64, ptr %phow_many
  %pbase = &Make.base %make
  %base = load i64, ptr %pbase
  %how_size = shl i64 %how_many, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %given, ptr %how, i64 %how_size, i1 false)
  %view = icmp sge i64 %base, 0
  br i1 %view, label %of, label %ask
of:
  %pwhole = getelementptr ptr, ptr %all, i64 %base
  %whole_tensor = load ptr, ptr %pwhole
  store ptr %whole_tensor, ptr %given
  br label %ask
ask:
  %fresh = call ptr %v(ptr %function, ptr %given, i64 %how_many, ptr null)
  %pfresh = getelementptr ptr, ptr %made, i64 %m
  store ptr %fresh, ptr %pfresh
  %no_memory = icmp eq ptr %fresh, null
  br i1 %no_memory, label %out_of_memory, label %where
where:
  br i1 %view, label %placed, label %describe
out_of_memory:
  call void @rk_drop(ptr %table, ptr %made, i64 %m)
  br label %raise
describe:
  %described = call i1 @rk_tensor(ptr %table, ptr %fresh, ptr %dls)
  br i1 %described, label %check, label %unlike
check:
  %lies = call i64 @rk_alignment(ptr %dls)
  %aligned = icmp eq i64 %lies, 0
  br i1 %aligned, label %placed, label %unlike
placed:
  br label %allocate
unlike:
  call void @rk_drop(ptr %table, ptr %made, i64 %m1)
  call void @rk_release(ptr %table, ptr %owner)
  br label %unknown
launches:
  %psteps = &Entry.steps %entry
  %steps = load ptr, ptr %psteps
  %pnsteps = &Entry.launches %entry
  %nsteps = load i64, ptr %pnsteps
  br label %launch
launch:
  %s = phi i64 [ 0, %launches ], [ %s1, %launched ]
  %over = icmp eq i64 %s, %nsteps
  br i1 %over, label %results, label %gather
gather:
  %s1 = add i64 %s, 1
  %pstep = getelementptr ptr, ptr %steps, i64 %s
  %step = load ptr, ptr %pstep
  %plauncher = &Step.launcher %step
  %launcher = load ptr, ptr %plauncher
  %pmany = &Step.count %step
  %many = load i64, ptr %pmany
  %pplaces = &Step.places %step
  %places = load ptr, ptr %pplaces
  br label %take
take:
  %i = phi i64 [ 0, %gather ], [ %i1, %put ]
  %full = icmp eq i64 %i, %many
  br i1 %full, label %go, label %which
which:
  %i1 = add i64 %i, 1
  %i2 = shl i64 %i, 1
  %pplace = getelementptr i64, ptr %places, i64 %i2
  %place = load i64, ptr %pplace
  %pconstant = getelementptr i64, ptr %pplace, i64 1
  %fixed = icmp slt i64 %place, 0
  %pvariable = getelementptr ptr, ptr %all, i64 %place
  %pchosen = select i1 %fixed, ptr %pconstant, ptr %pvariable
  br label %put
put:
  %chosen = load ptr, ptr %pchosen
  %pslot = getelementptr ptr, ptr %given, i64 %i
  store ptr %chosen, ptr %pslot
  br label %take
go:
  %done = call ptr %v(ptr %launcher, ptr %given, i64 %many, ptr null)
  %failed = icmp eq ptr %done, null
  br i1 %failed, label %lost, label %launched
launched:
  call void @rk_release(ptr %table, ptr %done)
  br label %launch
lost:                                             ; the function itself says what an error of a launch means
  call void @rk_drop(ptr %table, ptr %made, i64 %memories)
  %pmatches = &Watch.PyErr_ExceptionMatches %watch
  %matches = load ptr, ptr %pmatches
  %plaunch_error = &Watch.launch_error %watch
  %launch_error = load ptr, ptr %plaunch_error
  %its = call i32 %matches(ptr %launch_error)
  %other_error = icmp eq i32 %its, 0
  br i1 %other_error, label %raise, label %again
again:
  call void @rk_clear(ptr %table)
  call void @rk_release(ptr %table, ptr %owner)
  br label %unknown
results:
  %preturned = &Entry.returned %entry
  %returned = load i64, ptr %preturned
  %presults = &Entry.results %entry
  %given_back = load ptr, ptr %presults
  %single = icmp eq i64 %returned, 1
  br i1 %single, label %one, label %tuple
one:
  %only = call ptr @rk_at(ptr %none, ptr %all, ptr %given_back, i64 0)
  %result0 = call ptr @rk_new_reference(ptr %table, ptr %only)
  br label %end
tuple:
  %pnew = &Table.PyTuple_New %table
  %newf = load ptr, ptr %pnew
  %packed = call ptr %newf(i64 %returned)
  %pset = &Table.PyTuple_SetItem %table
  %set = load ptr, ptr %pset
  %no_tuple = icmp eq ptr %packed, null
  br i1 %no_tuple, label %end, label %pack
pack:
  %t = phi i64 [ 0, %tuple ], [ %t1, %pack_one ]
  %whole = icmp eq i64 %t, %returned
  br i1 %whole, label %end, label %pack_one
pack_one:
  %t1 = add i64 %t, 1
  %mine = call ptr @rk_at(ptr %none, ptr %all, ptr %given_back, i64 %t)
  %mine1 = call ptr @rk_new_reference(ptr %table, ptr %mine)
  %ignored = call i32 %set(ptr %packed, i64 %t, ptr %mine1)
  br label %pack
end:
  %result = phi ptr [ %result0, %one ], [ null, %tuple ], [ %packed, %pack ]
  call void @rk_drop(ptr %table, ptr %made, i64 %memories)
  call void @rk_release(ptr %table, ptr %owner)
  ret ptr %result
raise:
  call void @rk_release(ptr %table, ptr %owner)
  ret ptr null
unknown:
  ret ptr null
}

; The call of `Calls`: what a function returns for arguments that are known; else None, also where autograd has to know of the call, or
; NotImplemented where it does more than launches.
define ptr @rk_op_calls(ptr %self, ptr %args, i64 %count, ptr %names) {
  %autograd = alloca i8
  %calls = call ptr @rk_record(ptr %self)
  %pwatch = &Calls.watch %calls
  %watch = load ptr, ptr %pwatch
  %ptable = &Watch.table %watch
  %table = load ptr, ptr %ptable
  %pnone = &Table.none %table
  %none = load ptr, ptr %pnone
  %named = icmp ne ptr %names, null
  br i1 %named, label %unknown, label %find
find:
  %entry = call ptr @rk_find(ptr %calls, ptr %watch, ptr %table, ptr %args, i64 %count, ptr %autograd)
  %nothing = icmp eq ptr %entry, null
  br i1 %nothing, label %unknown, label %found
found:
  %recorded = load i1, ptr %autograd
  br i1 %recorded, label %unknown, label %what
what:
  %launches = call i1 @rk_launches(ptr %entry)
  br i1 %launches, label %make, label %more
make:
  %result = call ptr @rk_make(ptr %watch, ptr %table, ptr %entry, ptr %args, i64 %count)
  %lost = icmp eq ptr %result, null
  br i1 %lost, label %why, label %done
why:
  %perror = &Table.PyErr_Occurred %table
  %ferror = load ptr, ptr %perror
  %error = call ptr %ferror()
  %unmade = icmp eq ptr %error, null
  br i1 %unmade, label %unknown, label %done
more:
  %pelse = &Watch.not_implemented %watch
  %else = load ptr, ptr %pelse
  %rejection = call ptr @rk_new_reference(ptr %table, ptr %else)
  ret ptr %rejection
done:
  ret ptr %result
unknown:
  %nothing_known = call ptr @rk_new_reference(ptr %table, ptr %none)
  ret ptr %nothing_known
}

; The call for users of an operator: as that of `Calls`, but what autograd has to know of goes to `apply(run, *values, *tensors)`.
define ptr @rk_op_users(ptr %self, ptr %args, i64 %count, ptr %names) {
  %autograd = alloca i8
  %handed = alloca [{TWICE} x ptr]
  %users = call ptr @rk_record(ptr %self)
  %pwatch = &Users.watch %users
  %watch = load ptr, ptr %pwatch
  %ptable = &Watch.table %watch
  %table = load ptr, ptr %ptable
  %pnone = &Table.none %table
  %none = load ptr, ptr %pnone
  %pcalls = &Users.calls %users
  %calls = load ptr, ptr %pcalls
  %named = icmp ne ptr %names, null
  br i1 %named, label %unknown, label %find
find:
  %entry = call ptr @rk_find(ptr %calls, ptr %watch, ptr %table, ptr %args, i64 %count, ptr %autograd)
  %nothing = icmp eq ptr %entry, null
  br i1 %nothing, label %unknown, label %what
what:
  %launches = call i1 @rk_launches(ptr %entry)
  br i1 %launches, label %who, label %more
who:
  %recorded = load i1, ptr %autograd
  br i1 %recorded, label %record, label %make
record:
  %prun = &Users.run %users
  %run = load ptr, ptr %prun
  store ptr %run, ptr %handed
  %porder = &Users.order %users
  %order = load ptr, ptr %porder
  br label %hand
hand:
  %k = phi i64 [ 0, %record ], [ %k1, %one ]
  %all = icmp eq i64 %k, %count
  br i1 %all, label %apply, label %one
one:
  %k1 = add i64 %k, 1
  %object = call ptr @rk_at(ptr %none, ptr %args, ptr %order, i64 %k)
  %pslot = getelementptr ptr, ptr %handed, i64 %k1
  store ptr %object, ptr %pslot
  br label %hand
apply:
  %papply = &Users.apply %users
  %fapply = load ptr, ptr %papply
  %pv = &Table.PyObject_Vectorcall %table
  %v = load ptr, ptr %pv
  %with_run = add i64 %count, 1
  %applied = call ptr %v(ptr %fapply, ptr %handed, i64 %with_run, ptr null)
  ret ptr %applied
make:
  %result = call ptr @rk_make(ptr %watch, ptr %table, ptr %entry, ptr %args, i64 %count)
  %lost = icmp eq ptr %result, null
  br i1 %lost, label %why, label %done
why:
  %perror = &Table.PyErr_Occurred %table
  %ferror = load ptr, ptr %perror
  %error = call ptr %ferror()
  %unmade = icmp eq ptr %error, null
  br i1 %unmade, label %unknown, label %done
more:
  %pelse = &Watch.not_implemented %watch
  %else = load ptr, ptr %pelse
  %rejection = call ptr @rk_new_reference(ptr %table, ptr %else)
  ret ptr %rejection
done:
  ret ptr %result
unknown:
  %nothing_known = call ptr @rk_new_reference(ptr %table, ptr %none)
  ret ptr %nothing_known
}

; Call a method of %object with %count objects, the first of which it is; whether that worked.
define internal i1 @rk_method(ptr %watch, ptr %table, ptr %name, ptr %args, i64 %count) {
  %pmethod = &Watch.PyObject_VectorcallMethod %watch
  %method = load ptr, ptr %pmethod
  %answer = call ptr %method(ptr %name, ptr %args, i64 %count, ptr null)
  %failed = icmp eq ptr %answer, null
  br i1 %failed, label %no, label %yes
yes:
  call void @rk_release(ptr %table, ptr %answer)
  ret i1 true
no:
  ret i1 false
}

; `forward(ctx, run, *values, *tensors)` of an operator's autograd function: for the one `run` that it knows and calls that are known it
; launches, and stores on ctx what the function in Python would.
define ptr @rk_op_kept_forward(ptr %self, ptr %args, i64 %count, ptr %names) {
  %autograd = alloca i8
  %params = alloca [{LONGEST} x ptr]
  %saved = alloca [{TWICE} x ptr]
  %users = call ptr @rk_record(ptr %self)
  %pwatch = &Users.watch %users
  %watch = load ptr, ptr %pwatch
  %ptable = &Watch.table %watch
  %table = load ptr, ptr %ptable
  %pnone = &Table.none %table
  %none = load ptr, ptr %pnone
  %pcalls = &Users.calls %users
  %calls = load ptr, ptr %pcalls
  %pcount = &Calls.count %calls
  %inputs = load i64, ptr %pcount
  %wanted = add i64 %inputs, 2
  %all = icmp eq i64 %count, %wanted
  br i1 %all, label %runs, label %slow_path
runs:
  %pgiven = getelementptr ptr, ptr %args, i64 1
  %given = load ptr, ptr %pgiven
  %prun = &Users.run %users
  %run = load ptr, ptr %prun
  %own = icmp eq ptr %given, %run
  br i1 %own, label %arrange, label %slow_path
arrange:
  %ctx = load ptr, ptr %args
  %first = getelementptr ptr, ptr %args, i64 2
  %porder = &Users.order %users
  %order = load ptr, ptr %porder
  br label %next
next:
  %k = phi i64 [ 0, %arrange ], [ %k1, %one ]
  %arranged = icmp eq i64 %k, %inputs
  br i1 %arranged, label %find, label %one
one:
  %k1 = add i64 %k, 1
  %pobject = getelementptr ptr, ptr %first, i64 %k
  %object = load ptr, ptr %pobject
  %pplace = getelementptr i64, ptr %order, i64 %k
  %place = load i64, ptr %pplace
  %pparam = getelementptr ptr, ptr %params, i64 %place
  store ptr %object, ptr %pparam
  br label %next
find:
  %entry = call ptr @rk_find(ptr %calls, ptr %watch, ptr %table, ptr %params, i64 %inputs, ptr %autograd)
  %nothing = icmp eq ptr %entry, null
  br i1 %nothing, label %slow_path, label %found
found:
  %recorded = load i1, ptr %autograd
  %launches = call i1 @rk_launches(ptr %entry)
  %unseen = xor i1 %recorded, true
  %fits = and i1 %unseen, %launches
  br i1 %fits, label %make, label %slow_path
make:                                             ; another thread may forget the call meanwhile
  %pabout = &Entry.about %entry
  %about = load ptr, ptr %pabout
  %held = call ptr @rk_new_reference(ptr %table, ptr %about)
  %results = call ptr @rk_make(ptr %watch, ptr %table, ptr %entry, ptr %params, i64 %inputs)
  %lost = icmp eq ptr %results, null
  br i1 %lost, label %why, label %store_about
why:
  call void @rk_release(ptr %table, ptr %about)
  %perror = &Table.PyErr_Occurred %table
  %ferror = load ptr, ptr %perror
  %error = call ptr %ferror()
  %unmade = icmp eq ptr %error, null
  br i1 %unmade, label %slow_path, label %none_at_all
store_about:
  %pset = &Watch.PyObject_SetAttr %watch
  %set = load ptr, ptr %pset
  %absent = icmp eq ptr %about, %none
  br i1 %absent, label %described, label %describe
describe:
  %pabout_name = &Watch.about %watch
  %about_name = load ptr, ptr %pabout_name
  %state0 = call i32 %set(ptr %ctx, ptr %about_name, ptr %about)
  %bad0 = icmp ne i32 %state0, 0
  call void @rk_release(ptr %table, ptr %about)
  br i1 %bad0, label %drop, label %saving
described:
  call void @rk_release(ptr %table, ptr %about)
  br label %saving
saving:
  store ptr %ctx, ptr %saved
  %poutputs = &Users.outputs %users
  %outputs = load i64, ptr %poutputs
  %many = icmp ne i64 %outputs, 1
  %psaves = &Users.saves %users
  %saves = load i64, ptr %psaves
  %pplaces = &Users.places %users
  %places = load ptr, ptr %pplaces
  %any = icmp ne i64 %saves, 0
  br i1 %any, label %gather, label %hidden
gather:
  %g = phi i64 [ 0, %saving ], [ %g1, %put ]
  %over = icmp sge i64 %g, %saves
  br i1 %over, label %save, label %which
which:
  %g1 = add i64 %g, 1
  %pfrom = getelementptr i64, ptr %places, i64 %g
  %from = load i64, ptr %pfrom
  %is_input = icmp slt i64 %from, %inputs
  br i1 %is_input, label %input, label %output
input:
  %pinput = getelementptr ptr, ptr %params, i64 %from
  %object0 = load ptr, ptr %pinput
  br label %put
output:
  %index = sub i64 %from, %inputs
  %object1 = call ptr @rk_result(ptr %table, ptr %results, i1 %many, i64 %index)
  br label %put
put:
  %kept = phi ptr [ %object0, %input ], [ %object1, %output ]
  %pslot = getelementptr ptr, ptr %saved, i64 %g1
  store ptr %kept, ptr %pslot
  br label %gather
save:
  %psave = &Watch.save_for_backward %watch
  %save_name = load ptr, ptr %psave
  %with_ctx = add i64 %saves, 1
  %ok1 = call i1 @rk_method(ptr %watch, ptr %table, ptr %save_name, ptr %saved, i64 %with_ctx)
  br i1 %ok1, label %hidden, label %drop
hidden:
  %phidden = &Users.hidden %users
  %hiddens = load i64, ptr %phidden
  %visible = sub i64 %outputs, %hiddens
  %some = icmp ne i64 %hiddens, 0
  br i1 %some, label %collect, label %settle
collect:
  %h = phi i64 [ 0, %hidden ], [ %h1, %collect_one ]
  %collected = icmp eq i64 %h, %hiddens
  br i1 %collected, label %mark, label %collect_one
collect_one:
  %h1 = add i64 %h, 1
  %at = add i64 %visible, %h
  %mine = call ptr @rk_result(ptr %table, ptr %results, i1 %many, i64 %at)
  %pmine = getelementptr ptr, ptr %saved, i64 %h1
  store ptr %mine, ptr %pmine
  br label %collect
mark:
  %pmark = &Watch.mark_non_differentiable %watch
  %mark_name = load ptr, ptr %pmark
  %with_hidden = add i64 %hiddens, 1
  %ok2 = call i1 @rk_method(ptr %watch, ptr %table, ptr %mark_name, ptr %saved, i64 %with_hidden)
  br i1 %ok2, label %settle, label %drop
settle:
  %pname = &Watch.materialize_grads %watch
  %name = load ptr, ptr %pname
  %pfalse = &Table.false %table
  %false = load ptr, ptr %pfalse
  %state = call i32 %set(ptr %ctx, ptr %name, ptr %false)
  %rejected = icmp ne i32 %state, 0
  br i1 %rejected, label %drop, label %done
done:
  ret ptr %results
drop:
  call void @rk_release(ptr %table, ptr %results)
  br label %none_at_all
none_at_all:
  ret ptr null
slow_path:
  %ppython = &Users.python %users
  %python = load ptr, ptr %ppython
  %pv = &Table.PyObject_Vectorcall %table
  %v = load ptr, ptr %pv
  %answer = tail call ptr %v(ptr %python, ptr %args, i64 %count, ptr %names)
  ret ptr %answer
}

; Append the items of a tuple to %count objects; how many there are then, or -1 for too many. They are borrowed.
define internal i64 @rk_append(ptr %table, ptr %tuple, ptr %objects, i64 %count) {
  %psize = &Table.PyTuple_Size %table
  %fsize = load ptr, ptr %psize
  %size = call i64 %fsize(ptr %tuple)
  %pget = &Table.PyTuple_GetItem %table
  %get = load ptr, ptr %pget
  %total = add i64 %count, %size
  %bad = icmp slt i64 %size, 0
  %much = icmp sgt i64 %total, {LONGEST}
  %wrong = or i1 %bad, %much
  br i1 %wrong, label %no, label %loop
loop:
  %k = phi i64 [ 0, %0 ], [ %k1, %one ]
  %over = icmp eq i64 %k, %size
  br i1 %over, label %end, label %one
one:
  %object = call ptr %get(ptr %tuple, i64 %k)
  %at = add i64 %count, %k
  %p = getelementptr ptr, ptr %objects, i64 %at
  store ptr %object, ptr %p
  %k1 = add i64 %k, 1
  br label %loop
end:
  ret i64 %total
no:
  call void @rk_clear(ptr %table)
  ret i64 -1
}

; `apply(ctx, *grads)` of the node of an operator's autograd function, where the backward is known to be launches for what ctx has; the
; function in Python gets all others, and what was read of ctx, which may be read once.
define ptr @rk_op_backward(ptr %self, ptr %args, i64 %count, ptr %names) {
  %autograd = alloca i8
  %objects = alloca [{LONGEST} x ptr]
  %passed = alloca [{TWICE} x ptr]
  %backward = call ptr @rk_record(ptr %self)
  %pwatch = &Backward.watch %backward
  %watch = load ptr, ptr %pwatch
  %ptable = &Watch.table %watch
  %table = load ptr, ptr %ptable
  %pnone = &Table.none %table
  %none = load ptr, ptr %pnone
  %ppython = &Backward.python %backward
  %python = load ptr, ptr %ppython
  %pcalls = &Backward.calls %backward
  %calls = load ptr, ptr %pcalls
  %pv = &Table.PyObject_Vectorcall %table
  %v = load ptr, ptr %pv
  %pget = &Watch.PyObject_GetAttr %watch
  %get = load ptr, ptr %pget
  %pgiven = &Backward.given %backward
  %given = load i64, ptr %pgiven
  %wanted = add i64 %given, 1
  %all = icmp eq i64 %count, %wanted
  %unnamed = icmp eq ptr %names, null
  %usual = and i1 %all, %unnamed
  br i1 %usual, label %read, label %slow_path
read:
  %ctx = load ptr, ptr %args
  %psaved_name = &Watch.saved_tensors %watch
  %saved_name = load ptr, ptr %psaved_name
  %saved = call ptr %get(ptr %ctx, ptr %saved_name)
  %freed = icmp eq ptr %saved, null
  br i1 %freed, label %failed, label %gradients
gradients:
  %pgrads = &Backward.grads %backward
  %grads = load i64, ptr %pgrads
  %grads_size = shl i64 %grads, 3
  %first = getelementptr ptr, ptr %args, i64 1
  call void @llvm.memcpy.p0.p0.i64(ptr %objects, ptr %first, i64 %grads_size, i1 false)
  %n0 = call i64 @rk_append(ptr %table, ptr %saved, ptr %objects, i64 %grads)
  %many0 = icmp slt i64 %n0, 0
  br i1 %many0, label %python_again, label %described
described:
  %pdescribed = &Backward.described %backward
  %is_described = load i64, ptr %pdescribed
  %plain = icmp eq i64 %is_described, 0
  br i1 %plain, label %ask, label %read_about
read_about:
  %pabout_name = &Watch.about %watch
  %about_name = load ptr, ptr %pabout_name
  %about0 = call ptr %get(ptr %ctx, ptr %about_name)
  %no_about = icmp eq ptr %about0, null
  br i1 %no_about, label %clear, label %parts
parts:
  %ptuple = &Table.PyTuple_GetItem %table
  %item = load ptr, ptr %ptuple
  br label %part
part:
  %p = phi i64 [ 0, %parts ], [ %p1, %appended ]
  %n1 = phi i64 [ %n0, %parts ], [ %n2, %appended ]
  %last = icmp eq i64 %p, 3
  br i1 %last, label %ask, label %append
append:
  %p1 = add i64 %p, 1
  %tuple = call ptr %item(ptr %about0, i64 %p)
  %n2 = call i64 @rk_append(ptr %table, ptr %tuple, ptr %objects, i64 %n1)
  %many2 = icmp slt i64 %n2, 0
  br i1 %many2, label %drop_about, label %appended
appended:
  br label %part
ask:
  %about = phi ptr [ null, %described ], [ %about0, %part ]
  %n3 = phi i64 [ %n0, %described ], [ %n1, %part ]
  %pneeds_name = &Watch.needs_input_grad %watch
  %needs_name = load ptr, ptr %pneeds_name
  %needs = call ptr %get(ptr %ctx, ptr %needs_name)
  %no_needs = icmp eq ptr %needs, null
  br i1 %no_needs, label %clear_about, label %needed
needed:
  %n4 = call i64 @rk_append(ptr %table, ptr %needs, ptr %objects, i64 %n3)
  %many4 = icmp slt i64 %n4, 0
  br i1 %many4, label %unknown, label %find
find:
  %entry = call ptr @rk_find(ptr %calls, ptr %watch, ptr %table, ptr %objects, i64 %n4, ptr %autograd)
  %nothing = icmp eq ptr %entry, null
  br i1 %nothing, label %unknown, label %found
found:
  %recorded = load i1, ptr %autograd
  %launches = call i1 @rk_launches(ptr %entry)
  %unseen = xor i1 %recorded, true
  %fits = and i1 %unseen, %launches
  br i1 %fits, label %make, label %unknown
make:
  %result = call ptr @rk_make(ptr %watch, ptr %table, ptr %entry, ptr %objects, i64 %n4)
  call void @rk_release_any(ptr %table, ptr %about)
  call void @rk_release(ptr %table, ptr %needs)
  %lost = icmp eq ptr %result, null
  br i1 %lost, label %why, label %made
why:
  %perror = &Table.PyErr_Occurred %table
  %ferror = load ptr, ptr %perror
  %error = call ptr %ferror()
  %unmade = icmp eq ptr %error, null
  br i1 %unmade, label %python_again, label %raise
raise:
  call void @rk_release(ptr %table, ptr %saved)
  br label %failed
made:
  call void @rk_release(ptr %table, ptr %saved)
  %poffset = &Backward.offset %backward
  %offset = load i64, ptr %poffset
  %ptensors = &Backward.tensors %backward
  %tensors = load i64, ptr %ptensors
  %total = add i64 %offset, %tensors
  %several = icmp ne i64 %tensors, 1
  %pnew = &Table.PyTuple_New %table
  %new = load ptr, ptr %pnew
  %pput = &Table.PyTuple_SetItem %table
  %put = load ptr, ptr %pput
  %answer = call ptr %new(i64 %total)
  %no_memory = icmp eq ptr %answer, null
  br i1 %no_memory, label %packed, label %pack
pack:
  %t = phi i64 [ 0, %made ], [ %t1, %pack_one ]
  %whole = icmp eq i64 %t, %total
  br i1 %whole, label %packed, label %pack_what
pack_what:
  %t1 = add i64 %t, 1
  %which = sub i64 %t, %offset
  %front = icmp slt i64 %which, 0
  br i1 %front, label %pack_one, label %pack_grad
pack_grad:
  %grad = call ptr @rk_result(ptr %table, ptr %result, i1 %several, i64 %which)
  br label %pack_one
pack_one:
  %mine = phi ptr [ %none, %pack_what ], [ %grad, %pack_grad ]
  %mine1 = call ptr @rk_new_reference(ptr %table, ptr %mine)
  %ignored = call i32 %put(ptr %answer, i64 %t, ptr %mine1)
  br label %pack
packed:
  call void @rk_release(ptr %table, ptr %result)
  ret ptr %answer
failed:
  ret ptr null
unknown:
  call void @rk_release_any(ptr %table, ptr %about)
  call void @rk_release(ptr %table, ptr %needs)
  br label %python_again
clear_about:
  call void @rk_clear(ptr %table)
  call void @rk_release_any(ptr %table, ptr %about)
  br label %python_again
drop_about:
  call void @rk_release(ptr %table, ptr %about0)
  br label %python_again
clear:
  call void @rk_clear(ptr %table)
  br label %python_again
python_again:
  %passed_size = shl i64 %count, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %passed, ptr %args, i64 %passed_size, i1 false)
  %pbehind = getelementptr ptr, ptr %passed, i64 %count
  store ptr %saved, ptr %pbehind
  %pwith_saved = &Watch.with_saved %watch
  %with_saved = load ptr, ptr %pwith_saved
  %instead = call ptr %v(ptr %python, ptr %passed, i64 %count, ptr %with_saved)
  call void @rk_release(ptr %table, ptr %saved)
  ret ptr %instead
slow_path:
  %other = tail call ptr %v(ptr %python, ptr %args, i64 %count, ptr %names)
  ret ptr %other
}

define internal void @rk_release_any(ptr %table, ptr %object) {
  %absent = icmp eq ptr %object, null
  br i1 %absent, label %end, label %there
there:
  call void @rk_release(ptr %table, ptr %object)
  br label %end
end:
  ret void
}
