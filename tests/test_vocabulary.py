"""Pages and examples use the field's terms (docs/glossary.md) and American spelling: words to avoid, and what to write.

Code, in fences or backquotes, is not looked at: it is what programs print and are called. Of Python, comments and strings
are looked at.
"""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Not among them: results, which benchmarks/ writes (docs/results leads there); this file, which quotes such words.
FILES = [
    file
    for pattern in (
        "*.md",
        "docs/*.md",
        "docs/*/*.md",
        ".github/*.md",
        "docs/*.py",
        "benchmarks/*.md",
        "examples/**/*.md",
        "examples/**/*.py",
        "benchmarks/*.py",
        "cuda_src/*.cu*",
        "rawkern/**/*.py",
        "rawkern/**/*.ll",
        "tests/**/*.py",
    )
    for file in ROOT.glob(pattern)
    if file.parent.name != "results" and file.name != Path(__file__).name
]
CODE = re.compile(
    r"(?ms)^( *)(`{3,})(?!\{container)[^\n]*\n.*?^\1\2 *$|`[^`\n]+`|<!--.*?-->|(?<=\]\()[^)\s]*|https?://\S+"
)

# Since Python 3.12 the text of an f-string is a token of its own.
TEXT = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}

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
    r"(?<!left )(?<!leave )behind": "past the end, or after",
    r"(?:stand|stands|stood) (?:in|at|on|beside|for itself)": "is in",
    r"nobody|no one": "name the subject: no thread, no kernel",
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

ANY = re.compile(rf"(?i)(?<![\w-])(?:{'|'.join(INSTEAD)})(?![\w-])")

# Where such a word is right, with the reason.
ALLOWED: dict[tuple[str, str], str] = {
    ("benchmarks/gradients.py", "formula"): "a field's name",
    ("rawkern/cli/examine.py", "unset"): "the shell's command",
    ("rawkern/testing/trials.py", "formula"): "torch's message",
    ("tests/stress/test_interrupts.py", "formulas"): "a module's name",
}


def prose(file: Path) -> str:
    """The text of a file with everything else blanked, so that lines stay what they are."""
    text = file.read_text()
    if file.suffix == ".py":
        lines = text.splitlines(keepends=True)
        kept = [re.sub(r"[^\n]", " ", line) for line in lines]
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in TEXT:
                for number, part in enumerate(token.string.splitlines(keepends=True), token.start[0] - 1):
                    at = token.start[1] if number == token.start[0] - 1 else 0
                    kept[number] = kept[number][:at] + part + kept[number][at + len(part) :]
        text = "".join(kept)
    return CODE.sub(lambda code: re.sub(r"[^\n]", "\0", code[0]), text)


def in_lines(text: str) -> str:
    """A text as words are looked for: across lines."""
    return re.sub(r"(?m)^ +", "", text)


def found(file: Path) -> list[tuple[int, str, str]]:
    """Line, word and what to write, for each word of a file that must not occur."""
    if not ANY.search(in_lines(file.read_text()).replace("\n", " ")):  # as nine of ten: it need not be read as Python
        return []
    text = in_lines(prose(file))
    words = [
        (text.count("\n", 0, match.start()) + 1, match[0].lower(), instead)
        for pattern, instead in INSTEAD.items()
        for match in re.finditer(rf"(?i)(?<![\w-])(?:{pattern})(?![\w-])", text.replace("\n", " "))
    ]
    return sorted(words)


def test_words() -> None:
    every = [(str(file.relative_to(ROOT)), *word) for file in sorted(FILES) for word in found(file)]
    wrong = [f"{file}:{line}: '{word}': {use}" for file, line, word, use in every if (file, word) not in ALLOWED]
    assert not wrong, "\n" + "\n".join(wrong)
    assert ALLOWED.keys() <= {(file, word) for file, _, word, _ in every}, "an exception is not needed any more"


@pytest.mark.parametrize(
    "text, words",
    [
        ("Memory that is\nunset, `unset` and\n```text\nmend\n```\nmended", ["unset", "mended"]),
        ("There is no barrier; a lock\nis no barrier, and it is no longer held", ["is no"]),
        ("A neighbouring lane; vectorised, vectorisation", ["neighbouring", "vectorisation", "vectorised"]),
        ("[it](take-over.md) takes it over", ["takes it over"]),
        ("refused = 1  # mended\ncall(refused, 'refused `refuses`')", ["mended", "refused"]),
    ],
)  # fmt: skip
def test_words_are_found(text: str, words: list[str], tmp_path: Path) -> None:
    file = tmp_path / ("code.py" if text.startswith("refused = ") else "page.md")
    file.write_text(text)
    assert sorted(word for _, word, _ in found(file)) == sorted(words)
