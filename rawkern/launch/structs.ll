; What the launch of kernels with structs by value reads beyond `rawkern.base`'s readings: dicts and their items, tensor
; maps. As there, nothing raises.

; Whether an object is a tuple or a list of so many items, of no subclass.
define internal i1 @rk_is_sequence(ptr %table, ptr %object, i64 %count) {
  %ptype = getelementptr i8, ptr %object, i64 {type_offset}
  %type = load ptr, ptr %ptype
  %pl = &Table.list_type %table
  %list = load ptr, ptr %pl
  %is = icmp eq ptr %type, %list
  br i1 %is, label %measure, label %others
measure:
  %ps = &Table.PyList_Size %table
  %sizef = load ptr, ptr %ps
  %length = call i64 %sizef(ptr %object)
  %same = icmp eq i64 %length, %count
  ret i1 %same
others:
  %tuple = call i1 @rk_is_tuple(ptr %table, ptr %object, i64 %count)
  ret i1 %tuple
}

; An item of such a tuple or list.
define internal ptr @rk_item(ptr %table, ptr %object, i64 %k) {
  %ptype = getelementptr i8, ptr %object, i64 {type_offset}
  %type = load ptr, ptr %ptype
  %pl = &Table.list_type %table
  %list = load ptr, ptr %pl
  %is = icmp eq ptr %type, %list
  %pa = &Table.PyList_GetItem %table
  %pb = &Table.PyTuple_GetItem %table
  %pf = select i1 %is, ptr %pa, ptr %pb
  %f = load ptr, ptr %pf
  %item = call ptr %f(ptr %object, i64 %k)
  ret ptr %item
}

; The dict of a struct's members: an object that is one, of no subclass, or the attributes of an object whose class says
; that they are members. Null for all else.
define internal ptr @rk_members(ptr %table, ptr %object) {
  %ptype = getelementptr i8, ptr %object, i64 {type_offset}
  %type = load ptr, ptr %ptype
  %pd = &Table.dict_type %table
  %dict = load ptr, ptr %pd
  %is = icmp eq ptr %type, %dict
  br i1 %is, label %own, label %others
own:
  ret ptr %object
others:
  %pm = &Table.members_type %table
  %members = load ptr, ptr %pm
  %ps = &Table.PyType_IsSubtype %table
  %subtype = load ptr, ptr %ps
  %known = call i32 %subtype(ptr %type, ptr %members)
  %some = icmp ne i32 %known, 0
  br i1 %some, label %read, label %no
read:
  %pg = &Table.PyObject_GenericGetDict %table
  %get = load ptr, ptr %pg
  %found = call ptr %get(ptr %object, ptr null)
  %failed = icmp eq ptr %found, null
  br i1 %failed, label %clear, label %keep
keep:                                             ; the object has it still
  call void @rk_release(ptr %table, ptr %found)
  %pfound = getelementptr i8, ptr %found, i64 {type_offset}
  %class = load ptr, ptr %pfound
  %plain = icmp eq ptr %class, %dict
  br i1 %plain, label %yes, label %no
yes:
  ret ptr %found
clear:
  call void @rk_clear(ptr %table)
  br label %no
no:
  ret ptr null
}

; Whether a dict has so many keys.
define internal i1 @rk_has_keys(ptr %table, ptr %dict, i64 %count) {
  %ps = &Table.PyDict_Size %table
  %sizef = load ptr, ptr %ps
  %length = call i64 %sizef(ptr %dict)
  %same = icmp eq i64 %length, %count
  ret i1 %same
}

; A value of a dict; null where it has none.
define internal ptr @rk_value(ptr %table, ptr %object, ptr %name) {
  %pf = &Table.PyDict_GetItemString %table
  %f = load ptr, ptr %pf
  %value = call ptr %f(ptr %object, ptr %name)
  ret ptr %value
}

