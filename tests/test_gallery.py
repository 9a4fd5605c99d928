"""The kernels of examples/gallery beside torch: odd sizes, ties, NaN, numbers that cancel; and their pages."""

from __future__ import annotations

import importlib.util
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "examples" / "gallery").glob("*.py"))


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"gallery_{name}", ROOT / "examples" / "gallery" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _tensors_on(request: pytest.FixtureRequest):
    """Tensors are made on the device of the test, always the same ones."""
    name = request.getfixturevalue("device") if "device" in request.fixturenames else "cpu"
    with torch.device(name), torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64])
def test_transpose(dtype: torch.dtype, device: str) -> None:
    transpose = load("transpose").transpose
    for rows, columns in ((1, 1), (33, 70), (64, 32), (0, 5)):
        x = (100 * torch.rand(rows, columns)).to(dtype)
        assert torch.equal(transpose(x), x.T)


def test_scan(device: str) -> None:
    scan = load("scan").scan
    for n in (0, 1, 31, 1024, 1025, 40_007):
        x = torch.randint(-50, 50, (n,), dtype=torch.int32)
        assert torch.equal(scan(x), x.cumsum(0, dtype=torch.int32))
    x = torch.randn(5000, dtype=torch.float64)
    torch.testing.assert_close(scan(x), x.cumsum(0))


def test_scan_of_scans(device: str) -> None:
    """More than 1024 blocks: the totals of their totals are scanned."""
    x = torch.ones(1024 * 1024 + 3, dtype=torch.int32)
    assert torch.equal(load("scan").scan(x), torch.arange(1, x.numel() + 1, dtype=torch.int32))


def test_histogram(device: str) -> None:
    histogram = load("histogram").histogram
    for bins in (1, 7, 300, 12288):
        values = torch.randint(bins, (10_001,))
        x = (values + 0.5) / bins * 6 - 3  # the middles of bins: nothing depends on how an edge is rounded
        others = torch.tensor([torch.nan, -3.5, 3.5, torch.inf])
        assert torch.equal(histogram(torch.cat([x, others]), bins, -3, 3), torch.bincount(values, minlength=bins).int())
    assert histogram(torch.tensor([-3.0, 3.0]), 5, -3, 3).tolist() == [1, 0, 0, 0, 1]
    with pytest.raises(ValueError, match="bins are 1 to 12288"):
        histogram(x, 20_000, -3, 3)


def test_stencil(device: str) -> None:
    module = load("stencil")
    for shape in ((1, 1), (2, 40), (35, 70)):
        x = torch.randn(*shape)
        torch.testing.assert_close(module.heat(x, 5), module.reference(x.double(), 5).float())


def test_convolution(device: str) -> None:
    convolve = load("convolution").convolve
    for n, channels, filters, size, shape in ((1, 1, 1, 3, (1, 1)), (2, 3, 5, 3, (20, 37)), (1, 2, 4, 7, (18, 16))):
        x, w = torch.randn(n, channels, *shape), torch.randn(filters, channels, size, size)
        expected = F.conv2d(x.double(), w.double(), padding="same").float()
        torch.testing.assert_close(convolve(x, w), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="K = 1, 3, 5 or 7"):
        convolve(x, w[:, :, :2, :2])


def test_sort(device: str) -> None:
    argsort = load("sort").argsort
    special = torch.tensor([0.0, -0.0, torch.inf, torch.nan, -torch.inf, 0.0, -torch.nan, 1e-42, -1e-42])
    for x in (torch.empty(0), torch.randn(1), torch.randn(5003), torch.randint(-3, 4, (700,)).float(), special):
        # the CPU's: on a GPU torch puts a NaN with a sign first
        assert torch.equal(argsort(x).long().cpu(), x.cpu().sort(stable=True).indices)


def test_sampling(device: str) -> None:
    sample = load("sampling").sample
    logits = torch.randn(300)
    tokens = sample(logits.repeat(4000, 1), 0.7, 3)
    odds = torch.softmax(logits.double() / 0.7, 0)
    found = torch.bincount(tokens, minlength=300)
    chi2 = ((found - 4000 * odds) ** 2 / (4000 * odds))[4000 * odds > 5]
    assert chi2.sum() < chi2.numel() + 5 * (2 * chi2.numel()) ** 0.5
    several = torch.randn(9, 1001)
    assert torch.equal(sample(several, 0.0, 1), several.argmax(1))
    assert torch.equal(sample(several, 1.0, 1), sample(several, 1.0, 1))
    assert not torch.equal(sample(several, 1.0, 1), sample(several, 1.0, 1 + 2**32))
    assert sample(torch.tensor([[-5.0]]), 1.0, 1).tolist() == [0]


