"""Parameters that are read by address: named directly where the address is known, compared with all of them elsewhere."""

from __future__ import annotations

import struct

import pytest
import torch

import rawkern
from rawkern.engines.cpu.analysis.parameters import named_directly
from rawkern.engines.cpu.ptx.data import Instr, Mem, Reg
from rawkern.engines.cpu.ptx.parser import parse

PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 k_param_0, .param .align 8 .b8 k_param_1[32]) {
    .reg .b64 %rd<9>;
    .reg .b32 %r<9>;
    .reg .pred %p<2>;
    mov.b64 %rd1, k_param_1;
    add.s64 %rd2, %rd1, 40;
    add.s64 %rd3, %rd2, -24;
    BODY
    ret;
}"""


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ("ld.param.u32 %r1, [%rd1];", ("k_param_1", 0)),
        ("ld.param.u32 %r1, [%rd3+-8];", ("k_param_1", 8)),
        ("ld.param.v2.u64 {%rd4, %rd5}, [%rd3];", ("k_param_1", 16)),
        ("ld.param.v2.u64 {%rd4, %rd5}, [%rd3+8];", None),  # half of it is past the end of the parameter
        ("ld.param.u32 %r1, [%rd1+-4];", None),
        ("ld.param.u64 %rd4, [k_param_0]; add.s64 %rd5, %rd1, %rd4; ld.param.u32 %r1, [%rd5];", None),
        ("setp.eq.s64 %p1, %rd1, 0; mov.b64 %rd4, %rd1; @%p1 mov.b64 %rd4, %rd3; ld.param.u32 %r1, [%rd4];", None),
        ("setp.eq.s64 %p1, %rd1, 0; @%p1 mov.b64 %rd4, %rd1; ld.param.u32 %r1, [%rd4];", None),
    ],
)
def test_which_reads_are_named(body, read) -> None:
    function = named_directly(parse(PTX.replace("BODY", body)).functions["k"])
    mem = next(
        i.args[1]
        for i in reversed(function.body)
        if isinstance(i, Instr) and i.op.base == "ld" and i.args[1] != Mem(Reg("k_param_0"), 0)
    )
    found = None if isinstance(mem.base, Reg) else (mem.base.name, mem.offset)
    assert found == read


def test_members_by_index_of_the_thread(device) -> None:
    """The address of such a member is known only when the thread runs."""
    k = rawkern.RawKernel(
        """struct Steps { int many, at[16]; };
        extern "C" __global__ void k(int* y, const __grid_constant__ Steps steps) {
            for (int d = 0; d < steps.many; ++d) y[threadIdx.x] += steps.at[(threadIdx.x + d) % 16] * (d + 1);
        }""",
        "k",
    )
    numbers = torch.arange(3, 19)
    y = torch.zeros(64, dtype=torch.int32, device=device)
    k[1, 64](y, struct.pack("17i", 5, *numbers.tolist()))
    wanted = sum(numbers[(torch.arange(64) + d) % 16] * (d + 1) for d in range(5))
    assert torch.equal(y.cpu().long(), wanted)


def test_members_past_the_end_of_the_parameters_are_found() -> None:
    k = rawkern.RawKernel(
        """struct Steps { int many, at[16]; };
        extern "C" __global__ void k(int* y, const __grid_constant__ Steps steps) { y[0] = steps.at[steps.many]; }""",
        "k",
    )
    y = torch.zeros(1, dtype=torch.int32)
    for many in (16, 17, 40, -4):
        with pytest.raises(rawkern.OutOfBoundsError, match="reads"):
            k[1, 1](y, struct.pack("17i", many, *range(16)))
