"""The PTX parser: what the text says, as plain data."""

from __future__ import annotations

import re
import textwrap

import pytest

from rawkern.engines.cpu.analysis.storage import reached
from rawkern.engines.cpu.ptx.data import Imm, Instr, Label, Loc, Mem, Not, Pair, Ptx, Reg, Special, Sym, Var, Vec
from rawkern.engines.cpu.ptx.parser import parse
from rawkern.engines.cpu.runtime.jit import Translation
from rawkern.errors import UnsupportedError

HEAD = ".version 8.7\n.target sm_80\n.address_size 64\n"


def module(text: str) -> Ptx:
    return parse(HEAD + textwrap.dedent(text))


def body(text: str, declarations: str = "") -> list[Instr | Label]:
    """Instructions and labels of a kernel ``k`` with registers %r, %rd, %f and %p."""
    registers = ".reg .pred %p<4>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n.reg .f32 %f<9>;\n"
    text = f"{declarations}\n.visible .entry k(.param .u64 k_param_0)\n{{\n{registers}{textwrap.dedent(text)}\n}}\n"
    return parse(HEAD + text).functions["k"].body


def one(text: str) -> Instr:
    (instr,) = body(text)
    assert isinstance(instr, Instr)
    return instr


# -- module -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("directives", "cluster"),
    [
        ("", None),
        (".explicitcluster .reqnctapercluster 4, 2", (4, 2, 1)),
        (".maxntid 64 .explicitcluster", (0, 0, 0)),
        (".reqnctapercluster 2 .maxclusterrank 8", (2, 1, 1)),
    ],
)
def test_clusters_of_a_kernel(directives, cluster):
    text = HEAD + f".entry k() {directives} {{ ret; }}"
    function = parse(text).functions["k"]
    assert function.cluster == cluster and not function.rejected
    if cluster:
        for _ in range(2):  # made, then from the disk
            assert Translation(text, False).needs().kernels["k"].cluster == cluster


def test_header_of_a_kernel():
    ptx = module("""
        .visible .entry _Z1kPfi(
            .param .u64 .ptr .align 1 _Z1kPfi_param_0,
            .param .align 8 .b8 _Z1kPfi_param_1[24]
        )
        .maxntid 128, 1, 1
        .minnctapersm 2
        {
            ret;
        }
    """)
    kernel = ptx.functions["_Z1kPfi"]
    assert (ptx.version, kernel.entry, kernel.defined) == (87, True, True)
    assert kernel.params == [
        Var("_Z1kPfi_param_0", "param", "u64", 8, 8),  # the alignment after .ptr is that of what it points to
        Var("_Z1kPfi_param_1", "param", "b8", 8, 24),
    ]
    assert [i.op.text for i in kernel.body if isinstance(i, Instr)] == ["ret"]


def test_device_functions_and_declarations():
    ptx = module("""
        .extern .func (.param .b32 func_retval0) vprintf(.param .b64 vprintf_param_0, .param .b64 vprintf_param_1);
        .func (.param .b32 out) twice(.param .b32 twice_param_0);
        .func (.param .b32 out) twice(.param .b32 twice_param_0)
        {
            ret;
        }
        .func .noreturn stop() { trap; }
    """)
    assert not ptx.functions["vprintf"].defined
    assert len(ptx.functions["vprintf"].params) == 2
    twice = ptx.functions["twice"]
    assert (twice.defined, twice.entry) == (True, False)
    assert twice.returns == [Var("out", "param", "b32", 4, 4)]
    assert ptx.functions["stop"].params == []


def test_comments_and_debug_sections_say_nothing():
    ptx = module("""
        // .visible .entry commented() { ret; }
        /* .global .u32 also_commented; */
        .file 1 "/src/a.cu"
        .visible .entry k() { ret; /* } */ }
        .section .debug_str { $L__info_string0: .b8 95, 90, 0 }
    """)
    assert list(ptx.functions) == ["k"]
    assert ptx.variables == {}


