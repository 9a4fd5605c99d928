; What native launches have in common: the readings of Python's and torch's objects that `rawkern.arguments.rules` asks.
;
; Nothing here may raise: an error that Python sets is cleared, and the argument takes the slow path. &Table.NAME is the
; address of a row of `rawkern.base.table`.

; DLPack's kind of the device of a tensor of torch's own classes with memory that holds its elements as they are, else 0: the
; dispatch keys of all others (lazy conj and neg bits, functorch, tracing, meta, sparse, nested ...) differ.
define internal i32 @rk_kind(ptr %table, ptr %object) alwaysinline {
  %ptype = getelementptr i8, ptr %object, i64 {type_offset}
  %type = load ptr, ptr %ptype
  %pt = &Table.tensor_type %table
  %tensor = load ptr, ptr %pt
  %is0 = icmp eq ptr %type, %tensor
  br i1 %is0, label %known, label %others
others:
  %pp = &Table.parameter_type %table
  %parameter = load ptr, ptr %pp
  %is1 = icmp eq ptr %type, %parameter
  br i1 %is1, label %known, label %no
known:
  %pimpl = getelementptr i8, ptr %object, i64 {impl_offset}
  %impl = load ptr, ptr %pimpl
  %pkeys = getelementptr i8, ptr %impl, i64 {keys_offset}
  %keys = load i64, ptr %pkeys
  %pk0 = &Table.keys_cpu %table
  %k0 = load i64, ptr %pk0
  %pk1 = &Table.keys_cpu_inference %table
  %k1 = load i64, ptr %pk1
  %pk2 = &Table.keys_cuda %table
  %k2 = load i64, ptr %pk2
  %pk3 = &Table.keys_cuda_inference %table
  %k3 = load i64, ptr %pk3
  %e0 = icmp eq i64 %keys, %k0
  %e1 = icmp eq i64 %keys, %k1
  %e2 = icmp eq i64 %keys, %k2
  %e3 = icmp eq i64 %keys, %k3
  %cpu = or i1 %e0, %e1
  %cuda = or i1 %e2, %e3
  %other = select i1 %cuda, i32 {CUDA}, i32 0
  %kind = select i1 %cpu, i32 {CPU}, i32 %other
  ret i32 %kind
no:
  ret i32 0
}

; The storage of such a tensor: two that share memory have one.
define internal ptr @rk_storage(ptr %object) alwaysinline {
  %pimpl = getelementptr i8, ptr %object, i64 {impl_offset}
  %impl = load ptr, ptr %pimpl
  %pstorage = getelementptr i8, ptr %impl, i64 {storage_offset}
  %storage = load ptr, ptr %pstorage
  ret ptr %storage
}

; Whether an object is such a tensor. Fills the DLTensor.
define internal i1 @rk_tensor(ptr %table, ptr %object, ptr %dl) alwaysinline {
  %kind = call i32 @rk_kind(ptr %table, ptr %object)
  %plain = icmp ne i32 %kind, 0
  br i1 %plain, label %read, label %no
read:
  %pf = &Table.dltensor %table
  %f = load ptr, ptr %pf
  %status = call i32 %f(ptr %object, ptr %dl)
  %bad = icmp ne i32 %status, 0
  br i1 %bad, label %clear, label %memory
memory:                                           ; an address, or nothing that would need one
  %data = load ptr, ptr %dl
  %has = icmp ne ptr %data, null
  br i1 %has, label %yes, label %empty
empty:
  %none = call i1 @rk_empty(ptr %dl)
  ret i1 %none
clear:
  call void @rk_clear(ptr %table)
  br label %no
yes:
  ret i1 true
no:
  ret i1 false
}

define internal void @rk_clear(ptr %table) noinline {
  %p = &Table.PyErr_Clear %table
  %f = load ptr, ptr %p
  call void %f()
  ret void
}

