"""Does ``import hopstream`` stay cheap, and does every public name lead somewhere?"""

from __future__ import annotations

import subprocess
import sys

import pytest

import hopstream


def run_python(code: str) -> str:
    """What a fresh interpreter prints when it runs the code."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_names_are_sorted_and_listed_once():
    assert hopstream.__all__ == sorted(set(hopstream.__all__))
    assert set(hopstream.__all__) == set(hopstream._MODULE_OF)
    assert set(hopstream.__all__) < set(dir(hopstream))


@pytest.mark.parametrize("name", hopstream.__all__)
def test_every_name_leads_somewhere(name: str):
    value = getattr(hopstream, name)
    assert value.__name__ == name
    assert value.__doc__


def test_an_unknown_name_is_an_attribute_error_that_lists_the_known_ones():
    with pytest.raises(AttributeError, match=r"no attribute 'NeighbourLoader'; it has .*Graph, .*NeighborLoader"):
        hopstream.NeighbourLoader  # noqa: B018


def test_import_brings_in_no_heavy_library():
    heavy = ("torch", "torch_geometric", "numba", "pyarrow", "kaminpar", "pymetis", "typer", "rich")
    loaded = run_python(f"import sys, hopstream; print([m for m in {heavy} if m in sys.modules])")
    assert loaded == "[]"


def test_import_takes_less_than_a_third_of_a_second():
    code = "import time; t = time.perf_counter(); import hopstream; print(time.perf_counter() - t)"
    assert min(float(run_python(code)) for _ in range(3)) < 0.3


def test_only_the_doors_need_torch():
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['torch_geometric'] = None\n"
        "import hopstream, hopstream.graph.graph, hopstream.partition.book, hopstream.store.contract\n"
        "print(hopstream.Graph.__name__)"
    )
    assert run_python(code) == "Graph"
