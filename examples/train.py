"""A character-level transformer trained with rawkern's operators and with torch's: the loss curves lie on each other.

One model, one seed, one text (Shakespeare's "As You Like It", in data/). Embedding, norms, rotary embedding, softmax,
SwiGLU, cross entropy and AdamW are rawkern's in the first run, torch's in the second; matrix products are torch's in
both. The progress bar needs tqdm, the plot matplotlib.

    python examples/train.py [--device cpu|cuda] [--steps 300] [--compile] [--plot training.png]
"""

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rawkern

TEXT = (Path(__file__).parent / "data" / "as_you_like_it.txt").read_text()
ALPHABET = sorted(set(TEXT))
CONTEXT, WIDTH, HEADS, LAYERS, HIDDEN = 64, 96, 4, 2, 256


class TorchRMSNorm(nn.RMSNorm):
    """rawkern.nn.RMSNorm takes a residual; this does the same in two steps."""

    def forward(self, x: Tensor, residual: Tensor | None = None):
        if residual is None:
            return super().forward(x)
        x = x + residual
        return super().forward(x), x


class TorchSwiGLU(rawkern.nn.SwiGLU):
    def activation(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up


class TorchRotaryEmbedding(rawkern.nn.RotaryEmbedding):
    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


RAWKERN = SimpleNamespace(
    Embedding=rawkern.nn.Embedding,
    RMSNorm=rawkern.nn.RMSNorm,
    SwiGLU=rawkern.nn.SwiGLU,
    RotaryEmbedding=rawkern.nn.RotaryEmbedding,
    Softmax=rawkern.nn.Softmax,
    CrossEntropyLoss=rawkern.nn.CrossEntropyLoss,
    AdamW=rawkern.optim.AdamW,
)
TORCH = SimpleNamespace(
    Embedding=nn.Embedding,
    RMSNorm=TorchRMSNorm,
    SwiGLU=TorchSwiGLU,
    RotaryEmbedding=TorchRotaryEmbedding,
    Softmax=nn.Softmax,
    CrossEntropyLoss=nn.CrossEntropyLoss,
    AdamW=torch.optim.AdamW,
)


class Attention(nn.Module):
    """Causal attention of HEADS heads: softmax(q k^T / sqrt(d) + mask) v."""

    mask: Tensor

    def __init__(self, parts: SimpleNamespace) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.rotary = parts.RotaryEmbedding(WIDTH // HEADS, CONTEXT)
        self.softmax = parts.Softmax(dim=-1)
        mask = torch.full((CONTEXT, CONTEXT), -math.inf).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        scores = self.rotary(q) @ self.rotary(k).transpose(-1, -2)
        weights = self.softmax(scores / math.sqrt(WIDTH // HEADS) + self.mask[:length, :length])
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self, parts: SimpleNamespace) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = parts.RMSNorm(WIDTH), parts.RMSNorm(WIDTH)
        self.attention, self.mlp = Attention(parts), parts.SwiGLU(WIDTH, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attention(self.before_attention(x))
        normed, x = self.before_mlp(attended, x)  # the norm of the sum, and the sum
        return x + self.mlp(normed)


class Transformer(nn.Module):
    """Predicts the next character; called with the right ones as well, it returns the loss."""

    def __init__(self, parts: SimpleNamespace) -> None:
        super().__init__()
        self.embedding = parts.Embedding(len(ALPHABET), WIDTH)
        self.blocks = nn.ModuleList(Block(parts) for _ in range(LAYERS))
        self.norm = parts.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(ALPHABET), bias=False)
        self.loss = parts.CrossEntropyLoss()

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits if targets is None else self.loss(logits.flatten(0, 1), targets.flatten())


def batches(steps: int, size: int, device: str | torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Random pieces of the text and the same moved by one character; the same ones in every run."""
    codes = torch.tensor([ALPHABET.index(c) for c in TEXT])
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        starts = torch.randint(len(codes) - CONTEXT, (size, 1), generator=generator)
        pieces = codes[starts + torch.arange(CONTEXT + 1)].to(device)
        yield pieces[:, :-1], pieces[:, 1:]


def bar(label: str, steps: int, disable: bool | None = None):
    """tqdm's progress bar, or nothing without tqdm or a terminal."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=steps, desc=label, disable=disable)


def train(label: str, parts: SimpleNamespace, options: argparse.Namespace) -> tuple[list[float], Transformer, float]:
    """Return the losses, the model and the seconds from the second step on (the first one compiles)."""
    torch.manual_seed(0)
    model = Transformer(parts).to(options.device)
    step = torch.compile(model, fullgraph=True) if options.compile else model
    optimizer = parts.AdamW(model.parameters(), lr=1e-3)
    shown, losses, start = bar(label, options.steps), [], 0.0
    for x, targets in batches(options.steps, options.batch, options.device):
        optimizer.zero_grad()
        loss = step(x, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        start = start or time.perf_counter()
        if shown is not None:
            shown.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
            shown.update()
    if shown is not None:
        shown.close()
    return losses, model, time.perf_counter() - start


@torch.no_grad()
def write(model: Transformer, start: str, length: int, device: str) -> str:
    """Let the model continue a text."""
    generator = torch.Generator().manual_seed(2)
    codes = [ALPHABET.index(c) for c in start]
    for _ in range(length):
        logits = model(torch.tensor([codes[-CONTEXT:]], device=device))[0, -1]
        codes.append(int(torch.multinomial((logits.cpu() / 0.7).softmax(0), 1, generator=generator)))
    return "".join(ALPHABET[code] for code in codes)


def plot(losses: dict[str, list[float]], file: str, title: str) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: matplotlib is not installed: pip install matplotlib")
        return
    figure = Figure(figsize=(7, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    above.plot(losses["torch"], color="#f2a55c", linewidth=5, label="torch")
    above.plot(losses["rawkern"], color="#1f4e79", linewidth=1.2, label="rawkern")
    above.set(title=title, ylabel="cross entropy")
    above.legend()
    below.plot([abs(a - b) for a, b in zip(*losses.values(), strict=True)], color="#555555", linewidth=1)
    below.set(xlabel="step", ylabel="|difference|")
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
    print(f"plot: {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--compile", action="store_true", help="run both models through torch.compile")
    parser.add_argument("--plot", metavar="FILE", help="where to write the loss curves as a PNG")
    options = parser.parse_args()

    losses, models = {}, {}
    for label, parts in (("rawkern", RAWKERN), ("torch", TORCH)):
        losses[label], models[label], seconds = train(label, parts, options)
        each = 1e3 * seconds / max(1, options.steps - 1)
        print(f"{label:8} loss {losses[label][0]:.4f} -> {losses[label][-1]:.4f}, {each:.1f} ms a step")
    furthest = max(abs(a - b) for a, b in zip(*losses.values(), strict=True))
    print(f"the curves are at most {furthest:.1e} apart")
    models["torch"].load_state_dict(models["rawkern"].state_dict())  # one model, in other parts
    if options.plot:
        count = sum(p.numel() for p in models["torch"].parameters())
        plot(losses, options.plot, f"character-level transformer, {count:,} parameters, {options.device}")
    print(write(models["rawkern"], "ROSALIND\t", 150, options.device))


if __name__ == "__main__":
    main()
