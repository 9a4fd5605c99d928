"""Macros and conditions, against the preprocessor of g++."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import rawkern
from rawkern.compile.source import from_text
from rawkern.compile.toolchain import nvrtc
from rawkern.gradients.reading.preprocess import Headers, Unclear, preprocess, tokens

TEXTS = {
    "numbers and names": '#define T 16\n#define S T\nint a[T], b = S * T2; // T\n/* T\n T */ char* c = "T";\n',
    "of several terms": "#define K 1.f + 2.f\ny = x * K;\n",
    "with parameters": "#define SQ(v) ((v) * (v))\n#define MIN(a, b) ((a) < (b) ? (a) : (b))\ny = SQ(MIN(f(1, 2), x[3])) + SQ;\n",
    "over several lines": "#define DO(a) \\\n  do { a; } \\\n  while (0)\nDO(x = 1\n  + 2);\nnext;\n",
    "in itself": "#define f(x) x + f(x)\n#define a b\n#define b a\nf(f(1)); a; b;\n",
    "signs": "#define N -1\n#define NEG(x) -x\ny = -N - NEG(-2);\n",
    "defined twice": "#define K 1\ny = K;\n#undef K\nz = K;\n#define K 2\nw = K;\n",
    "no argument": "#define NOW() clock()\nt = NOW() + NOW;\n",
    "commas": "#define FIRST(a, b) a\nFIRST((1, 2), 3); FIRST(f[1], {4});\n",
    "a name after another": "#define G H\n#define H(x) x * 2\nG(3);\n",
    "conditions": "#define A 3\n#if A > 2 && !defined(B) && (A & 1) == 1\nyes\n#elif A\nno\n#else\nno\n#endif\n#ifdef A\nyes\n#endif\n#ifndef A\nno\n#else\nyes\n#endif\n",
    "nested conditions": "#if 0\n#if 1\nno\n#else\nno\n#endif\n#elif 1 << 3 == 8 || UNKNOWN\n#if -7 / 2 == -3 && -7 % 2 == -1\nyes\n#endif\n#else\nno\n#endif\n",
    "what is not compiled": "#if 0\n#define A 1\n#error no\nit's\n#endif\nA\n",
    "of an option": "#if WIDE\ny = WIDE * FAST;\n#endif\n",
    "before its definition": "y = K;\n#define K 2\n",
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="compares with g++ -E")
@pytest.mark.parametrize("what", TEXTS)
def test_expands_as_a_compiler_does(what) -> None:
    options, text = ("-DWIDE=4", "-DFAST"), TEXTS[what]
    right = subprocess.run(["g++", "-E", "-P", "-x", "c++", *options, "-"], input=text, capture_output=True, text=True)
    assert right.returncode == 0, right.stderr
    found = preprocess(text, options).text
    assert found.count("\n") == text.count("\n"), "lines have moved"

    def words(t):
        return [w for w in tokens(t) if not w.isspace() and not w.startswith(("//", "/*"))]

    assert words(found) == words(right.stdout)


@pytest.mark.parametrize(
    "text",
    [
        "#if 1\n",
        "#endif\n",
        "#if __CUDA_ARCH__ == 800\n#endif\n",
        "#error no\n",
        "#if 1 / 0\n#endif\n",
        "#if f(2)\n#endif\n",
        "#if CUDART_VERSION > 12000\n#endif\n",
        "#include MACRO\n",
        '#pragma push_macro("K")\n',
    ],
)
def test_what_is_not_followed_is_refused(text) -> None:
    with pytest.raises(Unclear):
        preprocess(text)


def test_what_it_leaves_alone_is_known_by_name() -> None:
    found = preprocess("#define PASTE(a, b) a ## b\n#define SAY(...) f(__VA_ARGS__)\nPASTE(x, 1); SAY(2);\n")
    assert found.left == {"PASTE", "SAY"} and re.sub(r"\s", "", found.text) == "PASTE(x,1);SAY(2);"


def test_conditions_on_the_architecture_that_are_alike_for_all_are_followed() -> None:
    text = "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 300\nold\n#elif __CUDA_ARCH__ >= 400 || defined(__HIP_PLATFORM_AMD__)\nnew\n#endif\n"
    assert preprocess(text).text.split() == ["new"]
    with pytest.raises(Unclear, match=r"holds for compute capability 8.0 and not for .*, and a backward is for all"):
        preprocess("#define OLD 800\n#if OLD == __CUDA_ARCH__\n#endif\n")


def test_macros_of_the_compiler_and_of_headers_that_are_not_read_are_what_the_compiler_says(monkeypatch) -> None:
    monkeypatch.setattr(nvrtc(), "architectures", (80, 90))
    text = """#if defined(__cplusplus) && CUDART_VERSION >= 11000 && !defined(__HIP__)
