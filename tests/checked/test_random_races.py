"""Random programs with and without races: what whole warps' accesses are found to be, each lane's alone are as well."""

from __future__ import annotations

import random

import torch

import rawkern
from rawkern.checked import launches
from rawkern.engines.cpu.checker import sites
from rawkern.engines.cpu.runtime import jit

DTYPES = {"int": torch.int32, "short": torch.int16, "double": torch.float64, "int2": torch.int32}
INDICES = ["t", "(t + %d) %% 128", "t ^ 1", "t ^ 32", "t / 2", "t / 16", "127 - t", "t * 3 %% 128", "%d"]
CONDITIONS = ["", "", "", "if (t < %d)", "if (t / 32 == 1)", "if (t %% 2)", "if (t %% 16 == 0)"]


def program(rng: random.Random, ty: str) -> str:
    """Accesses to a shared and a global array, at indices and by threads of all sorts, with barriers now and then."""

    def pick(texts: list[str]) -> str:
        text = rng.choice(texts)
        return text % rng.randrange(64) if "%d" in text else text.replace("%%", "%")

    value = ("make_int2({0}, 1)" if ty == "int2" else "{0}").format
    lines = [f"s[t] = {value('t')}; if (t + size < 128) s[t + size] = {value('t')};", "__syncthreads();"]
    for _ in range(rng.randrange(5, 12)):
        kind, array = rng.random(), rng.choice(["s", "s", "g"])
        if kind < 0.3:
            lines.append(f"{pick(CONDITIONS)} {array}[{pick(INDICES)}] = {value(f'v + {rng.randrange(9)} * t')};")
        elif kind < 0.65:
            lines.append(f"{pick(CONDITIONS)} v += {array}[{pick(INDICES)}]{'.x' if ty == 'int2' else ''};")
        else:
            lines.append(rng.choice(["__syncthreads();", "__syncthreads();", "__syncwarp();", "if (t >= 50) return;"]))
    body = "\n    ".join(lines)
    return f"""extern "C" __global__ void k({ty}* g, int* out) {{
    __shared__ {ty} s[128];
    int size = blockDim.x * blockDim.y, t = threadIdx.x + threadIdx.y * blockDim.x, v = 0;
    {body}
    out[t + blockIdx.x * size] = v;
}}"""


def findings(code: str, ty: str, grid: int, block: tuple[int, ...]) -> list[tuple]:
    g = torch.zeros(128 * (2 if ty == "int2" else 1), dtype=DTYPES[ty])
    try:
        with rawkern.check():
            rawkern.RawKernel(code)[grid, block](g, torch.zeros(256, dtype=torch.int32))
    except rawkern.CheckError as error:
        return [
            (r.error, r.line, r.access.thread, r.access.block, r.index, r.other and r.other.line) for r in error.reports
        ]
    return []


