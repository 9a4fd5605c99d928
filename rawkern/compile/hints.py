"""Hints: what the compiler's messages mean for a file that was written for nvcc, and what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from rawkern.base import pip
from rawkern.base.nearest import did_you_mean
from rawkern.compile import shims
from rawkern.compile.files import read_text
from rawkern.compile.signs import is_host_header
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

# What a header that is not included declares: (names, header).
_HEADERS = (
    (r"__\w*bfloat16\w*|nv_bfloat162", "cuda_bf16.h"),
    (r"half2?|__half\w*|__\w+2half\w*|__h(?:add|sub|mul|div|fma|neg|abs|eq|ne|l[te]|g[te]|max|min)\w*", "cuda_fp16.h"),
    *((rf"__nv_(?:cvt_)?\w*?fp{bits}\w*", f"cuda_fp{bits}.h") for bits in (4, 6, 8)),
    (r"curand\w*", "curand_kernel.h"),
    (r"cu\w*Complex|make_cu\w*Complex|cuC(?:add|sub|mul|div|fma|real|imag|abs)f?", "cuComplex.h"),
    (r"__pipeline_\w+", "cuda_pipeline.h"),
    (r"CUtensorMap", "cuda.h"),
    (r"CUDART_\w+", "math_constants.h"),
)

# Of a namespace that is not known, or lacks a name.
_GROUPS = "#include <cooperative_groups.h>"
_NO_THRUST = (
    "Thrust is for host code, which is not compiled here; in a kernel, use cuda::std::complex (<cuda/std/complex>)\n"
    "  for complex numbers, and CUB's block and warp primitives (<cub/cub.cuh>) for algorithms"
)
_TORCH = (
    "device code can use PyTorch's number types, accessors, atomic functions and launch bounds; include its headers\n"
    "  (<torch/extension.h>, <ATen/cuda/Atomic.cuh>); functions on tensors are host code"
)
_SPACES = {
    "cooperative_groups": _GROUPS, "cg": f"{_GROUPS} and write namespace cg = cooperative_groups;",
    "cub": "#include <cub/cub.cuh>", "nvcuda": "#include <mma.h>",
    "wmma": "#include <mma.h> and write nvcuda::wmma", "thrust": _NO_THRUST,
    "cuda": "#include the header that declares it, such as <cuda/atomic> or <cuda/std/complex>",
    **dict.fromkeys(("at", "c10", "torch"), _TORCH),
}  # fmt: skip
_MORE_GROUPS = ("reduce", "memcpy_async", "scan")  # headers of cooperative_groups/, by what they declare
# Headers of cuda/ with other names than what they declare.
_OF_CUDA = {
    "atomic_ref": "atomic", "memcpy_async": "barrier", "ceil_div": "cmath", "round_up": "cmath", "round_down": "cmath",
    "maximum": "functional", "minimum": "functional",
}  # fmt: skip

# (pattern, hint), in which \1 stands for what the pattern's first group found.
_HOST_FUNCTION = (
    "is considered a host function|host functions? (?:is|are) not allowed|explicitly marked as a __host__ function"
    "|lambda closure class members was inferred to be __host__"
)
_HINTS = (
    (_HOST_FUNCTION,
     "only device code is compiled here: mark a kernel __global__, helpers, constructors and operators __device__,\n"
     "  and put main() and other host code between #ifndef __CUDACC_RTC__ and #endif, so that nvcc still sees it"),
    (r"namespace scope variable without memory space annotations|static data member with non-const type",
     "only device code is compiled here: mark the variable __device__, __constant__ or constexpr, or, if it is for\n"
     "  the host, put it between #ifndef __CUDACC_RTC__ and #endif"),
    ("requires --extended-lambda|annotation on lambda is not allowed",
     "remove the lambda's __device__: a lambda in device code is device code"),
    ("device-side kernel launch could not be processed",
     "a kernel cannot launch kernels here, where no device runtime is linked; launch one after the other from Python,\n"
     "  or make the inner one a __device__ function"),
    ("__cluster_dims__ is not supported for this GPU architecture",
     "clusters need compute capability 9.0, and this code is for an older GPU; put __cluster_dims__ between\n"
     "  #if __CUDA_ARCH__ >= 900 and #endif"),
    (r'identifier "(u?int(?:8|16|32|64))" is undefined',
     "neither nvcc nor this compiler declares \\1; #include <cstdint> and write \\1_t"),
    *((f'identifier "{name}" is undefined',
       f"neither nvcc nor this compiler declares {name}; write {of}, or put typedef {of} {name}; before it")
      for name, of in _FOREIGN.items()),
    (r'identifier "(?:nv_)?bfloat16" is undefined', "#include <cuda_bf16.h> and write __nv_bfloat16"),
    *((f'identifier "(?P<declared>{names})" is undefined', f"#include <{header}>") for names, header in _HEADERS),
    ('identifier "complex" is undefined', "#include <cuda/std/complex> and write cuda::std::complex<float>"),
    (r'identifier "(this_(?:thread_block|grid)|tiled_partition|coalesced_threads|thread_block)" is undefined',
     f"{_GROUPS} and write cooperative_groups::\\1"),
    (r'identifier "(__shfl(?:_up|_down|_xor)?|__any|__all|__ballot)" is undefined',
     "since CUDA 9 it is \\1_sync, with a mask before the other arguments: \\1_sync(0xffffffff, ...)"),
    (r'namespace "std" has no member "(vector|(?:unordered_)?(?:multi)?(?:map|set)|list|deque|w?string|\w*stream|cout'
     r'|cerr|endl|\w+_ptr|make_(?:unique|shared)|function|thread|mutex|\w+_error|exception)"'
     r'|incomplete type "cuda::std::(?:\w+::)*(vector|basic_string)\b',
     "std::\\1\\2 is for host code, which is not compiled here: put that between #ifndef __CUDACC_RTC__ and #endif"),
    (r'namespace "std" has no member "(\w+)"',
     "device code has the part of the C++ library that is in cuda::std; include the header of std::\\1 if it is there"),
    *((f'namespace "cub" has no member "{name}"', f"since CUDA 13, CUB has no cub::{name}; write {now}")
      for name, now in _OLD_CUB.items()),
    (r'identifier "(?P<runtime>cuda[A-Z]\w*)" is undefined|identifier "std::cout" is undefined',
     "calls to the CUDA runtime are host code; launch from Python and leave them out, or put them between\n"
     "  #ifndef __CUDACC_RTC__ and #endif"),
    (r'more than one instance of overloaded function "((?:std::)?\w+)" matches the argument list'
     r'|no instance of overloaded function "(std::(?:min|max|clamp))" matches the argument list',
     "write the arguments of \\1\\2 in one type, such as 2.0f beside a float, or cast them"),
    ("texture is not a template",
     "texture references ended with CUDA 12; read a pointer instead, const float* __restrict__ x"),
    ("initializer not allowed for __shared__ variable",
     "set it in the kernel: if (threadIdx.x == 0) s = ...; and then __syncthreads();"),
    ("uses too much shared data",
     "static shared memory is limited to 48 KiB per block; declare more as extern __shared__ float s[]; and pass\n"
     "  the bytes in the launch, kernel[grid, block, bytes](...)"),
    ("uses too much global constant data",
     "__constant__ variables of a source are limited to 64 KiB; make large ones __device__, or pass tensors"),
    ("uses too much parameter space|Formal parameter space overflowed",
     "parameters are limited to 32764 bytes, in PTX before 8.1 (CUDA 12.1) to 4352; pass a pointer to large ones"),
    (r"'cp\.(?:reduce\.)?async\.bulk\.(?:prefetch\.)?tensor[^']*' requires \.target sm_90",
     "this kernel needs compute capability 9.0: TMA; use a newer GPU"),
    (r"'\.?([^']+)' requires \.target sm_(\d+)(\d)\w* or higher",
     "this kernel needs compute capability \\2.\\3: \\1; use a newer GPU"),
    (r"Instruction '(wgmma)[^']*' not supported on \.target",
     "this kernel needs compute capability 9.0: \\1; use a newer GPU"),
    ("ptxas application ptx input", "the error is in the PTX of an asm statement"),
)  # fmt: skip


_DESIGNATED = re.compile(r"[{,]\s*\.\s*[A-Za-z_]\w*\s*=[^=]")


_PLATFORM = re.compile(r"\b__(?:linux|unix|gnu_linux|x86_64)__\b")
# What GNU C has beyond C++: (error, how it looks, what to write instead).
_GNU = (
    ("expected an expression", re.compile(r"\?\s*:(?!:)"),
     "a ?: b is GNU C, which NVRTC does not have; write a ? a : b"),
    ("expected an expression", re.compile(r"\(\s*\{[^{}]*;"),
     "({ ... }) as an expression is GNU C, which NVRTC does not have; call a function, or a lambda: [&] { ... }()"),
    ('expected a ":"', re.compile(r"\bcase\b[^:;?]*\.\.\."),
     "ranges of cases are GNU C, which NVRTC does not have; list the values, or write an if"),
)  # fmt: skip


def hint(text: str, file: str, source: Source, searched: Iterable[str]) -> str:
    """Return the hint for an error in a file, "" where there is none; `searched` are the include directories."""
    searched = tuple(searched)
    found = _hint(text, file, source, searched)
    return f"hint: {_with_installed_headers(found, searched)}" if found else ""


def _hint(text: str, file: str, source: Source, searched: tuple[str, ...]) -> str:
    foreign = file not in (source.name, *(path for path, _ in source.headers))
    if foreign and "/thrust/" in file:
        return _NO_THRUST
    if foreign and re.search(_HOST_FUNCTION, text):
        return _for_host(os.path.basename(file))
    if match := _NO_FILE.search(text):
        return _missing_file(match[1], source, searched)
    if text == "expected an expression" and _DESIGNATED.search(source.text):
        return 'members are initialized by name, {.x = 1}, since C++20: pass options=("-std=c++20",)'
    if text.startswith("#error") and (match := _PLATFORM.search(source.text)):
        return f'the compiler does not define {match[0]}, which nvcc has; pass options=("-D{match[0]}",)'
    for error, looks, words in _GNU:
        if text == error and looks.search(source.text):
            return words
    if text == "missing closing quote" and source.path is None:
        return 'a \\n in the Python string ends the line here; make it a raw string, r"""...""", or write \\\\n'
    for pattern, words in _HINTS:
        if (match := re.search(pattern, text)) and _holds(match, words, searched):
            return match.expand(words)
    if (match := _TWICE.match(text)) and _dynamic(match[1], source):
        return (
            "dynamic shared memory is one array, whatever it is called; declare it once, extern __shared__ char s[];\n"
            "  and take parts of it: float* a = reinterpret_cast<float*>(s);"
        )
    if match := _NO_NAME.match(text):
        return _of_host(match[1], source) or _misspelled(match[1], source)
    match = _NO_SPACE.match(text) or _NO_MEMBER.match(text)
    return _of_space(match[1], "::".join(filter(None, match.groups()[1:])), searched) if match else ""


_TWICE = re.compile(r'declaration is incompatible with previous "(\w+)"')
_NO_NAME = re.compile(r'identifier "(\w+)" is undefined')
# Names that every kernel may use, for those that are misspelled.
_BUILT_IN = (
    "threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize", "__syncthreads", "__syncwarp", "__shared__",
    "__device__", "__constant__", "__restrict__", "atomicAdd", "atomicMax", "atomicMin", "atomicCAS", "atomicExch",
    "__shfl_sync", "__shfl_down_sync", "__shfl_up_sync", "__shfl_xor_sync", "__ballot_sync", "printf", "float2",
    "float4", "int2", "int4", "double2", "INFINITY", "fminf", "fmaxf", "sqrtf", "expf", "logf", "fabsf",
)  # fmt: skip


def _holds(match: re.Match[str], words: str, searched: tuple[str, ...]) -> bool:
    """Whether a header that a hint names, or CUDA's runtime, has the name; a variable of the user's may be like it."""
    found = match.groupdict()
    if name := found.get("declared"):
        header = _NAMED.search(words)
        return header is None or _declares(header[1], name, searched)
    return not (name := found.get("runtime")) or _declares("cuda_runtime_api.h", name, searched)


def _declares(header: str, name: str, searched: tuple[str, ...]) -> bool:
    """Whether a header, or a part of it in a file beside it, has a name; also where it cannot be read."""
    stem = header.partition(".")[0].removesuffix("_kernel")  # its parts begin with that
    word, seen, todo = re.compile(rf"\b{name}\b"), set[str](), [header]
    while todo:
        seen.add(part := todo.pop())
        path = next((p for folder in searched if os.path.isfile(p := os.path.join(folder, part))), None)
        if path is None and part == header:
            return True
        text = read_text(path) if path else ""
        if word.search(text):
            return True
        todo += [each for each in re.findall(rf'#\s*include\s*["<]({stem}[\w.]*)[">]', text) if each not in seen]
    return False


def _dynamic(name: str, source: Source) -> bool:
    """Whether a source declares a name as dynamic shared memory."""
    return any(re.search(rf"extern\s+__shared__[^;]*\b{name}\s*\[\s*\]", text) for text in source.texts())


def _of_host(name: str, source: Source) -> str:
    """What to do where a function of that name is marked for the host alone, which the compiler does not get."""
    head = re.compile(rf"^(?!.*__device__).*\b__host__\b[^;{{}}()]*\b{name}\s*\(", re.M)
    alone = any(map(head.search, source.texts()))
    return f"{name} is marked for the host alone; mark it __host__ __device__" if alone else ""


def _misspelled(name: str, source: Source) -> str:
    """The name that is meant, of the source's own and of those that there always are."""
    own = {word for text in source.texts() for word in re.findall(r"[A-Za-z_]\w*", text)}
    meant = did_you_mean(name, sorted((own | set(_BUILT_IN)) - {name}), least=0.8)
    return meant.removeprefix("; ")


