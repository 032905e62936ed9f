"""Checks that ``import hopstream`` stays cheap, and that every public name loads."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import hopstream
from tests.docs.test_code_blocks import read_blocks

ROOT = Path(__file__).parents[1]
PUBLIC = (
    "hopstream",
    *(f"hopstream.{name}" for name in ("dataset", "export", "graph", "load", "sample", "serve", "tfgnn")),
)
ALSO_PUBLIC = ("hopstream.errors",)
DEVELOPERS = ("architecture.md", "wire-protocol.md")
"""Pages that show internal modules."""
PAGES = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in DEVELOPERS),
    *sorted((ROOT / "docs/reference").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.py")),
]

LATE = ("torch_geometric", "pytorch_lightning", "lightning")
"""Libraries that batches of PyG import, and those that these import if installed."""


def run_python(code: str) -> str:
    """Output of a fresh interpreter that runs the code."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_loads(module: str):
    package = importlib.import_module(module)
    assert package.__all__ == sorted(set(package.__all__))
    assert set(package.__all__) < set(dir(package))
    folder = Path(package.__file__).parent
    for name in package.__all__:
        value = getattr(package, name)
        assert value is not None
        # A module of the package with this name would take the name's place when it is imported.
        assert inspect.ismodule(value) or not ((folder / f"{name}.py").exists() or (folder / name).exists())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_and_examples_import_public_names_only(path: Path):
    text = path.read_text()
    sources = [text] if path.suffix == ".py" else [one.text for one in read_blocks(text) if one.language == "python"]
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.Import):
            used = {alias.name for alias in node.names if alias.name.partition(".")[0] == "hopstream"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "hopstream":
            used = {node.module}
            if node.module in PUBLIC:
                known = {*importlib.import_module(node.module).__all__, "__version__"}
                unknown = {alias.name for alias in node.names} - known
                assert not unknown, f"{node.module} has no public {unknown}"
        else:
            continue
        for module in used:
            assert module in (*PUBLIC, *ALSO_PUBLIC) or module.startswith("hopstream.compat."), module


def test_an_unknown_name_is_an_attribute_error_that_lists_the_known_ones():
    with pytest.raises(AttributeError, match="no attribute 'NeighbourLoader'; did you mean 'NeighborLoader'"):
        hopstream.NeighbourLoader  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'x'; it has .*Graph, .*NeighborLoader"):
        hopstream.x  # noqa: B018


def test_import_brings_in_no_heavy_library():
    heavy = ("torch", *LATE, "numba", "pyarrow", "kaminpar", "pymetis", "typer", "rich")
    loaded = run_python(f"import sys, hopstream; print([m for m in {heavy} if m in sys.modules])")
    assert loaded == "[]"


def test_code_without_pyg_batches_does_not_import_pyg(tmp_path: Path):
    """The import of PyG takes seconds, and longer with Lightning; batches of arrays do not need it."""
    code = f"""
import sys
import numpy as np
import hopstream
import hopstream.compat.pyg
from hopstream import LinkNeighborLoader
from hopstream.compat.pyg import DistContext, global_barrier, init_rpc, shutdown_rpc

pairs = np.array([[0, 1, 2], [1, 2, 0]])
graph = hopstream.graph_from_arrays(pairs, num_nodes=3)
hopstream.write_parts(graph, {str(tmp_path / "parts")!r}, num_parts=1, method="hash")
with hopstream.NeighborLoader({str(tmp_path / "parts")!r}, [-1], batch_size=2, collate="numpy") as loader:
    batches = list(loader)
print(len(batches), [m for m in {LATE} if m in sys.modules])
"""
    assert run_python(code) == "2 []"


def test_import_takes_less_than_a_third_of_a_second():
    code = "import time; t = time.perf_counter(); import hopstream; print(time.perf_counter() - t)"
    assert min(float(run_python(code)) for _ in range(3)) < 0.3


def test_core_modules_do_not_need_torch():
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['torch_geometric'] = None\n"
        "import hopstream, hopstream.graph.graph, hopstream.dataset.book, hopstream.store.contract\n"
        "print(hopstream.Graph.__name__)"
    )
    assert run_python(code) == "Graph"


def test_only_the_beam_transform_of_export_needs_beam():
    code = """
import sys; sys.modules["apache_beam"] = None
import hopstream.export
from hopstream.errors import MissingDependencyError
missing = []
for name in hopstream.export.__all__:
    try:
        getattr(hopstream.export, name)
    except MissingDependencyError:
        missing.append(name)
print(missing)
"""
    assert run_python(code) == "['SampleSubgraphs']"
