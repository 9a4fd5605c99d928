"""``--rawkern-order`` and ``--rawkern-arch`` in test runs of their own."""

from __future__ import annotations

import os

import pytest

from rawkern.engines.cpu.runtime import order as orders
from rawkern.launch import modes
from tests.testing.test_plugin import _all_is_imported as _all_is_imported  # a fixture
from tests.testing.test_plugin import run

ORDERED = """
import os, unittest, pytest, torch, rawkern
from rawkern.engines.cpu.runtime import order as orders

kernel = rawkern.RawKernel('''
extern "C" __global__ void k(const float* x, float* y, int forgets) {
    __shared__ float s[96];
    s[threadIdx.x] = x[threadIdx.x];
    if (!forgets) __syncthreads();
    if (threadIdx.x >= 64) y[threadIdx.x] = s[threadIdx.x - 64] + s[threadIdx.x - 32];
}''')
RUNS = []

def total(forgets):
    RUNS.append(orders.seed.current)
    x, y = torch.ones(96), torch.zeros(96)
    kernel[1, 96](x, y, forgets)
    return y.sum().item()

@pytest.mark.parametrize("times", [1, 2])
def test_right(times):
    assert [total(0) for _ in range(times)] == [64] * times
    assert os.environ["RAWKERN_ORDER"] == str(orders.seed.current)

def test_forgets():
    assert total(1) == 64

class TestOfUnittest(unittest.TestCase):
    def test_once(self):
        assert orders.seed.current == 0 and total(0) == 64

def test_of_a_fixture(device):
    assert total(0) == 64
"""


def test_each_test_under_each_order(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ORDERED)
    before = os.environ.get(modes.ORDER), orders.seed.current
    result = run(pytester, "--rawkern-order=0, 3,0", "--rawkern-device=cpu")
    assert (os.environ.get(modes.ORDER), orders.seed.current) == before
    out = str(result.stdout)
    lines = [line.split("::", 1)[1].split() for line in out.splitlines() if line.startswith("test_") and "::" in line]
    said = {name: how for name, how, *_ in lines}
    assert said == {
        "test_right[1-order0]": "PASSED", "test_right[1-order3]": "PASSED",
        "test_right[2-order0]": "PASSED", "test_right[2-order3]": "PASSED",
        "test_forgets[order0]": "FAILED", "test_forgets[order3]": "FAILED",
        "TestOfUnittest::test_once": "PASSED",
        "test_of_a_fixture[cpu-order0]": "PASSED", "test_of_a_fixture[cpu-order3]": "PASSED",
    }  # fmt: skip
    assert "rawkern: on cpu; in the order of 0, 3,0" in out


def test_without_an_order_nothing_shows(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        ORDERED.replace("orders.seed.current == 0 and", "").replace('    assert os.environ["RAW', "    #")
    )
    run(pytester).assert_outcomes(passed=5, skipped=1)


def test_a_gpus_limits_for_a_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import os, pytest, torch, rawkern
        def test_limit():
            kernel = rawkern.RawKernel('extern "C" __global__ void k(int* x) { x[threadIdx.x] = 1; }')
            kernel[1, 32, 64 * 1024](torch.zeros(32, dtype=torch.int32))
            with pytest.raises(ValueError, match="on sm_75 is 65536 bytes"):
                kernel[1, 32, 64 * 1024 + 1](torch.zeros(32, dtype=torch.int32))
            assert os.environ["RAWKERN_ARCH"] == "sm_75"
    """)
    before = os.environ.get(modes.ARCHITECTURE), modes.current()
    result = run(pytester, "--rawkern-arch=sm_75")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["rawkern: with the limits of sm_75"])
    assert (os.environ.get(modes.ARCHITECTURE), modes.current()) == before


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--rawkern-order=1,x", "--rawkern-order=1,x: pass seeds of 0 or more, such as 0,1,7"),
        ("--rawkern-order=", "--rawkern-order=: pass seeds"),
        ("--rawkern-order=-1", "--rawkern-order=-1: pass seeds"),
        ("--rawkern-arch=sm_1", "--rawkern-arch=sm_1: unknown GPU; choose one of sm_70, "),
    ],
)
def test_options_that_mean_nothing(pytester: pytest.Pytester, option: str, why: str) -> None:
    result = run(pytester, option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert why in "\n".join(result.errlines)
