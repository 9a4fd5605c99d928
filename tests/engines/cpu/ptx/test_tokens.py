"""Statements of PTX mean the same whatever stands between their parts; NVRTC's assembler is the judge of what is PTX."""

from __future__ import annotations

import pytest
import torch

import rawkern
from rawkern.engines.cpu.ptx.data import Instr, Label
from rawkern.engines.cpu.ptx.parser import parse
from rawkern.engines.cpu.ptx.tokens import closing, shown, split, tokens
from rawkern.errors import UnsupportedError

DECLARED = """.reg .pred p, q; .reg .b32 a, b, c, d; .reg .b64 u, w; .reg .f32 f, g; .reg .v2 .f32 v;
.shared .align 16 .b8 s[64]; mov.b64 u, 0; mov.b64 w, 0; mov.b32 a, 0; mov.b32 b, 0; mov.f32 f, 0f00000000; mov.f32 g, f;
setp.eq.u32 p, a, b; setp.ne.u32 q, a, b;\n"""

#: A statement as compilers write it, and the same as people do.
SAME = {
    "ld.global.f32 f, [u];": ["ld.global.f32 f,[u];", "ld .global .f32\tf , [ u ] ;", "ld.global.f32\nf,\n[u]\n;"],
    "ld.global.f32 f, [u+4];": ["ld.global.f32 f,[u + 4];", "ld.global.f32 f, [u+(2*2)];", "ld.global.f32 f,[u+0x4];"],
    "ld.global.f32 f, [u+-4];": ["ld.global.f32 f,[u + - 4];", "ld.global.f32 f, [u+-4/*back*/];"],
    "ld.shared.b32 a, [s+8];": ["ld.shared.b32 a,[s + 8];", "ld.shared.b32 a, [ s+010 ];"],
    "st.global.v2.b32 [u], {a, b};": ["st.global.v2.b32[u],{a,b};", "st.global.v2.b32 [u] , { a , b } ;"],
    "ld.global.v2.f32 {f, _}, [u];": ["ld.global.v2.f32{f,_},[u];", "ld.global.v2.f32 { f,_ },[u];"],
    "mov.b64 {a, b}, u;": ["mov.b64{a,b},u;"],
    "mov.b64 u, {a, -1};": ["mov.b64 u,{a,-1};", "mov.b64 u,{a,- 1};"],
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {a, b, c, d}, [s];": [
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16{a,b,c,d},[s];",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16{a, b, c, d}, [s];",
    ],
    "atom.global.add.f32 _, [u], 0f3F800000;": ["atom.global.add.f32 _,[u],0F3f800000;"],
    "add.s32 a, b, -5;": ["add.s32 a,b,-5;", "add.s32 a, b, - 5;", "add.s32 a,b,(-5);", "add.s32 a, b, 1 - 2*3;"],
    "add.s32 a, b, 5;": ["add.s32 a,b,+5;", "add.s32 a,b,0b101;", "add.s32 a,b,5U;", "add.s32 a, b, 05;"],
    "lop3.b32 a, a, b, c, 0xEA;": ["lop3.b32 a,a,b,c,(0xf0&0xcc)|0xaa;", "lop3.b32 a, a, b, c, (0xF0 & 0xCC) | 0xAA;"],
    "mov.f32 f, -1.5;": ["mov.f32 f,-1.5;", "mov.f32 f, - 1.5e0;", "mov.f32 f,-15.e-1;"],
    "mov.f32 f, 0.5;": ["mov.f32 f,.5;", "mov.f32 f, 5e-1;"],
    "mov.u32 a, %tid.x;": ["mov.u32 a,%tid.x;", "mov.u32 a, %tid .x;"],
    "mov.u32 a, WARP_SZ;": ["mov.u32 a,WARP_SZ;", "mov.u32 a, WARP_SZ + 0;", "mov.u32 a, 32;"],
    "@p bra L;": ["@p\tbra L;", "@ p bra L;", "@p bra\nL ;", "@/**/p bra L;", "@p // taken?\n bra L;"],
    "@!p mov.u32 a, b;": ["@! p mov.u32 a,b;", "@ ! p mov .u32 a , b;"],
    "setp.lt.and.s32 p|q, a, b, !q;": ["setp.lt.and.s32 p | q,a,b,! q;", "setp.lt.and.s32 p|q,a,b,!q;"],
    "setp.lt.s32 _|q, a, b;": ["setp.lt.s32 _ | q,a,b;"],
    "selp.b32 a, b, c, p;": ["selp.b32 a,b,c,p;", "{selp.b32 a,b,c,p;}", "{ { selp.b32 a, b, c, p; } }"],
    "add.f32 v.x, v.y, f;": ["add.f32 v.r,v.g,f;"],
    "ld.global.v2.f32 {v.x, v.y}, [u];": ["ld.global.v2.f32 v,[u];"],
    "mov.b32 a, b; mov.b32 c, d;": ["mov.b32 a,b;mov.b32 c,d;", "mov.b32 a,b;//;}\nmov.b32 c,d;/*{;*/"],
    "ld.global.nc.L1::no_allocate.f32 f, [u];": ["ld.global .nc.L1::no_allocate .f32 f,[u];"],
    "bar.sync 0;": ["bar.sync\t0 ;", "bar . sync 0;".replace(" . ", ".")],
}


