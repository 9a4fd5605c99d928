"""PyTorch extensions without a compiler for C++: ``load`` and ``load_inline`` as torch.utils.cpp_extension has them."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rawkern.base.api_boundary import api_boundary
from rawkern.extensions.cpp.devices import Switch
from rawkern.extensions.extension import Extension, Host, summary
from rawkern.extensions.modules import Source
from rawkern.launch.builds import PathLike

__all__ = ["Extension", "load", "load_inline", "patch", "take_cpu_tensors"]

_IGNORED = {
    "extra_cflags", "extra_sycl_cflags", "extra_ldflags", "build_directory", "with_cuda", "with_sycl", "use_pch",
    "keep_intermediates", "with_pytorch_error_handling", "no_implicit_headers", "is_standalone", "sycl_sources",
}  # fmt: skip
_told: set[str] = set()
# Options of nvcc that matter for device code alone.
_KEPT = re.compile(r"-[DUI]|--?use_fast_math|--?(?:ftz|prec-div|prec-sqrt|fmad)=|--?maxrregcount|--?std=|-lineinfo")


def _options(flags: Sequence[str]) -> list[str]:
    """The options of nvcc that have an effect."""
    found, k = [], 0
    flags = list(flags)
    while k < len(flags):
        one = flags[k]
        if one in ("-D", "-U", "-I") and k + 1 < len(flags):
            one, k = one + flags[k + 1], k + 1
        if _KEPT.match(one):
            found.append("--" + one.lstrip("-") if one.startswith("-use_fast_math") else one)
        k += 1
    return [one for one in found if not one.startswith("-U__CUDA_NO")]


def _ignore(given: Mapping[str, Any]) -> None:
    """Warn once of each option that has no effect because nothing is built."""
    for name, value in given.items():
        if name not in _IGNORED:
            raise TypeError(f"load() got an unexpected keyword argument {name!r}")
        if value not in (None, False, "", [], ()) and name not in _told and name not in ("with_cuda", "use_pch"):
            _told.add(name)
            warnings.warn(f"{name} has no effect: rawkern does not build anything", stacklevel=4)


def _said(extension: Extension, verbose: bool) -> Extension:
    if verbose:
        print(summary(extension))
    return extension


@api_boundary
def load(
    name: str,
    sources: str | PathLike | Sequence[PathLike],
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[PathLike] | None = None,
    build_directory: PathLike | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    is_standalone: bool = False,
    keep_intermediates: bool = True,
) -> Any:
    """Load an extension from its sources, as ``torch.utils.cpp_extension.load`` does, without building it.

    Parameters
    ----------
    name : str
        The name of the extension.
    sources : path or sequence of paths
        Its ``.cu`` and ``.cpp`` files.
    extra_cuda_cflags : sequence of str, optional
        Options for the kernels; those that NVRTC does not have are ignored. Macros apply to host code, too.
    extra_include_paths : sequence of paths, optional
        The folders of your own headers.
    verbose : bool
        Print what is translated, and what is not.
    extra_cflags, extra_sycl_cflags, extra_ldflags, build_directory, with_cuda, with_sycl, is_python_module, \
