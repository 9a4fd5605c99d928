"""README.md and the pages of docs/: every block of code in them runs, compiles or is read, and prints what they show.

What the word after a fence's backticks says, and what is done with such a block:

- ``python``: runs, block by block in one namespace for the page, in an empty folder, on the CPU. Pages with the comment
  ``<!-- runs on any device -->`` run a second time with tensors on the GPU, and their ``sh`` with them.
- ``python gpu``: runs on a GPU only. Where there is none it is parsed and its CUDA compiled.
- ``LANGUAGE skip: REASON``: cannot run, or be compiled, by itself. Python is parsed, its CUDA compiled.
- ``LANGUAGE FILE``: also written to the page's folder under that name; Python with a file's name runs only if a shell
  block runs it.
- ``sh``: runs ``rawkern`` (in this process, if the line is nothing else), and ``pytest`` and ``python`` on the page's own files; of others the files are looked up.
- ``cuda``: compiled by NVRTC, but for files that are headers. ``yaml``, ``toml``, ``json``: parsed.
- A block that begins with ``%`` is a notebook's cell, which IPython runs in the page's namespace.
- ``output``, or ``LANGUAGE output``: what the last block prints, with the exception it raises at the end; without one a
  block that raises fails. Spaces and line breaks do not count, ``...`` stands for any text. A block is ``example.py``.
- ``text``: a drawing, a form of words: nothing to check. ``{name}``: a directive of MyST.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import gc
import importlib.util
import inspect
import io
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import rawkern
from rawkern.cli import main, probe
from tests import forked
from tests.shell import make_shell

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ANY_DEVICE = "<!-- runs on any device -->"
FENCE = re.compile(r"^( *)(`{3,})([^`\n]*)\n(.*?)^\1\2 *$", re.S | re.M)
LANGUAGES = ("python", "sh", "cuda", "ptx", "yaml", "toml", "json", "output", "text")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int  # of its first line, from 1
    language: str
    more: str  # the rest of the line after the backticks
    code: str

    @property
    def is_output(self) -> bool:
        return "output" in (self.language, self.more)

    @property
    def is_cell(self) -> bool:
        return self.code.startswith("%")

    @property
    def skipped(self) -> bool:
        return self.more.startswith("skip: ")

    @property
    def file(self) -> str | None:
        named = "." in self.more and not self.skipped and not self.language.startswith("{")
        return self.more if named else None


def blocks_of(page: Path) -> list[Block]:
    """The page's blocks, each in a form that is known."""
    text, found = page.read_text(), []
    for fence in FENCE.finditer(text):
        language, _, more = fence[3].strip().partition(" ")
        line = text.count("\n", 0, fence.start(4)) + 1
        code = re.sub(f"(?m)^{fence[1]}", "", fence[4])
        known = language in LANGUAGES or language.startswith("{")
        assert known, f"{page.name}:{line - 1}: a block is one of {', '.join(LANGUAGES)}, not {language!r}"
        plain = re.fullmatch(r"|gpu|output|skip: .+|\S+\.\S+", more.strip())
        assert plain or language.startswith("{"), f"{page.name}:{line - 1}: nothing here is called {more!r}"
        found.append(Block(page, line, language, more.strip(), code))
    assert 2 * len(found) == len(re.findall(r"(?m)^ *(?:```|~~~)", text)), f"{page.name}: a fence is not closed"
    return found


def cases() -> list[Any]:
    """Each page on the CPU, and on the GPU where there is something to run."""
    found = []
    for page in PAGES:
        name, text = str(page.relative_to(ROOT)), page.read_text()
        if "```" not in text:
            continue
        found.append(pytest.param(page, "cpu", id=f"{name}-cpu"))
        if re.search(f"{ANY_DEVICE}|```python gpu", text):
            found.append(pytest.param(page, "cuda", id=f"{name}-cuda", marks=pytest.mark.gpu))
    return found


