"""What pyproject.toml cannot say of the package: where its CUDA sources are, and links that lead to a repository.

Links are made where ``GITHUB_REPOSITORY`` is ``OWNER/NAME``, which GitHub sets in workflows; it is the one place to set
for another host's builds. Without it the README's links stay relative, and there are no project URLs.
"""

import os
import re
from pathlib import Path

from setuptools import find_namespace_packages, find_packages, setup
from setuptools.command.build_py import build_py

README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")


class BuildPy(build_py):
    """Packs the directory cuda_src/, which stays at the top of the tree, as the package rawkern.cuda_src.

    An entry in ``package_dir`` would do the same, but editable installs would then go through an import hook, which
    type checkers and editors do not follow. Without one they are a line in a ``.pth`` file.
    """

    def get_package_dir(self, package: str) -> str:
        return "cuda_src" if package == "rawkern.cuda_src" else super().get_package_dir(package)


def urls(repository: str) -> dict[str, str]:
    owner, _, name = repository.partition("/")
    source = f"https://github.com/{repository}"
    return {
        "Documentation": f"https://{owner}.github.io/{name}/",
        "Source": source,
        "Changelog": f"{source}/blob/main/CHANGELOG.md",
        "Issues": f"{source}/issues",
    }


def absolute(readme: str, repository: str) -> str:
    """The README with links that work on PyPI: pages lead to the site, pictures to the repository."""
    site, files = urls(repository)["Documentation"], f"https://raw.githubusercontent.com/{repository}/main/"
    readme = re.sub(r"(?<=\]\()docs/([^)#]+)\.md(?=[)#])", rf"{site}\1.html", readme)
    return re.sub(r"(?<=\]\()(?=docs/)", files, readme)


repository = os.environ.get("GITHUB_REPOSITORY", "")
# Folders of headers are named as packages, or setuptools warns that it would leave them out.
headers = find_namespace_packages(include=["rawkern.compile.headers*"])
setup(
    packages=[*find_packages(include=["rawkern", "rawkern.*"]), *headers, "rawkern.cuda_src"],
    package_dir={"": "."},
    cmdclass={"build_py": BuildPy},
    long_description=absolute(README, repository) if repository else README,
    long_description_content_type="text/markdown",
    project_urls=urls(repository) if repository else {},
)
