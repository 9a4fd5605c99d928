"""Macros and conditions, against the preprocessor of g++."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

import rawkern
from rawkern.gradients.reading.preprocess import Unclear, preprocess, tokens

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
    "a name behind another": "#define G H\n#define H(x) x * 2\nG(3);\n",
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
        "#if __CUDA_ARCH__ > 7\n#endif\n",
        "#error no\n",
        "#if 1 / 0\n#endif\n",
        "#if f(2)\n#endif\n",
    ],
)
def test_what_is_not_followed_is_refused(text) -> None:
    with pytest.raises(Unclear):
        preprocess(text)


def test_what_it_leaves_alone_is_known_by_name() -> None:
    found = preprocess("#define PASTE(a, b) a ## b\n#define SAY(...) f(__VA_ARGS__)\nPASTE(x, 1); SAY(2);\n")
    assert found.left == {"PASTE", "SAY"} and re.sub(r"\s", "", found.text) == "PASTE(x,1);SAY(2);"


def test_derived_text_means_what_the_macros_mean() -> None:
    source = """
    #define real float
    #define N 8
    #define OFFSET(col, row) ((col) + (row) * N)
    #if N > 4
    __device__ real bend(real v) { return v * v; }
    #else
    __device__ real bend(real v) { return v; }
    #endif
    extern "C" __global__ void k(const real* x, real* y) {
        int t = threadIdx.x;
    #ifdef TWICE
        int col = t % N, row = t / N;
        if (col < N && row > (-1)) y[OFFSET(col, row)] = TWICE * bend(x[t]);
    #endif
    }"""
    import torch

    x = torch.rand(64)
    grads = rawkern.RawKernel(source, "k", options=("-DTWICE=2.0f",)).derive(block=64)(
        1, (x, x + 1), {"y": torch.ones(64)}
    )
    torch.testing.assert_close(grads["x"], 4 * x)