define internal i1 @rk_empty(ptr %dl) noinline {
  %pndim = getelementptr i8, ptr %dl, i64 16
  %ndim = load i32, ptr %pndim
  %pshape = getelementptr i8, ptr %dl, i64 24
  %shape = load ptr, ptr %pshape
  br label %loop
loop:
  %k = phi i32 [ 0, %0 ], [ %k1, %next ]
  %over = icmp sge i32 %k, %ndim
  br i1 %over, label %no, label %look
look:
  %p = getelementptr i64, ptr %shape, i32 %k
  %size = load i64, ptr %p
  %zero = icmp eq i64 %size, 0
  br i1 %zero, label %yes, label %next
next:
  %k1 = add i32 %k, 1
  br label %loop
yes:
  ret i1 true
no:
  ret i1 false
}

; Whether the elements are contiguous, in order.
define internal i1 @rk_contiguous(ptr %dl) {
  %pndim = getelementptr i8, ptr %dl, i64 16
  %ndim = load i32, ptr %pndim
  %pshape = getelementptr i8, ptr %dl, i64 24
  %shape = load ptr, ptr %pshape
  %pstrides = getelementptr i8, ptr %dl, i64 32
  %strides = load ptr, ptr %pstrides
  br label %loop
loop:
  %k = phi i32 [ %ndim, %0 ], [ %last, %next ]
  %dense = phi i64 [ 1, %0 ], [ %more, %next ]
  %over = icmp eq i32 %k, 0
  br i1 %over, label %yes, label %look
look:
  %last = sub i32 %k, 1
  %p = getelementptr i64, ptr %shape, i32 %last
  %size = load i64, ptr %p
  %q = getelementptr i64, ptr %strides, i32 %last
  %stride = load i64, ptr %q
  %one = icmp eq i64 %size, 1
  %fits = icmp eq i64 %stride, %dense
  %good = or i1 %one, %fits
  br i1 %good, label %next, label %no
next:
  %more = mul i64 %dense, %size
  br label %loop
yes:
  ret i1 true
no:
  %none = call i1 @rk_empty(ptr %dl)
  ret i1 %none
}

; Whether no two elements share memory through a stride of 0.
define internal i1 @rk_distinct(ptr %dl) {
  %pndim = getelementptr i8, ptr %dl, i64 16
  %ndim = load i32, ptr %pndim
  %pshape = getelementptr i8, ptr %dl, i64 24
  %shape = load ptr, ptr %pshape
  %pstrides = getelementptr i8, ptr %dl, i64 32
  %strides = load ptr, ptr %pstrides
  br label %loop
loop:
  %k = phi i32 [ 0, %0 ], [ %k1, %next ]
  %over = icmp sge i32 %k, %ndim
  br i1 %over, label %yes, label %look
look:
  %p = getelementptr i64, ptr %shape, i32 %k
  %size = load i64, ptr %p
  %q = getelementptr i64, ptr %strides, i32 %k
  %stride = load i64, ptr %q
  %many = icmp sgt i64 %size, 1
  %zero = icmp eq i64 %stride, 0
  %bad = and i1 %many, %zero
  br i1 %bad, label %no, label %next
next:
  %k1 = add i32 %k, 1
  br label %loop
yes:
  ret i1 true
no:
  ret i1 false
}

; Whether the elements lie as the kernel takes them: in order, or anyhow if it knows about strides.
define internal i1 @rk_order(ptr %dl, i1 %strided, i1 %writes) alwaysinline {
  br i1 %strided, label %loose, label %dense
dense:
  %whole = call i1 @rk_contiguous(ptr %dl)
  ret i1 %whole
loose:
  br i1 %writes, label %look, label %yes
look:
  %apart = call i1 @rk_distinct(ptr %dl)
  ret i1 %apart
yes:
  ret i1 true
}

