"""How the text of a backward reads: names, loops, and nothing in it that says nothing."""

from __future__ import annotations

import re

import pytest

import rawkern
from rawkern.gradients.code.expressions import total
from rawkern.gradients.code.names import Names
from rawkern.gradients.code.passes.renumbering import finished
from rawkern.gradients.code.tree import (
    BARRIER,
    Assign,
    Declare,
    For,
    If,
    Jump,
    Note,
    Run,
    Scope,
    Statement,
    While,
    continued,
    rendered,
)

INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;"


def body(text: str, before: str = "", **more) -> str:
    """The lines of a backward's kernel."""
    head = 'extern "C" __global__ void f(const float* x, const float* w, float* y, int n)'
    kernel = rawkern.RawKernel(f"{before}\n{head} {{ {INDEX} {text} }}", "f")
    return kernel.derive(block=64, wrt=("x",), **more).source.rpartition("__global__")[2]


def printed(lines: list, *hints: str, head: str = "", free: frozenset = frozenset()) -> list[str]:
    """Lines as they are finished, with names that were made of these hints."""
    names = Names({"lane"}, False)
    for hint in hints:
        names.fresh(hint)
    return rendered(finished(lines, names, head, free), 0)


def test_names_are_numbered_in_the_order_of_the_text() -> None:
    lines = [Declare("int", "t_2", "1"), Declare("int", "t", "t_2"), Declare("int", "t_3", "t + t_2")]
    assert printed(lines, "t", "t", "t") == ["int t = 1;", "int t_2 = t;", "int t_3 = t_2 + t;"]


def counted(name: str, *body: Statement) -> For:
    return For(Declare("int", name, "0"), f"{name} < 3", Assign(name, "1", "+="), list(body))


def test_blocks_that_lie_apart_share_names() -> None:
    first, second = (counted(f"k_{n}", Assign(f"x[k_{n}]", "1")) for n in (2, 3))
    found = printed([Declare("int", "j", "0"), first, second], "k", "k", "k")
    assert found.count("for (int k = 0; k < 3; ++k) {") == 2
    assert "for (int k_2 = 0; k_2 < 3; ++k_2) {" in "".join(printed([counted("k_2", second)], "k", "k", "k"))


def test_a_name_of_an_outer_block_is_taken_within() -> None:
    inner = If("n", [Declare("int", "t", "t_2"), Assign("y[0]", "t")])
    lines = [Declare("int", "t_2", "1"), inner, Assign("y[1]", "t_2")]
    assert printed(lines, "t", "t")[:3] == ["int t = 1;", "if (n) {", "    int t_2 = t;"]


def test_one_name_declared_in_several_blocks() -> None:
    apart = [If("n", [Declare("float", "t_2", "1", const=True), Assign("y[0]", "t_2")]) for _ in range(2)]
    assert "t_2" not in "\n".join(printed(apart, "t", "t"))
    around = [
        Declare("float", "t_2"),
        If("n", [Assign("t_2", "1")]),
        If("m", [Declare("float", "t", "t_2", const=True), Assign("y[0]", "t")]),
    ]
    assert "const float t_2 = t;" in "\n".join(printed(around, "t", "t"))


def test_words_of_the_head_and_what_is_called_keep_their_meaning() -> None:
    assert printed([Declare("int", "lane_2", "lane()")], "lane") == ["int lane_2 = lane();"]
    assert printed([Declare("int", "lane_2", "1")], "lane", free=frozenset({"lane"})) == ["int lane = 1;"]
    assert printed([Declare("int", "n_2", "n")], "n", "n", head="void f(int n)") == ["int n_2 = n;"]
    lines = [Declare("int", "each", "s.t"), Declare("int", "t_2", "each")]
    assert printed(lines, "t", "t") == ["int each = s.t;", "int t = each;"]


def test_sums() -> None:
    assert total(["d_a", "-d_b * c", "(p ? d : 0.0f)"]) == "d_a - d_b * c + (p ? d : 0.0f)"
    assert total(["-d_a", "-(a + b) * c"]) == "-d_a - (a + b) * c"
    assert total(["d_a", "-d_b + c"]) == "d_a + (-d_b + c)"
    lines = [Assign("d_x", "-d_y * z", "+="), Assign("d_x", "-d_y + z", "+=")]
    assert printed(lines) == ["d_x -= d_y * z;", "d_x += -d_y + z;"]


def test_statements() -> None:
    step = Assign("i", "64", "+=")
    loop = For(Declare("int", "i", "threadIdx.x"), "i < n", step, [Assign("s[i]", "0.0f")], inline=True)
    lines: list[Statement] = [
        Note("// All threads."),
        Declare("__shared__ float", "s", extent="[64]"),
        Declare("int", "at", "-1", also=(("k", "0"),)),
        If("flag", [loop], inline=True),
        BARRIER,
        BARRIER,
        If("flag", [Run("f(s)")], [Run("g(s)")], inline=True),
        If("at < k", [Assign("at", "k"), Assign("k", "0")], inline=True),
        If("at < k", [Jump("return", "at")], [Scope([Jump("break")])]),
        While("k > 0", [Assign("k", "1", "-=")]),
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
        "}",
    ]
    assert [s for s in continued(lines) if isinstance(s, If)][-1].body == [Jump("return", "at")]
    assert continued([If("n", [Jump()])]) == [If("n", [Jump("continue")])]


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


def test_order_of_floats_is_kept() -> None:
    """x + 0.0f is no x for -0.0f; NaN is neither less nor not less; a sum is added up as it was."""
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
