"""What a warp's addresses take, in plain Python, as profiles count them, and sums over requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

ARRAY = 1 << 40  # bytes from one array to the next: each starts at a multiple of a line

#: One request of a warp: "ld", "st", "atom" or "red"; "global" or "shared"; bytes of a lane; the lanes' addresses.
Request = tuple[str, str, int, Mapping[int, int]]


def sectors(addresses: list[int], size: int) -> tuple[int, int, int]:
    """Sectors, their ideal, and lines."""
    return len({a // 32 for a in addresses}), -(-len(addresses) * size // 32), len({a // 128 for a in addresses})


def wavefronts(addresses: dict[int, int], size: int) -> tuple[int, int]:
    """Wavefronts and their ideal, as documented."""
    parts = max(1, size // 4)
    width = 32 // parts
    total = ideal = 0
    for pair in range(max(1, parts // 2)):
        found, lanes = [], {}
        for part in (2 * pair, 2 * pair + 1) if parts > 1 else (0,):
            own = {k: a for k, a in addresses.items() if k // width == part}
            lanes |= own
            banks: dict[int, set[int]] = {}
            for a in own.values():
                for word in range(a // 4, (a + size - 1) // 4 + 1):
                    banks.setdefault(word % 32, set()).add(word)
            if own:
                found.append(max(map(len, banks.values())))
        merge = any(all(lanes.get(k ^ step, a) == a for k, a in lanes.items()) for step in (1, 2))
        less = 1 if len(found) == 2 and merge else 0
        total, ideal = total + sum(found) - less, ideal + len(found) - less
    return total, ideal


def summed(requests: Iterable[Request]) -> dict[str, int]:
    """The counters of requests together that are not 0, under Nsight Compute's names."""
    found: Counter[str] = Counter()
    for op, space, size, lanes in requests:
        if not lanes:
            continue
        found[f"{space}_bytes"] += len(lanes) * size
        found[f"{space}_bytes_{8 * size}b"] += len(lanes) * size
        if op in ("atom", "red"):
            found["atomic_conflicts"] += max(Counter(lanes.values()).values())
        if space == "global":
            touched, ideal, lines = sectors(list(lanes.values()), size)
            found[f"l1tex__t_requests_pipe_lsu_mem_global_op_{op}.sum"] += 1
            found[f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum"] += touched
            if op in ("ld", "st"):
                found[f"smsp__sass_inst_executed_op_global_{op}.sum"] += 1
            found["memory_l2_theoretical_sectors_global"] += touched
            found["memory_l2_theoretical_sectors_global_ideal"] += ideal
            found["memory_l1_tag_requests_global"] += lines
        else:
            op = "atom" if op == "red" else op
            waves, ideal = wavefronts(dict(lanes), size)
            found[f"smsp__sass_inst_executed_op_shared_{op}.sum"] += 1
            found[f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum"] += waves
            found[f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum"] += waves - ideal
            found["memory_l1_wavefronts_shared"] += waves
            found["memory_l1_wavefronts_shared_ideal"] += ideal
    return +found


def touched(requests: Iterable[Request]) -> Counter[int]:
    """Distinct sectors of each array, by its number."""
    return Counter(
        sector // (ARRAY // 32)
        for sector in {a // 32 for _, space, _, lanes in requests if space == "global" for a in lanes.values()}
    )
