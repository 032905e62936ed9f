"""Checks that kernels that were compiled ahead are not compiled again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hopstream.kernels

LOADING = """
import sys
from pathlib import Path

from hopstream.cli import warm

warm._write_datasets(Path(sys.argv[1]))
warm._load(Path(sys.argv[1]))
warm._serve(Path(sys.argv[1]))
"""


def kernels() -> set[str]:
    """``file.function`` of every kernel."""
    files = Path(hopstream.kernels.__file__).parent.glob("*.py")
    names = {file.stem: re.findall(r"^@kernel\ndef (\w+)", file.read_text(), re.MULTILINE) for file in files}
    return {f"{stem}.{name}" for stem, of_file in names.items() for name in of_file}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_compiled_after_it(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def run(*arguments: str) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=500
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    out, err = run("-m", "hopstream.cli", "warm", "--json")
    assert json.loads(out)["folder"] == str(tmp_path / "cache" / "kernels") and "compiling kernels" in err
    compiled = {path.name.partition("-")[0] for path in (tmp_path / "cache").rglob("*.nbi")}
    assert kernels() <= compiled, "a kernel that no step of warm calls"
    (tmp_path / "data").mkdir()
    assert run("-c", LOADING, str(tmp_path / "data")) == ("", "")