def _items(text: str) -> list[Instr | Label]:
    head = ".version 8.7\n.target sm_80\n.address_size 64\n.entry k() {\n"
    kernel = parse(f"{head}{DECLARED}{text}\nL: ret;\n}}\n").functions["k"]
    assert not kernel.rejected
    return kernel.body[8:]


@pytest.mark.parametrize("plain", SAME)
def test_white_space_and_comments_change_nothing(plain):
    expected = _items(plain)
    assert len(expected) == plain.count(";") + 2
    for text in SAME[plain]:
        assert _items(text) == expected, text


def test_the_assembler_takes_all_of_these():
    texts = [text for plain, same in SAME.items() for text in (plain, *same)]
    scopes = "\n".join(f"{{ {DECLARED} {text}\nL: }}" for text in texts)
    rawkern.RawKernel(f'extern "C" __global__ void k() {{ asm volatile(R"({scopes})"); }}').cubin("sm_80")


def test_names_that_end_where_the_next_begins():
    assert tokens("ld.global.f32%f1,[%rd1]")[:-1] == ["ld.global.f32", "%f1", ",", "[", "%rd1", "]"]
    assert tokens("@%p1bra L;")[:-1] == ["@", "%p1bra", "L", ";"]  # one name, as for the assembler
    assert tokens(".reg.b32%r<4>;")[:-1] == [".reg", ".b32", "%r", "<", "4", ">", ";"]
    assert tokens("$L1:bra $L1;")[:-1] == ["$L1", ":", "bra", "$L1", ";"]
    assert tokens("{a|b}")[:-1] == ["{", "a", "|", "b", "}"]


def test_comments_strings_and_sections():
    assert tokens('.file 1 "/a//b.cu" // "c"\n/* "d\n */ x')[:-1] == [".file", "1", '"/a//b.cu"', "x"]
    text = ".section .debug_str { $L__info: .b8 1, 2\n.b8 3 } .visible"
    assert [t.split()[0] for t in tokens(text)[:-1]] == [".section", ".visible"]


def test_splitting_at_commas():
    assert split([]) == []
    assert split(tokens("a, {b, c}, [d, {e, f}], (g)")[:-1]) == [
        ["a"], ["{", "b", ",", "c", "}"], ["[", "d", ",", "{", "e", ",", "f", "}", "]"], ["(", "g", ")"],
    ]  # fmt: skip
    for text in ("a,", ",a", "a,,b", "[a", "a]", "]a["):
        with pytest.raises(UnsupportedError, match="operands not understood"):
            split(tokens(text)[:-1])
    assert closing(tokens("[ ( ) ] )"), 0) == 3
    assert shown(tokens("f ( a , [ b + 4 ] ) ;")[:-1]) == "f (a, [b + 4]);"


def test_registers_of_several_parts_and_a_matrix_load_without_a_blank():
    code = r"""
extern "C" __global__ void k(const float2* x, float* y, unsigned* z) {
    __shared__ __align__(16) unsigned s[128];
    for (int i = threadIdx.x; i < 128; i += 32) s[i] = i * 65537;
    __syncwarp();
    unsigned a = (unsigned)__cvta_generic_to_shared(s + threadIdx.x * 4);
    asm volatile("{.reg.v2 .f32 v;.reg.pred p;ld.global.v2.f32 v,[%1];setp.lt.f32 p,v.x,v.y;@ !p add.f32 v.x,v.x,-2.0;"
                 "mul.f32 v.y,v.x,v.g;st.global.f32[%2],v.y;\n}"
                 "ldmatrix.sync.aligned.m8n8.x1.shared.b16{%0},[%3];"
                 : "=r"(a) : "l"(x + threadIdx.x), "l"(y + threadIdx.x), "r"(a));
    z[threadIdx.x] = a;
}"""
    x = torch.randn(32, 2, generator=torch.Generator().manual_seed(5))
    y, z = torch.full((32,), float("nan")), torch.zeros(32, dtype=torch.int32)
    rawkern.RawKernel(code)[1, 32](x, y, z)
    first = torch.where(x[:, 0] < x[:, 1], x[:, 0], x[:, 0] - 2.0)
    assert torch.equal(y, first * x[:, 1])
    assert z.tolist() == [i * 65537 for i in range(32)]
