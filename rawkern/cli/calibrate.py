"""``rawkern calibrate``: measure a GPU, so that time estimates use its own figures."""

from __future__ import annotations

import argparse
from typing import Any

from rawkern.cli.text import CommandError, step, table, user_errors


def declare(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "calibrate",
        help="measure this GPU for time estimates; takes about ten seconds",
        description="Measure the current GPU with small kernels: an empty launch, starts of blocks, a copy, latencies "
        "of L2 and memory, atomics at one address. Later estimates for this model use the "
        "figures, which are kept in rawkern's cache.",
    )
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    with step("importing torch"):
        import torch

        from rawkern.estimation import calibration, cards
    if not torch.cuda.is_available():
        raise CommandError("this machine has no GPU to measure; estimates use rawkern's built-in figures")
    with user_errors(ValueError):
        card = cards.card_named(torch.cuda.get_device_name())
    with step(f"measuring {card.name}"):
        found = calibration.figures(card)
    cards.store(card, found)
    before = {"empty": card.empty} | {name: getattr(card.constants, name) for name in found if name != "empty"}
    rows = [(name, f"{before[name]:.4g}", f"{value:.4g}") for name, value in found.items()]
    print(table((card.name, "before", "now"), rows))
    return 0
