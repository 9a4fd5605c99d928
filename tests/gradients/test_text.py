"""How the text of a backward reads: names, loops, and nothing in it that says nothing."""

from __future__ import annotations

import re

import pytest

import rawkern
from rawkern.gradients.code.expressions import (
    Cast,
    Name,
    address,
    call,
    element,
    infix,
    literal,
    names,
    number,
    renamed,
    special,
    total,
    where,
)
from rawkern.gradients.code.names import Names
from rawkern.gradients.code.passes.renumbering import finished
from rawkern.gradients.code.printing import expression, rendered
from rawkern.gradients.code.tree import (
    BARRIER,
    Declare,
    For,
    If,
    Jump,
    Note,
    Run,
    Scope,
    Statement,
    While,
    assign,
    constant,
    continued,
    counting,
    increment,
    length,
    variable,
)
from tests.gradients.all_cases import CASES

INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;"


def body(text: str, before: str = "", **more) -> str:
    """The lines of a backward's kernel."""
    head = 'extern "C" __global__ void f(const float* x, const float* w, float* y, int n)'
    kernel = rawkern.RawKernel(f"{before}\n{head} {{ {INDEX} {text} }}", "f")
    return kernel.derive(block=64, wrt=("x",), **more).source.rpartition("__global__")[2]


def printed(lines: list, *hints: str, kept: frozenset = frozenset(), free: frozenset = frozenset()) -> list[str]:
    """Lines as they are finished, with names that were made of these hints."""
    names = Names({"lane"}, False)
    for hint in hints:
        names.fresh(hint)
    return rendered(finished(lines, names, kept, free), 0)


def test_names_are_numbered_in_the_order_of_the_text() -> None:
    lines = [variable("int", "t_2", 1), variable("int", "t", "t_2"), variable("int", "t_3", Name("t") + "t_2")]
    assert printed(lines, "t", "t", "t") == ["int t = 1;", "int t_2 = t;", "int t_3 = t_2 + t;"]


def counted(name: str, *body: Statement) -> For:
    return counting(variable("int", name, 0), 3, 1, list(body))


def test_blocks_that_lie_apart_share_names() -> None:
    first, second = (counted(f"k_{n}", assign(Name("x")[f"k_{n}"], 1)) for n in (2, 3))
    found = printed([variable("int", "j", 0), first, second], "k", "k", "k")
    assert found.count("for (int k = 0; k < 3; ++k) {") == 2
    assert "for (int k_2 = 0; k_2 < 3; ++k_2) {" in "".join(printed([counted("k_2", second)], "k", "k", "k"))


def test_a_name_of_an_outer_block_is_taken_within() -> None:
    y = Name("y")
    inner = If(Name("n"), [variable("int", "t", "t_2"), assign(y[0], "t")])
    lines = [variable("int", "t_2", 1), inner, assign(y[1], "t_2")]
    assert printed(lines, "t", "t")[:3] == ["int t = 1;", "if (n) {", "    int t_2 = t;"]


def test_one_name_declared_in_several_blocks() -> None:
    y, n = Name("y")[0], Name("n")
    apart = [If(n, [constant("float", "t_2", 1), assign(y, "t_2")]) for _ in range(2)]
    assert "t_2" not in "\n".join(printed(apart, "t", "t"))
    around = [
        Declare("float", "t_2"),
        If(n, [assign("t_2", 1)]),
        If(Name("m"), [constant("float", "t", "t_2"), assign(y, "t")]),
    ]
    assert "const float t_2 = t;" in "\n".join(printed(around, "t", "t"))


def test_names_of_parameters_and_of_what_is_called_keep_their_meaning() -> None:
    assert printed([variable("int", "lane_2", call("lane"))], "lane") == ["int lane_2 = lane();"]
    assert printed([variable("int", "lane_2", 1)], "lane", free=frozenset({"lane"})) == ["int lane = 1;"]
    assert printed([variable("int", "n_2", "n")], "n", "n", kept=frozenset({"n"})) == ["int n_2 = n;"]
    lines = [variable("int", "each", element("s", (), ("t",))), variable("int", "t_2", "each")]
    assert printed(lines, "t", "t") == ["int each = s.t;", "int t = each;"]