# -- variables --------------------------------------------------------------------------------------------------------
def test_variables():
    ptx = module("""
        .global .align 4 .u32 counter;
        .visible .const .align 16 .b8 table[48];
        .shared .align 8 .f64 tile[4][3];
        .extern .shared .align 16 .b8 dynamic[];
        .global .v4 .f32 four;
        .visible .global .attribute(.managed) .u64 shared_with_host;
    """)
    assert ptx.variables == {
        "counter": Var("counter", "global", "u32", 4, 4),
        "table": Var("table", "const", "b8", 16, 48),
        "tile": Var("tile", "shared", "f64", 8, 96),
        "dynamic": Var("dynamic", "shared", "b8", 16, 0, extern=True),
        "four": Var("four", "global", "f32", 16, 16),  # a vector is aligned as a whole
        "shared_with_host": Var("shared_with_host", "global", "u64", 8, 8),
    }


@pytest.mark.parametrize(
    "text, expected",
    [
        (".global .u32 v = 7;", (Imm(7, "i"),)),
        (".global .s32 v = -7;", (Imm(-7, "i"),)),
        (".global .u32 v = 0xFFFFFFFFU;", (Imm(0xFFFFFFFF, "i"),)),
        (".global .u32 v = 010;", (Imm(8, "i"),)),
        (".global .u32 v = 0b101;", (Imm(5, "i"),)),
        (".global .f32 v = 0f3F800000;", (Imm(0x3F800000, "f"),)),
        (".global .f64 v = 0d3FF0000000000000;", (Imm(0x3FF0000000000000, "d"),)),
        (".global .b8 v[4] = {1, 2, 255, 0};", tuple(Imm(n, "i") for n in (1, 2, 255, 0))),
        (".global .u32 v[2][2] = {{1, 2}, {3, 4}};", tuple(Imm(n, "i") for n in (1, 2, 3, 4))),
        (".global .u32 v[2][3] = {{1}, {2, 3}};", tuple(Imm(n, "i") for n in (1, 0, 0, 2, 3, 0))),
        (".global .v2 .u32 v[2] = {{1, 2}, {3}};", tuple(Imm(n, "i") for n in (1, 2, 3, 0))),
        (".global .f32 v[2] = {-1.5, 0f3F800000};", (Imm(0xBFF8000000000000, "d"), Imm(0x3F800000, "f"))),
        (".global .u32 v = (1 + 2) * -3;", (Imm(-9, "i"),)),
        (".global .u64 v = other;", (Sym("other"),)),
        (".global .u64 v = other+8;", (Sym("other", 8),)),
        (".global .u64 v[2] = {generic(other), generic(other)+12};", (Sym("generic:other"), Sym("generic:other", 12))),
    ],
)
def test_initialisers(text, expected):
    assert module(text).variables["v"].init == expected


def test_several_variables_of_a_declaration():
    ptx = module(".global .align 8 .u32 a, b[3] = {1, 2}, c = 5;\n.const .f32 filled[] = {1.0, 2.0, 3.0};")
    assert [(v.name, v.align, v.size, len(v.init)) for v in ptx.variables.values()] == [
        ("a", 8, 4, 0), ("b", 8, 12, 2), ("c", 8, 4, 1), ("filled", 4, 12, 3),
    ]  # fmt: skip