; Bytes from a tensor's first element to the end of its last.
define internal i64 @rk_extent(ptr %dl) {
  %pndim = getelementptr i8, ptr %dl, i64 16
  %ndim = load i32, ptr %pndim
  %pbits = getelementptr i8, ptr %dl, i64 21
  %bits8 = load i8, ptr %pbits
  %bits = zext i8 %bits8 to i64
  %planes = getelementptr i8, ptr %dl, i64 22
  %lanes16 = load i16, ptr %planes
  %lanes = zext i16 %lanes16 to i64
  %all = mul i64 %bits, %lanes
  %up = add i64 %all, 7
  %itemsize = lshr i64 %up, 3
  %pshape = getelementptr i8, ptr %dl, i64 24
  %shape = load ptr, ptr %pshape
  %pstrides = getelementptr i8, ptr %dl, i64 32
  %strides = load ptr, ptr %pstrides
  br label %loop
loop:
  %k = phi i32 [ 0, %0 ], [ %k1, %next ]
  %last = phi i64 [ 0, %0 ], [ %last1, %next ]
  %over = icmp sge i32 %k, %ndim
  br i1 %over, label %some, label %look
look:
  %p = getelementptr i64, ptr %shape, i32 %k
  %size = load i64, ptr %p
  %empty = icmp eq i64 %size, 0
  br i1 %empty, label %none, label %next
next:
  %ps = getelementptr i64, ptr %strides, i32 %k
  %stride = load i64, ptr %ps
  %less = sub i64 %size, 1
  %far = mul i64 %less, %stride
  %last1 = add i64 %last, %far
  %k1 = add i32 %k, 1
  br label %loop
some:
  %count = add i64 %last, 1
  %extent = mul i64 %count, %itemsize
  ret i64 %extent
none:
  ret i64 0
}

; Whether there is exactly one element.
; Note down after the parameters how many bytes may be read, and be written, from an address on that stands among them.
define internal void @rk_put_extent(ptr %params, ptr %extents, ptr %at, i64 %read, i64 %written) alwaysinline {
  %from = ptrtoint ptr %params to i64
  %to = ptrtoint ptr %at to i64
  %offset = sub i64 %to, %from
  %twice = mul i64 %offset, 2
  %row = getelementptr i8, ptr %extents, i64 %twice
  store i64 %read, ptr %row, align 8
  %second = getelementptr i64, ptr %row, i64 1
  store i64 %written, ptr %second, align 8
  ret void
}

define internal i1 @rk_one(ptr %dl) {
  %pndim = getelementptr i8, ptr %dl, i64 16
  %ndim = load i32, ptr %pndim
  %pshape = getelementptr i8, ptr %dl, i64 24
  %shape = load ptr, ptr %pshape
  br label %loop
loop:
  %k = phi i32 [ 0, %0 ], [ %k1, %next ]
  %over = icmp sge i32 %k, %ndim
  br i1 %over, label %yes, label %look
look:
  %p = getelementptr i64, ptr %shape, i32 %k
  %size = load i64, ptr %p
  %one = icmp eq i64 %size, 1
  br i1 %one, label %next, label %no
next:
  %k1 = add i32 %k, 1
  br label %loop
yes:
  ret i1 true
no:
  ret i1 false
}

; Whether autograd would have to know of a write to a tensor: it requires grad, and grad mode is on.
define internal i1 @rk_recorded(ptr %table, ptr %object) {
  %pf = &Table.requires_grad %table
  %f = load ptr, ptr %pf
  %pimpl = getelementptr i8, ptr %object, i64 {impl_offset}
  %impl = load ptr, ptr %pimpl
  %requires = call i1 %f(ptr %impl)
  br i1 %requires, label %mode, label %no
mode:
  %pg = &Table.grad_enabled %table
  %g = load ptr, ptr %pg
  %enabled = call i1 %g()
  ret i1 %enabled
no:
  ret i1 false
}

define internal void @rk_release(ptr %table, ptr %object) alwaysinline {
  %p = &Table.Py_DecRef %table
  %f = load ptr, ptr %p
  call void %f(ptr %object)
  ret void
}