is_standalone, keep_intermediates
        Have no effect; a warning says so once.

    Returns
    -------
    Extension
        Its attributes are the functions that PYBIND11_MODULE binds, or all host functions if nothing is bound.
        ``source`` is their Python; ``untranslated`` has the functions that are not translated, with the reasons. An
        edit of a source takes effect at the next call.

    Raises
    ------
    FileNotFoundError
        A source does not exist.
    """
    _ignore(
        {
            "extra_sycl_cflags": extra_sycl_cflags,
            "extra_ldflags": extra_ldflags,
            "build_directory": build_directory,
            "with_sycl": with_sycl,
            "is_standalone": is_standalone,
        }
    )
    paths = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    found = []
    for one in paths:
        path = os.path.abspath(one)
        if not os.path.isfile(path):
            raise FileNotFoundError(f"the source {path!r} of the extension {name} does not exist")
        found.append(Source(path, cuda=path.endswith((".cu", ".cuh"))))
    macros = [one for one in extra_cflags or () if one.startswith("-D")]
    options = _options([*macros, *(extra_cuda_cflags or ())])
    include_dirs = [os.fspath(one) for one in extra_include_paths or ()]
    include_dirs += [one[2:] for one in options if one.startswith("-I")]
    options = [one for one in options if not one.startswith("-I")]
    host = Host(found, options=list(dict.fromkeys(options)), include_dirs=include_dirs, name=name)
    return _said(Extension(host), verbose)


@api_boundary
def load_inline(
    name: str,
    cpp_sources: str | Sequence[str],
    cuda_sources: str | Sequence[str] | None = None,
    sycl_sources: str | Sequence[str] | None = None,
    functions: str | Sequence[str] | Mapping[str, str] | None = None,
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[PathLike] | None = None,
    build_directory: PathLike | None = None,
    verbose: bool = False,
    with_cuda: bool | None = None,
    with_sycl: bool | None = None,
    is_python_module: bool = True,
    with_pytorch_error_handling: bool = True,
    keep_intermediates: bool = True,
    use_pch: bool = False,
    no_implicit_headers: bool = False,
) -> Any:
    """Load an extension from strings, as ``torch.utils.cpp_extension.load_inline`` does, without building it.

    Parameters
    ----------
    name : str
        The name of the extension.
    cpp_sources, cuda_sources : str or sequence of str
        C++ and CUDA C++.
    functions : str, sequence of str or mapping, optional
        The functions to bind, in a mapping with their docstrings.
    extra_cuda_cflags, extra_include_paths, verbose
        As for `load`.
    sycl_sources, extra_cflags, extra_sycl_cflags, extra_ldflags, build_directory, with_cuda, with_sycl, \
is_python_module, with_pytorch_error_handling, keep_intermediates, use_pch, no_implicit_headers
        Have no effect; a warning says so once.

    Returns
    -------
    Extension
        As of `load`.
    """
    _ignore(
        {
            "sycl_sources": sycl_sources,
            "extra_sycl_cflags": extra_sycl_cflags,
            "extra_ldflags": extra_ldflags,
            "build_directory": build_directory,
            "with_sycl": with_sycl,
        }
    )
    cpp = [cpp_sources] if isinstance(cpp_sources, str) else list(cpp_sources)
    cuda = [cuda_sources] if isinstance(cuda_sources, str) else list(cuda_sources or ())
    sources = [Source("", "\n".join(cuda), "cuda.cu")] if cuda else []
    if cpp:
        sources.append(Source("", "\n".join(cpp), "main.cpp", cuda=False))
    names = [functions] if isinstance(functions, str) else functions
    macros = [one for one in extra_cflags or () if one.startswith("-D")]
    options = [one for one in _options([*macros, *(extra_cuda_cflags or ())]) if not one.startswith("-I")]
    host = Host(
        sources,
        options=list(dict.fromkeys(options)),
        include_dirs=[os.fspath(one) for one in extra_include_paths or ()],
        name=name,
        functions=None if names is None else list(names),
    )
    extension = Extension(host)
    if isinstance(names, Mapping):
        for one, doc in names.items():
            getattr(extension, one).__doc__ = doc
    return _said(extension, verbose)


@contextlib.contextmanager
def _restored(cpp_extension: Any, before: tuple[Any, Any]) -> Iterator[None]:
    try:
        yield
    finally:
        cpp_extension.load, cpp_extension.load_inline = before


@api_boundary
def patch() -> contextlib.AbstractContextManager[None]:
    """Replace ``torch.utils.cpp_extension.load`` and ``load_inline`` by those of this module.

    Returns
    -------
    context manager
        ``with patch():`` restores torch's functions at its end; without ``with`` they stay replaced.
    """
    from torch.utils import cpp_extension

    before = cpp_extension.load, cpp_extension.load_inline
    cpp_extension.load, cpp_extension.load_inline = load, load_inline
    return _restored(cpp_extension, before)


@api_boundary
def take_cpu_tensors(take: bool = True) -> None:
    """Set whether CPU tensors pass checks for CUDA tensors: ``x.is_cuda()``, ``CHECK_CUDA`` and the like.

    Parameters
    ----------
    take : bool
        True, the default, lets functions that require CUDA tensors launch their kernels on the CPU engine, and lets
        operators of TORCH_LIBRARY_IMPL for CUDA accept CPU tensors. False answers as C++ does.
    """
    Switch.cpu_as_cuda = bool(take)
