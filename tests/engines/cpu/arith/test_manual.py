"""Every form of the lowering tables against the PTX ISA manual, in exact arithmetic (`ptx_reference`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from rawkern.engines.cpu import arith
from rawkern.engines.cpu.arith import compare as comparisons
from rawkern.engines.cpu.arith.table import TABLE
from rawkern.engines.cpu.ptx.decode import decode

from . import exact_floats
from . import form_runner as runner
from . import ptx_reference as reference
from .exact_floats import FORMATS
from .form_runner import COUNT, FEW, Form
from .ptx_reference import width

CASES = 128  # different operands for each form
#: What `test_arith` compares with exact results, since operands are constants there.
ELSEWHERE = {"prmt", "lop3", "fns"}
APPROXIMATE = {"ex2", "lg2", "sin", "cos", "tanh", "rsqrt"}
CARRIES = {"addc", "subc", "madc"}
OPERANDS = dict.fromkeys(
    ("abs", "neg", "not", "cnot", "mov", "popc", "clz", "brev", "bfind", "rcp", "sqrt", "cvt", "testp"), 1
)
OPERANDS |= dict.fromkeys(("mad", "fma", "sad", "mad24", "bfe", "shf", "slct", "selp", "dp4a", "dp2a"), 3) | {"bfi": 4}
SHIFTS = {
    "shl": 1,
    "shr": 1,
    "bfe": 1,
    "bfi": 2,
    "szext": 1,
    "shf": 2,
    "bmsk": 0,
}  # from which operand on amounts stand


def _known(base: str, mods: list[str], types: list[str]) -> bool:
    """Whether the exact reference has a form."""
    return not (base in ELSEWHERE | CARRIES | APPROXIMATE or {"cc", "approx", "full"} & set(mods) or "pred" in types)


def _mnemonics() -> Iterator[tuple[str, str, list[str], list[str]]]:
    """All that the tables take, as (mnemonic, base, modifiers, types)."""
    for (base, types), rows in TABLE.items():
        for row in rows:
            slots = [names if needed else ("", *names) for needed, names in row.mods]
            for chosen in itertools.product(*slots):
                mods = [m for m in chosen if m]
                yield ".".join((base, *mods, types)), base, mods, types.split(".")


def _signature(base: str, mods: list[str], types: list[str]) -> tuple[str, list[str]]:
    """Types of the result and the operands."""
    t = types[0]
    if base in ("setp", "testp"):
        return "u32", [t] * (1 if base == "testp" else 2)
    if base == "set":
        return t, [types[1]] * 2
    if "pack" in mods:
        return "u32", [types[1], *types[1:]]
    if base == "cvt":
        pair = t.endswith("x2") and types[1] == "f32"
        return t, [types[1]] * (2 if pair else 1)
    if base == "slct":
        return t, [t, t, types[1]]
    if base == "selp":
        return t, [t, t, "u32"]
    if base in ("dp4a", "dp2a"):
        return "s32" if "s32" in types else "u32", [*types, "s32" if "s32" in types else "u32"]
    if base[0] == "v":
        to, ta, tb = types if len(types) == 3 else ("u32", *types)
        return to, [ta, "amount" if base in ("vshl", "vshr") else tb, to]
    count = OPERANDS.get(base, 2)
    operands = [t] * count
    if base in SHIFTS:
        operands[SHIFTS[base] :] = ["amount"] * (count - SHIFTS[base])
    if "wide" in mods:
        wide = t[0] + str(2 * width(t))
        return wide, [t, t, wide][:count]
    return "u32" if base in ("popc", "clz", "bfind") else t, operands


def _register(t: str) -> int:
    return 32 if t == "amount" else max(16, width(t))


def _form(index: int, mnemonic: str, base: str, mods: list[str], types: list[str]) -> Form:
    result, operands = _signature(base, mods, types)
    names = [f"%{j + 1}" for j in range(len(operands))]
    if base in ("setp", "testp"):
        text = f"{mnemonic} p, {', '.join(names)}; selp.u32 %0, 1, 0, p"
        if types[0].endswith("x2"):
            text = f"{mnemonic} p, {', '.join(names)}; selp.u32 %0, 1, 0, p"
        if "and" in mods or "or" in mods or "xor" in mods:
            operands.append("u32")
            text = f"setp.gt.s32 q, %3, 0; {mnemonic} p, %1, %2, q; selp.u32 %0, 1, 0, p"
    elif {"and", "or", "xor"} & set(mods):
        operands.append("u32")
        text = f"setp.gt.s32 q, %3, 0; {mnemonic} %0, %1, %2, q"
    elif base == "selp":
        text = f"setp.gt.s32 q, %3, 0; {mnemonic} %0, %1, %2, q"
    else:
        text = f"{mnemonic} %0, {', '.join(names)}"
    widths = tuple(_register(t) for t in (result, *operands))
    return Form(20_000 + index, mnemonic, text + ";", result, tuple(operands), widths)


# -- inputs -----------------------------------------------------------------------------------------------------------
AMOUNTS = [0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 1 << 31, (1 << 32) - 1]
REALS = [0.0, 0.25, 0.5, 1.0, 1.5, 2.5, 3.0, 1 / 3, 127.5, 128.0, 254.5, 255.5, 32767.5, 65535.5, 2.0**31, 2.0**31 - 0.5,
         2.0**32, 2.0**32 - 0.5, 2.0**53 + 2, 2.0**63, 2.0**64, 1e-30, 1e30]  # fmt: skip


@cache
def _edges(t: str) -> tuple[int, ...]:
    """Bits of the values that tell right from wrong."""
    if t == "amount":
        return tuple(AMOUNTS)
    t = t.removesuffix("x2")
    f = (FORMATS | exact_floats.NARROW).get(t)
    bits = f.bits if f else width(t)
    top = 1 << bits - 1
    if f is None:
        small = [
            0,
            1,
            2,
            3,
            5,
            31,
            32,
            33,
            100,
            127,
            128,
            255,
            256,
            0x5555555555555555,
            0x7FFF,
            0x8000,
            0xFFFF,
            1 << 31,
            (1 << 31) - 1,
        ]
        return tuple(v & 2 * top - 1 for v in (*small, top, top + 1, top - 1, -1, -2, -3, -100, -128, -129))
    normal = 1 << f.digits - 1
    found = [0, 1, 2, normal // 2, normal - 1, normal, normal + 1, f.infinity - 1, f.infinity, f.infinity + 1, f.nan]
    found += [f.one - 1, f.one + 1, f.infinity | normal // 2 | 5]
    found += [exact_floats.encode(_real(v), f) for v in REALS]
    return tuple(v | s for v in dict.fromkeys(found) for s in (0, top))


def _real(v: float) -> exact_floats.Real:
    top, bottom = v.as_integer_ratio()
    return exact_floats.Real(0, top, 1 - bottom.bit_length())


@cache
def _inputs(operands: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """`CASES` tuples of operands: edges, each of them at least once, and random bits; some third ones cancel a product."""
    rng = np.random.default_rng(len("".join(operands)) + 17)
    columns = []
    for t in operands:
        bits, edges = _register(t), _edges(t)
        halves = 2 if t.endswith("x2") else 1
        column = np.zeros(CASES, object)
        for k in range(halves):
            picks = rng.permutation(np.resize(np.array(edges, object), max(CASES * 2 // 3, len(edges))))[
                : CASES * 2 // 3
            ]
            wild = [int.from_bytes(rng.bytes(bits // 8 // halves), "little") for _ in range(CASES - len(picks))]
            column += np.array([*picks, *wild], object) << bits // halves * k
        columns.append(rng.permutation(column))
    if len(operands) == 3 and operands[0] in FORMATS and len(set(operands)) == 1:
        f = FORMATS[operands[0]]
        for i in range(0, CASES, 3):
            x, y = (exact_floats.decode(columns[j][i], f) for j in (0, 1))
            columns[2][i] = exact_floats.encode(exact_floats.times(x, y), f) ^ 1 << f.bits - 1
    return tuple(zip(*(map(int, c) for c in columns), strict=True))


# -- what the manual says ---------------------------------------------------------------------------------------------
def _combined(mods: list[str], held: bool, third: int) -> bool:
    q = reference.signed(third, 32) > 0
    return held & q if "and" in mods else held | q if "or" in mods else held ^ q if "xor" in mods else held


def _expected(base: str, mods: list[str], types: list[str], args: list[int]) -> int | None:
    """The exact result of one form; the low half of a packed one's."""
    t = types[0]
    args = [a & mask for a, mask in zip(args, _masks(base, tuple(mods), tuple(types)), strict=False)]
    ftz = "ftz" in mods
    if base in ("setp", "set"):
        source = types[-1].removesuffix("x2")
        cmp = next(
            m for m in mods if m in comparisons.COMPARISONS["u"].split("|") + comparisons.COMPARISONS["f"].split("|")
        )
        held = _combined(mods, reference.compare(cmp, source, args[0], args[1], ftz), args[2] if len(args) > 2 else 0)
        if base == "setp":
            return int(held)
        to = t.removesuffix("x2")
        return (FORMATS[to].one if to in FORMATS else -1) if held else 0
    if base == "testp":
        x, f = exact_floats.decode(args[0], FORMATS[t]), FORMATS[t]
        m = args[0] & (1 << f.bits - 1) - 1
        return {
            "notanumber": x is None, "number": x is not None, "infinite": m == f.infinity, "finite": m < f.infinity,
            "subnormal": 0 < m < 1 << f.digits - 1, "normal": m == 0 or 1 << f.digits - 1 <= m < f.infinity,
        }[mods[0]]  # fmt: skip
    if base == "selp":
        return args[0] if reference.signed(args[2], 32) > 0 else args[1]
    if base == "slct":  # -0 is not negative, and a NaN chooses the second
        if types[1] == "s32":
            return args[0] if reference.signed(args[2], 32) >= 0 else args[1]
        x = exact_floats.decode(args[2], FORMATS["f32"], ftz)
        return args[0] if x is not None and not (x.sign and x.m != 0) else args[1]
    if base == "cvt":
        exact = reference.convert(mods, types[0], types[1], args[0]) if "pack" not in mods else None
        return exact if exact is not None else reference.convert_narrow(mods, types[0], types[1], args)
    if base in ("dp4a", "dp2a"):
        return reference.dot(base, mods, types, args)
    if base[0] == "v":
        return reference.video(base, mods, types, args)
    if t.removesuffix("x2") in FORMATS and base not in ("mov",):
        return reference.floating(base, mods, t.removesuffix("x2"), args)
    return reference.integer(base, mods, t.replace("f", "b") if base == "mov" else t, args)


