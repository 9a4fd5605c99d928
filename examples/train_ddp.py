"""The transformer of train.py on several processes: DistributedDataParallel, or FSDP2 with --fsdp.

Each process takes its share of every batch. Before the first step the gradients are compared with those of the whole
batch in one process. Gloo connects processes on the CPU, NCCL those that have a GPU each.

    torchrun --nproc-per-node 2 examples/train_ddp.py [--device cpu|cuda] [--fsdp] [--compile] [--steps 100]
"""

import argparse
import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from train import RAWKERN, Transformer, bar, batches

import rawkern


def distributed(model: Transformer, options: argparse.Namespace) -> nn.Module:
    """Return the model that adds up gradients over the processes."""
    if options.compile:
        for block in model.blocks:
            block.compile(fullgraph=True)
    if not options.fsdp:
        return DistributedDataParallel(model)
    mesh = init_device_mesh(options.device, (dist.get_world_size(),))
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh)
    return model


def compare(single: nn.Module, model: nn.Module) -> float:
    """Return how far the gradients are from one process's at most, in parts of the largest of their tensor."""
    worst = 0.0
    for (name, expected), parameter in zip(single.named_parameters(), model.parameters(), strict=True):
        assert expected.grad is not None and parameter.grad is not None, f"{name} has no gradient"
        grad = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
        worst = max(worst, float((grad - expected.grad).abs().max() / expected.grad.abs().max()))
    return worst


def main(options: argparse.Namespace, device: torch.device) -> None:
    rank, processes = dist.get_rank(), dist.get_world_size()
    if options.batch % processes:
        raise SystemExit(f"--batch is {options.batch}, which {processes} processes can't share evenly")
    torch.manual_seed(0)
    single = Transformer(RAWKERN).to(device)
    model = distributed(copy.deepcopy(single), options)
    optimizer = rawkern.optim.AdamW(model.parameters(), lr=1e-3)

    first, last, apart = 0.0, 0.0, 0.0
    shown = bar(f"{processes} processes", options.steps, disable=None if rank == 0 else True)
    for step, (x, targets) in enumerate(batches(options.steps, options.batch, device)):
        optimizer.zero_grad()
        if step == 0:
            if rank:
                dist.barrier()  # the first process compiles, the others find the kernels in the cache
            single(x, targets).backward()
            if not rank:
                dist.barrier()
        loss = model(x[rank::processes], targets[rank::processes])
        loss.backward()
        if step == 0:
            apart = compare(single, model)
            assert apart < 1e-5, f"gradients are {apart:.1e} from those of a single process"
        optimizer.step()
        loss = loss.detach()
        dist.all_reduce(loss)
        last = loss.item() / processes
        first = first or last
        if shown is not None:
            shown.set_postfix(loss=f"{last:.3f}", refresh=False)
            shown.update()
    if shown is not None:
        shown.close()
    if rank == 0:
        way = "FSDP2" if options.fsdp else "DistributedDataParallel"
        print(f"{way} on {processes} x {options.device} through {dist.get_backend()}")
        print(f"gradients equal those of a single process: at most {apart:.0e} of a tensor's largest apart")
        print(f"loss {first:.4f} -> {last:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--fsdp", action="store_true", help="shard parameters, gradients and the optimizer's averages")
    parser.add_argument("--compile", action="store_true", help="run each block through torch.compile")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    own = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(own)
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=own if on_gpu else None)
    try:
        main(options, own)
    finally:
        dist.destroy_process_group()
