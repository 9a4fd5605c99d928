"""Which mnemonics the CPU engine takes: those of the arithmetic tables, and here all that touch more than registers."""

from __future__ import annotations

from functools import cache

from rawkern.engines.cpu import arith
from rawkern.engines.cpu.arith.rows import Form, form, index
from rawkern.engines.cpu.ptx.decode import Op

_B = "b16 b32 b64"
_I = "u16 u32 u64 s16 s32 s64"
_MEMORY = f"b8 u8 s8 {_B} {_I} f32 f64"
_ALL_B = "b32 b64"
_SCOPE = "cta|gpu|sys|cluster"
_SPACE = "global|shared|shared::cta|shared::cluster|local|const|param"
_HINTS = (
    "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate "
    "L2::64B|L2::128B|L2::256B L2::evict_normal|L2::evict_first|L2::evict_last L2::cache_hint"
)
_ORDER = f"relaxed|acquire|release|acq_rel {_SCOPE} global|shared|shared::cta|shared::cluster L2::cache_hint"
_VECTOR = f"relaxed|acquire|release|acq_rel {_SCOPE} global L2::cache_hint"
_EVICT = "!L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged"
_WARP = "!sync !aligned"
_RESTRICT = "sync_restrict::shared::cta|sync_restrict::shared::cluster"
_TX = "shared|shared::cta|shared::cluster"
_SQUARE = "!m16n16k16|m32n8k16|m8n32k16"
_HALVES = [f"{d}.{c}" for d in ("f16", "f32") for c in ("f16", "f32")]
_WHERE = "global|shared|shared::cta"


def _accesses() -> tuple[Form, ...]:
    """``ld``, ``ldu`` and ``st``."""
    ld = f"mmio weak|volatile|relaxed|acquire {_SCOPE} {_SPACE} nc ca|cg|cs|lu|cv {_HINTS}"
    st = f"mmio weak|volatile|relaxed|release {_SCOPE} {_SPACE} wb|cg|cs|wt {_HINTS}"
    return (
        *(form(name, _MEMORY, f"{how} v2|v4|v8") for name, how in (("ld", ld), ("st", st))),
        *(form(name, "b128", how) for name, how in (("ld", ld), ("st", st))),
        form("ldu", _MEMORY, "global v2|v4"),
        form("ldu", "b128", "global"),
    )


def _atomics() -> tuple[Form, ...]:
    """``atom`` and ``red``; the type decides what may be done."""
    both = {"add": "u32 s32 u64 s64 f32 f64", "min|max": "u32 s32 u64 s64", "inc|dec": "u32", "and|or|xor": _ALL_B}
    rows = [form(name, types, f"{_ORDER} !{ops}") for name in ("atom", "red") for ops, types in both.items()]
    halves = "f16 f16x2 bf16 bf16x2"
    rows += [form(name, halves, f"{_ORDER} !add noftz") for name in ("atom", "red")]
    rows += [form(name, halves, f"{_VECTOR} !add|min|max !noftz !v2|v4|v8") for name in ("atom", "red")]
    rows += [form(name, "f32", f"{_VECTOR} !add !v2|v4") for name in ("atom", "red")]
    return (*rows, form("atom", f"{_ALL_B} b128", f"{_ORDER} !exch"), form("atom", f"{_B} b128", f"{_ORDER} !cas"))


def _remote_stores() -> tuple[Form, ...]:
    """``st.async`` and ``red.async``."""
    where = "!shared::cluster !mbarrier::complete_tx::bytes"
    both = {"add": "u32 s32 u64", "min|max": "u32 s32", "inc|dec": "u32", "and|or|xor": "b32"}
    return (
        form("st", "b32 b64 u32 u64 s32 s64 f32 f64", f"!async weak {where} v2|v4"),
        *(form("red", types, f"!async !relaxed !cluster {where} !{ops}") for ops, types in both.items()),
    )


