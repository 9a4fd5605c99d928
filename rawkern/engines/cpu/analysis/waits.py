"""At which blocks lanes can wait while others run, found by playing the scheduler's rule on every pair of lanes.

The lowest block at which there are lanes runs next, with all lanes that are there; the others wait (`control`,
`jumps`). Of two lanes of a warp the one in the lower block may therefore move, and both move together while they are in
one block. Both start in block 0, and they part only where a branch can differ between lanes. The pairs of blocks that
two lanes reach so, one step after the other, hold whatever more lanes do: each two of these take just such steps. No
notion of loops or of places where paths join again is needed, and it holds for flow of any form.
"""

from __future__ import annotations

from collections.abc import Iterable

from rawkern.engines.cpu.analysis.graph import Flow, numbers


class Waits:
    """For each block, the later ones at which lanes can wait while others run it, as bits; only ever grows."""

    def __init__(self, flow: Flow):
        self.targets = [list(dict.fromkeys(flow.lane_targets(i))) for i in range(len(flow.blocks))]
        self.later = [0] * len(self.targets)
        self._followed = [0] * len(self.targets)  # pairs whose next steps are known

    def diverge(self, divergent: Iterable[int]) -> None:
        """Take in that lanes can leave the blocks `divergent` for different targets."""
        work: set[int] = set()
        for i in divergent:
            targets = sorted(self.targets[i])
            for k, low in enumerate(targets):
                self._add(low, sum(1 << t for t in targets[k + 1 :]), work)
        while work:
            block = work.pop()
            new = self.later[block] & ~self._followed[block]
            self._followed[block] |= new
            for t in self.targets[block]:  # a lane goes there while another waits
                self._add(t, new >> t + 1 << t + 1, work)
                for w in numbers(new & (1 << t) - 1):  # the other is the lower one now
                    self._add(w, 1 << t, work)

    def _add(self, block: int, bits: int, work: set[int]) -> None:
        if bits & ~self.later[block]:
            self.later[block] |= bits
            work.add(block)