def test_quantized_matmul(device: str) -> None:
    module = load("quantized_matmul")
    x, w = torch.randn(37, 131), torch.randn(50, 131)
    x[3] = 0
    (qx, sx), (qw, sw) = module.quantize(x), module.quantize(w)
    torch.testing.assert_close(sx, x.abs().amax(1) / 127)
    assert qx.shape == (37, 132) and not qx[:, 131].any() and qx.abs().amax() == 127
    torch.testing.assert_close(qx[:, :131] * sx[:, None], x, rtol=0, atol=(sx.max() / 2 * 1.001).item())
    exact = (qx.double() @ qw.double().T) * sx.double()[:, None] * sw.double()
    torch.testing.assert_close(module.matmul((qx, sx), (qw, sw)), exact.float())


@pytest.mark.parametrize("neighbors", [False, True])
def test_rope(neighbors: bool, device: str) -> None:
    module = load("rope")
    q, k = torch.randn(33, 4, 20), torch.randn(33, 2, 20)
    positions = torch.randint(0, 500, (33,), dtype=torch.int32)

    def turned(x: torch.Tensor) -> torch.Tensor:
        frequency = 10000.0 ** (-torch.arange(0, 20, 2, dtype=torch.float64) / 20)
        turn = torch.polar(torch.ones(33, 1, 10, dtype=torch.float64), positions.double()[:, None, None] * frequency)
        pairs = x.double().unflatten(2, (10, 2)) if neighbors else x.double().unflatten(2, (2, 10)).transpose(2, 3)
        result = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
        return (result if neighbors else result.transpose(2, 3)).flatten(2).float()

    expected = turned(q), turned(k)
    module.rope_(q, k, positions, neighbors=neighbors)
    torch.testing.assert_close((q, k), expected, rtol=1e-4, atol=2e-4)
    with pytest.raises(ValueError, match="D is even"):
        module.rope_(q, k[:, :, :10].contiguous(), positions)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_norm(dtype: torch.dtype, device: str) -> None:
    layer_norm = load("layer_norm").layer_norm
    for n in (1, 7, 1003):
        x, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((5, n), (n,), (n,)))
        expected = F.layer_norm(x.double(), (n,), weight.double(), bias.double()).to(dtype)
        torch.testing.assert_close(layer_norm(x, weight, bias), expected)


def test_topk(device: str) -> None:
    topk = load("topk").topk
    ties = torch.randint(-4, 4, (3, 1000)).float()
    special = torch.tensor([[0.0, -0.0, torch.inf, torch.nan, -torch.inf, 2.0, 2.0]])
    for x, k in (
        (torch.randn(4, 777), 100),
        (torch.randn(2, 1), 1),
        (ties, 200),
        (special, 7),
        (torch.randn(1, 300), 300),
    ):
        values, indices = topk(x, k)
        order = x.sort(dim=1, descending=True, stable=True)
        torch.testing.assert_close(values, order.values[:, :k], rtol=0, atol=0, equal_nan=True)
        assert torch.equal(indices, order.indices[:, :k])
    with pytest.raises(ValueError, match="it is 1 to 7 for rows of 7"):
        topk(special, 8)


def test_sparse(device: str) -> None:
    multiply = load("sparse").multiply
    dense = torch.randn(77, 130) * (torch.rand(77, 130) < 0.2)
    dense[5] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's CSR tensors are in beta
        sparse = dense.to_sparse_csr()
    for x in (torch.randn(130), torch.randn(130, 1), torch.randn(130, 70)):
        expected = (dense.double() @ x.double()).float()
        torch.testing.assert_close(multiply(sparse, x), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="x has 77 rows"):
        multiply(sparse, torch.randn(77))


def test_every_kernel_has_a_page_a_picture_and_a_test() -> None:
    tests, index = Path(__file__).read_text(), (ROOT / "docs" / "gallery" / "index.md").read_text()
    pages = {page.stem for page in (ROOT / "docs" / "gallery").glob("*.md")} - {"index", "programs"}
    assert pages == {file.stem for file in FILES}
    reference = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    for file in FILES:
        page = (ROOT / "docs" / "gallery" / f"{file.stem}.md").read_text()
        assert f"```{{literalinclude}} ../../examples/gallery/{file.name}\n" in page
        assert f"(../images/gallery/{file.stem}.svg)" in page
        assert (ROOT / "docs" / "images" / "gallery" / f"{file.stem}.svg").is_file()
        assert f"({file.stem}.md)" in index and f"(../gallery/{file.stem}.md)" in reference
        assert f'load("{file.stem}")' in tests


def test_every_example_is_shown() -> None:
    shown = re.findall(
        r"literalinclude\} ../../examples/(\w+\.py)\n", (ROOT / "docs" / "gallery" / "programs.md").read_text()
    )
    assert sorted(shown) == sorted(file.name for file in (ROOT / "examples").glob("*.py"))
