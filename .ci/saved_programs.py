"""Programs with the operator of examples/package: ``save FOLDER`` in one process, ``load FOLDER`` in another."""

import sys
from pathlib import Path

import torch


class Twice(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(31, 31)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from snake_activation import snake

        return snake(snake(self.linear(x), 0.5), 2.0)


def save(folder: Path) -> None:
    model, x = Twice().eval(), torch.randn(7, 31)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows", min=2, max=64)},))
    torch.save((x, model(x).detach()), folder / "data.pt")
    torch.export.save(program, folder / "exported.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "compiled.pt2"))


def refused(load: object, file: Path, words: str) -> None:
    try:
        load(str(file))
    except RuntimeError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"{file.name} was loaded without its operator")


def load(folder: Path) -> None:
    exported, compiled = folder / "exported.pt2", folder / "compiled.pt2"
    refused(torch.export.load, exported, "deserializing")
    refused(torch._inductor.aoti_load_package, compiled, "Could not find schema for snake_activation::snake")
    import snake_activation  # noqa: F401

    x, expected = torch.load(folder / "data.pt")
    program = torch.export.load(str(exported)).module()
    for run in (program, torch._inductor.aoti_load_package(str(compiled))):
        torch.testing.assert_close(run(x), expected)
        torch.testing.assert_close(run(torch.cat([x, x]))[7:], expected)
    given = x.clone().requires_grad_()
    program(given).sum().backward()
    assert given.grad is not None and given.grad.abs().sum() > 0
    print("saved programs: exported and compiled ones run, and need the import")


if __name__ == "__main__":
    {"save": save, "load": load}[sys.argv[1]](Path(sys.argv[2]))
