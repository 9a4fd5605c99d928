
; -- traces -----------------------------------------------------------------------------------------------------------

; A request to memory becomes a row of the trace, while there is room: %who (its access and its warp), %where (the lanes
; and the block's x), %block (its y and z), then the lanes' addresses.
define i64 @rk_profile_trace(ptr %launch, i64 %who, i64 %where, i64 %block, <32 x i64> %a) {
  %psession = &Launch.session %launch
  %session = load i64, ptr %psession
  %profile = inttoptr i64 %session to ptr
  %proom = &Profile.room %profile
  %room = load i64, ptr %proom
  %less = sub i64 %room, 1
  store i64 %less, ptr %proom
  %full = icmp sle i64 %room, 0
  br i1 %full, label %done, label %write
write:
  %ptrace = &Profile.trace %profile
  %row = load ptr, ptr %ptrace
  store i64 %who, ptr %row
  %p1 = getelementptr i64, ptr %row, i64 1
  store i64 %where, ptr %p1
  %p2 = getelementptr i64, ptr %row, i64 2
  store i64 %block, ptr %p2
  %p3 = getelementptr i64, ptr %row, i64 3
  store <32 x i64> %a, ptr %p3, align 8
  %after = getelementptr i64, ptr %row, i64 35
  store ptr %after, ptr %ptrace
  br label %done
done:
  ret i64 0
}