A, B, C, D = map(Name, "abcd")


def test_sums() -> None:
    chosen = where(Name("p"), D, number(0.0, "float"))
    assert expression(total([A, -B * C, chosen])) == "a - b * c + (p ? d : 0.0f)"
    assert expression(total([-A, -(A + B) * C])) == "-a - (a + b) * c"
    assert expression(total([A, -B + C])) == "a + (-b + c)"
    lines = [assign("d_x", -A * B, "+="), assign("d_x", -A + B, "+=")]
    assert printed(lines) == ["d_x -= a * b;", "d_x += -a + b;"]


@pytest.mark.parametrize(
    ("e", "text"),
    [
        (A - (B - C), "a - (b - c)"),
        (A - B - C, "a - b - c"),
        (A * B / C, "a * b / c"),
        (A / (B * C), "a / (b * c)"),
        (-A * -B - -C, "-a * -b - (-c)"),
        (-(A + B), "-(a + b)"),
        ((A + B)["i"], "(a + b)[i]"),
        (A % B * C, "(a % b) * c"),
        (infix(A + 1, "<", B * C), "a + 1 < b * c"),
        (infix(infix(A, "<", B), "&&", infix(C, "&&", D)), "a < b && (c && d)"),
        (infix(infix(A, "&&", B), "||", C), "(a && b) || c"),
        (infix(A + B, ">>", 1), "(a + b) >> 1"),
        (where(infix(A, "<", B), A, where(C, B, D)), "a < b ? a : c ? b : d"),
        (where(where(A, B, C), A, B) * C, "((a ? b : c) ? a : b) * c"),
        (Cast("int", A + B) * C, "(int)(a + b) * c"),
        (Cast("float*", A, bits=True)[B], "reinterpret_cast<float*>(a)[b]"),
        (element(address(element("s", (0, 0))), ["i"]), "(&s[0][0])[i]"),
        (element("s", ["i"], ("v", "2")), "s[i].v[2]"),
    ],
)
def test_parentheses_are_those_that_people_write(e, text) -> None:
    assert expression(e) == text


def test_sums_of_any_length() -> None:
    long = total([A] * 5000)
    assert expression(long) == " + ".join(["a"] * 5000)
    assert hash(long) == hash(total([A] * 5000))
    assert set(names(renamed(long, {"a": "b"}))) == {"b"}


def test_statements() -> None:
    s, n, at, k = map(Name, ("s", "n", "at", "k"))
    start = variable("int", "i", special("threadIdx.x"))
    loop = counting(start, "n", 64, [assign(s["i"], number(0.0, "float"))], inline=True)
    below = infix(at, "<", k)
    lines: list[Statement] = [
        Note("// All threads."),
        Declare("__shared__ float", "s", extents=(64,)),
        Declare("int", "at", literal("-1"), also=(("k", literal("0")),)),
        If(Name("flag"), [loop], inline=True),
        BARRIER,
        BARRIER,
        If(Name("flag"), [Run(call("f", s))], [Run(call("g", s))], inline=True),
        If(below, [assign(at, k), assign(k, 0)], inline=True),
        If(below, [Jump("return", at)], [Scope([Jump("break")])]),
        While(infix(k, ">", 0), [assign(k, 1, "-="), increment("k")]),
    ]
    assert rendered(lines, 0) == [
        "// All threads.",
        "__shared__ float s[64];",
        "int at = -1, k = 0;",
        "if (flag) for (int i = threadIdx.x; i < n; i += 64) s[i] = 0.0f;",
        "__syncthreads();",
        "if (flag) f(s);",
        "else g(s);",
        "if (at < k) at = k, k = 0;",
        "if (at < k) {",
        "    return at;",
        "} else {",
        "    {",
        "        break;",
        "    }",
        "}",
        "while (k > 0) {",
        "    --k;",
        "    ++k;",
        "}",
    ]
    assert [s for s in continued(lines) if isinstance(s, If)][-1].body == [Jump("return", at)]
    assert continued([If(n, [Jump()])]) == [If(n, [Jump("continue")])]
    assert length(lines) == len(rendered(lines, 0)) + 1  # a barrier that does what two do