_NO_SPACE = re.compile(r'namespace(?: or class)? "(\w+)" is undefined(?:, in \w+::([\w:]+))?')
_NO_MEMBER = re.compile(
    r'namespace "(cuda|cooperative_groups|thrust|at|c10|torch)(?:::([\w:]+))?" has no member "(\w+)"'
)


def _of_space(space: str, rest: str, searched: Iterable[str]) -> str:
    """What brings a namespace, or a name of it: `rest` is what follows its ``::``."""
    name = rest.rpartition("::")[2]
    if space in ("cg", "cooperative_groups") and name in _MORE_GROUPS:
        return f"#include <cooperative_groups/{name}.h>"
    if space == "cuda" and rest.startswith("std::"):
        header = shims.header_of(f"std::{name}")
        return (
            f"#include <cuda/std/{header}>" if header else f"#include the header of <cuda/std/...> that declares {name}"
        )
    if space == "cuda" and name:
        header = f"cuda/{_OF_CUDA.get(name, rest.partition('::')[0])}"
        if name in _OF_CUDA or _is_there(header, searched):
            return f"#include <{header}>"
        return f"#include the header of <cuda/...> that declares {name}"
    return _SPACES.get(space, "the header that declares it is missing, or a name is misspelled")


# A header of CUDA's, as hints spell it; those without a folder or an ending are the C++ library's.
_NAMED = re.compile(r"<((?:\w+/)+[\w.]+|\w+\.c?u?h)>")