; Whether no dispatch mode and no tracer watches torch's calls.
define internal i1 @rk_unwatched(ptr %table) {
  %pm = &Table.dispatch_modes %table
  %m = load ptr, ptr %pm
  %count = call i64 %m()
  %none = icmp eq i64 %count, 0
  br i1 %none, label %trace, label %no
trace:
  %pstate = &Table.tracing_state %table
  %state = load ptr, ptr %pstate
  %shared = call ptr %state()
  %inside = load ptr, ptr %shared
  %untraced = icmp eq ptr %inside, null
  ret i1 %untraced
no:
  ret i1 false
}

; Count a change of a tensor, one that `rk_tensor` takes, or of None: tensors made in inference mode have no count.
define internal void @rk_bump(ptr %table, ptr %object) {
  %pnone = &Table.none %table
  %none = load ptr, ptr %pnone
  %absent = icmp eq ptr %object, %none
  br i1 %absent, label %done, label %there
there:
  %tensor = getelementptr i8, ptr %object, i64 {impl_offset}
  %impl = load ptr, ptr %tensor
  %pkeys = getelementptr i8, ptr %impl, i64 {keys_offset}
  %keys = load i64, ptr %pkeys
  %pk0 = &Table.keys_cpu %table
  %k0 = load i64, ptr %pk0
  %pk1 = &Table.keys_cuda %table
  %k1 = load i64, ptr %pk1
  %e0 = icmp eq i64 %keys, %k0
  %e1 = icmp eq i64 %keys, %k1
  %counts = or i1 %e0, %e1
  br i1 %counts, label %bump, label %done
bump:
  %pf = &Table.bump %table
  %f = load ptr, ptr %pf
  call void %f(ptr %tensor)
  br label %done
done:
  ret void
}

; Whether a source counts as unchanged still: forever, or up to a time of the monotonic clock.
define internal i1 @rk_unchanged(ptr %table, ptr %until) alwaysinline {
  %now2 = alloca [2 x i64]
  %limit = load i64, ptr %until
  %forever = icmp eq i64 %limit, 9223372036854775807
  br i1 %forever, label %yes, label %watched
watched:
  %pclock = &Table.clock %table
  %clock = load ptr, ptr %pclock
  %status = call i32 %clock(i32 1, ptr %now2)
  %seconds = load i64, ptr %now2
  %pnano = getelementptr i64, ptr %now2, i64 1
  %nano = load i64, ptr %pnano
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %nano
  %early = icmp slt i64 %now, %limit
  ret i1 %early
yes:
  ret i1 true
}

; The target of a device, in the list that begins at %first; null if there is none.
define internal ptr @rk_target(ptr %table, ptr %first, i64 %of) alwaysinline {
  %pmode = &Table.mode %table
  %mode = load i64, ptr %pmode
  %cpu = icmp eq i64 %of, {CPU}
  %added = select i1 %cpu, i64 %mode, i64 0
  %device = add i64 %of, %added
  br label %search
search:
  %link = phi ptr [ %first, %0 ], [ %next, %compare ]
  %target = load ptr, ptr %link
  %none = icmp eq ptr %target, null
  br i1 %none, label %end, label %compare
compare:
  %pthere = &Target.device %target
  %there = load i64, ptr %pthere
  %here = icmp eq i64 %there, %device
  %next = &Target.next %target
  br i1 %here, label %end, label %search
end:
  ret ptr %target
}

; Whether an object is an int or a bool of Python's.
define internal i1 @rk_is_int(ptr %table, ptr %object) alwaysinline {
  %ptype = getelementptr i8, ptr %object, i64 {type_offset}
  %type = load ptr, ptr %ptype
  %pl = &Table.int_type %table
  %long = load ptr, ptr %pl
  %pb = &Table.bool_type %table
  %bool = load ptr, ptr %pb
  %is0 = icmp eq ptr %type, %long
  %is1 = icmp eq ptr %type, %bool
  %is = or i1 %is0, %is1
  ret i1 %is
}

