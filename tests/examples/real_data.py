"""Find the data that examples are made for, and run examples.

Data that may not be shipped lie in the folder that the environment variable ``HOPSTREAM_DATA`` names, one folder per
data set. Tests skip if their data are missing.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "HOPSTREAM_DATA"
EXAMPLES = Path(__file__).parents[2] / "examples"
RUN_S, STOP_S = 110.0, 40.0
LONG_RUN_S = 240.0
"""Timeout for scripts that start many processes; each process loads its libraries."""


def real_data(name: str) -> Path:
    """The folder of one data set, or the test is skipped."""
    folder = os.environ.get(VARIABLE)
    if not folder or not (Path(folder) / name).is_dir():
        pytest.skip(f"{VARIABLE} names no folder that holds {name}")
    return Path(folder) / name


def run_script(name: str, *arguments: object, limit_s: float = RUN_S) -> tuple[int, str]:
    """Run an example as a user would; return its exit status and its stdout followed by its stderr."""
    words = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as process:
        try:
            shown, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # the script ends its servers
            shown, errors = process.communicate(timeout=STOP_S)
            pytest.fail(f"{name} took more than {limit_s:g} s\n{shown}\n{errors}")
    return process.returncode, shown + errors


def run_here(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, str]:
    """Run an example in this process and return its status and output.

    It reads the files that it writes, in place of servers.
    """
    functions = functions_of(name, monkeypatch)
    monkeypatch.setitem(functions, "served", nullcontext)
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    status = functions["main"]()
    return status, capsys.readouterr().out


def functions_of(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The functions of an example, by name, without running it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location(name.removesuffix(".py"), EXAMPLES / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # PyG looks for the module of a layer there
    spec.loader.exec_module(module)
    return vars(module)