@cache
def _masks(base: str, mods: tuple[str, ...], types: tuple[str, ...]) -> tuple[int, ...]:
    """The bits that a form reads of its operands' registers, and of the one that is combined with a comparison."""
    names = [*_signature(base, list(mods), list(types))[1], "u32"]
    return tuple(-1 if n == "amount" else (1 << width(n)) - 1 for n in names)


def _packed(base: str, types: list[str]) -> bool:
    return base != "cvt" and any(t.endswith("x2") for t in types)


def _halves(base: str, mods: list[str], types: list[str], args: tuple[int, ...]) -> int | None:
    """A packed form is the scalar one on each half."""
    single = [t.removesuffix("x2") for t in types]
    packed = [n.endswith("x2") for n in (*_signature(base, mods, types)[1], "u32")]
    parts = []
    for k in (0, 16):
        part = [a >> k & 0xFFFF if two else a for a, two in zip(args, packed, strict=False)]
        parts.append(_expected(base, mods, single, part))
    if base == "setp":  # the first predicate is the low half's
        return parts[0]
    if parts[0] is None or parts[1] is None:
        return None
    return parts[0] & 0xFFFF | (parts[1] & 0xFFFF) << 16


def _same(got: int, want: int, base: str, result: str) -> bool:
    """Equal bits; the manual leaves open the payload of NaNs in f64 and of those that are converted."""
    f = FORMATS.get("f32" if result == "tf32" else result)
    if got != want and f is not None and (base == "cvt" or result == "f64"):
        return exact_floats.decode(got, f) is None and exact_floats.decode(want, f) is None
    return got == want