# -- operands ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text, args",
    [
        ("mov.u32 %r1, %tid.x;", [Reg("%r1"), Special("%tid.x")]),
        ("mov.u32 %r1, WARP_SZ;", [Reg("%r1"), Imm(32, "i")]),
        ("mov.u64 %rd1, table+16;", [Reg("%rd1"), Sym("table", 16)]),
        ("add.s32 %r1, %r2, -3;", [Reg("%r1"), Reg("%r2"), Imm(-3, "i")]),
        ("fma.rn.f32 %f1, %f2, 0fBF800000, %f3;", [Reg("%f1"), Reg("%f2"), Imm(0xBF800000, "f"), Reg("%f3")]),
        ("fma.rn.f32 %f1, %f2, 1.5, -2.5e-1;",
         [Reg("%f1"), Reg("%f2"), Imm(0x3FF8000000000000, "d"), Imm(0xBFD0000000000000, "d")]),
        ("selp.b32 %r1, 1, 0, !%p1;", [Reg("%r1"), Imm(1, "i"), Imm(0, "i"), Not(Reg("%p1"))]),
        ("setp.lt.and.s32 %p1|%p2, %r1, %r2, %p3;", [Pair(Reg("%p1"), Reg("%p2")), Reg("%r1"), Reg("%r2"), Reg("%p3")]),
        ("shfl.sync.up.b32 %r1|_, %r2, 1, 0, -1;",
         [Pair(Reg("%r1"), None), Reg("%r2"), Imm(1, "i"), Imm(0, "i"), Imm(-1, "i")]),
        ("ld.global.u32 %r1, [%rd1];", [Reg("%r1"), Mem(Reg("%rd1"), 0)]),
        ("ld.global.u32 %r1, [%rd1+12];", [Reg("%r1"), Mem(Reg("%rd1"), 12)]),
        ("ld.global.u32 %r1, [%rd1+-4];", [Reg("%r1"), Mem(Reg("%rd1"), -4)]),
        ("ld.param.u64 %rd1, [k_param_0+8];", [Reg("%rd1"), Mem(Sym("k_param_0"), 8)]),
        ("ld.shared.u32 %r1, [64];", [Reg("%r1"), Mem(Imm(64, "i"), 0)]),
        ("ld.global.v4.f32 {%f1, %f2, _, %f4}, [%rd1];",
         [Vec((Reg("%f1"), Reg("%f2"), None, Reg("%f4"))), Mem(Reg("%rd1"), 0)]),
        ("mov.b64 {%r1, %r2}, %rd1;", [Vec((Reg("%r1"), Reg("%r2"))), Reg("%rd1")]),
        ("red.shared.add.u32 [%r1], 1;", [Mem(Reg("%r1"), 0), Imm(1, "i")]),
        ("call.uni (r), f, (a, b);", [[Sym("r")], Sym("f"), [Sym("a"), Sym("b")]]),
        ("ret;", []),
    ],
)  # fmt: skip
def test_operands(text, args):
    assert one(text).args == args


def test_a_register_beyond_the_declared_ones_is_not_a_register():
    assert one("mov.u32 %r1, %r9;").args == [Reg("%r1"), Special("%r9")]


def test_types_of_registers():
    ptx = module("""
        .entry k() {
            .reg .b16 %rs<3>;
            .reg .f64 value, other;
            cvt.u16.u16 %rs2, %rs1;
            add.f64 value, other, other;
        }
    """)
    assert ptx.functions["k"].regs == {"value": "f64", "other": "f64", "%rs1": "b16", "%rs2": "b16"}


def test_predicated_instructions():
    plain, negated = body("@%p1 bra $L__BB0_2;\n@!%p2 st.global.u32 [%rd1], %r1;")
    assert isinstance(plain, Instr) and isinstance(negated, Instr)
    assert (plain.op.text, plain.guard, plain.negated, plain.args) == ("bra", Reg("%p1"), False, [Sym("$L__BB0_2")])
    assert (negated.op.text, negated.guard, negated.negated) == ("st.global.u32", Reg("%p2"), True)


def test_branch_targets():
    ptx = module("""
        .entry k() {
            .reg .b32 %r<2>;
            $L_table: .branchtargets $L_a, $L_b,
                $L_a;
            brx.idx %r1, $L_table;
        $L_a:
        $L_b:
            ret;
        }
    """)
    kernel = ptx.functions["k"]
    assert kernel.tables == {"$L_table": ["$L_a", "$L_b", "$L_a"]}
    assert [i.name for i in kernel.body if isinstance(i, Label)] == ["$L_a", "$L_b"]


def test_spaces_that_may_be_missing_or_more():
    """Inline PTX in CUDA's headers writes ".reg.b32 f"; calls in debug builds have their brackets on lines of their own."""
    kernel = module("""
        .func nothing()
        {
            ret;
        }
        .entry k() {
            {.reg.b32         f,
                              g; .local.align 4 .b8 bytes[8];
            mov.b32 f, g;}
            call.uni
            nothing,
            (
            );
            call.uni nothing, ();
        }
    """).functions["k"]
    assert sorted(kernel.regs.values()) == ["b32", "b32"]
    assert [(v.space, v.size) for v in kernel.local_vars.values()] == [("local", 8)]
    calls = [i.args[1] for i in kernel.body if isinstance(i, Instr) and i.op.text == "call.uni"]
    assert calls == [[], []]