; An int of 64 bits with sign.
define internal i1 @rk_int(ptr %table, ptr %object, ptr %out) {
  %overflow = alloca i32
  %is = call i1 @rk_is_int(ptr %table, ptr %object)
  br i1 %is, label %read, label %no
read:
  %pf = &Table.PyLong_AsLongLongAndOverflow %table
  %f = load ptr, ptr %pf
  %value = call i64 %f(ptr %object, ptr %overflow)
  store i64 %value, ptr %out
  %o = load i32, ptr %overflow
  %fits = icmp eq i32 %o, 0
  ret i1 %fits
no:
  ret i1 false
}

; An int of 64 bits without sign.
define internal i1 @rk_unsigned(ptr %table, ptr %object, ptr %out) {
  %overflow = alloca i32
  %is = call i1 @rk_is_int(ptr %table, ptr %object)
  br i1 %is, label %read, label %no
read:
  %pf = &Table.PyLong_AsLongLongAndOverflow %table
  %f = load ptr, ptr %pf
  %value = call i64 %f(ptr %object, ptr %overflow)
  store i64 %value, ptr %out
  %o = load i32, ptr %overflow
  %high = icmp sgt i32 %o, 0
  br i1 %high, label %upper, label %lower
lower:
  %positive = icmp sge i64 %value, 0
  %exact = icmp eq i32 %o, 0
  %fits = and i1 %positive, %exact
  ret i1 %fits
upper:
  %pg = &Table.PyLong_AsUnsignedLongLong %table
  %g = load ptr, ptr %pg
  %large = call i64 %g(ptr %object)
  store i64 %large, ptr %out
  %pe = &Table.PyErr_Occurred %table
  %e = load ptr, ptr %pe
  %error = call ptr %e()
  %good = icmp eq ptr %error, null
  br i1 %good, label %yes, label %clear
clear:
  call void @rk_clear(ptr %table)
  br label %no
yes:
  ret i1 true
no:
  ret i1 false
}

; A float of Python's, or an int of 64 bits, as a double.
define internal i1 @rk_double(ptr %table, ptr %object, ptr %out) {
  %number = alloca i64
  %ptype = getelementptr i8, ptr %object, i64 {type_offset}
  %type = load ptr, ptr %ptype
  %pt = &Table.float_type %table
  %float = load ptr, ptr %pt
  %is = icmp eq ptr %type, %float
  br i1 %is, label %read, label %int
read:
  %pf = &Table.PyFloat_AsDouble %table
  %f = load ptr, ptr %pf
  %value = call double %f(ptr %object)
  store double %value, ptr %out
  ret i1 true
int:
  %good = call i1 @rk_int(ptr %table, ptr %object, ptr %number)
  %n = load i64, ptr %number
  %d = sitofp i64 %n to double
  store double %d, ptr %out
  ret i1 %good
}

; A double rounded once, ties to even, to the bits of a small float with so many bits of precision and this smallest
; exponent; -1 for a finite number beyond its range. %infinity: the bits of infinity, %nan those of its NaN.
define internal i32 @rk_narrow(double %x, i32 %precision, i32 %lowest, i32 %infinity, i32 %nan) {
  %bits = bitcast double %x to i64
  %top = lshr i64 %bits, 63
  %sign = trunc i64 %top to i32
  %shifted = shl i32 %sign, 15
  %magnitude = and i64 %bits, 9223372036854775807
  %special = icmp uge i64 %magnitude, 9218868437227405312
  br i1 %special, label %far, label %finite
far:
  %isnan = icmp ugt i64 %magnitude, 9218868437227405312
  %inf = or i32 %infinity, %shifted
  %result0 = select i1 %isnan, i32 %nan, i32 %inf
  ret i32 %result0
finite:
  %e64 = lshr i64 %magnitude, 52
  %biased = trunc i64 %e64 to i32
  %e = sub i32 %biased, 1023
  %less = icmp slt i32 %e, %lowest
  %exponent = select i1 %less, i32 %lowest, i32 %e
  %huge = icmp sgt i32 %exponent, 127
  br i1 %huge, label %over, label %scale
scale:                                            ; in units of the last place
  %unit0 = sub i32 %exponent, %precision
  %unit = add i32 %unit0, 1
  %inverse = sub i32 1023, %unit
  %i64 = zext i32 %inverse to i64
  %ibits = shl i64 %i64, 52
  %factor = bitcast i64 %ibits to double
  %abs = bitcast i64 %magnitude to double
  %scaled = fmul double %abs, %factor
  %raised = fadd double %scaled, 0x4330000000000000
  %rbits = bitcast double %raised to i64
  %steps = trunc i64 %rbits to i32
  %above = sub i32 %exponent, %lowest
  %places = sub i32 %precision, 1
  %base = shl i32 %above, %places
  %result = add i32 %base, %steps
  %beyond = icmp uge i32 %result, %infinity
  br i1 %beyond, label %over, label %done
done:
  %signed = or i32 %result, %shifted
  ret i32 %signed
over:
  ret i32 -1
}

