"""rawkern's own CUDA sources are found in a source tree, an editable install and a wheel, and nowhere twice."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from rawkern._version import __version__

ROOT = Path(__file__).resolve().parents[1]
SITE = sysconfig.get_paths()["purelib"]
PROBE = 'extern "C" __global__ void packaged(float* x) { x[threadIdx.x] = 1; }\n'
FIND = "import rawkern; module = rawkern.load('packaged'); print(module.unit.settings.path)"
#: A file that comes later is there without another install, and one that goes is gone.
EDITED = f"""{FIND}
import pathlib, sys
later = pathlib.Path(sys.argv[1])
later.write_text({PROBE!r})
print(rawkern.load('later').unit.settings.path)
later.unlink()
try:
    rawkern.load('later')
except FileNotFoundError:
    print('gone')
"""

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").is_file(), reason="the tests run apart from the source tree"
)


def run(*command: str, cwd: Path, **environment: str) -> str:
    settings = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PIP_CONSTRAINT")}
    done = subprocess.run(
        command, cwd=cwd, env={**settings, **environment}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source tree with one more CUDA file: building leaves files that must not be in ours."""
    pytest.importorskip("setuptools", minversion="77")
    pytest.importorskip("pip")
    tree = tmp_path_factory.mktemp("tree")
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("rawkern", "cuda_src"):
        shutil.copytree(ROOT / name, tree / name, ignore=skip)
    for name in ("pyproject.toml", "setup.py", "LICENSE", "THIRD_PARTY.md", "README.md"):
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, tree)
    (tree / "cuda_src" / "packaged.cu").write_text(PROBE)
    return tree


PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of the tree, as an index has it."""
    folder = tmp_path_factory.mktemp("sdist")
    make = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    run(sys.executable, "-c", make, cwd=tree, GITHUB_REPOSITORY="owner/name")
    (file,) = folder.glob("rawkern-*.tar.gz")
    return file


def test_links_of_the_project_page(sdist: Path) -> None:
    """Where the repository is known, links in the README are absolute, and lead to pages and files that exist."""
    with tarfile.open(sdist) as archive:
        info = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert info is not None
        text = info.read().decode()
    assert "Project-URL: Source, https://github.com/owner/name\n" in text
    links = re.findall(r"\]\(([^)#]+)", re.sub(r"(?s)```.*?```", "", text.partition("\n\n")[2]))
    assert links
    for link in links:
        page = re.fullmatch(r"https://owner\.github\.io/name/(.+)\.html", link)
        file = re.fullmatch(r"https://raw\.githubusercontent\.com/owner/name/main/(.+)", link)
        assert page or file, link
        assert (ROOT / (f"docs/{page[1]}.md" if page else file[1] if file else "")).is_file(), link


def test_wheel(sdist: Path, tree: Path, tmp_path: Path) -> None:
    """The wheel of the source distribution."""
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(sdist), cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    check_files(installed, tree)
    found = run(sys.executable, "-c", FIND, cwd=tmp_path, PYTHONPATH=f"{installed}{os.pathsep}{SITE}")
    assert found == str(installed / "rawkern" / "cuda_src" / "packaged.cu")


def test_install(tree: Path, tmp_path: Path) -> None:
    """`pip install .` into an environment: the package and its command run, from another folder."""
    packages, python = environment(tmp_path)
    options = ("--no-deps", "--no-build-isolation", "--no-compile")
    run(*PIP, "--python", python, "install", *options, str(tree), cwd=tmp_path, PYTHONPATH=SITE)
    check_files(packages, tree)
    assert run(python, "-c", FIND, cwd=tmp_path) == str(packages / "rawkern" / "cuda_src" / "packaged.cu")
    assert run(str(Path(python).with_name("rawkern")), "--version", cwd=tmp_path) == f"rawkern {__version__}"
    show = "from importlib import metadata; print(metadata.version('rawkern'))"
    assert run(python, "-c", show, cwd=tmp_path) == __version__
    check_types(python, tmp_path)


def check_files(packages: Path, tree: Path) -> None:
    """All files of the tree's package and its CUDA sources are there, and nothing else but what describes them."""
    ours = {str(path.relative_to(tree)) for path in (tree / "rawkern").rglob("*") if path.is_file()}
    cuda = {f"rawkern/cuda_src/{path.name}" for path in (tree / "cuda_src").iterdir() if path.is_file()}
    found = {str(path.relative_to(packages)) for path in (packages / "rawkern").rglob("*") if path.is_file()}
    assert found == ours | cuda
    (info,) = packages.glob("rawkern-*.dist-info")
    beside = {"rawkern", info.name, "dependencies.pth"}
    assert {path.name for path in packages.iterdir()} <= beside
    for file in ("LICENSE", "THIRD_PARTY.md"):
        assert (info / "licenses" / file).is_file()


def environment(folder: Path) -> tuple[Path, str]:
    """A new environment: the folder of its packages, which are rawkern's dependencies alone, and its Python."""
    run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=folder)
    # rawkern's dependencies come after it, by a .pth file: this environment may hold an editable rawkern itself.
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(SITE + "\n")
    return packages, str(folder / "venv" / "bin" / "python")


def check_types(python: str, folder: Path) -> None:
    """Pyright, in a user's project, finds rawkern's types in that environment: neither editors nor it run import hooks."""
    (folder / "program.py").write_text("import rawkern\n\nreveal_type(rawkern.__version__)\nrawkern.sofmax\n")
    command = (sys.executable, "-m", "pyright", "--pythonpath", python, "--outputjson", "program.py")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    told = [
        (each["range"]["start"]["line"] + 1, each["message"]) for each in json.loads(done.stdout)["generalDiagnostics"]
    ]
    assert (3, 'Type of "rawkern.__version__" is "str"') in told, told
    assert [line for line, message in told if "sofmax" in message] == [4], told
    assert not [message for _, message in told if "resolved" in message], told


def test_editable_install(tree: Path, tmp_path: Path) -> None:
    _, python = environment(tmp_path)
    editable = ("install", "--no-deps", "--no-build-isolation", "-e", str(tree))
    run(*PIP, "--python", python, *editable, cwd=tmp_path, PYTHONPATH=SITE)
    later = tree / "cuda_src" / "later.cu"
    found = run(python, "-c", EDITED, str(later), cwd=tmp_path)
    assert found.splitlines() == [str(tree / "cuda_src" / "packaged.cu"), str(later), "gone"]
    check_types(python, tmp_path)


def test_every_pinned_version_belongs_to_a_requirement() -> None:
    """Constraints name no hosts and no paths, and pin each direct requirement, but for what torch's builds pin."""
    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pins = dict(line.split("==") for line in lines if line)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    names = {re.split(r"[\[<>=!~ ]", one)[0].lower() for one in asked}
    names.discard("rawkern")  # an extra may take another one in
    assert names - {name.lower() for name in pins} == {"nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12"}
