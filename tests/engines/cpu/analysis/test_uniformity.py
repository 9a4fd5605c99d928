"""What is known about registers is what lowering makes of them: values that outlive their block, branches on them."""

from __future__ import annotations

import pytest
import torch

import rawkern

N = 64


def run(device, body: str, want) -> None:
    """`body` computes ``int r`` from ``t``, the thread's index, with ``n`` known at the launch alone."""
    out = torch.full((N,), -1, dtype=torch.int32, device=device)
    code = f'extern "C" __global__ void k(int* o, int n) {{ int t = threadIdx.x, r = 0; {body} o[t] = r; }}'
    rawkern.RawKernel(code)[1, N](out, 5)
    assert out.tolist() == [want(t) for t in range(N)]


def test_agreement_of_all_lanes_is_one_answer_and_a_plain_branch(device):
    run(
        device,
        """int same; unsigned m = __match_all_sync(~0u, t / n % 7 + t / 32, &same);
        unsigned m2 = __match_all_sync(~0u, n, &same);
        for (int i = 0; i < n; i++) { if (same) r += m2 & 255; else r -= 1; if (m) r = -7; }""",
        lambda t: 5 * 255,
    )


def test_agreement_of_some_lanes(device):
    run(
        device,
        """if (t % 32 < 20) { int same; unsigned m = __match_all_sync(0xfffff, t / 32, &same);
        for (int i = 0; i < n; i++) r += (m & 0xff) + (same ? 1000 : 0); }""",
        lambda t: 5 * 1255 if t % 32 < 20 else 0,
    )


@pytest.mark.parametrize("text", ["mov.b32 {%0, %1}, %2;", "mov.b32 {%1, %0}, %2;"])
def test_halves_of_an_index_are_no_index(device, text):
    run(
        device,
        f"""short a, b; asm("{text}" : "=h"(a), "=h"(b) : "r"(t * 65537 + 1));
        for (int i = 0; i < n; i++) {{
            int x, y;
            asm volatile("cvt.s32.s16 %0, %1;" : "=r"(x) : "h"(a));
            if (x % 7 < i) break;
            asm volatile("cvt.s32.s16 %0, %1;" : "=r"(y) : "h"(b));
            r += y;
        }}""",
        lambda t: _rounds(*((t + 1, t) if text.startswith("mov.b32 {%0") else (t, t + 1))),
    )


def _rounds(x: int, y: int) -> int:
    return y * min(5, x % 7 + 1)


def test_a_carry_is_an_operand_that_can_vary(device):
    run(
        device,
        """unsigned low, carry;
        asm("add.cc.u32 %0, %2, %3; addc.u32 %1, 0, 0;" : "=r"(low), "=r"(carry) : "r"(t * 0x4000000u), "r"(0x80000000u));
        for (int i = 0; i < n; i++) {
            int x;
            asm volatile("mul.lo.s32 %0, %1, %2;" : "=r"(x) : "r"(carry), "r"(i));
            if (x > 2) break;
            r += x + (low >> 31);
        }""",
        _carried,
    )


def _carried(t: int) -> int:
    low, carry = (t * 0x4000000 + 0x80000000) % 2**32, (t * 0x4000000 + 0x80000000) >> 32
    return sum(carry * i + (low >> 31) for i in range(5) if carry * i <= 2)
