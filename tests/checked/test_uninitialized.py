"""Uninitialized registers: which instructions set them, and the line that is told where one is used."""

from __future__ import annotations

import pytest
import torch

import rawkern
from rawkern.launch import level

SET = {
    "by a barrier": r"""
extern "C" __global__ void k(const int* x, int* out) {
    int v;
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %1, 0; @p bar.red.popc.u32 %0, 0, p; }" : "=r"(v) : "r"(x[0]));
    out[threadIdx.x] = v + 1;
}""",
    "where lanes meet on two ways": r"""
extern "C" __global__ void k(const int* x, int* out) {
    unsigned v;
    int c = x[threadIdx.x];
    if (c == 5) {
        asm volatile("{ .reg .pred p; setp.ne.s32 p, %1, 0; @p vote.sync.ballot.b32 %0, p, -1; }" : "=r"(v) : "r"(c));
        out[threadIdx.x] = v + 1;
    } else {
        asm volatile("{ .reg .pred p; setp.ne.s32 p, %1, 1; @p vote.sync.ballot.b32 %0, p, -1; }" : "=r"(v) : "r"(c));
        out[threadIdx.x] = v + 2;
    }
}""",
}


@pytest.mark.parametrize("how", SET)
def test_what_instructions_set_where_threads_meet_is_set(how):
    kernel, results = rawkern.RawKernel(SET[how]), []
    x = torch.arange(32, dtype=torch.int32) + 2
    for checks in (False, True):
        out = torch.full((32,), -7, dtype=torch.int32)
        with rawkern.check() if checks else level.scoped(level.BOUNDS):
            kernel[1, 32](x, out)
        results.append(out)
    assert torch.equal(*results) and -7 not in results[0]


def test_the_line_is_that_of_the_instruction_that_lanes_skip():
    kernel = rawkern.RawKernel(r"""
extern "C" __global__ void k(int* out) {
    asm volatile("{ .reg .pred p;");
    out[1] = 5;

    asm volatile("@p st.global.u32 [%0], 7; }" :: "l"(out));
}""")
    with rawkern.check(), pytest.raises(rawkern.UninitializedReadError) as caught:
        kernel[1, 1](torch.zeros(2, dtype=torch.int32))
    assert [r.line for r in caught.value.reports] == [6]


def test_comparing_with_what_is_not_set_gives_what_is_not_set():
    kernel = rawkern.RawKernel(r"""
extern "C" __global__ void k(int* out) {
    int r;
    asm volatile("{ .reg .s32 v; set.lt.u32.s32 %0, v, 5; }" : "=r"(r));
    out[0] = r;
}""")
    with rawkern.check(), pytest.raises(rawkern.UninitializedReadError):
        kernel[1, 1](torch.zeros(2, dtype=torch.int32))


#: What is done with elements of `s`, of which the first 16 are set, and whether that is a use of the others.
USES = {
    "a sum of shuffles": ("float v = s[t]; for (int o = 16; o; o /= 2) v += __shfl_down_sync(~0u, v, o); o[t] = v;", True),
    "a shuffle": ("float v = s[t];\n v = __shfl_sync(~0u, v, 31 - t);\n o[t] = v;", True),
    "a shuffle by a number that varies": ("float v = s[t];\n v = __shfl_xor_sync(~0u, v, n);\n o[t] = v + 1;", True),
    "a shuffle of 64 bits": ("double v = s[t];\n v = __shfl_xor_sync(~0u, v, 16);\n o[t] = v;", True),
    "a branch on the opposite": ("float v = s[t];\n if (!(v > 0)) o[t] = 1;", True),
    "a byte": ("unsigned v = ((unsigned char*)s)[4 * t];\n o[t] = v;", True),
    "lanes that take part alone": ("float v = s[t % 16];\n v += __shfl_down_sync(~0u, v, 8);\n o[t] = v;", False),
    "chosen": ("float v = s[t], w = __shfl_down_sync(~0u, v, 8);\n o[t] = t < 8 ? w : 0;", False),
    "shuffled and left": ("float v = __shfl_sync(~0u, s[t], t);\n if (t < 16) o[t] = v;", False),
    "bits put together": ("unsigned v = (unsigned&)s[t];\n ((unsigned*)s)[t] = (v & 0xFFFF0000u) | 3; o[t] = s[t] ;", False),
}  # fmt: skip


