"""Signs of code for the host, which a glance shows: most sources have none, and are device code as they are."""

from __future__ import annotations

import re

MARK = re.compile(r"\b__(?:global|device|constant|shared|managed)__\b")
# What tells that a source has code for the host; the compiler's own words about other host code say more.
SIGN = re.compile(r"<<<|\bdim3\s+\w+\s*\(|\b(?:at|torch|c10|pybind11)\s*::|\b(?:PYBIND11_MODULE|TORCH_LIBRARY\w*)\b")
_NAMED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.M)
TORCH_HEADERS = ("torch/", "ATen/", "c10/", "caffe2/", "THC/", "TH/", "pybind11/")
_LISTED = """
    any cctype cerrno condition_variable csignal ctype.h deque errno.h exception filesystem format forward_list
    fstream future iomanip ios iosfwd iostream istream list locale map memory_resource mutex ostream queue random
    regex set shared_mutex signal.h sstream stack stdexcept streambuf string string_view system_error thread typeindex
    typeinfo unordered_map unordered_set vector sys/stat.h sys/time.h sys/ioctl.h unistd.h fcntl.h dlfcn.h pthread.h
    cublasLt.h cublas_v2.h cublas_api.h cudnn.h cufft.h curand.h cusolverDn.h cusparse.h immintrin.h mpi.h nccl.h
    nvToolsExt.h nvtx3/nvToolsExt.h omp.h Python.h cuda_profiler_api.h cudaProfiler.h helper_cuda.h helper_functions.h
    device_functions.h cuda_runtime_api.h nvml.h bits/stdc++.h
"""
HOST_HEADERS = frozenset(_LISTED.split())
_HOST_FOLDERS = (
    "thrust/",
    "cub/device/",
    "cudnn_frontend",
    "hip/",
    "hipcub/",
    "rocprim/",
    "boost/",
    "nlohmann/",
    "fmt/",
    "Eigen/",
)


def is_host_header(name: str) -> bool:
    """Whether an include's name is a header for the host: of torch, the C++ library or CUDA's libraries."""
    return name in HOST_HEADERS or name.startswith((*TORCH_HEADERS, *_HOST_FOLDERS))


def may_have_host_code(text: str) -> bool:
    """Whether a text may have signs of code for the host, at a glance."""
    return (
        SIGN.search(text) is not None
        or any(is_host_header(name) for name in _NAMED.findall(text))
        or ("__host__" in text and any("__host__" in x and not MARK.search(x) for x in text.splitlines()))
    )