# -- scopes -----------------------------------------------------------------------------------------------------------
def test_names_of_inner_scopes_hide_those_outside():
    kernel = module("""
        .entry k() {
            .reg .b32 %r<4>;
            .reg .b32 x;
            mov.u32 x, 1;
            { .reg .f64 x; .reg .b64 %r<2>;
              mov.f64 x, 0d0000000000000000;
              mov.u64 %r1, 5;
              mov.u32 %r3, 6;
              { .reg .pred x; mov.pred x, 1; }
              mov.f64 x, x;
            }
            { .reg .f64 x; mov.f64 x, x; }
            mov.u32 x, %r1;
        }
    """).functions["k"]
    dests = [i.args[0].name for i in kernel.body if isinstance(i, Instr)]
    kinds = [kernel.regs[name] for name in dests]
    assert kinds == ["b32", "f64", "b64", "b32", "pred", "f64", "f64", "b32"]
    assert dests[0] == dests[7] == "x"  # the outer one before and after
    assert dests[1] == dests[5]  # the same inner one
    assert len({dests[0], dests[1], dests[4], dests[6]}) == 4  # each scope's own
    assert dests[2] != "%r1"
    assert dests[3] == "%r3"  # the inner %r<2> has no %r3


def test_labels_and_variables_of_inner_scopes_are_their_own():
    kernel = module("""
        .entry k() {
            .reg .pred %p<2>;
            { .param .b32 param0; st.param.b32 [param0], 1; loop: @%p1 bra loop; }
            { .param .b32 param0; st.param.b32 [param0], 2; loop: @%p1 bra loop; }
        }
    """).functions["k"]
    labels = [i.name for i in kernel.body if isinstance(i, Label)]
    branches = [i.args[0].name for i in kernel.body if isinstance(i, Instr) and i.op.text == "bra"]
    assert labels == branches
    assert labels[0] != labels[1]
    stores = [i.args[0].base.name for i in kernel.body if isinstance(i, Instr) and i.op.text == "st.param.b32"]
    assert stores[0] != stores[1]
    assert set(stores) == set(kernel.local_vars)


# -- source lines -----------------------------------------------------------------------------------------------------
def test_source_lines():
    ptx = module("""
        .file 1 "/src/a.cu"
        .file 2 "/src/b.cuh"
        .entry k() {
            .reg .b32 %r<4>;
            mov.u32 %r1, 0;
            .loc 1 7 5
            mov.u32 %r1, 1;
            mov.u32 %r1, 2;
            .loc 2 20 9, function_name $L__info_string0, inlined_at 1 8 3
            mov.u32 %r1, 3;
            .loc 2 31 1, function_name $L__info_string1+4, inlined_at 2 20 9
            mov.u32 %r1, 4;
            .loc 1 7 5
            mov.u32 %r1, 5;
        }
    """)
    locs = [ptx.locs[i.loc] for i in ptx.functions["k"].body if isinstance(i, Instr)]
    line = Loc("/src/a.cu", 7, 5)
    inlined = Loc("/src/b.cuh", 20, 9, Loc("/src/a.cu", 8, 3))
    assert locs == [None, line, line, inlined, Loc("/src/b.cuh", 31, 1, inlined), line]


# -- what is not understood -------------------------------------------------------------------------------------------
OTHERS = ".global .u32 fine;\n.entry other() { .reg .b32 %r<2>; ld.global.u32 %r1, [fine]; ret; }\n"