@pytest.mark.parametrize("page, device", cases())
def test_blocks(page: Path, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    run_page(page, device, tmp_path, monkeypatch, capfd)
    for picture in tmp_path.glob("*.svg"):
        kept = ROOT / "docs" / "images" / page.parent.name / picture.name
        if os.environ.get("RAWKERN_KEEP_PICTURES"):
            shutil.copy(picture, kept)
        assert kept.is_file(), f"run with RAWKERN_KEEP_PICTURES=1: {page.name} draws {picture.name}"


def run_page(page: Path, device: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    tensors = "cuda" if device == "cuda" and ANY_DEVICE in page.read_text() else "cpu"
    monkeypatch.chdir(folder)
    if device == "cuda":
        gc.collect()  # what other tests have left, so that it is not freed while a block counts memory
    for name, value in forked.programs(folder / ".programs").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr(probe, "PYTHON", forked.python())  # of the doctor
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "page"}
    ran, printing, shell = None, False, None
    for block, following in itertools.pairwise([*blocks_of(page), None]):
        shown = following is not None and following.is_output
        if block.is_output:
            assert printing, f"{where(block)}: output of a block that does not run; say so with skip: REASON"
            if ran is not None:
                compare(block, ran)
            ran, printing = None, False
            continue
        capfd.readouterr()
        if block.file is not None:
            Path(block.file).write_text(block.code)
        if block.is_cell:
            shell = shell or make_shell(folder / ".ipython")
            ran = run_cell(block, shell, tensors, names, raises=shown)
        elif block.language == "python" and is_run(block, device):
            ran = run_python(block, tensors, names, raises=shown)
        else:
            ran = check(block, raises=shown) if device == "cpu" or block.language == "sh" else None
        printing = ran is not None or block.skipped or block.more == "gpu" or device != "cpu"
        if shown and ran is not None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # what kernels print is there then
            ran = capfd.readouterr().out + ran


@pytest.mark.parametrize(
    "text, message",
    [
        ("```python\nassert 1 > 2\n```", "AssertionError"),
        ("```python\n1 / 0\n```\n\n```python\n```", "division"),
        ("```python\nprint(12)\n```\n\n```output\n1\n```", "but this was printed:\n12"),
        ("```python\n1 / 0\n```\n\n```output\nValueError: ...\n```", "ZeroDivisionError: division by zero"),
        ("```python skip: no reason\n1 +\n```", "invalid syntax"),
        ("```python gpu\nk = '__global__ void k() { x = 1; }'\n```", "undefined"),
        ("```cuda\n__global__ void k() { x = 1; }\n```", "undefined"),
        ("```toml\n[a\n```", "Expected"),
        ("```json\n[a\n```", "Expecting"),
        ("```sh\nls\n```", "neither run nor checked"),
        ("```sh\nrawkern cache --nothing\n```", "unrecognized arguments: --nothing"),
        ("```sh\npip install -e .[nothing]\n```", "unknown extra"),
        ("```sh\npython examples/nothing.py\n```", "do not exist"),
        ("```python fail.py\nraise SystemExit(3)\n```\n\n```sh\npython fail.py\n```", "python fail.py"),
        ("```\ntext\n```", "a block is one of"),
        ("```text\n```\n\n```output\n1\n```", "does not run"),
        ("```sh\npytest -n auto\n```\n\n```output\n1 passed\n```", "does not run"),
        ("```python skip\n```", "nothing here is called 'skip'"),
        ("```text\nopen", "not closed"),
    ],
)
def test_mistakes_are_noticed(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    page = tmp_path / "page.md"
    page.write_text(text + "\n")
    with pytest.raises(BaseException) as caught:  # pytest's own failure is not an Exception
        run_page(page, "cpu", tmp_path, monkeypatch, capfd)
    assert message in repr(caught.value).replace("\\n", "\n")


def is_run(block: Block, device: str) -> bool:
    """Whether a block of Python runs where the tests have this device."""
    return not block.skipped and block.file is None and (block.more != "gpu" or device == "cuda")


def check(block: Block, raises: bool) -> str | None:
    """Compile or read a block, or run its commands: then what they print is returned."""
    if block.language == "python":
        compile_strings(block)
    elif block.skipped:
        return None
    elif block.language == "sh":
        return run_shell(block, raises)
    elif block.language == "cuda" and not (block.file or "").endswith((".h", ".cuh")):
        assert rawkern.RawModule(block.code).kernels, f"{where(block)}: no kernel"
    elif block.language == "yaml":
        import yaml

        assert yaml.safe_load(block.code)
    elif block.language == "toml":
        assert tomllib.loads(block.code)
    elif block.language == "json":
        json.loads(block.code)
    return None


def run_python(block: Block, device: str, names: dict[str, Any], raises: bool) -> str:
    """Run a block; return the end of the traceback, if it is to raise, else nothing."""
    # Empty lines in front: a traceback has the page's own lines.
    code = compile("\n" * (block.line - 1) + block.code, str(block.page), "exec")
    try:
        with torch.device(device):
            exec(code, names)
    except Exception as error:
        if not raises:
            raise
        place = rf"{re.escape(str(block.page))}:(\d+)"
        said = "".join(traceback.format_exception_only(error))
        return re.sub(place, lambda at: f"example.py:{int(at[1]) - block.line + 1}", said)
    return ""


def run_cell(block: Block, shell: Any, device: str, names: dict[str, Any], raises: bool) -> str:
    """Run a notebook's cell; IPython prints what it raises."""
    shell.user_ns = names
    with torch.device(device):
        done = shell.run_cell(block.code, store_history=True)
    if not raises:
        done.raise_error()
    return ""


def compile_strings(block: Block) -> None:
    """Parse Python that does not run here, and compile the strings in it that hold kernels."""
    for node in ast.walk(ast.parse(block.code, str(block.page))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "__global__" in node.value:
            assert rawkern.RawModule(node.value).kernels, f"{where(block)}: no kernel"


def compare(shown: Block, printed: str) -> None:
    """The shown text is what was printed, but for spaces and line breaks; ``...`` stands for anything."""
    pattern = ".*?".join(re.escape(part.strip()) for part in " ".join(shown.code.split()).split("..."))
    if re.fullmatch(pattern, " ".join(printed.split()), re.S) is None:
        pytest.fail(f"{where(shown)} shows\n{shown.code}\nbut this was printed:\n{printed}", pytrace=False)


def where(block: Block) -> str:
    return f"{block.page.name}:{block.line}"


# Shell ----------------------------------------------------------------------------------------------------------


def run_shell(block: Block, raises: bool) -> str | None:
    """Run the lines that are the page's own business, and look the others up."""
    ran = None
    for line in block.code.replace("\\\n", " ").splitlines():
        commands = [shlex.split(command, comments=True) for command in re.split(r"&&|;|\|", line)]
        commands = [[*drop_settings(words)] for words in commands if words]
        if commands and all([runs(block, words) for words in commands]):
            [words, *more] = commands
            alone = words[0] == "rawkern" and not more
            status, printed = run_here(words[1:]) if alone else run_line(line)
            assert raises or status == 0, f"{where(block)}: {line}\n{printed}"
            ran = (ran or "") + printed
    return ran


def run_here(arguments: list[str]) -> tuple[int, str]:
    """Run the command ``rawkern`` in this process, which has torch already; its status and what it prints."""
    printed, complaints = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaints):
        try:
            status = main(arguments)
        except SystemExit as end:  # argparse's
            status = end.code if isinstance(end.code, int) else 1
    return status, printed.getvalue() + complaints.getvalue()


def run_line(line: str) -> tuple[int, str]:
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout + done.stderr


def drop_settings(words: list[str]) -> list[str]:
    """The words without ``NAME=value`` in front."""
    while words and re.match(r"\w+=", words[0]):
        words = words[1:]
    return words


def runs(block: Block, words: list[str]) -> bool:
    """Whether a command is to run; else what it names exists in this tree."""
    match words:
        case ["rawkern", *_] | ["python", "-m", "rawkern", *_]:
            return True
        case ["pip", "install", *options]:
            check_install(block, options)
        case ["python", "-m", module, *_]:
            assert importlib.util.find_spec(module), f"{where(block)}: there is no module {module}"
        case ["python" | "pytest" | "ruff" | "pyright", *options]:
            files = [o.partition("::")[0] for o in options if o.endswith(".py") or ".py::" in o or "/" in o]
            own = [Path(file).is_file() for file in files]
            if own and all(own):
                return True
            assert all((ROOT / file).exists() for file in files), f"{where(block)}: {files} do not exist"
        case _:
            pytest.fail(f"{where(block)}: {shlex.join(words)!r} is neither run nor checked; mark it with skip: REASON")
    return False


def check_install(block: Block, options: list[str]) -> None:
    """The extras and files that a line of pip names are there."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for option, value in zip(options, [*options[1:], ""], strict=True):
        named = re.fullmatch(r"(?:\.|rawkern)\[(.*)\]", option)
        assert named is None or set(named[1].split(",")) <= set(extras), f"{where(block)}: unknown extra in {option}"
        assert option not in ("-c", "-r") or (ROOT / value).is_file(), f"{where(block)}: there is no {value}"


# Docstrings -----------------------------------------------------------------------------------------------------


def test_examples_in_docstrings() -> None:
    """Code after >>> in the docstrings of public names runs, and prints what they show."""
    parser, runner, ran = doctest.DocTestParser(), doctest.DocTestRunner(), 0
    for name in rawkern._HOME:
        names = {"torch": torch, "rawkern": rawkern}
        example = parser.get_doctest(inspect.getdoc(getattr(rawkern, name)) or "", names, name, None, 0)
        done = runner.run(example)
        assert done.failed == 0
        ran += done.attempted
    assert ran > 0


def test_every_public_name_has_an_example() -> None:
    """Code of the reference's pages, which runs, uses it; and its page begins with a table that has it."""
    modules = [name for name in rawkern.__all__ if inspect.ismodule(getattr(rawkern, name))]
    public = [name for name in rawkern.__all__ if name not in modules]
    public += [f"{module}.{name}" for module in modules for name in getattr(rawkern, module).__all__]
    used, listed = set(), set()
    for page in (ROOT / "docs" / "api").glob("*.md"):
        for block in blocks_of(page):
            if block.language == "python" and not block.skipped:
                names = [node for node in ast.walk(ast.parse(block.code)) if isinstance(node, ast.Attribute)]
                used |= {node.attr for node in names}
        table = re.match(
            r"# .*\n\n```\{eval-rst\}\n\.\. currentmodule.*\n\n\.\. autosummary::\n   :nosignatures:\n\n((?:   .*\n)+)```\n",
            page.read_text(),
        )
        assert table, f"{page.name} begins with no table"
        listed |= {f"testing.{name}" if page.stem == "testing" else name for name in table[1].split()}
    assert len(public) > 80
    assert [name for name in public if name.rpartition(".")[2] not in used] == []
    assert [name for name in public if name not in listed] == ["testing.CHECKS"]  # no function or class


def test_first_screen() -> None:
    """What rawkern is, a kernel with its result, a finding with its line, the way in; nothing that developers alone need."""
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 650
    first, _, _ = text.partition("\n## ")
    assert len(first.splitlines()) <= 60 and "docs/quickstart.md" in first
    assert [block.language for block in blocks_of(ROOT / "README.md")][:6] == ["python", "output"] * 2 + ["sh"] * 2
    users, developers = re.findall(r"```sh\n(.*?)```", first, re.S)
    assert "test" not in users and "pytest" in developers


# Tables ---------------------------------------------------------------------------------------------------------


def test_table_of_operators() -> None:
    """There is a row for each operator, with its signature."""
    page = (ROOT / "docs" / "operators.md").read_text()
    rows = re.findall(r"^\| `(\w+\(.*?\))` \|", page, re.M)
    assert sorted(rows) == sorted(
        map(call, (n for n, home in rawkern._HOME.items() if home.startswith("rawkern.library.")))
    )


def test_messages_of_troubleshooting() -> None:
    """Each message that the page explains is one that its programs raise; those of other programs have a table apart."""
    page = ROOT / "docs" / "troubleshooting.md"
    raised = " ".join(block.code for block in blocks_of(page) if block.is_output)
    tables = re.findall(r"\| message \| cause \| fix \|\n.*\n((?:\|.*\n)+)", page.read_text())
    messages = re.findall(r"^\| `([^`]+)` \|", "".join(tables), re.M)
    assert len(tables) == 4 and len(messages) > 20
    assert [message for message in messages if message not in raised] == []


def test_table_of_examples() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    rows = re.findall(r"^\| `(\w+\.py)` \|", page, re.M)
    assert sorted(rows) == sorted(file.name for file in (ROOT / "examples").glob("*.py"))


def test_costs_of_checks() -> None:
    """They are those that benchmarks.checked has written."""
    page = (ROOT / "docs" / "checking.md").read_text().partition("\n## Time\n")[2]
    kernels = {
        "softmax": "softmax", "a transpose in tiles": "transpose", "sums of blocks in shared memory": "sums of blocks",
        "square": "square, 2^20", "a tiled matmul": "matmul", "A launch on 32 elements": "square of 32",
    }  # fmt: skip
    results = (ROOT / "benchmarks" / "results" / "checked.md").read_text()
    for shown, name in kernels.items():
        row = re.search(rf"^\| {re.escape(name)}.* \| .* \| (.*) \| (.*) \|$", results, re.M)
        said = re.search(rf"([\d.]+)(?: times as long)? for {shown}\b|{shown} takes ([\d.]+ ms)", page)
        assert row and said, shown
        assert said[2] == row[1] if said[2] else float(said[1]) == round(float(row[2])), shown


def call(name: str) -> str:
    """How an operator is called: parameters and defaults, without types."""
    parameters, bare = [], True
    for p in inspect.signature(getattr(rawkern, name)).parameters.values():
        if p.kind is p.KEYWORD_ONLY and bare:
            parameters.append("*")
            bare = False
        default = f'"{p.default}"' if isinstance(p.default, str) else p.default
        parameters.append(p.name if p.default is p.empty else f"{p.name}={default}")
    return f"{name}({', '.join(parameters)})"
