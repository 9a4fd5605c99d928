"""embedding beside torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import rawkern
from rawkern.library import embedding, instances
from tests.library.common import DTYPES, compare, numbers, poison


def _index(count: int, entries: int, device: str) -> torch.Tensor:
    """Runs of equal indices that end in, at and after the 32 positions that one block adds up."""
    generator = torch.Generator().manual_seed(4)
    index = torch.randint(0, entries, (count,), generator=generator)
    index[: count // 2] = index[: count // 2] // 3 * 3
    return index.to(device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    index = _index(300, 11, device)
    weight = numbers((11, 64), dtype, device)
    compare(lambda w: rawkern.embedding(index, w), lambda w: F.embedding(index, w), weight, factor=4)


@pytest.mark.parametrize(("count", "entries"), [(1, 1), (32, 1), (33, 1), (64, 2), (500, 1), (1000, 200)])
def test_runs_of_every_length(count: int, entries: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    index, weight = _index(count, entries, device), numbers((entries, 5), torch.float32, device)
    compare(lambda w: rawkern.embedding(index, w), lambda w: F.embedding(index, w), weight, factor=8)


def test_tables_at_the_limit_of_short_indices(device: str) -> None:
    """Indices are sorted as 16 bits where that is enough."""
    for entries in (1 << 15, (1 << 15) + 1):
        index = torch.tensor([entries - 1, 0, entries - 1, 40, entries - 2], device=device)
        weight = numbers((entries, 2), torch.float32, device)
        compare(lambda w: rawkern.embedding(index, w), lambda w: F.embedding(index, w), weight)  # noqa: B023


def test_padding_shapes_and_int32(device: str) -> None:
    weight = numbers((7, 3), torch.float32, device)
    for shape in ((), (0,), (4, 5), (2, 3, 4)):
        index = _index(24, 7, device)[: torch.Size(shape).numel()].reshape(shape)
        for padding in (None, 0, -2):
            compare(
                lambda w, i=index, p=padding: rawkern.embedding(i.int(), w, p),
                lambda w, i=index, p=padding: F.embedding(i, w, p),
                weight,
                factor=4,
            )


def test_gradients_are_the_same_in_every_run(device: str) -> None:
    index, weight = _index(5000, 7, device), numbers((7, 40), torch.float32, device).requires_grad_()
    g = numbers((5000, 40), torch.float32, device, seed=2)
    runs = [torch.autograd.grad(rawkern.embedding(index, weight), weight, g)[0] for _ in range(3)]
    assert torch.equal(runs[0], runs[1]) and torch.equal(runs[0], runs[2])


def test_gradcheck_and_rejections(device: str) -> None:
    index, weight = _index(40, 5, device), numbers((5, 3), torch.float64, device).requires_grad_()
    assert torch.autograd.gradcheck(lambda w: rawkern.embedding(index, w), (weight,))
    with pytest.raises(TypeError, match=r"input is torch\.float64, it must be int64 or int32"):
        rawkern.embedding(index.double(), weight)
    with pytest.raises(ValueError, match=r"weight has shape \(3,\)"):
        rawkern.embedding(index, weight[0])
    with pytest.raises(ValueError, match="padding_idx is 5, the table has 5 entries"):
        rawkern.embedding(index, weight, 5)
    with pytest.raises(ValueError, match="max_norm"):
        rawkern.embedding(index, weight, max_norm=1.0)


def test_an_index_outside_the_table_is_reported() -> None:
    for wrong in (5, -1):
        with pytest.raises(
            IndexError, match=rf"embedding: input\[1\] is {wrong}, and there are 5 entries; pass 0 to 4$"
        ):
            rawkern.embedding(torch.tensor([0, wrong]), torch.zeros(5, 3))
    with pytest.raises(IndexError, match=r"input\[1, 0\] is 7"):
        rawkern.embedding(torch.tensor([[0, 1], [7, 1]], dtype=torch.int32), torch.zeros(5, 3))
    with pytest.raises(IndexError, match=r"input is 7"):
        rawkern.embedding(torch.tensor(7), torch.zeros(5, 3))


@pytest.mark.parametrize(("count", "entries"), [(1, 1), (33, 5), (1000, 300), (4095, 70_000), (4096, 1 << 20)])
def test_one_block_sorts_indices_and_the_others_clear(count: int, entries: int, device: str) -> None:
    """A GPU's backward of up to 16,384 indices begins with this kernel; equal indices stay in order."""
    index = torch.randint(0, entries, (count,), generator=torch.Generator().manual_seed(count)).to(device)
    index[-1] = entries - 1
    items, width = 4, 2
    cleared = torch.full((3000, width), 7.0, device=device)
    keys, order = (torch.empty(count, dtype=dtype, device=device) for dtype in (torch.int32, torch.int64))
    sort = instances.kernel("embedding", "embedding_sort", torch.float32, f"{width}, int, {items}")
    sort[3, embedding.SORTING, embedding.sorting_bytes(items)](
        index, keys, order, cleared, count, (entries - 1).bit_length(), len(cleared)
    )
    wanted, at = torch.sort(index, stable=True)
    assert torch.equal(keys.long(), wanted)
    assert torch.equal(order, at)
    assert not cleared.any()
