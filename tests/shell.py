"""IPython's shell in this process, for tests of what notebooks run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def make_shell(folder: Path) -> Any:
    """A new shell without history and colors, whose files are in the folder; the one that there was is forgotten."""
    pytest.importorskip("IPython", reason="notebooks are IPython's")
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    InteractiveShell.clear_instance()
    config = Config({"HistoryManager": {"enabled": False}})
    return InteractiveShell.instance(colors="nocolor", ipython_dir=str(folder), config=config)
