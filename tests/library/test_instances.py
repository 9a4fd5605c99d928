"""The instances of kernels that operators launch."""

from __future__ import annotations

import re
from pathlib import Path

import rawkern
from rawkern.compile.files import own_sources

PROGRAMMATIC = re.compile(r'kernel\("(\w+)", "(\w+)"[^\n]*programmatic=')


def test_kernels_that_are_launched_early_wait_before_they_access_memory() -> None:
    """A launch with `programmatic` begins while the kernel before it may still write."""
    library = Path(rawkern.__file__).parent / "library"
    found = {match for path in library.glob("*.py") for match in PROGRAMMATIC.findall(path.read_text())}
    assert {name for _, name in found} == {
        "sum_rows", "sum_columns", "spread", "scale_by_sign", "embedding_sort", "embedding_sums", "embedding_edges"
    }  # fmt: skip
    for file, name in found:
        text = (own_sources() / f"{file}.cu").read_text()
        body = text[re.search(rf"\b{name}\(", text).end() :].partition("\n}")[0]
        before, waits, _ = body.partition("wait_for_previous();")
        assert waits, name
        assert not re.search(r"\bload|\bstore|\breturn\b", before), name