@pytest.mark.parametrize(
    ("text", "wanted", "unwanted"),
    [
        ("float v = x[i + 0] * w[i * 1]; y[0 + i] = v * v;", r"x\[i\]", r"\+ 0|\* 1"),
        ("bool out = !(i < n); if (!out) y[i] = x[i] * x[i];", "if", r"!\(!"),
        ("bool in = i < n; if (!in) { } else y[i] = x[i] * x[i];", r"if \(.*in|if \(i < n", r"!\(!"),
        ("if (n & 1) { y[i] = 1.f; } else y[i] = x[i] * x[i];", r"\(n & 1\) == 0", r"!\("),
        ("float s = 0, v = x[i]; for (int o = 16; o; o >>= 1) s = s * v + w[o]; y[i] = s;",
         r"for \(int o = 16; o != 0; o >>= 1\)", "while|o_next"),
        ("float s = 0; for (int k = 0; k < n; ++k) s += x[k] * w[i]; y[i] = s;", "for", "= 0;.*= s;"),
        ("int lane = n % 32; if (i < lane) y[i] = x[i] * x[i] * (lane + 1);", r"int lane =", "lane_"),
        ("y[i] = w[i] - x[i] * x[i] - x[i];", " -= | - ", r"\+ -|\+ \(-|\+= -"),
        ("int j = i + -2; if (i > 1) y[j] = x[i + -2] * x[i + -2];", r"- 2", r"\+ \(?-"),
        ("y[i] = x[i] * x[i] / 8.0f;", r"\* 0\.125f", "inverse"),
        ("long long r = i; y[r * (long long)n] = x[r * (long long)n] * 2.f;", r"\[r \* n\]", r"\[r \* \("),
    ],
)  # fmt: skip
def test_text(text, wanted, unwanted) -> None:
    found = body(text)
    assert re.search(wanted, found), found
    assert not re.search(unwanted, found), found


def test_a_loop_that_overwrites_what_it_reads_stays_a_loop() -> None:
    found = CASES["binomial"]
    text = rawkern.RawKernel(found.source, found.name).derive(block=found.block).source
    assert text.count("_tape") and len(text.splitlines()) < 130


def test_order_of_floats_is_kept() -> None:
    """x + 0.0f is not x for -0.0f; NaN is neither less nor not less; a sum is added up as it was."""
    found = body("float v = x[i] + 0.0f; if (v < 1.0f) { } else y[i] = v * v;")
    assert "+ 0.0f" in found and "if (!(v < 1.0f)) {" in found
    kept = body("float h = x[i]; for (int k = 0; k < n; ++k) h = h + w[k] - w[k + 1]; y[i] = h * h;")
    assert "h += w" not in kept


def test_no_line_is_too_long_however_deep() -> None:
    found = body(
        "float a[32], s = 0.f; for (int k = 0; k < 32; ++k) { float v = x[i * 32 + k]; if (v > 0.9f) break;"
        "a[k] = v * w[k]; s += a[k] * a[(k + 1) / 2]; } y[i] = s;"
    )
    assert max(map(len, found.splitlines())) <= 120


def test_no_line_is_too_long() -> None:
    length = "number_of_columns_of_the_matrix * 3 - number_of_columns_that_are_left"
    loop = f"for (int c = threadIdx.x; c < {length}; c += 32)"
    source = f"""extern "C" __global__ void scaled(
        const float* x, float* y, int number_of_columns_of_the_matrix, int number_of_columns_that_are_left) {{
        float sum = 0;
        {loop} sum += x[blockIdx.x * 100 + c];
        for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffff, sum, o);
        {loop} y[blockIdx.x * 100 + c] = sum * x[blockIdx.x * 100 + c];
    }}"""
    text = rawkern.RawKernel(source, "scaled").derive(block=32).source
    assert max(map(len, text.splitlines())) <= 120
    assert f", {length} <= 100." in text.replace("\n//  ", "") and f"// steps: ({length}) / 32" in text
