"""Signs of code for the host, which a glance shows: most sources have none, and are device code as they are."""

from __future__ import annotations

import re

MARK = re.compile(r"\b__(?:global|device|constant|shared|managed)__\b")
# What tells that a source has code for the host; the compiler's own words about other host code say more.
SIGN = re.compile(r"<<<|\b(?:dim3\s+\w+\s*\(|(?:at|torch|c10|pybind11)\s*::|(?:PYBIND11_MODULE|TORCH_LIBRARY\w*)\b)")
_NAMED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.M)
TORCH_HEADERS = ("torch/", "ATen/", "c10/", "caffe2/", "THC/", "TH/", "pybind11/")
_OF_THE_C_LIBRARY = """
    complex.h ctype.h errno.h fenv.h locale.h setjmp.h signal.h stdatomic.h stdnoreturn.h tgmath.h threads.h uchar.h
    wchar.h wctype.h
    alloca.h byteswap.h cxxabi.h dirent.h dlfcn.h endian.h execinfo.h fcntl.h fnmatch.h ftw.h getopt.h
    glob.h immintrin.h libgen.h malloc.h netdb.h omp.h poll.h pthread.h pwd.h sched.h semaphore.h strings.h syslog.h
    termios.h unistd.h x86intrin.h
"""
_OF_THE_CPP_LIBRARY = """
    any ccomplex cctype cerrno cfenv charconv clocale codecvt compare condition_variable coroutine csetjmp csignal
    cstdalign ctgmath cuchar cwchar cwctype deque exception execution filesystem format forward_list fstream future
    iomanip ios iosfwd iostream istream list locale map memory_resource mutex ostream queue random regex
    scoped_allocator set shared_mutex sstream stack stdexcept stop_token streambuf string string_view strstream
    syncstream system_error thread typeindex typeinfo unordered_map unordered_set valarray vector bits/stdc++.h
"""
_OF_CUDA = """
    channel_descriptor.h cublas.h cublasLt.h cublasXt.h cublas_api.h cublas_v2.h cudaEGL.h cudaGL.h cudaProfiler.h
    cuda_egl_interop.h cuda_gl_interop.h cuda_profiler_api.h cuda_runtime_api.h cuda_texture_types.h cudnn.h cufft.h
    cufftXt.h curand.h cusolverDn.h cusolver_common.h cusparse.h cutensor.h device_functions.h helper_cuda.h
    helper_functions.h mpi.h nccl.h nvToolsExt.h nvml.h nvrtc.h Python.h surface_functions.h texture_fetch_functions.h
"""
HOST_HEADERS = frozenset(f"{_OF_THE_C_LIBRARY} {_OF_THE_CPP_LIBRARY} {_OF_CUDA}".split())
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
    "nvtx3/",
    "opencv2/",
    "Eigen/",
    "EGL/",
    "GL/",
    "GLES",
    "GLFW/",
    "arpa/",
    "net/",
    "netinet/",
    "sys/",
)


def is_host_header(name: str) -> bool:
    """Whether an include's name is a header for the host: of torch, the system, the C++ library or CUDA's libraries."""
    if name in HOST_HEADERS:
        return True
    return name.startswith((*TORCH_HEADERS, *_HOST_FOLDERS)) and name != "sys/types.h"


def may_have_host_code(text: str) -> bool:
    """Whether a text may have signs of code for the host, at a glance."""
    return (
        SIGN.search(text) is not None
        or any(is_host_header(name) for name in _NAMED.findall(text))
        or ("__host__" in text and any("__host__" in x and not MARK.search(x) for x in text.splitlines()))
    )
