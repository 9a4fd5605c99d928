"""Gravitation between planets: the forces drawn as arrows, then rawkern against torch's N x N expression.

In torch the distances between all pairs become N x N tensors, which have to be written and read again; torch.compile
fuses most of them. rawkern.nbody_forces brings the bodies through shared memory and keeps everything else in registers.
Arrows and curves need matplotlib.

    python examples/nbody.py [--device cpu|cuda] [--sizes 2500 5000 10000 20000] [--images FOLDER]
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

import rawkern

G = 4 * math.pi**2 / 332_946  # in astronomical units (AU), years and masses of the Earth
RIVALS = {"eager": "torch eager", "compile": "torch.compile"}
MATRICES = {"eager": 7, "compile": 2}  # of N x N floats that it holds at once


def planets(n: int, device: str) -> tuple[Tensor, Tensor]:
    """Positions (2, n) in AU, and masses (n,) in masses of the Earth: many small planets, few large ones."""
    generator = torch.Generator().manual_seed(7)
    positions = 60 * torch.rand(2, n, generator=generator) - 30
    masses = 10 ** (3 * torch.rand(n, generator=generator) - 1)
    return positions.to(device), masses.to(device)


def torch_forces(positions: Tensor, masses: Tensor) -> Tensor:
    """F_i = sum over j of G m_i m_j (p_j - p_i) / |p_j - p_i|^3, as one writes it in torch."""
    away = positions[:, None, :] - positions[:, :, None]  # (2, N, N)
    squares = (away * away).sum(0)
    squares = squares.masked_fill(squares == 0, math.inf)  # a body does not pull itself
    return G * masses * (squares**-1.5 * masses * away).sum(-1)


def check(device: str) -> None:
    positions, masses = planets(1000, device)
    forces = rawkern.nbody_forces(positions, masses, G=G)
    exact = torch_forces(positions.double(), masses.double())
    error = ((forces - exact).norm() / exact.norm()).item()
    assert error < 1e-5, error
    print(f"forces on 1,000 planets on {device}: relative error {error:.1e} against torch in float64")


def average(run: Callable[[], object], device: str) -> float:
    """Seconds of a call: the median over rounds of calls that follow each other."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None

    def seconds(calls: int) -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        synchronize()
        return (time.perf_counter() - start) / calls

    seconds(2)  # compiles
    once = seconds(1)
    if once > 1:
        return once
    calls = max(1, min(1000, round(0.02 / once)))
    return statistics.median(seconds(calls) for _ in range(7))


def free_memory(device: str) -> int:
    """Bytes that programs can get on a GPU or, as Linux tells, on this computer."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    (line,) = (line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024


def time_torch(rival: str, n: int, device: str) -> float | str:
    """Seconds of a call of torch's expression, or why there is no figure."""
    needed, free = 4 * MATRICES[rival] * n * n, free_memory(device)
    if needed > free:
        return f"needs about {needed / 1e9:.2g} GB, {free / 1e9:.2g} GB are free"
    torch.compiler.reset()
    forces = torch.compile(torch_forces, dynamic=False) if rival == "compile" else torch_forces
    positions, masses = planets(n, device)
    try:
        return average(lambda: forces(positions, masses), device)
    except Exception as error:  # torch.compile without a C++ compiler or Triton
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def timings(sizes: list[int], rivals: list[str], device: str) -> Iterator[tuple[int, dict[str, float | str]]]:
    """For each size seconds of a call by contender, or why it did not run."""
    for n in sizes:
        positions, masses = planets(n, device)
        taken: dict[str, float | str] = {
            "rawkern": average(lambda p=positions, m=masses: rawkern.nbody_forces(p, m, G=G), device)
        }
        yield n, taken | {RIVALS[rival]: time_torch(rival, n, device) for rival in rivals}


def print_table(sizes: list[int], rivals: list[str], device: str) -> dict[int, dict[str, float | str]]:
    """Time all, a line for each size; a rival has its time and how many times rawkern's that is."""
    print(f"\nmilliseconds of a call on {hardware(device)}")
    print(f"{'N':>7} {'rawkern':>11}" + "".join(f"{RIVALS[rival]:>22}" for rival in rivals))
    found, notes = {}, []
    for n, taken in timings(sizes, rivals, device):
        found[n] = taken
        own = taken["rawkern"]
        assert isinstance(own, float)
        line = f"{n:>7} {own * 1e3:>11.3f}"
        for name in list(taken)[1:]:
            value = taken[name]
            if isinstance(value, float):
                line += f"{value * 1e3:>14.3f} {f'({value / own:.1f}x)':>7}"
            else:
                line += f"{'-':>22}"
                notes.append(f"{name} at N = {n}: {value}")
        print(line, flush=True)
    for note in notes:
        print(note)
    return found


def hardware(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"a CPU with {torch.get_num_threads()} threads"


def draw_forces(file: Path, device: str) -> None:
    """Thirty planets, as large as they are heavy; arrows say where each is pulled, their colors how much."""
    import matplotlib.pyplot as plt
    from matplotlib.colors import LogNorm

    positions, masses = planets(30, device)
    forces = rawkern.nbody_forces(positions, masses, G=G)
    strength = forces.norm(dim=0)
    x, y = positions.cpu().numpy()
    along = (forces / strength).cpu().numpy()
    figure, axes = plt.subplots(figsize=(7, 6), layout="constrained")
    axes.scatter(x, y, s=6 * masses.sqrt().cpu().numpy() ** 1.5 + 8, color="0.75", zorder=1)
    arrows = axes.quiver(
        x, y, *along, strength.cpu().numpy(), norm=LogNorm(), cmap="viridis_r", scale=18, width=0.005, zorder=2
    )
    figure.colorbar(arrows, label="force, Earth masses * AU / year²")
    axes.set(xlabel="x, AU", ylabel="y, AU", title="Where 30 random planets are pulled", aspect="equal")
    figure.savefig(file, dpi=110)
    print(f"written: {file.name}")


def draw_times(file: Path, found: dict[int, dict[str, float | str]], device: str) -> None:
    """Seconds over N, both logarithmic: N^2 is a straight line."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
    for name in next(iter(found.values())):
        points = [(n, taken[name]) for n, taken in found.items() if isinstance(taken[name], float)]
        if points:
            axes.loglog(*zip(*points, strict=True), "o-", label=name)
    axes.set_xticks(list(found), [f"{n:,}" for n in found])
    axes.minorticks_off()
    axes.set(xlabel="bodies", ylabel="seconds of a call", title=f"Forces between all pairs on {hardware(device)}")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=110)
    print(f"written: {file.name}")


def main(options: argparse.Namespace) -> None:
    try:
        import matplotlib
    except ImportError:
        matplotlib = None
        print("no plots: matplotlib is not installed: pip install matplotlib")
    else:
        matplotlib.use("Agg")
        options.images.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        check(options.device)
        if matplotlib:
            draw_forces(options.images / "nbody_forces.png", options.device)
        found = print_table(options.sizes, options.rivals, options.device)
    if matplotlib:
        draw_times(options.images / "nbody_times.png", found, options.device)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[2500, 5000, 10000, 20000], metavar="N")
    parser.add_argument("--rivals", nargs="*", default=list(RIVALS), choices=list(RIVALS))
    parser.add_argument("--images", type=Path, default=Path(), help="folder for the plots; by default this one")
    main(parser.parse_args())
