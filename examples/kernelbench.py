"""Tasks in KernelBench's form, judged by rawkern: a `Model` with its inputs, and candidates with a `ModelNew`.

The task's file defines `Model`, `get_inputs` and `get_init_inputs`; it runs here. Candidates run in processes of their
own, which never see it, and are compared with the model in float64. Without files it takes those in `data/kernelbench`.

    python examples/kernelbench.py [TASK.py CANDIDATE.py ...] [--device cpu|cuda] [--json]
"""

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

import torch

from rawkern.testing import Verdict, Worker, judge

DATA = Path(__file__).parent / "data" / "kernelbench"
SEED = 42  # KernelBench's
TOLERANCE = 1e-4  # as KernelBench has it for float32


def load(path: Path) -> Any:
    """The module of a task."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def judged(task: Any, candidate: Path, worker: Worker, device: str) -> Verdict:
    """The verdict on a candidate.

    The form has one size, and random inputs from torch's generator. `Model` and `ModelNew` are made after one seed.
    """
    torch.manual_seed(SEED)
    return judge(
        candidate,
        task.Model,
        task.get_inputs,
        init_inputs=task.get_init_inputs(),
        sizes=(),
        special=(),
        seeds=5,
        seed=SEED,
        tolerance=TOLERANCE,
        device=device,
        worker=worker,
    )


def gpu_seconds(task: Any, device: str) -> float:
    """The median time of the model itself on a GPU."""
    torch.manual_seed(SEED)
    model = task.Model(*task.get_init_inputs()).to(device)
    inputs = [x.to(device) if isinstance(x, torch.Tensor) else x for x in task.get_inputs()]
    times = []
    with torch.no_grad():
        for _ in range(110):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            model(*inputs)
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e-3)
    return sorted(times[10:])[50]


def main(options: argparse.Namespace) -> None:
    files = options.files or [DATA / "task.py", *sorted(file for file in DATA.glob("*.py") if file.stem != "task")]
    task = load(files[0])
    verdicts = {}
    with Worker() as worker:
        for file in files[1:]:
            verdicts[file.name] = judged(task, file, worker, options.device)
    if options.json:
        print(json.dumps({name: verdict.as_dict() for name, verdict in verdicts.items()}, indent=2))
        return
    model = gpu_seconds(task, options.device) if options.device.startswith("cuda") else None
    for name, verdict in verdicts.items():
        print(f"{name}: {'right' if verdict.ok else 'fails ' + ', '.join(verdict.failed)}")
        for check in verdict.failed:
            print(f"  {check}: {verdict.checks[check].text}")
        if verdict.ok and model is not None and verdict.gpu_seconds:
            print(f"  {model / verdict.gpu_seconds:.2f} times as fast as the model")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="TASK.py CANDIDATE.py ...")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", action="store_true", help="print verdicts as JSON")
    main(parser.parse_args())