def test_the_same_is_found_lane_by_lane(monkeypatch, tmp_path):
    rng, cases = random.Random(5), []
    for ty in [*DTYPES, *DTYPES]:
        block = rng.choice([(96,), (64,), (16, 6), (8, 8), (13, 7)])
        cases.append((program(rng, ty), ty, rng.choice([1, 2]), block))
    together = [findings(*case) for case in cases]
    assert any(together) and not all(together)
    sources = {m: text.replace("runs = CHECK.copying[ck] == 0", "runs = 0") for m, text in sites.sources().items()}
    assert sources != sites.sources()
    monkeypatch.setattr(sites, "sources", lambda: sources)
    monkeypatch.setenv("RAWKERN_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    jit.instrument_object.cache_clear()
    jit._instruments.clear()
    jit._schedulers.clear()
    try:
        for case, found in zip(cases, together, strict=True):
            launches._builds.clear()
            assert findings(*case) == found, case[0]
    finally:
        jit.instrument_object.cache_clear()
        jit._instruments.clear()
        jit._schedulers.clear()
        launches._builds.clear()


# -- strong accesses after plain ones ---------------------------------------------------------------------------------
PLAIN = [
    "store(y, 0); atomicAdd(y, 1);",
    "store(y, 0); *(volatile int*)y = 1;",
    "store(y, 5); atomicExch(y, 1);",
    "store(y, 0); __syncthreads(); if (t < 32) atomicAdd(y + 32, 1); else atomicAdd(y - 32, 1);",
    "store(y, 0); __syncwarp(); store(y, 1);",
    "store(y, 0); *z = *(volatile int*)y;",
    "store(y, 0); *z = *(volatile int*)y; atomicAdd(y, 1);",
    "atomicAdd(y, 1); store(y, 0);",
    "atomicAdd(y, 1); atomicAdd(y, 1); store(y, 0);",
    "*z = *y; *(volatile int*)y; atomicAdd(y, 1);",
    "*z = *y; atomicAdd(y, 1);",
    "atomicAdd(y, 1); *z = *y;",
]
STRONG = ["atomicAdd(y, 1);", "z[64] = *(volatile int*)y;", "*(volatile int*)y = 3;", "atomicMax(y, 99);"]
PASSED = """if (t == 0 && blockIdx.x == 0) { store(y, 5); %s; %s(y + 9, 1); }
       if (t == 0 && blockIdx.x == 1) { while (%s(y + 9, 0) != 1) {} __threadfence(); *z = *y; }"""
#: The same with what the one who waits does then, and who reads.
SEEN = """if (t == 0 && blockIdx.x == 0) { store(all, 5); __threadfence(); atomicExch(all + 9, 1); }
       if (blockIdx.x == 1) { if (t == 0) while (%s != 1) {} %s; if (t == %s) *z = *all; }"""
#: One warp of a block writes, and the other passes that on.
BOTH = """if (blockIdx.x == 0) { if (t < 9) store(y, 5); %s; if (t == 32) { __threadfence(); atomicExch(all + 9, 1); } }
       if (blockIdx.x == 1 && t == 0) { while (atomicAdd(all + 9, 0) != 1) {} __threadfence(); *z = *y; }"""
WAIT, FLAG = "atomicAdd(all + 9, 0)", "*(volatile int*)(all + 9)"
CAS = "atomicCAS(all + 9, 1, 2)"
RESET = """int& lock = y[9];
       if (t == 0 && blockIdx.x == 0) { store(y, 5); __threadfence(); atomicExch(&lock, 1); }
       if (t == 0 && blockIdx.x == 1) { while (%s != 1) {} __threadfence(); *z = *y; store(&lock, 0); }"""
READS = 3  # at the end of PLAIN: they do not race with reads
#: By all blocks: a plain read, and an atomic that verifies it; strong accesses that do not race.
FINE = [
    "int old = *y, seen; do { seen = old; if (seen > 99) break; old = atomicCAS(y, seen, seen + 2); } while (old != seen);",
    "int seen; do seen = *y; while (atomicCAS(y, seen, seen + 2) != seen);",
    """unsigned long long* p = (unsigned long long*)(all + t / 2 * 2), old = *p, seen;
       do { seen = old; old = atomicCAS(p, seen, (unsigned long long)__double_as_longlong(__longlong_as_double(seen) + 2)); }
       while (old != seen);""",
    "atomicAdd_block(y + 64 * blockIdx.x, 1);",
    PASSED % ("__threadfence()", "atomicExch", "atomicAdd"),
    SEEN % (WAIT, "__syncthreads()", 32),
    SEEN % (WAIT, "__syncwarp()", 5),
    SEEN % (FLAG, "__threadfence()", 0),
    SEEN
    % (
        FLAG,
        "__threadfence(); if (t == 0) atomicExch(all + 10, 1); if (t == 32) while (atomicAdd(all + 10, 0) != 1) {} "
        "__threadfence_block()",
        32,
    ),
    BOTH % "__syncthreads()",
    RESET % "*(volatile int*)&lock",
    RESET % "atomicAdd(&lock, 0)",
    "if (atomicAdd(all, 1) == 9 + 127) store(all, 0);",
    "volatile int* p = all; p[0] = blockIdx.x;",
    "volatile int* p = all; int v = p[t ^ 1]; __syncwarp(); p[t] = v + t;",
]
#: What races by PTX's rules, and does not where a read needs no fence after it.
UNFENCED = [
    SEEN % (WAIT, "", 0),
    SEEN % (FLAG, "__threadfence_block()", 0),
    SEEN % (WAIT, "if (t == 0) __threadfence(); if (t == 32) while (atomicAdd(all + 9, 0) != 1) {}", 32),
]
#: And a plain read that none verifies: at another address, by another thread, or where the value decides or is written
#: only. Scopes that do not reach; volatile accesses that assume that lanes run in step, or lose updates.
RACES = [
    "*z = *y; atomicMax(y, t + 9);",
    "if (*y < t + 10) atomicMax(y, t + 10);",
    "if (*y == 9) atomicCAS(y, 9, t);",
    "int old = *y; atomicExch(y, old + 1);",
    "int old = *y; atomicCAS(all + (t ^ 1), old, 5);",
    "int old = *y; old = __shfl_xor_sync(~0u, old, 1); atomicCAS(all + (t ^ 1), old, 5);",
    "if (blockIdx.x) atomicCAS(y, 9, 5); else *z = *y;",
    "if (t == 33 && blockIdx.x == 0) atomicExch(all, 1); if (t < 34 && blockIdx.x) { if (t < 32) atomicAdd(all, 0); else store(all, 7); }",
    "atomicAdd_block(y, 1);",
    PASSED % ("__threadfence_block()", "atomicExch", "atomicAdd"),
    PASSED % ("__threadfence()", "atomicExch_block", "atomicAdd"),
    PASSED % ("__threadfence()", "atomicExch", "atomicAdd_block"),
    SEEN % (CAS, "", 0),
    BOTH % "",
    "volatile int* p = all; p[0] = p[0] + 1;",
    "volatile int* p = all + 64 * blockIdx.x; int v = p[t ^ 1]; p[t] = v + t;",
]


def test_plain_accesses_and_strong_ones_in_any_order():
    cases = [*PLAIN, *STRONG, *FINE, *RACES, *UNFENCED]
    body = "\n".join(f"        case {k}: {{ {case} }} break;" for k, case in enumerate(cases))
    kernel = rawkern.RawKernel(rf"""
__device__ void store(int* y, int v) {{ asm volatile("st.global.b32 [%0], %1;" :: "l"(y), "r"(v) : "memory"); }}
extern "C" __global__ void k(int* all, int* out, int first, int second) {{
    int t = threadIdx.x, *y = all + t, *z = out + t;
    switch (blockIdx.x ? second : first) {{
{body}
    }}
}}""")

    def races(first: int, second: int, seed: int, **rules) -> bool:
        try:
            with rawkern.order(seed), rawkern.check(**rules):
                kernel[2, 64](
                    torch.full((128,), 9, dtype=torch.int32), torch.zeros(128, dtype=torch.int32), first, second
                )
        except rawkern.RaceError:
            return True
        return False

    for seed in (0, 1):  # blocks from the last to the first, and as they are numbered
        for k, plain in enumerate(PLAIN):
            for n, strong in enumerate(STRONG, len(PLAIN)):
                reads = k >= len(PLAIN) - READS and "=" in strong and strong.startswith("z")
                assert races(k, n, seed) != reads, (plain, strong, seed)
        for n in range(len(PLAIN), len(PLAIN) + len(STRONG)):
            assert not races(n, len(PLAIN), seed), cases[n]
        for n in range(len(PLAIN) + len(STRONG), len(cases)):
            assert races(n, n, seed) == (cases[n] not in FINE), cases[n]
            assert races(n, n, seed, acquire="read") == (cases[n] in RACES), cases[n]
        read, write = (cases.index(case) for case in STRONG[1:3])
        assert races(read, write, seed, volatile="plain") and not races(read, write, seed)
