"""Reports as a self-contained HTML page: findings, sources with a heat map per line, a roofline."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import Any

from rawkern.profiling.bounds import operations
from rawkern.profiling.costs import work
from rawkern.profiling.devices import GPUS
from rawkern.profiling.text import HEADS, cells, grouped, headline, place, summary, text_of

SECTOR = 32
_STYLE = """
.rk-profile { color-scheme: light dark;
  --text: #1c1c1c; --back: #fff; --soft: #666; --edge: #ddd; --heat: 220, 60, 20; }
@media (prefers-color-scheme: dark) {
  .rk-profile { --text: #e8e8e8; --back: #16181c; --soft: #9aa0a6; --edge: #3a3d42; --heat: 255, 110, 60; } }
.rk-profile { color: var(--text); background: var(--back); font: 14px/1.45 system-ui, sans-serif; padding: 1em; }
.rk-profile table { border-collapse: collapse; font: 12px/1.5 ui-monospace, monospace; margin: .6em 0 1.6em; }
.rk-profile td, .rk-profile th { padding: 0 .7em; text-align: right; white-space: pre; }
.rk-profile th { color: var(--soft); font-weight: normal; border-bottom: 1px solid var(--edge); }
.rk-profile td:last-child, .rk-profile th:last-child { text-align: left; }
.rk-profile .rk-found { border-left: 3px solid rgb(var(--heat)); padding-left: .6em; margin: .6em 0; }
.rk-profile .rk-soft { color: var(--soft); }
.rk-profile { overflow-wrap: anywhere; } .rk-profile .rk-wide { overflow-x: auto; }
.rk-profile svg { max-width: 100%; height: auto; }
.rk-profile svg text { fill: var(--text); font: 11px system-ui, sans-serif; }
.rk-profile svg text.rk-soft { fill: var(--soft); }
.rk-profile svg path { fill: none; stroke: var(--soft); } .rk-profile svg circle { fill: rgb(var(--heat)); }
"""


def page(data: dict[str, Any]) -> str:
    """The whole document."""
    head = '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>rawkern profile</title></head>'
    return f'{head}<body style="margin: 0">{fragment(data)}</body></html>'


def fragment(data: dict[str, Any]) -> str:
    """The part that notebooks show."""
    parts = [f"<style>{_STYLE}</style>", '<div class="rk-profile"><h1>Profile</h1>']
    parts += [_finding(found) for found in data["findings"]]
    if not data["findings"]:
        parts.append("<p>No inefficiencies were found.</p>")
    parts += [_launch(launch, count) for launch, count in grouped(data["launches"])]
    return "\n".join([*parts, "</div>"])


def _finding(found: dict[str, Any]) -> str:
    return (
        f'<div class="rk-found"><b>{escape(place(found))}</b>: {escape(found["message"])}.'
        f'<br><span class="rk-soft">{escape(found["remedy"])}.</span></div>'
    )


def _launch(launch: dict[str, Any], count: int) -> str:
    total = work(launch["counters"]) or 1.0
    head = "".join(f"<th>{escape(name)}</th>" for name in HEADS)
    rows = [_row(launch, line, total) for line in dict.fromkeys((*launch["source"], *launch["lines"]))]
    said = "".join(f"<li>{escape(each)}</li>" for each in summary(launch))
    table = f'<div class="rk-wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    head = f"<h2>{escape(headline(launch, count))}</h2><p>{escape(launch['file'])}</p>"
    return f"{head}<ul>{said}</ul>{_roofline(launch)}{table}"


def _row(launch: dict[str, Any], line: int | str, total: float) -> str:
    text = f"{line}: {text_of(launch, line)}"
    if line not in launch["lines"]:  # a line that did not run, or has no instructions
        return f'<tr class="rk-soft"><td colspan="{len(HEADS) - 1}"></td><td>{escape(text)}</td></tr>'
    share = work(launch["lines"][line]) / total
    found = (f"{share:.0%}", *cells(launch["lines"][line]), text)
    made = "".join(f"<td>{escape(cell)}</td>" for cell in found)
    return f'<tr style="background: rgba(var(--heat), {min(share, 1.0) * 0.6:.3f})">{made}</tr>'


# The roofline ---------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _EDGE = 460, 240, 40
_X, _Y = (-4.0, 10.0), (-8.0, 2.0)  # axis ranges as powers of two: operations per byte, and share of the peak


def _roofline(launch: dict[str, Any]) -> str:
    """The launch under its GPU's roofline: operations per byte of the distinct sectors, and their rate."""
    if "bounds" not in launch:
        return ""
    gpu, counters = GPUS[launch["gpu"]], launch["counters"]
    done = operations(counters, "f") + operations(counters, "d")
    moved = sum(launch["distinct_sectors"].values()) * SECTOR
    if not done or not moved:
        return ""
    seconds = launch["milliseconds"] / 1e3 if "milliseconds" in launch else max(launch["bounds"].values())
    ridge = math.log2(gpu.float32 / gpu.memory)
    roof = [_point(_X[0], _X[0] - ridge), _point(ridge, 0.0), _point(_X[1], 0.0)]
    x, y = _point(math.log2(done / moved), math.log2(done / seconds / gpu.float32))
    how = "measured" if "milliseconds" in launch else "at most"
    shown = f"{done / moved:.3g} operations per byte, {how} {done / seconds / 1e12:.3g} Tflop/s"
    path = "M" + " L".join(f"{a:.1f},{b:.1f}" for a, b in roof)
    axes = f"M{_EDGE},{_EDGE / 2} V{_HEIGHT - _EDGE} H{_WIDTH - 10}"
    said = f"{gpu.name.upper()}: {gpu.memory / 1e12:.3g} TB/s, {gpu.float32 / 1e12:.3g} Tflop/s; {shown}"
    return (
        f'<p>{said}</p><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" aria-label="roofline">'
        f'<path d="{axes}"/><path d="{path}" stroke-width="2"/>{"".join(_ticks(gpu.float32))}'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{shown}</title></circle></svg>'
    )


def _ticks(peak: float) -> Iterator[str]:
    """Axis labels, each four times the previous one."""
    for power in range(int(_X[0]), int(_X[1]), 2):
        x, _ = _point(power, _Y[0])
        yield f'<text class="rk-soft" text-anchor="middle" x="{x:.1f}" y="{_HEIGHT - _EDGE + 14}">{2.0**power:g}</text>'
    for power in range(int(_Y[0]) + 2, int(_Y[1]), 2):
        _, y = _point(_X[0], power)
        rate = peak * 2.0**power / 1e12
        yield f'<text class="rk-soft" text-anchor="end" x="{_EDGE - 5}" y="{y + 4:.1f}">{rate:.2g}</text>'
    yield f'<text class="rk-soft" text-anchor="end" x="{_WIDTH - 10}" y="{_HEIGHT - 8}">operations per byte</text>'
    yield '<text class="rk-soft" x="2" y="12">Tflop/s</text>'


def _point(x: float, y: float) -> tuple[float, float]:
    across = (min(max(x, _X[0]), _X[1]) - _X[0]) / (_X[1] - _X[0])
    up = (min(max(y, _Y[0]), _Y[1]) - _Y[0]) / (_Y[1] - _Y[0])
    return _EDGE + across * (_WIDTH - _EDGE - 10), _HEIGHT - _EDGE - up * (_HEIGHT - 1.5 * _EDGE)
