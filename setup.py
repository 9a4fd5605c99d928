"""The packages of the wheel; everything else about it stands in pyproject.toml."""

from setuptools import find_namespace_packages, find_packages, setup

# cuda_src/ stays at the top of the tree and ships as data of rawkern: an installed wheel has it as rawkern/cuda_src/.
# Mapping the directory (instead of copying it at build time) leaves no stale copy behind.
# Folders of headers are named as packages, or setuptools warns that it would leave them out.
headers = find_namespace_packages(include=["rawkern.compile.headers*"])
setup(
    packages=[*find_packages(include=["rawkern", "rawkern.*"]), *headers, "rawkern.cuda_src"],
    package_dir={"rawkern": "rawkern", "rawkern.cuda_src": "cuda_src"},
)
