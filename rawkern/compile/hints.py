"""What the compiler's words mean for somebody who has just moved a file from nvcc to here, and the way out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from rawkern.compile.source import Source

_NO_FILE = re.compile(r"(?:could not|cannot) open source file \"([^\"]+)\"")

# Types that other libraries declare, and that neither nvcc nor NVRTC knows.
_FOREIGN = {
    "uchar": "unsigned char", "schar": "signed char", "longlong": "long long", "ulonglong": "unsigned long long",
    "llong": "long long", "ullong": "unsigned long long", "byte": "unsigned char",
}  # fmt: skip

# What CUB had until CUDA 13, and what replaces it.
_OLD_CUB = {
    "CTA_SYNC": "__syncthreads()", "WARP_SYNC": "__syncwarp(mask)", "WARP_ANY": "__any_sync(mask, predicate)",
    "WARP_ALL": "__all_sync(mask, predicate)", "WARP_BALLOT": "__ballot_sync(mask, predicate)",
    "LaneId": "cuda::ptx::get_sreg_laneid() of <cuda/ptx>", "WarpId": "cuda::ptx::get_sreg_warpid() of <cuda/ptx>",
    "Int2Type": "cuda::std::integral_constant<int, N>", "If": "cuda::std::conditional_t<condition, A, B>",
    "Equals": "cuda::std::is_same<A, B>", "max": "cuda::std::max", "min": "cuda::std::min", "Swap": "cuda::std::swap",
    "DivideAndRoundUp": "cuda::ceil_div of <cuda/cmath>",
}  # fmt: skip

# (pattern, hint), in which \1 stands for what the pattern's first group found.
_HINTS = (
    (r"is considered a host function|host functions? (?:is|are) not allowed|explicitly marked as a __host__ function"
     r"|lambda closure class members was inferred to be __host__",
     "only device code is compiled here: mark helpers, constructors and operators __device__, and put main() and\n"
     "  other host code between #ifndef __CUDACC_RTC__ and #endif, so that nvcc still sees it"),
    (r"namespace scope variable without memory space annotations|static data member with non-const type",
     "only device code is compiled here: mark the variable __device__, __constant__ or constexpr, or, if it is for\n"
     "  the host, put it between #ifndef __CUDACC_RTC__ and #endif"),
    ("requires --extended-lambda", "leave out the lambda's __device__: in device code it is the device's anyway"),
    (r'identifier "(u?int(?:8|16|32|64))" is undefined',
     "neither nvcc nor this compiler declares \\1; #include <cstdint> and write \\1_t"),
    *((f'identifier "{name}" is undefined',
       f"neither nvcc nor this compiler declares {name}; write {of}, or put typedef {of} {name}; before it")
      for name, of in _FOREIGN.items()),
    (r'namespace "std" has no member "(vector|(?:unordered_)?(?:multi)?(?:map|set)|list|deque|w?string|\w*stream|cout'
     r'|cerr|endl|\w+_ptr|make_(?:unique|shared)|function|thread|mutex|\w+_error|exception)"'
     r'|incomplete type "cuda::std::(?:\w+::)*(vector|basic_string)\b',
     "std::\\1\\2 is for host code, which is not compiled here: put that between #ifndef __CUDACC_RTC__ and #endif"),
    (r'namespace "std" has no member "(\w+)"',
     "of the C++ library, device code has what cuda::std has; std::\\1 needs its header, or is not there"),
    *((f'namespace "cub" has no member "{name}"', f"since CUDA 13, CUB has no cub::{name}; write {now}")
      for name, now in _OLD_CUB.items()),
    (r'identifier "(?:half2?|__half\w*|__float2half\w*|__hadd\w*)" is undefined', "#include <cuda_fp16.h>"),
    (r'identifier "(?:nv_bfloat16\w*|__nv_bfloat16\w*|__float2bfloat16\w*)" is undefined', "#include <cuda_bf16.h>"),
    (r'identifier "(?:cuda[A-Z]\w*|cudaError_t|std::cout)" is undefined',
     "calls to the CUDA runtime are host code; launch from Python and leave them out, or put them between\n"
     "  #ifndef __CUDACC_RTC__ and #endif"),
    (r'more than one instance of overloaded function "((?:std::)?\w+)" matches the argument list',
     "write the arguments of \\1 in one type, such as 2.0f beside a float, or cast them"),
    (r'name followed by "::" must be a class or namespace name',
     "the header that declares that namespace is missing, or a name is misspelled"),
)  # fmt: skip
_HOST_HEADERS = """
    any cctype cerrno condition_variable csignal ctype.h deque errno.h exception filesystem format forward_list
    fstream future iomanip ios iosfwd iostream istream list locale map memory_resource mutex ostream queue random
    regex set shared_mutex signal.h sstream stack stdexcept streambuf string string_view system_error thread typeindex
    typeinfo unordered_map unordered_set vector sys/stat.h sys/time.h unistd.h
    cublasLt.h cublas_v2.h cudnn.h cufft.h curand.h cusolverDn.h cusparse.h immintrin.h mpi.h nccl.h nvToolsExt.h omp.h
    Python.h
"""
_HOST_FOLDERS = ("torch/", "ATen/", "c10/", "pybind11/", "cudnn_frontend")


def hint(text: str, log: str, source: Source, searched: Iterable[str]) -> str:
    """Return the hint for an error of a log, "" where there is none; `searched` are the include directories."""
    if match := _NO_FILE.search(text):
        return f"hint: {_missing_file(match[1], source, searched)}"
    for scope in (text, log):
        for pattern, words in _HINTS:
            if match := re.search(pattern, scope):
                return f"hint: {match.expand(words)}"
    return ""


def _missing_file(name: str, source: Source, searched: Iterable[str]) -> str:
    if name in _HOST_HEADERS.split() or name.startswith(_HOST_FOLDERS):
        return (
            f"<{name}> is for host code, which is not compiled here: put it between #ifndef __CUDACC_RTC__ and #endif"
        )
    looked = [os.path.dirname(source.path)] if source.path else []
    looked += searched
    where = "".join(f"\n    {folder}" for folder in dict.fromkeys(looked)) or " nowhere: no include directory is known"
    curand = name.startswith("curand")
    way = 'run: pip install "rawkern[curand]"' if curand else "add its directory with include_dirs=[...], or -I DIR"
    return f'"{name}" was looked for in{where}\n  {way}'
