"""Checks of the package as a user installs it: wheel, source distribution, types, version."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
LIMIT_S = 600
USE = """
import numpy as np, hopstream
assert hopstream.__file__.startswith(PREFIX), hopstream.__file__
rng = np.random.default_rng(0)
graph = hopstream.graph_from_arrays(rng.integers(0, 50, (2, 300)), num_nodes=50, node_features={"x": np.eye(50)})
hopstream.write_parts(graph, "parts", num_parts=2, method="kaminpar")
with hopstream.NeighborLoader("parts", [3], batch_size=10, collate="numpy") as loader:
    assert [batch.node_keys["node"][:10].tolist() for batch in loader][4] == list(range(40, 50))
print(hopstream.__version__)
"""


def run(*words: str | Path, cwd: Path) -> str:
    """Standard output of a program that must succeed."""
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, f"{words}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def contents_of(wheel: Path) -> dict[str, bytes]:
    """Files of a wheel, without the list of their checksums."""
    with zipfile.ZipFile(wheel) as files:
        return {name: files.read(name) for name in files.namelist() if not name.endswith("RECORD")}


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_wheel_and_sdist_install_in_a_clean_environment(tmp_path: Path):
    source = tmp_path / "clone"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*_cache", ".venv", ".cache", "__pycache__", "_build"))
    run(sys.executable, "-m", "build", "--outdir", tmp_path / "dist", ".", cwd=source)  # the wheel from the sdist
    (wheel,) = (tmp_path / "dist").glob("hopstream-*-py3-none-any.whl")
    (sdist,) = (tmp_path / "dist").glob("hopstream-*.tar.gz")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path / "straight", ".", cwd=source)
    assert contents_of(wheel) == contents_of(next((tmp_path / "straight").glob("*.whl")))
    packed = contents_of(wheel)
    assert {"hopstream/py.typed", "hopstream/__init__.pyi"} <= set(packed)
    wanted = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert wanted == {name for name in packed if name.startswith("hopstream/")}
    with tarfile.open(sdist) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {"README.md", "LICENSE", "constraints.txt", "tests/conftest.py", "docs/index.md"} <= names

    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python, command = home / "bin/python", home / "bin/hopstream"
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel, cwd=tmp_path)
    used = run(python, "-c", USE.replace("PREFIX", repr(str(home))), cwd=tmp_path)
    version = wheel.name.split("-")[1]
    assert used.strip() == version
    assert run(command, "--version", cwd=tmp_path) == f"hopstream {version}\n"
    assert "parts" in run(command, "inspect", "parts", cwd=tmp_path)


@pytest.mark.slow
def test_the_version_is_that_of_the_tag(tmp_path: Path):
    for name in ("pyproject.toml", "README.md", "LICENSE", "src/hopstream/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")
    run(*git, "init", "-q", cwd=tmp_path)
    run(*git, "add", ".", cwd=tmp_path)
    run(*git, "commit", "-qm", "one", cwd=tmp_path)
    run(*git, "tag", "v7.8.9", cwd=tmp_path)
    run(sys.executable, "-m", "build", "--wheel", ".", cwd=tmp_path)
    assert [path.name for path in (tmp_path / "dist").iterdir()] == ["hopstream-7.8.9-py3-none-any.whl"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "checker",
    [
        ("mypy", "--strict", "--cache-dir=/dev/null"),
        ("basedpyright", "--level", "error", "--pythonpath", sys.executable),
    ],
    ids=["mypy", "pyright"],
)
def test_a_users_script_passes_a_type_checker(checker: tuple[str, ...], tmp_path: Path):
    script = tmp_path / "user_script.py"
    text = (HERE / "user_script.py").read_text()
    script.write_text(text)
    # "strict" is pyright's own mode; basedpyright's additions judge style.
    (tmp_path / "pyproject.toml").write_text('[tool.pyright]\ntypeCheckingMode = "strict"\n')
    words = (sys.executable, "-m", *checker)
    run(*words, script.name, cwd=tmp_path)
    script.write_text(text.replace("num_nodes=3", "num_nodes='3'"))
    wrong = subprocess.run([*words, script.name], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert wrong.returncode == 1 and "num_nodes" in wrong.stdout
