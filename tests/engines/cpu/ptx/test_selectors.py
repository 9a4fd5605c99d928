"""Bytes and halves of registers as operands of video instructions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rawkern

PARTS = {"b0": (0, 8), "b1": (8, 8), "b2": (16, 8), "b3": (24, 8), "h0": (0, 16), "h1": (16, 16), "": (0, 32)}


def part(x: np.ndarray, selector: str, ty: str) -> np.ndarray:
    """A part of 32-bit words as numbers of a type."""
    at, bits = PARTS[selector]
    v = x.astype(np.int64) >> at & (1 << bits) - 1
    return v - (v >> bits - 1 << bits) if ty == "s32" else v


OPERATIONS = {
    "vadd": np.add, "vsub": np.subtract, "vmin": np.minimum, "vmax": np.maximum,
    "vabsdiff": lambda a, b: abs(a - b), "vset.lt": lambda a, b: (a < b).astype(np.int64),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_parts(name):
    """Each part of both operands, and of the result, of which the rest is the third operand's."""
    base, _, cmp = name.partition(".")
    rng, texts, wanted = np.random.default_rng(3), [], []
    a, b, c = (rng.integers(0, 2**32, 32, dtype=np.uint32) for _ in range(3))
    for first in PARTS:
        for second in ("b3", "h0", ""):
            for ta, tb in (("u32", "u32"), ("s32", "u32"), ("s32", "s32")):
                types = f"{ta}.{tb}.{cmp}" if cmp else f"s32.{ta}.{tb}"
                operands = [f"%{k}{'.' + s if s else ''}" for k, s in ((1, first), (2, second))]
                d = OPERATIONS[name](part(a, first, ta), part(b, second, tb))
                texts.append(f"{base}.{types} %0, {operands[0]}, {operands[1]};")
                wanted.append(d)
                if first == "b1":
                    texts.append(f"{base}.{types}.add %0,{operands[0]},{operands[1]},%3;")
                    wanted.append(d + c)
                for to in ("b2", "h1") if second == "h0" else ():
                    at, bits = PARTS[to]
                    mask = (1 << bits) - 1 << at
                    texts.append(f"{base}.{types} %0.{to}, {operands[0]}, {operands[1]}, %3;")
                    wanted.append(c & ~np.int64(mask) | (d << at) & mask)
    body = "\n".join(
        f'asm("{text}" : "=r"(d) : "r"(a), "r"(b), "r"(c)); o[{k} * 32 + t] = d;' for k, text in enumerate(texts)
    )
    code = f"""extern "C" __global__ void k(const unsigned* in, unsigned* o) {{
        int t = threadIdx.x; unsigned a = in[t], b = in[32 + t], c = in[64 + t], d;
        {body}
    }}"""
    o = torch.full((len(texts), 32), -7, dtype=torch.int32)
    kernel = rawkern.RawKernel(code)
    kernel[1, 32](torch.from_numpy(np.concatenate([a, b, c]).view(np.int32)), o)
    for text, want, got in zip(texts, wanted, o.numpy().view(np.uint32), strict=True):
        np.testing.assert_array_equal(got, (want & 0xFFFFFFFF).astype(np.uint32), err_msg=text)
    assert kernel.cubin("sm_80")  # the assembler takes all of them


def test_shifts_and_products_of_parts():
    code = r"""extern "C" __global__ void k(const unsigned* in, unsigned* o) {
        int t = threadIdx.x; unsigned a = in[t], b = in[32 + t], c = in[64 + t], d;
        asm("vshl.u32.u32.u32.clamp.add %0, %1.b0, %2.b1, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c)); o[t] = d;
        asm("vshr.s32.s32.u32.wrap %0, %1.h1, %2.b3;" : "=r"(d) : "r"(a), "r"(b)); o[32 + t] = d;
        asm("vmad.u32.u32.u32 %0, %1.b0, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c)); o[64 + t] = d;
        asm("vmad.s32.s32.u32.po.sat.shr7 %0, %1.h0, %2.h1, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c)); o[96 + t] = d;
    }"""
    rng = np.random.default_rng(4)
    a, b, c = (rng.integers(0, 2**32, 32, dtype=np.uint32) for _ in range(3))
    o = torch.full((4, 32), -7, dtype=torch.int32)
    kernel = rawkern.RawKernel(code)
    kernel[1, 32](torch.from_numpy(np.concatenate([a, b, c]).view(np.int32)), o)
    whole = [x.astype(object) for x in (a, b, c)]
    left = [(int(x) & 255) << min(int(y) >> 8 & 255, 32) for x, y in zip(a, b, strict=True)]
    right = [int(p) >> (int(y) >> 24 & 31) for p, y in zip(part(a, "h1", "s32"), b, strict=True)]
    final = part(a, "h0", "s32") * part(b, "h1", "u32") + part(c, "", "s32") + 1 >> 7
    wanted = [
        [(x + int(y)) % 2**32 for x, y in zip(left, c, strict=True)], [x % 2**32 for x in right],
        [(int(x) % 256 * int(y) + int(z)) % 2**32 for x, y, z in zip(*whole, strict=True)],
        (final.clip(-(2**31), 2**31 - 1) & 0xFFFFFFFF).tolist(),
    ]  # fmt: skip
    assert o.numpy().view(np.uint32).tolist() == wanted
    assert kernel.cubin("sm_80")


@pytest.mark.parametrize(
    "text",
    ["add.u32 %0, %1.b0, %2;", "vadd.u32.u32.u32.sat %0.b0, %1, %2, %1;", "vadd.u32.u32.u32.add %0, %1, %2, %1.b0;",
     "vadd4.u32.u32.u32 %0, %1.b3, %2, %1;", "vmad.u32.u32.u32 %0.b0, %1, %2, %1;"],
)  # fmt: skip
def test_what_is_not_supported(text):
    code = f'extern "C" __global__ void k(unsigned* o) {{ unsigned d; asm("{text}" : "=r"(d) : "r"(o[0]), "r"(o[1])); o[2] = d; }}'
    with pytest.raises(rawkern.UnsupportedError, match=rf"{text.split()[0]} .*part.* is not supported; it comes from"):
        rawkern.RawKernel(code)[1, 1](torch.zeros(3, dtype=torch.int32))