; What follows stores a value at %at as the parameter has it, and tells whether it could.

define internal i1 @rk_put_int(ptr %table, ptr %object, ptr %at, i64 %size, i64 %low, i64 %high) alwaysinline {
  %number = alloca i64
  %unsigned = icmp eq i64 %low, 0
  %wide = icmp uge i64 %size, 8
  %eight = icmp eq i64 %size, 8
  %upper = and i1 %unsigned, %eight
  br i1 %upper, label %whole, label %signed
whole:
  %good0 = call i1 @rk_unsigned(ptr %table, ptr %object, ptr %number)
  %n0 = load i64, ptr %number
  store i64 %n0, ptr %at, align 1
  ret i1 %good0
signed:
  %good1 = call i1 @rk_int(ptr %table, ptr %object, ptr %number)
  %n = load i64, ptr %number
  %above = icmp sge i64 %n, %low
  %below = icmp sle i64 %n, %high
  %inside = and i1 %above, %below
  %good = and i1 %good1, %inside
  switch i64 %size, label %sixteen [ i64 1, label %one
                                     i64 2, label %two
                                     i64 4, label %four
                                     i64 8, label %long ]
one:
  %b = trunc i64 %n to i8
  store i8 %b, ptr %at
  ret i1 %good
two:
  %h = trunc i64 %n to i16
  store i16 %h, ptr %at, align 1
  ret i1 %good
four:
  %i = trunc i64 %n to i32
  store i32 %i, ptr %at, align 1
  ret i1 %good
long:
  store i64 %n, ptr %at, align 1
  ret i1 %good
sixteen:
  %q = sext i64 %n to i128
  store i128 %q, ptr %at, align 1
  ret i1 %good
}

define internal i1 @rk_put_bool(ptr %table, ptr %object, ptr %at) alwaysinline {
  %ptrue = &Table.true %table
  %true = load ptr, ptr %ptrue
  %pfalse = &Table.false %table
  %false = load ptr, ptr %pfalse
  %yes = icmp eq ptr %object, %true
  %no = icmp eq ptr %object, %false
  %byte = zext i1 %yes to i8
  store i8 %byte, ptr %at
  %good = or i1 %yes, %no
  ret i1 %good
}

; A float of 8, 4 or 2 bytes; %precision and the others are `rk_narrow`'s.
define internal i1 @rk_store(double %x, ptr %at, i64 %size, i32 %precision, i32 %lowest, i32 %infinity, i32 %nan) alwaysinline {
  switch i64 %size, label %half [ i64 8, label %double
                                  i64 4, label %float ]
double:
  store double %x, ptr %at, align 1
  ret i1 true
float:                                            ; out of range is what is infinite only when it is rounded
  %small = fptrunc double %x to float
  store float %small, ptr %at, align 1
  %bits = bitcast float %small to i32
  %wide = bitcast double %x to i64
  %magnitude = and i32 %bits, 2147483647
  %whole = and i64 %wide, 9223372036854775807
  %finite = icmp ne i32 %magnitude, 2139095040
  %infinite = icmp eq i64 %whole, 9218868437227405312
  %good = or i1 %finite, %infinite
  ret i1 %good
half:
  %narrow = call i32 @rk_narrow(double %x, i32 %precision, i32 %lowest, i32 %infinity, i32 %nan)
  %short = trunc i32 %narrow to i16
  store i16 %short, ptr %at, align 1
  %fits = icmp sge i32 %narrow, 0
  ret i1 %fits
}

