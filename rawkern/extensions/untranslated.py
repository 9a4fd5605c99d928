"""What is not translated: the error, and what to do instead of it."""

from __future__ import annotations

from typing import Any


class NotTranslated(Exception):
    """A construct that is not translated; its function raises the same when it is called."""

    def __init__(self, what: str, node: Any = None, instead: str = "") -> None:
        super().__init__(what)
        self.what, self.instead = what, instead
        self.row = node.start_point[0] if node is not None else None


_LIBRARIES = {
    "thrust::sort_by_key": "torch.sort, which returns the indices too",
    "thrust::stable_sort_by_key": "torch.sort(stable=True), which returns the indices too",
    "thrust::sort": "torch.sort",
    "thrust::stable_sort": "torch.sort(stable=True)",
    "thrust::reduce": "torch.sum, or torch.amax and torch.amin",
    "thrust::reduce_by_key": "torch.unique_consecutive and Tensor.index_add_",
    "thrust::inclusive_scan": "torch.cumsum",
    "thrust::exclusive_scan": "torch.cumsum, less the values",
    "thrust::unique": "torch.unique_consecutive",
    "thrust::fill": "Tensor.fill_",
    "thrust::copy": "Tensor.copy_",
    "thrust::copy_if": "a boolean index",
    "thrust::sequence": "torch.arange",
    "thrust::count": "torch.count_nonzero",
    "thrust::lower_bound": "torch.searchsorted",
    "thrust::upper_bound": "torch.searchsorted(right=True)",
    "thrust::max_element": "torch.argmax",
    "thrust::min_element": "torch.argmin",
    "cub::DeviceScan::InclusiveSum": "torch.cumsum",
    "cub::DeviceScan::ExclusiveSum": "torch.cumsum, less the values",
    "cub::DeviceScan": "torch.cumsum, torch.cumprod or torch.cummax",
    "cub::DeviceRadixSort::SortPairs": "torch.sort(stable=True), which returns the indices too",
    "cub::DeviceRadixSort::SortKeys": "torch.sort",
    "cub::DeviceRadixSort": "torch.sort(stable=True)",
    "cub::DeviceSegmentedRadixSort": "torch.sort along a dimension",
    "cub::DeviceReduce::Sum": "torch.sum",
    "cub::DeviceReduce::Max": "torch.amax",
    "cub::DeviceReduce::Min": "torch.amin",
    "cub::DeviceReduce::ArgMax": "torch.max, which returns the index too",
    "cub::DeviceReduce::ArgMin": "torch.min, which returns the index too",
    "cub::DeviceReduce": "torch.sum, torch.amax or torch.amin",
    "cub::DeviceSelect": "a boolean index, or torch.unique_consecutive",
    "cub::DeviceHistogram": "torch.histc or torch.bincount",
    "cub::DeviceRunLengthEncode": "torch.unique_consecutive(return_counts=True)",
    "cub::DevicePartition": "boolean indices and torch.cat",
    "cublas": "torch.matmul, torch.addmm or torch.bmm",
    "cublasGemmEx": "torch.matmul or torch.addmm",
    "cublasLt": "torch.nn.functional.linear or torch.addmm",
    "cusparse": "torch.sparse.mm",
    "cusolver": "torch.linalg",
    "cufft": "torch.fft",
    "cudnn": "torch.nn.functional",
    "nccl": "torch.distributed",
    "thrust": "a call of torch",
    "cub::": "a call of torch",
}


def library_call(name: str) -> str | None:
    """What to call instead of a function of CUDA's libraries for the host; None for any other function."""
    if not name.startswith(("thrust", "cub::", "cublas", "cusparse", "cusolver", "cufft", "cudnn", "nccl")):
        return None
    known = [begin for begin in _LIBRARIES if name.startswith(begin)]
    return _LIBRARIES[max(known, key=len)] if known else "a call of torch"
