"""Pages use the field's terms (docs/glossary.md) and American spelling: words that must not occur, each with what to write.

Code, in fences or backquotes, is not looked at: it is what programs print and are called.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Pages whose turn has not come.
FOLLOW = ("checking", "gradients", "gradients-support", "gradients-internals", "extensions")
# What benchmarks/ writes is not among them: docs/results is a link there.
PAGES = [
    page
    for folder in (".", "docs", "docs/api", "docs/gallery", "docs/tutorials", "examples/package", ".github")
    for page in (ROOT / folder).glob("*.md")
    if page.stem not in FOLLOW
]
CODE = re.compile(
    r"(?ms)^( *)(`{3,})(?!\{container)[^\n]*\n.*?^\1\2 *$|`[^`\n]+`|<!--.*?-->|(?<=\]\()[^)\s]*|https?://\S+"
)

# A word as a regular expression, and what to write instead.
INSTEAD = {
    r"unset|before (?:it is|they are) set": "uninitialized",
    r"skipped barriers?|barriers? (?:and \w+ )?that (?:some )?threads miss": "barrier divergence",
    r"(?:warps|lanes|threads) part(?! of)": "diverge",
    r"(?:atomics?|additions|updates) that (?:may )?meet": "contention, or collide",
    r"side by side": "coalesced, contiguous, or next to each other",
    r"difference quotients?": "finite differences",
    r"shapes? of blocks": "block dimensions",
    r"(?:from|of) (?:its|their|the kernel's|a kernel's) text|texts? of (?:a|the) kernels?": "source",
    r"(?<!elementwise )formulas?": "elementwise expression",
    r"machine code's compiler": "ptxas",
    r"ready-made": "built-in",
    r"mend(?:s|ed)?": "fix",
    r"ways? out": "workaround, or say what to do",
    r"refus(?:e|es|ed|ing|als?)": "reject, raise an error, or: not supported",
    r"vouch(?:es)?": "trust",
    r"(?:take|takes|taken|taking|took)(?: \w+)? over": "copy",
    r"behind (?:its|the|their) ends?": "past the end",
    r"anew": "again, or rebuild",
    r"careful (?:way|one|path)s?": "slow path",
    r"(?<!there )(?:is|are|was|were) no(?! (?:longer|more|less|slower|faster|better|worse|such))": "is not a",
    r"allowed are": "a verb after its subject",
    r"so it is (?:if|where|when)": "name the subject",
    r"(?:is|are) waited for": "synchronize, or wait for",
    r"\w*(?:colour|neighbour|behaviour|favour)\w*|cent(?:re|res|red)|licences?|grey|catalogue|judgements?": "American spelling",
    r"\w+[iy]sations?|\w*(?:optimi|initiali|seriali|materiali|normali|vectori|synchroni|quanti|"
    r"recogni|generali|speciali|summari|minimi|maximi|organi|paralleli|reali)s(?:e|ed|es|ing)": "American spelling",
}  # fmt: skip

# Where such a word is right, with the reason.
ALLOWED: dict[tuple[str, str], str] = {}


def found(page: Path) -> list[tuple[int, str, str]]:
    """Line, word and what to write, for each word of a page that must not occur."""
    text = CODE.sub(lambda code: re.sub(r"[^\n]", "\0", code[0]), page.read_text())
    text = re.sub(r"(?m)^ +", "", text)
    words = [
        (text.count("\n", 0, match.start()) + 1, match[0].lower(), instead)
        for pattern, instead in INSTEAD.items()
        for match in re.finditer(rf"(?i)(?<![\w-])(?:{pattern})(?![\w-])", text.replace("\n", " "))
    ]
    return sorted(words)


def test_words_of_pages() -> None:
    name = lambda page: str(page.relative_to(ROOT))  # noqa: E731
    every = [(name(page), *word) for page in sorted(PAGES) for word in found(page)]
    wrong = [
        f"{page}:{line}: '{word}': {instead}" for page, line, word, instead in every if (page, word) not in ALLOWED
    ]
    assert not wrong, "\n" + "\n".join(wrong)
    assert ALLOWED.keys() <= {(page, word) for page, _, word, _ in every}, "an exception is not needed any more"


@pytest.mark.parametrize(
    "text, words",
    [
        ("Memory that is\nunset, `unset` and\n```text\nmend\n```\nmended", ["unset", "mended"]),
        ("There is no barrier; a lock\nis no barrier, and it is no longer held", ["is no"]),
        ("A neighbouring lane; vectorised, vectorisation", ["neighbouring", "vectorisation", "vectorised"]),
        ("[it](take-over.md) takes it over", ["takes it over"]),
    ],
)  # fmt: skip
def test_words_are_found(text: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(text)
    assert sorted(word for _, word, _ in found(tmp_path / "page.md")) == sorted(words)