def _warp_matrices() -> tuple[Form, ...]:
    """``wmma``: loads of A, B and C, stores of D, products."""
    shapes = {
        "f16 bf16 s8 u8": (_SQUARE, "f16 f32 s32"), "tf32": ("!m16n16k8", "f32"), "f64": ("!m8n8k4", "f64"),
        "s4 u4": ("!m8n8k32", "s32"), "b1": ("!m8n8k128", "s32"),
    }  # fmt: skip
    rows = []
    for types, (shape, sums) in shapes.items():
        layouts = {"s4 u4": ("row", "col"), "b1": ("row", "col")}.get(types, ("row|col", "row|col"))
        for operand, layout in zip("ab", layouts, strict=True):
            rows.append(form("wmma", types, f"!load !{operand} {_WARP} !{layout} {shape} {_WHERE}"))
        rows.append(form("wmma", sums, f"!load !c {_WARP} !row|col {shape} {_WHERE}"))
        rows.append(form("wmma", sums, f"!store !d {_WARP} !row|col {shape} {_WHERE}"))
    any_layout = f"!mma {_WARP} !!row|col"
    return (
        *rows,
        form("wmma", [*_HALVES, "f32.bf16.bf16.f32"], f"{any_layout} {_SQUARE}"),
        form("wmma", "f32.tf32.tf32.f32", f"{any_layout} !m16n16k8"),
        form("wmma", "f64.f64.f64.f64", f"{any_layout} !m8n8k4 rn"),
        form("wmma", "s32.s8.s8.s32 s32.u8.u8.s32", f"{any_layout} {_SQUARE} satfinite"),
        form("wmma", "s32.s4.s4.s32 s32.u4.u4.s32", f"!mma {_WARP} !row !col !m8n8k32 satfinite"),
        form("wmma", "s32.b1.b1.s32", f"!mma !xor|and !popc {_WARP} !row !col !m8n8k128"),
    )


def _bulk_copies() -> tuple[Form, ...]:
    """``cp.async.bulk`` and ``cp.reduce.async.bulk``."""
    told, group = "!mbarrier::complete_tx::bytes L2::cache_hint", "!bulk_group L2::cache_hint"
    all_told = "!mbarrier::complete_tx::bytes multicast::cluster L2::cache_hint"
    down, up = f"!shared::cluster !shared::cta {told}", f"!global !shared::cta {group}"
    both = {"add": "u32 s32 u64", "min|max": "u32 s32", "inc|dec": "u32", "and|or|xor": "b32"}
    more = {"add": "f32 f64", "min|max": "u64 s64 f16 bf16", "and|or|xor": "b64"}
    return (
        form("cp", [""], f"!async !bulk !shared::cta !global {told}"),
        form("cp", [""], f"!async !bulk !shared::cluster !global {all_told}"),
        *(form("cp", [""], f"!async !bulk {way}") for way in (down, up)),
        form("cp", [""], "!async !bulk !prefetch !L2 !global L2::cache_hint"),
        form("cp", [""], "!async !bulk !commit_group"),
        form("cp", [""], "!async !bulk !wait_group read"),
        *(form("cp", types, f"!reduce !async !bulk {down} !{ops}") for ops, types in both.items()),
        *(form("cp", types, f"!reduce !async !bulk {up} !{ops}") for ops, types in (*both.items(), *more.items())),
        form("cp", "f16 bf16", f"!reduce !async !bulk {up} !add !noftz"),
    )


def _tensor_copies() -> tuple[Form, ...]:
    """``cp.async.bulk.tensor`` and its reductions, of boxes of a tensor."""
    sizes = "!1d|2d|3d|4d|5d"
    return (
        *(
            form("cp", [""], f"!async !bulk !tensor {way} !mbarrier::complete_tx::bytes {multicast}L2::cache_hint")
            for to, multicast in (("shared::cluster", "multicast::cluster "), ("shared::cta", ""))
            for way in (f"{sizes} !{to} !global tile", f"!3d|4d|5d !{to} !global !im2col")
        ),
        form("cp", [""], f"!async !bulk !tensor {sizes} !global !shared::cta tile !bulk_group L2::cache_hint"),
        form(
            "cp", [""],
            "!async !bulk !tensor !3d|4d|5d !global !shared::cta !im2col_no_offs !bulk_group L2::cache_hint",
        ),
        form(
            "cp", [""],
            f"!reduce !async !bulk !tensor {sizes} !global !shared::cta !add|min|max|inc|dec|and|or|xor "
            "tile|im2col_no_offs !bulk_group L2::cache_hint",
        ),
        form("cp", [""], f"!async !bulk !prefetch !tensor {sizes} !L2 !global tile|im2col L2::cache_hint"),
    )  # fmt: skip