def _with_installed_headers(words: str, searched: tuple[str, ...]) -> str:
    """The words of a hint, in which every header that they name is one that can be included here."""
    for name in dict.fromkeys(_NAMED.findall(words)) if searched else ():
        if _is_there(name, searched):
            continue
        if other := _other_name(name):
            words = words.replace(f"<{name}>", f"<{other}>")
        else:
            words += f"\n  <{name}> is not among the installed CUDA headers: {_way_to(name)}"
    return words


def _is_there(header: str, searched: Iterable[str]) -> bool:
    if header.startswith(("torch/", "ATen/", "c10/")):  # rawkern replaces them by its own headers
        return True
    own = header in shims.needed(frozenset())
    return own or any(os.path.isfile(os.path.join(folder, header)) for folder in searched)


def _other_name(header: str) -> str:
    """The header of the C++ library that stands for one of cuda/std/ which some releases of CUDA's headers lack."""
    name = header.removeprefix("cuda/std/")
    return name if name != header and name in shims.needed(frozenset()) else ""


def _way_to(header: str) -> str:
    if header.startswith("curand"):
        return f"run: {pip.command('curand')}"
    return "another release of the CUDA toolkit may have it"


def _for_host(header: str) -> str:
    return (
        f"<{header}> is for host code, which is not compiled here: put what includes it between\n"
        "  #ifndef __CUDACC_RTC__ and #endif"
    )


def _missing_file(name: str, source: Source, searched: Iterable[str]) -> str:
    if is_host_header(name):
        return _for_host(name)
    looked = [os.path.dirname(source.path)] if source.path else []
    looked += searched
    where = "".join(f"\n    {folder}" for folder in dict.fromkeys(looked)) or " nowhere: no include directory is known"
    way = "add its directory with include_dirs=[...], or -I DIR"
    if other := _other_name(name):
        way = f"the installed CUDA headers have it under another name: #include <{other}>"
    elif name.startswith("curand"):
        way = _way_to(name)
    elif name.startswith(("cute/", "cutlass/")):
        way = f"it comes with CUTLASS; run: {pip.command('cutlass')}"
    elif name.startswith("cupy/"):
        way = f"it comes with CuPy; run: {pip.command(pip.fitting(pip.torch_cuda() or '13.0'))}"
    return f'"{name}" was looked for in{where}\n  {way}'
