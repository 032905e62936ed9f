"""Do the benchmarks still run, and is what they write what was measured?"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import run, table
from benchmarks.harness import Options, repeat, run_case

SMALL = {"scale": 9, "num_batches": 2, "num_repeats": 1, "num_threads": 1}


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    """A data folder with small datasets."""
    options = Options(data=tmp_path_factory.mktemp("benchmarks"), **SMALL)
    run_case(["-m", "benchmarks.prepare", *options.to_arguments()], timeout_s=100)
    return options


@pytest.mark.parametrize("name", ["partition", "sampling", "gather", "loader", "loader-2-threads", "two_trainers"])
def test_every_case_runs_and_reports_positive_figures(options: Options, name: str):
    plan = next(plan for plan in run.plan_cases(options, []) if plan.name == name)
    record = run_case(plan.arguments, python=plan.python, timeout_s=100)
    assert record["settings"]["scale"] == 9
    assert record["peak_rss_bytes"] > 1e7
    assert 0 <= record["others_share"] <= 1.1
    assert all(value > 0 for value in record["figures"].values())
    probe = {"independent_read_ns": 4.0, "memcpy_gb_per_s": 20.0}
    share = run.share_of_limit(name, record["figures"], [probe])
    assert share is None if name == "partition" else 0 < share < 1
    shown = [show for case, _, show in table.ROWS if case == name]
    assert all(any(c.isdigit() for c in show(record["figures"])) for show in shown)


def test_the_data_are_prepared_before_anything_is_measured(options: Options):
    assert next(plan.name for plan in run.plan_cases(options, [])) == "prepare"


def test_a_failing_case_says_what_it_said(tmp_path: Path):
    with pytest.raises(RuntimeError, match=r"(?s)failed with 1:.*is missing"):
        run_case(["-m", "benchmarks.sampling", "--scale=3", f"--data={tmp_path}"], timeout_s=100)


def test_the_quietest_attempt_counts(monkeypatch: pytest.MonkeyPatch):
    shares = iter([0.5, 0.2, 0.3, 0.01])
    monkeypatch.setattr(run, "run_case", lambda *_, **__: {"figures": {}, "others_share": next(shares)})
    assert run._run(run.Plan("case", ()), 3)["others_share"] == 0.2
    assert run._run(run.Plan("case", ()), 3)["others_share"] == 0.01
    assert next(shares, None) is None


def test_repeat_warms_up_and_counts():
    calls = []
    timing = repeat(lambda: calls.append(1), 5, num_warmups=2)
    assert len(calls) == 7
    assert len(timing.seconds) == 5
    assert timing.min_s <= timing.median_s


@pytest.mark.parametrize("peer", ["graphbolt=/nowhere/python", "other=/bin/sh", "graphbolt"])
def test_an_unknown_peer_is_refused(options: Options, peer: str):
    with pytest.raises(SystemExit, match="give NAME=PYTHON, NAME out of graphbolt"):
        run.plan_cases(options, [peer])


def test_the_table_goes_between_its_markers(tmp_path: Path):
    machine = {"num_cores": 2, "cpu": "a core", "memory_gib": 4.0, "commit": "abc"}
    probe = {"dependent_read_ns": 100.0, "independent_read_ns": 4.0, "memcpy_gb_per_s": 20.0}
    figures = {"ms_per_batch": 3.14, "edges_per_s": 5e7, "share_of_limit": 0.25}
    case = {"figures": figures, "peak_rss_bytes": 2**30, "others_share": 0.02}
    result = {
        "machine": machine, "probes": [probe, probe], "made_at": "2030-01-02 03:04", "scale": 21,
        "cases": {"sampling": case},
    }  # fmt: skip
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.write_table(result, readme)
    text = readme.read_text()
    assert text.startswith(f"before\n{table.BEGIN}\n| what |")
    assert text.endswith(f"\n{table.END}\nafter\n")
    assert "| sample and relabel, 1 thread | 3.1 ms per batch, 50 M edges/s | 25% | 1.0 GiB |" in text
    assert "old" not in text
    readme.write_text(f"{table.END}\n{table.BEGIN}\n")
    with pytest.raises(ValueError, match="in this order and once each"):
        table.write_table(result, readme)


def test_the_readme_has_the_markers():
    text = (Path(__file__).parents[2] / "README.md").read_text()
    assert text.index(table.BEGIN) < text.index(table.END)


@pytest.mark.parametrize(
    ("value", "shown"), [(3.14159, "3.14"), (81263.6, "81.3 k"), (5.4e7, "54 M"), (2.5e9, "2.5 G")]
)
def test_figures_are_short(value: float, shown: str):
    assert run.show(value) == shown