@pytest.mark.parametrize(
    "text, named",
    [
        (".entry k() { mov.u32 %r1, 1 }", "statement without an end: 'mov.u32 %r1, 1'"),
        (".entry k() { { mov.u32 %r1, 1 } ret; }", "statement without an end: 'mov.u32 %r1, 1'"),
        (".entry k() { mov.u32 %r1, 1 mov.u32 %r2, 2; ret; }", "operand not understood: '1 mov.u32 %r2'"),
        (".entry 5k(.param .u32 k) { ret; }", "function header not understood: '.entry 5k"),
        (".entry k(.param .weird p) { ret; }", "function header not understood: '.entry k"),
        (".entry k() .weird 5 { ret; }", "directive not supported: .weird"),
        (".entry k() { .reg .b32 %r<2>; mov.u32 %r1, 12z; }", "operand not understood: '12z'"),
        (".entry k() { .reg .b32 %r<2>; mov.u32 %r1, a*b; }", "operand not understood: 'a * b'"),
        (".entry k() { .reg .b32 %r<2>; mov.u32 %r1, %r1+4; }", "operand not understood: '%r1 + 4'"),
        (".entry k() { .reg .b32 %r<2>; mov.u32 %r1, 1/0; }", "operand not understood: '1 / 0'"),
        (".entry k() { .reg .b32 %r<2>; mov.u32 %r1, 1,; }", "operands not understood: '%r1, 1,'"),
        (".entry k() { .reg .b32 %r<2>; ld.u32 %r1, [%r1*4]; }", "address not understood: [%r1 * 4]"),
        (".entry k() { .reg .b32 %r<2>; .shared .b32 s[4]; ld.u32 %r1, s[1]; }", "operand not understood: 's [1]'"),
        (".entry k() { .reg .b32 %r<2>; ld.u32 %r1, [%r1; }", "operands not understood: '%r1, [%r1'"),
        (".entry k() { .reg .b32 %r<2>; selp.b32 %r1, %r1, %r1, !a; }", "operand not understood: '!a'"),
        (".entry k() { .reg .b32 1; }", "registers not understood: '.reg .b32 1'"),
        (".entry k() { @5 ret; }", "guard is not a predicate register: '@5'"),
        (".entry k() { .reg .pred %p<2>; @%p1bra l; l: ret; }", "guard is not a predicate register: '@%p1bra'"),
        (".entry k() { .weird 5; }", "directive not supported: '.weird 5'"),
        (".entry k() { ] ret; }", "statement not understood"),
        (".func f() { .weird 5; } .entry k() { call f; }", "directive not supported: '.weird 5'"),
        (".func f() { .weird 5; } .func g() { call f; } .entry k() { call g; }", "directive not supported: '.weird 5'"),
        (".func f(.reg .b32 a) { ret; } .entry k() { call f, (1); }", "parameter in a register is not supported"),
        (
            ".global .b8 v[2] = {0xFF(o), 0}; .entry k() { mov.u64 %rd1, v; }",
            "initializer not supported: '0xFF (o)'",
        ),
        (".global .u32 v[2] = {1, 2, 3}; .entry k() { mov.u64 %rd1, v; }", "initializer not supported: '{1, 2, 3}'"),
        (".global .u32 v = {1}; .entry k() { mov.u64 %rd1, v; }", "initializer not supported: '{1}'"),
        (".global .weird v; .entry k() { mov.u64 %rd1, v; }", "variable not understood: '.global .weird v'"),
        (".tex .u32 v; .entry k() { mov.u64 %rd1, v; }", "directive not supported: '.tex .u32 v;'"),
        (".func g() { ret; } .alias f, g; .entry k() { call f; }", "directive not supported: '.alias f, g;'"),
        (".surprise v\n.entry k() { mov.u64 %rd1, v; }", "directive not supported: '.surprise v'"),
        (".surprise { v; v } .entry k() { mov.u64 %rd1, v; }", "directive not supported: '.surprise {v; v}'"),
        (".extern .global .u32 v; .entry k() { mov.u64 %rd1, v; }", "variable v is not defined here"),
    ],
)
def test_what_is_not_understood_is_named_and_keeps_only_its_users_from_running(text, named):
    ptx = module(text + "\n" + OTHERS)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=f"^k: .*{re.escape(named)}"):
            reached(ptx, "k")
    (other,) = reached(ptx, "other")
    assert [i.op.text for i in other.body if isinstance(i, Instr)] == ["ld.global.u32", "ret"]


def test_a_name_that_is_defined_after_all():
    ptx = module(".extern .global .u32 v;\n.visible .global .u32 v = 5;\n.entry k() { mov.u64 %rd1, v; }")
    assert reached(ptx, "k") and ptx.variables["v"].init == (Imm(5, "i"),)


def test_tables_of_functions_concern_kernels_that_call_through_pointers():
    ptx = module("""
        .func broken() { .weird 5; }
        .func fine() { ret; }
        .global .u64 table[2] = {fine, broken};
        .entry direct() { call fine; }
        .entry pointed() { .reg .b64 %rd<2>; proto: .callprototype () _ (); call %rd1, (), proto; }
    """)
    assert [f.name for f in reached(ptx, "direct")] == ["direct", "fine"]
    with pytest.raises(UnsupportedError, match=r"pointed: PTX directive not supported: '.weird 5'"):
        reached(ptx, "pointed")


def test_text_that_ends_inside_a_function():
    with pytest.raises(UnsupportedError, match="ends inside a function, k"):
        module(".entry k() { ret;")