define internal i1 @rk_put_float(ptr %table, ptr %object, ptr %at, i64 %size, i32 %precision, i32 %lowest, i32 %infinity, i32 %nan) alwaysinline {
  %number = alloca double
  %is = call i1 @rk_double(ptr %table, ptr %object, ptr %number)
  br i1 %is, label %store, label %no
store:                                            ; large ints, which a double would round first, are for others
  %x = load double, ptr %number
  %ptype = getelementptr i8, ptr %object, i64 {type_offset}
  %type = load ptr, ptr %ptype
  %pt = &Table.float_type %table
  %float = load ptr, ptr %pt
  %int = icmp ne ptr %type, %float
  %bits = load i64, ptr %number
  %magnitude = and i64 %bits, 9223372036854775807
  %large = icmp uge i64 %magnitude, 4845873199050653696
  %narrow = icmp ult i64 %size, 8
  %rounded = and i1 %int, %large
  %twice = and i1 %rounded, %narrow
  br i1 %twice, label %no, label %once
once:
  %good = call i1 @rk_store(double %x, ptr %at, i64 %size, i32 %precision, i32 %lowest, i32 %infinity, i32 %nan)
  ret i1 %good
no:
  ret i1 false
}

define internal i1 @rk_put_complex(ptr %table, ptr %object, ptr %at, i64 %size, i32 %precision, i32 %lowest, i32 %infinity, i32 %nan) alwaysinline {
  %ptype = getelementptr i8, ptr %object, i64 {type_offset}
  %type = load ptr, ptr %ptype
  %pc = &Table.complex_type %table
  %complex = load ptr, ptr %pc
  %is = icmp eq ptr %type, %complex
  br i1 %is, label %read, label %no
read:
  %pr = &Table.PyComplex_RealAsDouble %table
  %realf = load ptr, ptr %pr
  %real = call double %realf(ptr %object)
  %pi = &Table.PyComplex_ImagAsDouble %table
  %imagf = load ptr, ptr %pi
  %imag = call double %imagf(ptr %object)
  %second = getelementptr i8, ptr %at, i64 %size
  %good0 = call i1 @rk_store(double %real, ptr %at, i64 %size, i32 %precision, i32 %lowest, i32 %infinity, i32 %nan)
  %good1 = call i1 @rk_store(double %imag, ptr %second, i64 %size, i32 %precision, i32 %lowest, i32 %infinity, i32 %nan)
  %good = and i1 %good0, %good1
  ret i1 %good
no:
  ret i1 false
}

; Bytes of this size.
define internal i1 @rk_put_bytes(ptr %table, ptr %object, ptr %at, i64 %size) alwaysinline {
  %ptype = getelementptr i8, ptr %object, i64 {type_offset}
  %type = load ptr, ptr %ptype
  %pb = &Table.bytes_type %table
  %bytes = load ptr, ptr %pb
  %is = icmp eq ptr %type, %bytes
  br i1 %is, label %measure, label %no
measure:
  %ps = &Table.PyBytes_Size %table
  %sizef = load ptr, ptr %ps
  %length = call i64 %sizef(ptr %object)
  %same = icmp eq i64 %length, %size
  br i1 %same, label %copy, label %no
copy:
  %pd = &Table.PyBytes_AsString %table
  %dataf = load ptr, ptr %pd
  %data = call ptr %dataf(ptr %object)
  call void @llvm.memcpy.p0.p0.i64(ptr %at, ptr %data, i64 %size, i1 false)
  ret i1 true
no:
  ret i1 false
}

