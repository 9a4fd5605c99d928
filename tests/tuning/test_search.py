"""Searches by Kernel Tuner's strategies: what they are told, and what they leave as it was."""

from __future__ import annotations

import random
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import rawkern
from rawkern.tuning import search
from rawkern.tuning.record import Trial

SPACE = {
    "block": [(32, 1), (32, 2), (32, 4), (32, 8)],
    "TILE": [1, 2, 4, 8, 16, 32],
    "UNROLL": [1, 2, 3, 4],
    "T": ["float", "double"],
}


def where(config: dict[str, Any]) -> bool:
    return config["TILE"] * config["block"][1] <= 64


def seconds(config: dict[str, Any]) -> float:
    """Least, 20 us, at one point that is not on the border."""
    return 1e-5 * (
        1 + abs(config["TILE"] - 8) + abs(config["block"][1] - 4) + config["UNROLL"] + (config["T"] == "double")
    )


def found(strategy: Any, **options: Any) -> list[dict[str, Any]]:
    """Search, and return the configurations that were measured, in their order."""
    seen: list[dict[str, Any]] = []

    def measure(config: dict[str, Any]) -> Trial:
        assert where(config)
        seen.append(config)
        return Trial(config, None, "three is odd") if config["UNROLL"] == 3 else Trial(config, seconds(config))

    search.run(strategy, options, SPACE, where, measure)
    return seen


@pytest.fixture
def kernel_tuner() -> None:
    pytest.importorskip("kernel_tuner", reason="Kernel Tuner (extra tune) is not installed")


@pytest.mark.usefixtures("kernel_tuner")
class TestStrategies:
    @pytest.mark.parametrize(
        "strategy", ["random_sample", "genetic_algorithm", "greedy_ils", "pso", "simulated_annealing", "bayes_opt"]
    )
    def test_strategies_stay_in_their_budget(self, strategy: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # their divisions by the cost of what failed
            tried = found(strategy, max_fevals=30)
        assert 5 <= len(tried) <= 30
        assert min(map(seconds, tried)) < 8e-5  # the median of all is above 1e-4

    def test_all_are_tried_by_brute_force(self) -> None:
        tried = found("brute_force")
        assert len(tried) == len({tuple(sorted(config.items())) for config in tried}) == 168
        assert min(map(seconds, tried)) == 2e-5

    def test_a_function_is_a_strategy(self) -> None:
        def three(cost: Any, space: Any) -> None:
            for point in space.sorted_list()[:3]:
                cost(point)

        assert len(found(three)) == 3

    def test_random_numbers_of_the_program_stay(self) -> None:
        random.seed(3)
        np.random.seed(3)
        expected = random.Random(3).random(), np.random.RandomState(3).rand()
        first, second = found("random_sample", max_fevals=10), found("random_sample", max_fevals=10)
        assert first == second
        assert (random.random(), np.random.rand()) == expected

    def test_wrong_settings(self) -> None:
        with pytest.raises(ValueError, match=r"no search 'genetic'; it has brute_force, random_sample"):
            found("genetic")
        with pytest.raises(ValueError, match="popsise"):
            found("genetic_algorithm", popsise=3)

    def test_strategies_with_needs_of_their_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "skopt", None)
        monkeypatch.delitem(sys.modules, "kernel_tuner.strategies.skopt", raising=False)
        with pytest.raises(rawkern.MissingDependencyError, match="skopt"):
            found("skopt", max_fevals=10)

    def test_autotune(self, device: str) -> None:
        """The strategy's times are those of launches on the device; what fails there is not chosen."""
        kernel = rawkern.RawKernel(r"""
        extern "C" __global__ void add(int n, const float* x, float* y) {
            int i = (blockIdx.x * blockDim.x + threadIdx.x) * V;
            for (int j = 0; j < V; j++) if (i + j < n) y[i + j] += x[i + j] + (V == 3);
        }""")
        tuned = rawkern.autotune(
            kernel,
            {"block": [32, 64, 128, 2048], "V": [1, 2, 3, 4, 8]},
            where=lambda c: c["V"] < 8,
            reference=lambda n, x, y: y + x,
            search="greedy_mls",
            search_options={"max_fevals": 12},
        )
        x, y = torch.randn(1003, device=device), torch.randn(1003, device=device)
        expected = y + x
        tuned.forall(lambda c: -(-1003 // c["V"]))(1003, x, y)
        torch.testing.assert_close(y, expected)
        (tuning,) = tuned.tunings
        assert 2 <= len(tuning.trials) <= 12 and tuning.config["V"] in (1, 2, 4)
        assert all(trial.config["V"] < 8 for trial in tuning.trials)
        assert all(trial.reason for trial in tuning.trials if trial.config["V"] == 3 or trial.config["block"] == 2048)


def test_without_kernel_tuner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kernel_tuner", None)
    with pytest.raises(rawkern.MissingDependencyError, match=r"pip install .*\[tune\]"):
        found("genetic_algorithm")
