"""What notebooks show of objects: tables in HTML, whose texts are escaped."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def escape(text: str) -> str:
    """A text as HTML has it."""
    import html  # only where needed: it has a large table

    return html.escape(text)


def table(
    title: str, about: str, rows: Sequence[Sequence[object]], head: Sequence[str] = (), strong: Collection[int] = ()
) -> str:
    """Lay out rows, those numbered in `strong` in bold, under a title that is code and a line about it."""
    lines = [f"<code><b>{escape(title)}</b></code><br><small>{escape(about)}</small>", "<table>"]
    if head:
        lines.append(f"<tr>{''.join(f'<th>{escape(each)}</th>' for each in head)}</tr>")
    for number, row in enumerate(rows):
        cells = [escape(str(each)).replace("\n", "<br>") for each in row]
        cells = [f"<b>{each}</b>" if number in strong else each for each in cells]
        lines.append("<tr>" + "".join(f'<td style="text-align: left">{each}</td>' for each in cells) + "</tr>")
    return "\n".join([*lines, "</table>"])


def failure(title: str, error: Exception) -> str:
    """Say why there is no more to show."""
    text = escape(f"{type(error).__name__}: {error}")
    return f"<code><b>{escape(title)}</b></code><pre>{text}</pre>"