runtime
#endif
#ifdef __CUDA_FP16_H__
too early
#endif
#ifndef CUDA_KERNEL_LOOP
#define CUDA_KERNEL_LOOP(i, n) for (int i = threadIdx.x; i < n; ++i)
#endif
CUDA_KERNEL_LOOP(i, 3);
#include <cuda_fp16.h>
#if defined(__CUDA_FP16_H__) && !defined(__MY_GUARD__) && !defined(M_PI)
half
#endif
"""
    found = preprocess(text, (), Headers({}, None, (), from_text(text)))
    assert " ".join(found.text.split()) == (
        "runtime for (int i = threadIdx.x; i < 3 ; ++ i ) ; #include <cuda_fp16.h> half"
    )
    text = "#ifdef __CUDA_ARCH_FEAT_SM90_ALL\n#endif"
    with pytest.raises(Unclear, match=r"holds for compute capability 9\.0a and not for 8\.0"):
        preprocess(text, (), Headers({}, None, (), from_text(text)))


def test_macros_of_the_stand_ins_for_torch_are_expanded() -> None:
    source = """#include <ATen/cuda/CUDAContext.h>
    __global__ void k(const float* x, float* y, int n) { CUDA_KERNEL_LOOP(i, n) { y[i] = x[i] * x[i]; } }"""
    x = torch.rand(300)
    found = rawkern.RawKernel(source, "k").derive(block=64)
    torch.testing.assert_close(found(2, (x, x + 1, 300), {"y": torch.ones(300)})["x"], 2 * x)
    assert "long long" in found.source, "the loop's counter of 64 bits"


@pytest.mark.skipif(shutil.which("g++") is None, reason="compares with g++ -E")
def test_local_headers_are_read_where_they_are_included(tmp_path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    texts = {
        str(
            tmp_path / "k.cu"
        ): '#include "a.h"\n#include <inner/b.h>\n#define W "a.h"\n#include W\n#include "inner/c.h"\nX(3) B N ;\n',
        str(tmp_path / "a.h"): '#include "inner/c.h"\n#ifndef N\n#define N 4\nfirst\n#else\nagain\n#endif\n',
        str(inner / "b.h"): '#pragma once\n#include "c.h"\n#ifdef NO\n#include "a.h"\n#endif\n#define B 7\nb',
        str(inner / "c.h"): "#pragma once\n#define X(v) v * N\nc\n",
    }
    for path, text in texts.items():
        Path(path).write_text(text)
    command = ["g++", "-E", "-P", "-x", "c++", f"-I{tmp_path}", str(tmp_path / "k.cu")]
    right = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    source = texts.pop(str(tmp_path / "k.cu"))
    found = preprocess(source, (), Headers(texts, str(tmp_path), [str(tmp_path)]))
    assert " ".join(found.text.split()) == " ".join(right.split()) == "c first b again 3 * 4 7 4 ;"
    assert found.text.count("\n") == len(found.lines)
    assert [found.lines[found.text[: found.text.index(word)].count("\n")] for word in ("b", "again", "7")] == [
        (str(inner / "b.h"), 7), (str(tmp_path / "a.h"), 6), (None, 6)
    ]  # fmt: skip
    with pytest.raises(Unclear, match="includes itself"):
        preprocess('#include "a.h"', (), Headers({"/a.h": '#include "a.h"'}, "/", []))


def test_derived_text_means_what_the_macros_and_headers_mean(tmp_path) -> None:
    (tmp_path / "cuda_numbers.h").write_text("#define SCALE 8\n")  # not CUDA's, whatever its name
    (tmp_path / "ops.cuh").write_text("""
    #pragma once
    #include "cuda_numbers.h"
    #define real float
    #define N SCALE
    #if N > 4
    __device__ real bend(real v) { return v * v; }
    #else
    __device__ real bend(real v) { return v; }
    #endif
    __device__ real unknown(real v) { return nextafterf(v, 1.f); }
    """)
    source = """
    #include "ops.cuh"
    #define OFFSET(col, row) ((col) + (row) * N)
    extern "C" __global__ void k(const real* x, real* y) {
        int t = threadIdx.x;
    #ifdef TWICE
        int col = t % N, row = t / N;
        if (col < N && row > (-1)) y[OFFSET(col, row)] = TWICE * bend(x[t]);
    #endif
    }"""
    x = torch.rand(64)
    given: dict[str, Any] = {"options": ("-DTWICE=2.0f",), "include_dirs": [tmp_path]}
    found = rawkern.RawKernel(source, "k", **given).derive(block=64)
    torch.testing.assert_close(found(1, (x, x + 1), {"y": torch.ones(64)})["x"], 4 * x)
    assert found.verify(1, (x, x + 1)) < 1e-6
    with pytest.raises(rawkern.NotDifferentiable, match=r"ops\.cuh:11: k has no derived backward: nextafterf"):
        rawkern.RawKernel(source.replace("bend(x", "unknown(x"), "k", **given).derive(block=64)