; Whether an object is a tuple of so many items.
define internal i1 @rk_is_tuple(ptr %table, ptr %object, i64 %count) alwaysinline {
  %ptype = getelementptr i8, ptr %object, i64 {type_offset}
  %type = load ptr, ptr %ptype
  %pt = &Table.tuple_type %table
  %tuple = load ptr, ptr %pt
  %is = icmp eq ptr %type, %tuple
  br i1 %is, label %measure, label %no
measure:
  %ps = &Table.PyTuple_Size %table
  %sizef = load ptr, ptr %ps
  %length = call i64 %sizef(ptr %object)
  %same = icmp eq i64 %length, %count
  ret i1 %same
no:
  ret i1 false
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; Sizes and strides of a tensor after the address that an accessor of %room bytes begins with, numbers of %size bytes of
; at most %most: %dims of each, or of fewer with their number after them if %loose. False for what does not fit.
define internal i1 @rk_put_sizes(ptr %dl, ptr %at, i64 %room, i64 %dims, i64 %loose, i64 %size, i64 %most) {
  %pndim = getelementptr i8, ptr %dl, i64 16
  %ndim = load i32, ptr %pndim
  %count = zext i32 %ndim to i64
  %pshape = getelementptr i8, ptr %dl, i64 24
  %shape = load ptr, ptr %pshape
  %pstrides = getelementptr i8, ptr %dl, i64 32
  %strides = load ptr, ptr %pstrides
  %any = icmp ne i64 %loose, 0
  %same = icmp eq i64 %count, %dims
  %few = icmp ult i64 %count, %dims
  %fewer = and i1 %any, %few
  %fits = or i1 %same, %fewer
  br i1 %fits, label %fill, label %no
fill:
  call void @llvm.memset.p0.i64(ptr align 1 %at, i8 0, i64 %room, i1 false)
  %sizes_at = getelementptr i8, ptr %at, i64 8
  %row = mul i64 %dims, %size
  %strides_at = getelementptr i8, ptr %sizes_at, i64 %row
  %beyond = getelementptr i8, ptr %strides_at, i64 %row
  br i1 %any, label %number, label %loop
number:
  store i32 %ndim, ptr %beyond, align 1
  br label %loop
loop:
  %k = phi i64 [ 0, %fill ], [ 0, %number ], [ %k1, %next ]
  %last = phi i64 [ 0, %fill ], [ 0, %number ], [ %last2, %next ]
  %over = icmp eq i64 %k, %count
  br i1 %over, label %reach, label %look
look:
  %p = getelementptr i64, ptr %shape, i64 %k
  %n = load i64, ptr %p
  %q = getelementptr i64, ptr %strides, i64 %k
  %stride = load i64, ptr %q
  %good0 = icmp ule i64 %n, %most
  %good1 = icmp ule i64 %stride, %most
  %good = and i1 %good0, %good1
  br i1 %good, label %put, label %no
put:
  %less = sub i64 %n, 1
  %far = mul i64 %less, %stride
  %last1 = add i64 %last, %far
  %none = icmp eq i64 %n, 0
  %last2 = select i1 %none, i64 %last, i64 %last1
  %place = mul i64 %k, %size
  %size_at = getelementptr i8, ptr %sizes_at, i64 %place
  %stride_at = getelementptr i8, ptr %strides_at, i64 %place
  %wide = icmp eq i64 %size, 8
  br i1 %wide, label %long, label %short
long:
  store i64 %n, ptr %size_at, align 1
  store i64 %stride, ptr %stride_at, align 1
  br label %next
short:
  %n32 = trunc i64 %n to i32
  %stride32 = trunc i64 %stride to i32
  store i32 %n32, ptr %size_at, align 1
  store i32 %stride32, ptr %stride_at, align 1
  br label %next
next:
  %k1 = add i64 %k, 1
  br label %loop
reach:                                            ; the last element has an index of that type, too
  %inside = icmp ule i64 %last, %most
  ret i1 %inside
no:
  ret i1 false
}