def _flushes_late(mods: list[str], got: int, want: int, result: str) -> bool:
    """Whether a result just below the least normal number was flushed before it was rounded: the manual leaves it open."""
    f = FORMATS.get(result)
    return (
        f is not None
        and "ftz" in mods
        and got & ~(1 << f.bits - 1) == 0
        and want & ~(1 << f.bits - 1) == 1 << f.digits - 1
    )


def _group(base: str, mods: list[str], types: list[str]) -> str:
    if base in ("set", "setp"):
        return "comparisons"
    if base == "cvt" or base[0] == "v":
        return "conversions" if base == "cvt" else "video"
    return "floats" if any(t.removesuffix("x2") in FORMATS for t in types) else "integers"


def _chosen(base: str, mods: list[str], types: list[str]) -> bool:
    """Comparisons are combined with a predicate for a few types only, as it is done the same way for all."""
    combined = {"and", "or", "xor"} & set(mods)
    return _known(base, mods, types) and (not combined or types in (["f32"], ["s16"], ["f16x2"], ["u32", "f32"]))


CHOSEN = [m for m in _mnemonics() if _chosen(*m[1:])]


@pytest.mark.parametrize("group", ["integers", "floats", "comparisons", "conversions", "video"])
def test_forms_do_what_the_manual_says(group):
    forms = [(_form(i, *m), *m[1:]) for i, m in enumerate(CHOSEN) if _group(*m[1:]) == group]
    compiled = runner.build([form for form, *_ in forms], FEW, effort=0)  # `test_table` tries what is optimized
    wrong = []
    for form, base, mods, types in forms:
        cases = _inputs(form.operands)[: CASES // 4 if group == "video" else CASES]
        arrays = [
            np.resize(np.array(column, dtype=f"u{bits // 8}"), COUNT)
            for column, bits in zip(zip(*cases, strict=True), form.widths[1:], strict=True)
        ]
        mask = (1 << (32 if base in ("setp", "testp") else width(form.result))) - 1
        evaluate = _halves if _packed(base, types) else _expected
        for args, got in zip(cases, compiled.run(form, FEW, arrays).tolist(), strict=False):
            want = evaluate(base, mods, types, args)
            assert want is not None, form.name
            if not _same(got & mask, int(want) & mask, base, form.result) and not _flushes_late(
                mods, got, int(want), form.result
            ):
                wrong.append(
                    f"{form.name} of {[hex(a) for a in args]} gave {got & mask:#x}, the manual {want & mask:#x}"
                )
                break
    assert not wrong, f"{len(wrong)} of {len(forms)}:\n" + "\n".join(wrong[:40])


@pytest.mark.parametrize("t", ["u32", "s32", "u64", "s64"])
def test_carries(t):
    """Each form that reads or writes the carry: its result, and the flag it leaves, which the next instruction adds."""
    cases, bits = _inputs((t, t, t)), width(t)
    size, forms, wanted = 1 << bits, [], []
    for _, base, mods, types in _mnemonics():
        if types != [t] or ("cc" not in mods and base not in CARRIES):
            continue
        mnemonic, count = ".".join((base, *mods, t)), 3 if base in ("mad", "madc") else 2
        operands = ", ".join(f"%{j + 1}" for j in range(count))
        before = f"add.cc.{t} z, %3, %3; "  # the flag is the third operand's first bit
        for text in (f"{mnemonic} %0, {operands};", f"{mnemonic} y, {operands}; addc.{t} %0, %1, 0;"):
            if text.count(";") > 1 and "cc" not in mods:
                continue
            forms.append(Form(20_000 + len(forms), mnemonic, before + text, t, (t,) * 3, (bits,) * 4))
            results = []
            for args in cases:
                result, flag = reference.carry(base, mods, t, list(args[:count]), args[2] >> bits - 1)
                results.append(result if text.count(";") == 1 else (args[0] + flag) % size)
            wanted.append(results)
    compiled = runner.build(forms, FEW)
    arrays = [np.resize(np.array(column, dtype=f"u{bits // 8}"), COUNT) for column in zip(*cases, strict=True)]
    assert len(forms) == 20
    for form, results in zip(forms, wanted, strict=True):
        assert compiled.run(form, FEW, arrays)[:CASES].tolist() == results, form.text


def test_modifiers_that_ptx_does_not_have_are_rejected():
    """NVRTC does not look into inline assembly."""
    for wrong in (
        "mad.lo.sat.s32",
        "mad.hi.sat.u32",
        "mad24.lo.sat.s32",
        "add.sat.u32",
        "min.abs.f32",
        "max.xorsign.f16x2",
        "min.relu.u32",
    ):
        assert arith.unsupported_reason(decode(wrong)) is not None, wrong


def test_every_form_is_compared_with_something_exact():
    """What the reference here leaves out is among the recorded answers of a GPU or has its own tests."""
    recorded = {name for form in runner.forms() for name, _ in runner.instructions(form.text)}
    left = {m[0] for m in _mnemonics() if not _known(*m[1:])}
    open_ = {
        name
        for name in left - recorded
        if name.split(".")[0] not in ELSEWHERE | CARRIES and "cc" not in name.split(".") and "pred" not in name
    }
    assert not open_, sorted(open_)
