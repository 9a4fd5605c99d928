"""The records that Python and the generated code share lie in memory as both believe."""

from __future__ import annotations

import struct

import pytest

from rawkern.base import llvm as llvm_
from rawkern.engines.cpu.records import LAUNCH, RECORDS, WORKER, Record


@pytest.mark.parametrize("layout", ["", "target"], ids=["LLVM's default layout", "this machine's"])
@pytest.mark.parametrize("name", RECORDS)
def test_offsets_are_those_of_llvm(name, layout):
    llvm = pytest.importorskip("llvmlite.binding")
    llvm_.binding()
    data = llvm_.target_machine(llvm_.host()).target_data if layout else llvm.create_target_data("")
    types = "\n".join(r.llvm for r in RECORDS.values())
    with (
        llvm.create_context() as context,
        llvm.parse_assembly(f"{types}\n@it = global %{name} zeroinitializer", context) as m,
    ):
        ty = m.get_global_variable("it").global_value_type
        found = [data.get_element_offset(ty, k) for k in range(len(RECORDS[name].fields))]
        size = data.get_abi_size(ty)
    offsets, expected_size = RECORDS[name].layout()
    assert (found, size) == (list(offsets.values()), expected_size)


@pytest.mark.parametrize(
    "record, first, last",
    [(LAUNCH, "grid_x", "finished"), (LAUNCH, "block_x", "grid_sync"), (WORKER, "range_next", "range_end")],
)
def test_packed_fields_end_where_the_next_begins(record, first, last):
    end = record.offset(first) + struct.calcsize(record.format(first, last))
    names = [f for f, _ in record.fields]
    after = names[names.index(last) + 1 :]
    assert end == (record.offset(after[0]) if after else record.size)


def test_padding_is_to_be_written_out():
    with pytest.raises(ValueError, match=r"R\.b needs a field for padding"):
        Record("R", (("a", "i32"), ("b", "i64"))).layout()
    with pytest.raises(ValueError, match="R needs a field for padding at its end"):
        Record("R", (("a", "i64"), ("b", "i32"))).layout()