def _products() -> tuple[Form, ...]:
    """``mma.sync``."""
    whole = {bits: [f"s32.{a}{bits}.{b}{bits}.s32" for a in "su" for b in "su"] for bits in (4, 8)}
    halves = [x.replace(".", ".f16.f16.") for x in _HALVES]
    bytes_ = [f"{d}.{a}.{b}.{d}" for d in ("f16", "f32") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")]
    return (
        form("mma", [*halves, "f32.bf16.bf16.f32"], f"{_WARP} !m16n8k8|m16n8k16 !row !col"),
        form("mma", [x for x in halves if x != "f16.f16.f16.f32"], f"{_WARP} !m8n8k4 !!row|col"),
        form("mma", bytes_, f"{_WARP} !m16n8k16|m16n8k32 !row !col"),
        form("mma", "f32.tf32.tf32.f32", f"{_WARP} !m16n8k4|m16n8k8 !row !col"),
        form("mma", "f64.f64.f64.f64", f"{_WARP} !m8n8k4 !row !col rn"),
        form("mma", whole[8], f"{_WARP} !m8n8k16|m16n8k16|m16n8k32 !row !col satfinite"),
        form("mma", whole[4], f"{_WARP} !m8n8k32|m16n8k32|m16n8k64 !row !col satfinite"),
        form("mma", "s32.b1.b1.s32", f"{_WARP} !m8n8k128|m16n8k128|m16n8k256 !row !col !xor|and !popc"),
    )


def _warpgroup_products() -> tuple[Form, ...]:
    """``wgmma.mma_async`` and what orders it."""
    head = f"!mma_async {_WARP}"
    every, some = ("|".join(f"m64n{n}k{{k}}" for n in ns) for ns in (range(8, 257, 8), (8, 24, *range(16, 257, 16))))
    bytes_ = [f"{d}.{a}.{b}" for d in ("f16", "f32") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")]
    whole = [f"s32.{a}8.{b}8" for a in "su" for b in "su"]
    return (
        form("wgmma", "f16.f16.f16 f32.f16.f16 f32.bf16.bf16", f"{head} !{every.format(k=16)}"),
        form("wgmma", "f32.tf32.tf32", f"{head} !{every.format(k=8)}"),
        form("wgmma", bytes_, f"{head} !{every.format(k=32)}"),
        form("wgmma", whole, f"{head} !{some.format(k=32)} satfinite"),
        form("wgmma", "s32.b1.b1", f"{head} !{some.format(k=256)} !and !popc"),
        form("wgmma", [""], f"!fence|commit_group|wait_group {_WARP}"),
    )


FORMS = (
    form("mov", f"{_B} b128 {_I} f16 f16x2 bf16 bf16x2 f32 f64 pred", ""),
    form("cvta", "u32 u64", "to !global|shared|shared::cta|shared::cluster|local|const|param"),
    form("isspacep", [""], "!global|shared|shared::cta|shared::cluster|local|const|param"),
    form("mapa", "u32 u64", "shared::cluster"),
    form("getctarank", "u32 u64", "shared::cluster"),
    *_remote_stores(),
    *_accesses(),
    *_atomics(),
    form("membar", [""], "!cta|gl|sys"),
    form("fence", [""], f"sc|acq_rel|acquire|release !{_SCOPE}"),
    form("fence", [""], "!proxy !alias"),
    form("fence", [""], "!proxy !async global|shared::cta|shared::cluster"),
    form("fence", [""], "!mbarrier_init !release !cluster"),
    form("fence", [""], f"!acquire|release !{_RESTRICT} !cluster"),
    form("fence", [""], f"!proxy !async::generic !acquire|release !{_RESTRICT} !cluster"),
    form("fence", [""], f"!proxy !tensormap::generic !acquire|release !{_SCOPE}"),
    form("griddepcontrol", [""], "!launch_dependents|wait"),
    form("setmaxnreg", "u32", f"!inc|dec {_WARP}"),
    form("membar", [""], "!proxy !alias"),
    *(
        form("createpolicy", "b64", f"{how} {more}{_EVICT}")
        for how in ("!fractional", "!range global")
        for more in ("", "!")
    ),
    form("createpolicy", "b64", "!cvt !L2"),
    form("prefetch", [""], "global|local !L1|L2"),
    form("prefetch", [""], "global !L2::evict_normal|L2::evict_last"),
    form("prefetchu", [""], "!L1"),
    form("discard", [""], "global !L2"),
    form("applypriority", [""], "global !L2::evict_normal"),
    form("pmevent", [""], "mask"),
    form("shfl", "b32", "!sync !up|down|bfly|idx"),
    form("vote", "pred", "sync !all|any|uni"),
    form("vote", "b32", "sync !ballot"),
    form("activemask", "b32", ""),
    form("match", _ALL_B, "!any|all !sync"),
    form("redux", "u32 s32", "!sync !add|min|max"),
    form("redux", "b32", "!sync !and|or|xor"),
    form("elect", [""], "!sync"),
    form("nanosleep", "u32", ""),
    *_products(),
    *_warpgroup_products(),
    *_warp_matrices(),
    form("ldmatrix", "b16", f"{_WARP} !m8n8 !x1|x2|x4 trans shared|shared::cta"),
    form("stmatrix", "b16", f"{_WARP} !m8n8 !x1|x2|x4 trans shared|shared::cta"),
    form("movmatrix", "b16", f"{_WARP} !m8n8 !trans"),
    form("cp", [""], "!async !ca !shared|shared::cta !global L2::cache_hint L2::64B|L2::128B|L2::256B"),
    form("cp", [""], "!async !cg !shared|shared::cta !global L2::cache_hint L2::64B|L2::128B|L2::256B"),
    form("cp", [""], "!async !commit_group|wait_group|wait_all"),
    *_bulk_copies(),
    *_tensor_copies(),
    form("cp", "b64", "!async !mbarrier !arrive noinc shared|shared::cta"),
    form("mbarrier", "b64", "!init|inval shared|shared::cta"),
    form("mbarrier", "b64", f"!arrive|arrive_drop noComplete|expect_tx release|relaxed {_SCOPE} {_TX}"),
    form("mbarrier", "b64", f"!expect_tx|complete_tx relaxed {_SCOPE} {_TX}"),
    form("mbarrier", "b64", f"!test_wait|try_wait parity acquire|relaxed {_SCOPE} shared|shared::cta"),
    form("mbarrier", "b64", "!pending_count"),
    form("bar", [""], "cta !sync|arrive"),
    form("bar", [""], "!warp !sync"),
    form("bar", "u32", "cta !red !popc"),
    form("bar", "pred", "cta !red !and|or"),
    form("barrier", [""], "cta !sync|arrive aligned"),
    form("barrier", "u32", "cta !red !popc aligned"),
    form("barrier", "pred", "cta !red !and|or aligned"),
    form("barrier", [""], "!cluster !arrive release|relaxed aligned"),
    form("barrier", [""], "!cluster !wait acquire aligned"),
    form("bra", [""], "uni"),
    form("brx", [""], "!idx uni"),
    form("call", [""], "uni"),
    form("ret", [""], "uni"),
    form("exit", [""], ""),
    form("trap", [""], ""),
    form("brkpt", [""], ""),
)

#: What is left out, by the beginning of its mnemonic, with the reason.
UNSUPPORTED = {
    "tex": "textures", "tld4": "textures", "txq": "textures", "istypep": "textures",
    "suld": "surfaces", "sust": "surfaces", "sured": "surfaces", "suq": "surfaces",
    "mma.sp": "sparse matrices", "mma.sp::ordered_metadata": "sparse matrices",
    "wgmma.mma_async.sp": "sparse matrices",
    "tcgen05": "matrix instructions of compute capability 10.0",
    "tensormap": "changes of tensor maps by kernels",
    "st.bulk": "bulk stores of compute capability 10.0",
    "clusterlaunchcontrol": "requests for blocks of compute capability 10.0",
    "multimem": "memory of several GPUs", "ld_reduce": "memory of several GPUs",
    "alloca": "stack memory of a size known at run time", "stacksave": "stack memory of a size known at run time",
    "stackrestore": "stack memory of a size known at run time",
}  # fmt: skip


_TABLE = index(FORMS)


@cache
def unsupported_reason(op: Op) -> str | None:
    """Why the engine does not take a mnemonic; None where it does."""
    starts = [s for s in UNSUPPORTED if op.text == s or op.text.startswith(f"{s}.")]
    if starts:
        return f"{UNSUPPORTED[max(starts, key=len)]} are not supported"
    found = _TABLE.get((op.base, ".".join(t.name for t in op.types)), [])
    other = arith.unsupported_reason(op)
    if other is None or any(f.unsupported_reason(op) is None for f in found):
        return None
    nearest = max(found, key=lambda f: sum(m in names for m in op.mods for _, names in f.mods), default=None)
    return nearest.unsupported_reason(op) if nearest is not None else other