@pytest.fixture(scope="module")
def uses():
    text = """extern "C" __global__ void k{}(float* o, int n) {{
        __shared__ float s[32]; int t = threadIdx.x; if (t < 16) s[t] = 1; __syncthreads();
        {}
    }}"""
    return rawkern.RawModule("\n".join(text.format(k, body) for k, (body, _) in enumerate(USES.values())))


@pytest.mark.parametrize("how", USES)
def test_what_is_got_from_lanes_that_have_not_set_it(uses, how):
    kernel, found = uses.get_function(f"k{list(USES).index(how)}"), None
    try:
        with rawkern.check():
            kernel[1, 32](torch.zeros(32), 16)
    except rawkern.UninitializedReadError as error:
        (found,) = error.reports
    assert (found is not None) == USES[how][1]
    if found is not None:
        assert found.line == 4 * list(USES).index(how) + 3 + _lines_before(how)
        assert "s[16]" in found.message and "no thread of the block has written" in found.message


def _lines_before(how: str) -> int:
    bodies = [body for body, _ in USES.values()]
    return sum(body.count("\n") for body in bodies[: list(USES).index(how)])


NAMED = r"""
#define N 128
struct V { float x, y; };
__constant__ int table[4];
extern "C" __global__ void shared(float* o, int i) {
    __shared__ V s[N]; int t = threadIdx.x;
    s[t].x = 1; __syncthreads();
    o[t] = s[i].y * 2;
}
extern "C" __global__ void local(float* o, int i) {
    float a[16]; for (int j = 0; j < 16; j++) a[j] = j * o[0];
    o[1] = a[i];
}
extern "C" __global__ void set(char* o, int n) {
    o[0] = 1;
    memset(o + 1, 0, n);
}
extern "C" __global__ void copied(char* o, int n) {
    char a[64];
    memcpy(a, o, n); o[0] = a[n / 4];
}
extern "C" __global__ void rows(unsigned* o, int i) {
    __shared__ __align__(16) unsigned short s[512]; for (int k = threadIdx.x; k < 512; k += 32) s[k] = k; __syncthreads();
    unsigned a = (unsigned)__cvta_generic_to_shared(s + i + 8 * (threadIdx.x % 8)), r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r) : "r"(a));
    o[threadIdx.x] = r;
}"""
#: Kernel, number, error with checks, line, words.
NAMES = [
    ("shared", 64, rawkern.UninitializedReadError, 8, "reads bytes 4..7 of s[64], which no thread"),
    ("shared", 128, rawkern.OutOfBoundsError, 8, "reads bytes 4..7 of s[128]; s has 128 elements of 8 bytes"),
    ("local", -1, rawkern.OutOfBoundsError, 12, "reads element -1, counted in 4 bytes, of a local array"),
    ("local", 16, rawkern.OutOfBoundsError, 12, "reads element 16, counted in 4 bytes, of a local array"),
    ("set", 200, rawkern.OutOfBoundsError, 16, "writes o[128]; o has 128 elements"),
    ("copied", 80, rawkern.OutOfBoundsError, 20, "of a local array"),
    ("rows", 1, rawkern.MisalignedError, 25, "at s[1..8], 2 bytes after the start of s; the address is not a multiple of 16"),
    ("rows", -7, rawkern.MisalignedError, 25, "at s[-7..0], -14 bytes after the start of s; the address is not a"),
]  # fmt: skip


@pytest.fixture(scope="module")
def named():
    return rawkern.RawModule(NAMED)


@pytest.mark.parametrize(("name", "number", "error", "line", "words"), NAMES)
@pytest.mark.parametrize("how", ["plain", "checked"])
def test_places_and_elements_are_named(named, name, number, error, line, words, how):
    if how == "plain" and error is rawkern.UninitializedReadError:
        return
    o = torch.zeros(
        128, dtype={"shared": torch.float32, "local": torch.float32, "rows": torch.uint32}.get(name, torch.int8)
    )
    with rawkern.check() if how == "checked" else level.scoped(level.BOUNDS), pytest.raises(error) as caught:
        named.get_function(name)[1, 32 if name in ("shared", "rows") else 1](o, number)
    assert f"line {line}: " in str(caught.value) and words in str(caught.value)