; Whether a tensor map's bytes, after the address, device, rank, dtype, sizes and strides that they were made for, are
; those of a tensor as it is; then copies them. Of one element the stride means nothing.
define internal i1 @rk_put_map(ptr %table, ptr %dl, ptr %known, ptr %at, i64 %size) {
  %none = icmp eq ptr %known, null
  br i1 %none, label %no, label %there
there:
  %ptype = getelementptr i8, ptr %known, i64 {type_offset}
  %type = load ptr, ptr %ptype
  %pb = &Table.bytes_type %table
  %bytes = load ptr, ptr %pb
  %is = icmp eq ptr %type, %bytes
  br i1 %is, label %measure, label %no
measure:
  %ps = &Table.PyBytes_Size %table
  %sizef = load ptr, ptr %ps
  %length = call i64 %sizef(ptr %known)
  %pkind = getelementptr i8, ptr %dl, i64 16      ; rank and dtype
  %ndim = load i32, ptr %pkind
  %count = zext i32 %ndim to i64
  %numbers = mul i64 %count, 16
  %head = add i64 %numbers, 24
  %whole = add i64 %head, %size
  %fits = icmp eq i64 %length, %whole
  br i1 %fits, label %compare, label %no
compare:
  %pd = &Table.PyBytes_AsString %table
  %dataf = load ptr, ptr %pd
  %key = call ptr %dataf(ptr %known)
  %start = load i64, ptr %dl
  %poffset = getelementptr i8, ptr %dl, i64 40
  %offset = load i64, ptr %poffset
  %address = add i64 %start, %offset
  %address0 = load i64, ptr %key, align 1
  %same0 = icmp eq i64 %address, %address0
  %pdevice = getelementptr i8, ptr %dl, i64 8
  %device = load i64, ptr %pdevice
  %k1 = getelementptr i8, ptr %key, i64 8
  %device0 = load i64, ptr %k1, align 1
  %same1 = icmp eq i64 %device, %device0
  %kind = load i64, ptr %pkind
  %k2 = getelementptr i8, ptr %key, i64 16
  %kind0 = load i64, ptr %k2, align 1
  %same2 = icmp eq i64 %kind, %kind0
  %same3 = and i1 %same0, %same1
  %same = and i1 %same2, %same3
  br i1 %same, label %loop0, label %no
loop0:
  %pshape = getelementptr i8, ptr %dl, i64 24
  %shape = load ptr, ptr %pshape
  %pstrides = getelementptr i8, ptr %dl, i64 32
  %strides = load ptr, ptr %pstrides
  %sizes0 = getelementptr i8, ptr %key, i64 24
  %strides0 = getelementptr i64, ptr %sizes0, i64 %count
  br label %loop
loop:
  %k = phi i64 [ 0, %loop0 ], [ %next, %look ]
  %over = icmp uge i64 %k, %count
  br i1 %over, label %copy, label %look
look:
  %next = add i64 %k, 1
  %p0 = getelementptr i64, ptr %shape, i64 %k
  %n = load i64, ptr %p0
  %p1 = getelementptr i64, ptr %sizes0, i64 %k
  %n0 = load i64, ptr %p1, align 1
  %p2 = getelementptr i64, ptr %strides, i64 %k
  %stride = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %strides0, i64 %k
  %stride0 = load i64, ptr %p3, align 1
  %alike = icmp eq i64 %n, %n0
  %one = icmp eq i64 %n, 1
  %along = icmp eq i64 %stride, %stride0
  %free = or i1 %one, %along
  %good = and i1 %alike, %free
  br i1 %good, label %loop, label %no
copy:
  %data = getelementptr i8, ptr %key, i64 %head
  call void @llvm.memcpy.p0.p0.i64(ptr %at, ptr %data, i64 %size, i1 false)
  ret i1 true
no:
  ret i1 false
}

; Count a change of what was found in an argument before, and may be something else by now.
define internal void @rk_bump_held(ptr %table, ptr %object) {
  %none = icmp eq ptr %object, null
  br i1 %none, label %done, label %there
there:
  %kind = call i32 @rk_kind(ptr %table, ptr %object)
  %plain = icmp ne i32 %kind, 0
  br i1 %plain, label %bump, label %done
bump:
  call void @rk_bump(ptr %table, ptr %object)
  br label %done
done:
  ret void
}

; The same of a tensor map's tensor, which kernels may write unless the map says otherwise.
define internal void @rk_bump_map(ptr %table, ptr %object, i64 %tensor_at, i64 %read_only_at) {
  %ptype = getelementptr i8, ptr %object, i64 {type_offset}
  %type = load ptr, ptr %ptype
  %pm = &Table.map_type %table
  %map = load ptr, ptr %pm
  %is = icmp eq ptr %type, %map
  br i1 %is, label %look, label %done
look:
  %pread = getelementptr i8, ptr %object, i64 %read_only_at
  %read = load ptr, ptr %pread
  %ptrue = &Table.true %table
  %true = load ptr, ptr %ptrue
  %only = icmp eq ptr %read, %true
  br i1 %only, label %done, label %written
written:
  %ptensor = getelementptr i8, ptr %object, i64 %tensor_at
  %tensor = load ptr, ptr %ptensor
  call void @rk_bump_held(ptr %table, ptr %tensor)
  br label %done
done:
  ret void
}

; A value of a dict as `rk_value`, of an argument that had members when the launch began; null for all else.
define internal ptr @rk_held_value(ptr %table, ptr %object, ptr %name) {
  %none = icmp eq ptr %object, null
  br i1 %none, label %no, label %there
there:
  %dict = call ptr @rk_members(ptr %table, ptr %object)
  %gone = icmp eq ptr %dict, null
  br i1 %gone, label %no, label %read
read:
  %value = call ptr @rk_value(ptr %table, ptr %dict, ptr %name)
  ret ptr %value
no:
  ret ptr null
}

; An item as `rk_item`, of an argument that had so many when the launch began; null for all else.
define internal ptr @rk_held_item(ptr %table, ptr %object, i64 %count, i64 %k) {
  %none = icmp eq ptr %object, null
  br i1 %none, label %no, label %there
there:
  %is = call i1 @rk_is_sequence(ptr %table, ptr %object, i64 %count)
  br i1 %is, label %read, label %no
read:
  %item = call ptr @rk_item(ptr %table, ptr %object, i64 %k)
  ret ptr %item
no:
  ret ptr null
}
