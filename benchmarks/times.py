"""The tables of GPU times in docs/tutorials and docs/profiling.md, made of the kept results by `benchmarks.page`."""

from __future__ import annotations

import json

from benchmarks.harness import RESULTS, scaled

DOCS = RESULTS.parent.parent / "docs"
BEGIN, END = "<!-- times -->\n", "<!-- /times -->\n"


def marked() -> list[str]:
    """The pages that have a place for times, without ``.md``."""
    pages = [*(DOCS / "tutorials").glob("*.md"), DOCS / "profiling.md"]
    return sorted(page.relative_to(DOCS).with_suffix("").as_posix() for page in pages if BEGIN in page.read_text())


def times(page: str) -> str:
    """The table of a page; without kept results, how to get them."""
    folder, _, name = page.rpartition("/")
    module = "tutorials" if folder else "steps"
    file = RESULTS / f"{module}-gpu.json"
    if not file.exists():
        return f"`python -m benchmarks.{module}` measures the times, on a machine with a GPU; none are kept here yet."
    results = json.loads(file.read_text())
    parts = []
    for title in [name] if folder else results["results"]:
        rows = [f"| {run} | {t.get('error') or scaled(t['median'])} |" for run, t in results["results"][title].items()]
        first = results["machine"]["gpu"] if folder else f"{title}, {results['machine']['gpu']}"
        parts.append("\n".join([f"| {first} | GPU time |", "| --- | --- |", *rows]))
    return "\n\n".join(parts)


def rendered(page: str) -> str:
    """The text of a page with its times.

    Raises
    ------
    ValueError
        The page has no place for times.
    """
    before, _, rest = (DOCS / f"{page}.md").read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{page}.md has no place for times, {BEGIN.strip()} and {END.strip()}")
    return f"{before}{BEGIN}\n{times(page)}\n\n{end}{after}"


def write_times() -> None:
    for page in marked():
        (DOCS / f"{page}.md").write_text(rendered(page))
        print(f"written: docs/{page}.md")
