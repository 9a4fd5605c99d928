"""What a configuration is, and what it may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rawkern
from tests.tuning.kit import SLOW, SOURCE, chosen, inputs, tuned_saxpy

TRANSPOSE = r"""
template <typename T, int TILE>
__global__ void transpose(const T* x, T* y, int rows, int columns) {
    extern __shared__ char memory[];
    T* tile = (T*)memory;
    int column = blockIdx.x * TILE + threadIdx.x;
    for (int r = threadIdx.y; r < TILE; r += ROWS) {
        int row = blockIdx.y * TILE + r;
        if (row < rows && column < columns) tile[r * (TILE + 1) + threadIdx.x] = x[row * columns + column];
    }
    __syncthreads();
    int row = blockIdx.y * TILE + threadIdx.x;
    for (int r = threadIdx.y; r < TILE; r += ROWS) {
        int c = blockIdx.x * TILE + r;
        if (row < rows && c < columns) y[c * rows + row] = tile[threadIdx.x * (TILE + 1) + r];
    }
}
"""


@pytest.mark.parametrize("form", ["brackets", "CuPy's"])
def test_template_arguments_macros_grid_and_shared_memory(device: str, form: str) -> None:
    x = torch.randn(70, 45, device=device)
    y = torch.full((45, 70), float("nan"), device=device)
    tuned = rawkern.autotune(
        rawkern.RawKernel(TRANSPOSE, "transpose<float, {TILE}>"),
        {"TILE": [8, 16, 32], "ROWS": [4, 8]},
        where=lambda c: c["ROWS"] < c["TILE"],
        reference=lambda x, y, rows, columns: x.T,
    )
    assert len(tuned.configs) == 5

    def grid(c: dict[str, Any]) -> tuple[int, int]:
        return -(-45 // c["TILE"]), -(-70 // c["TILE"])

    def block(c: dict[str, Any]) -> tuple[int, int]:
        return c["TILE"], c["ROWS"]

    def shared(c: dict[str, Any]) -> int:
        return 4 * c["TILE"] * (c["TILE"] + 1)

    for _ in range(4):
        if form == "brackets":
            tuned[grid, block, shared](x, y, 70, 45)
        else:
            tuned(grid, block=block, args=(x, y, 70, 45), shared_mem=shared)
        assert torch.equal(y, x.T)
        y.fill_(float("nan"))
    assert all(trial.seconds for trial in chosen(tuned).trials)
    assert chosen(tuned).kernel == "transpose<float, {TILE}>"
    assert tuned.kernel({"TILE": 16, "ROWS": 4}).signature.startswith("void transpose")


def test_block_and_shared_memory_in_the_configurations(device: str) -> None:
    x = torch.randn(64, 64, device=device)
    configs = [
        {"TILE": tile, "ROWS": 8, "block": [tile, 8], "grid": [64 // tile] * 2, "shared_mem": 4 * tile * (tile + 1)}
        for tile in (8, 32)
    ]
    tuned = rawkern.autotune(rawkern.RawKernel(TRANSPOSE, "transpose<int, {TILE}>"), configs)
    y = torch.zeros(64, 64, dtype=torch.int32, device=device)
    tuned[lambda c: c["grid"]](x.int(), y, 64, 64)
    assert torch.equal(y, x.int().T)
    assert tuned.configs[0]["block"] == (8, 8)
    other = rawkern.autotune(rawkern.RawKernel(SOURCE), {"block": [(32, 1), (64, 1)]})
    y = torch.zeros(100, device=device)
    for _ in range(3):
        other[4, 1](100, 1.0, torch.ones(100, device=device), y)  # a grid of two dimensions, and no block of 1
    assert y.tolist() == [3.0] * 100
    with pytest.raises(TypeError, match="block is in the configurations"):
        other(1, 128, (100, 1.0, y, y))
    with pytest.raises(TypeError, match="block is in the configurations"):
        other.forall(100, block=3)


def test_numbers_of_different_types_are_different(device: str) -> None:
    kernel = rawkern.RawKernel('extern "C" __global__ void half(float* y) { y[0] = SCALE / 2; }')
    tuned = rawkern.autotune(kernel, {"SCALE": [1, 1.0]}, reference=lambda y: torch.tensor([0.5]))
    y = torch.zeros(1, device=device)
    tuned[1, 1](y)
    assert y.item() == 0.5 and type(chosen(tuned).config["SCALE"]) is float
    with tuned.using({"SCALE": 1}):
        tuned[1, 1](y)
    assert y.item() == 0


def test_numpys_numbers(device: str) -> None:
    x, y, expected = inputs(device)
    tuned = tuned_saxpy("numpy", {"block": 2 ** np.arange(5, 7), "ADDED": np.zeros(1)}, key=lambda *args: np.int64(3))
    tuned.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert [type(config["block"]) for config in tuned.configs] == [int, int] and chosen(tuned).key == (3,)


def test_configurations_that_are_given_out_are_copies(device: str) -> None:
    x, y, _ = inputs(device)
    tuned = tuned_saxpy("copies of configurations", {"block": [32, 64]})
    tuned.forall(1003)(1003, 2.5, x, y)
    chosen(tuned).config["block"] = tuned.configs[0]["block"] = 7
    assert {config["block"] for config in tuned.configs} == {32, 64} and chosen(tuned).config["block"] != 7


def test_variables_of_the_module(device: str) -> None:
    """Where a configuration is compiled apart, its variables would be others than those that the user has set."""
    module = rawkern.RawModule(r"""
    __constant__ float c[1];
    #ifdef OTHER
    #define ADDED OTHER
    #else
    #define ADDED 0
    #endif
    extern "C" __global__ void k(float* y) { y[0] = c[0] + ADDED; }""")
    module.get_global("c", device).fill_(5)
    y = torch.zeros(1, device=device)
    rawkern.autotune(module.k, {"block": [32, 64]})[1](y)
    assert y.item() == 5
    with pytest.raises(ValueError, match="get_global was asked for c, and a configuration with macros"):
        rawkern.autotune(module.k, {"OTHER": [0, 1]})[1, 1](y)


def test_options_are_the_compilers(device: str) -> None:
    x, y, expected = inputs(device)
    tuned = tuned_saxpy("options", [{"options": ["-DWORK=0", "-use_fast_math"]}, {"options": [f"-DWORK={SLOW}"]}])
    tuned.forall(1003)(1003, 2.5, x, y)
    torch.testing.assert_close(y, expected)
    assert chosen(tuned).config == {"options": ("-DWORK=0", "-use_fast_math")}


def test_settings_that_cannot_work() -> None:
    kernel = rawkern.RawKernel(SOURCE)
    for configs, error, match in (
        ([], ValueError, "no configurations"),
        ({"block": []}, ValueError, "empty"),
        ({"block": 32}, TypeError, "list of all its values"),
        ([32], TypeError, "a configuration is int"),
        ([{"block": 32}, {"WORK": 1}], ValueError, "some configurations have 'block'"),
        ([{"block": 32}, {"block": 32}], ValueError, "twice"),
        ([{"2": 32}], ValueError, "name of a macro"),
        ([{"block": 1.5}], TypeError, "int or a tuple of ints"),
        ([{"WORK": None}], TypeError, "number, a bool or a string"),
        ([{"options": "-G"}], TypeError, "tuple of strings"),
        (3, TypeError, "list of dicts"),
    ):
        with pytest.raises(error, match=match):
            rawkern.autotune(kernel, configs)
    good = {"block": [32, 64]}
    for options, match in (
        ({"key": "n"}, "list of parameter names"),
        ({"key": None}, "list of parameter names"),
        ({"where": 3}, "where is 3; pass a function"),
        ({"reference": 3}, "reference is 3; pass a function"),
        ({"atol": 0.1, "reference": print}, "must be passed together"),
        ({"rtol": 0.1}, "must be passed together"),
        ({"search_options": {"max_fevals": 3}}, "search_options need search="),
    ):
        with pytest.raises(TypeError, match=match):
            rawkern.autotune(kernel, good, **options)
    with pytest.raises(ValueError, match="rtol is -1 and atol 0; pass numbers, 0 or more"):
        rawkern.autotune(kernel, good, reference=print, rtol=-1, atol=0)
    with pytest.raises(TypeError, match="a RawKernel, got str"):
        rawkern.autotune(SOURCE, good)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="dict of lists"):
        rawkern.autotune(kernel, [{"block": 32}], search="genetic_algorithm")
    with pytest.raises(ValueError, match="left"):
        rawkern.autotune(kernel, good, where=lambda c: False)
    x = torch.ones(3)
    with pytest.raises(ValueError, match="'m' is not a parameter of void saxpy"):
        rawkern.autotune(kernel, good, key=["m"]).forall(3)(3, 1.0, x, x.clone())
    with pytest.raises(TypeError, match="key of autotune has a Tensor"):
        rawkern.autotune(kernel, good, key=lambda n, a, x, y: x).forall(3)(3, 1.0, x, x.clone())
    for form in ((lambda c: 4, 128), ((4, 1), (32, 1))):
        with pytest.raises(TypeError, match=r"block is in the configurations; launch with tuned\[grid\]"):
            rawkern.autotune(kernel, good)[form]
    with pytest.raises(TypeError, match="shared_mem is in the configurations, which forall does not support"):
        rawkern.autotune(kernel, {"shared_mem": [64, 128]}).forall(3)
    templated = rawkern.autotune(rawkern.RawKernel(TRANSPOSE, "transpose<float, {TILE}>"), {"TILE": [8, 16]})
    with pytest.raises(ValueError, match="the configuration has no TILE"), templated.using({"ROWS": 3}):
        pass
    for config, match in (({}, "has no TILE"), ({"options": "-G", "TILE": 8}, "tuple of strings"), (8, "is int 8")):
        with pytest.raises((TypeError, ValueError), match=match):
            templated.kernel(config)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a launch is tuned\[grid, block\]"):
        rawkern.autotune(kernel, {"WORK": [0, 1]})[3]
    with pytest.raises(TypeError, match=r"tuned\(grid, block, \(arg, ...\)\); got tuned\(int, float, Tensor\)"):
        rawkern.autotune(kernel, {"WORK": [0, 1]})(3, 2.0, x)
    with pytest.raises(TypeError, match=r"\(arg, ...\)\); got tuned\(int, float, Tensor, Tensor\)"):
        rawkern.autotune(kernel, {"WORK": [0, 1]})(3, 2.0, x, x)


def launched(configs: Any, form: Any = lambda tuned: tuned.forall(100), source: str = SOURCE, **options: Any) -> None:
    x = torch.ones(100)
    form(rawkern.autotune(rawkern.RawKernel(source), configs, **options))(100, 1.0, x, x.clone())


@pytest.mark.parametrize(
    ("configs", "form", "message"),
    [
        ({"WROK": [0, 1]}, lambda t: t.forall(100), "nothing uses 'WROK' .*; did you mean 'WORK'"),
        ({"blok": [32, 64]}, lambda t: t[4, 32], "nothing uses 'blok' .*; did you mean 'block'"),
        ({"grid": [1, 2]}, lambda t: t[1, 128], r"this launch does not use it; launch with .*: lambda c: c\['grid'\]"),
        ({"PER": [1, 2]}, lambda t: t[lambda c: 1, 128], "nothing uses 'PER'"),
    ],
)
def test_names_that_nothing_uses(configs: Any, form: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        launched(configs, form)


@pytest.mark.parametrize(
    "grid", [lambda c: c["PER"], lambda c: {**c}["PER"], lambda c: dict(c)["PER"], lambda c: c.get("PER")]
)
def test_names_that_the_launch_alone_uses(grid: Any) -> None:
    launched({"PER": [1, 2]}, lambda tuned: tuned[grid, 128])
    launched({"grid": [1, 2]}, lambda tuned: tuned[lambda c: c["grid"], 128])


def test_names_that_headers_use(tmp_path: Path) -> None:
    (tmp_path / "own.h").write_text("#ifdef FAST\n#endif\n")
    launched({"FAST": [0, 1]}, source=f'#include "{tmp_path}/own.h"\n{SOURCE}')
    launched({"NDEBUG": [0, 1]}, source=f"#include <cuda/std/cassert>\n{SOURCE}")
    with pytest.raises(ValueError, match="nothing uses 'NDEBUGS'"):
        launched({"NDEBUGS": [0, 1]}, source=f"#include <cuda/std/cassert>\n{SOURCE}")
    joined = "#define JOIN(a, b) a##b\n#define MACRO(a, b) JOIN(a, b)\n" + SOURCE.replace("ADDED;", "MACRO(AD, D);")
    with pytest.raises(ValueError, match=r"a name that ## joins goes into options, \('-DADD=...',\)"):
        launched({"ADD": [0, 1]}, source=joined)
    launched([{"options": ("-DADD=0",)}, {"options": ("-DADD=1",)}], source=joined)


def test_names_that_functions_ask_for_in_vain() -> None:
    with pytest.raises(KeyError, match="the configuration has no 'WROK'; it has WORK; did you mean 'WORK'"):
        launched({"WORK": [0, 1]}, where=lambda c: c["WROK"] < 5)
    with pytest.raises(KeyError, match="did you mean 'WORK'"):
        launched({"WORK": [0, 1]}, lambda tuned: tuned[lambda c: c["work"], 128])
    tuned = rawkern.autotune(rawkern.RawKernel(SOURCE), {"WORK": [0, 1]})
    with pytest.raises(ValueError, match="nothing uses 'WROK'"):
        tuned.kernel({"WROK": 0})
    with pytest.raises(ValueError, match="nothing uses 'WROK'"), tuned.using({"WORK": 0, "WROK": 0}):
        pass
    with pytest.raises(ValueError, match="no configuration has 'TILE', which is in its name; they have TIEL"):
        rawkern.autotune(rawkern.RawKernel(TRANSPOSE, "transpose<float, {TILE}>"), {"TIEL": [8, 16]})
