"""Checks that the benchmarks run and report what they measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import run, sheet, table
from benchmarks.harness import ROOT, Options, Turns, repeat, run_case, take_turns
from benchmarks.limits import LIMITS
from benchmarks.prepare import is_prepared

SMALL = {"scale": 9, "num_batches": 2, "num_repeats": 1, "num_threads": 1}


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    """A data folder with small datasets."""
    options = Options(data=tmp_path_factory.mktemp("benchmarks"), **SMALL)
    run_case(["-m", "benchmarks.prepare", *options.to_arguments()], timeout_s=100)
    return options


LIMITED = ["sampling", "gather", "loader", "loader-2-threads", "two_trainers"]
OTHERS = ["partition", "wire", "streaming", "modes", "links", "walks", "ppr", "export"]


@pytest.mark.bench
@pytest.mark.parametrize("name", [*LIMITED, *OTHERS])
def test_every_case_runs_and_reports_positive_figures(options: Options, name: str):
    plan = next(plan for plan in run.plan_cases(options, []) if plan.name == name)
    record = run_case(plan.arguments, python=plan.python, timeout_s=100)
    assert record["settings"]["scale"] == 9
    assert record["peak_rss_bytes"] > 1e7
    assert 0 <= record["others_share"] <= 1.1
    assert all(value > 0 for value in record["figures"].values())
    probe = {"independent_read_ns": 4.0, "memcpy_gb_per_s": 20.0}
    share = run.share_of_limit(name, record["figures"], [probe])
    assert 0 < share < 1 if name in LIMITED else share is None
    shown = [show for case, _, show in table.ROWS if case == name]
    assert all(any(c.isdigit() for c in show(record["figures"])) for show in shown)
    ways = [way for way in table.WAYS if way[0] == name]
    lines = table.make_ways_table({"cases": {name: record}}).partition("\n\n")[0].splitlines()
    assert len(lines) == 2 + len(ways)
    assert all(f"{unit.replace('_', ' ')}/s" in line for line, (*_, unit) in zip(lines[2:], ways, strict=True))
    assert all(any(way[1] == limited for way in table.WAYS) for limited in LIMITS)


@pytest.mark.bench
@pytest.mark.parametrize("num_warmups", [0, 3])
def test_a_cache_for_all_rows_reaches_the_optimum(options: Options, num_warmups: int):
    words = ["-m", "benchmarks.two_trainers", "--cache=0.5", "--optimum", f"--warmups={num_warmups}"]
    figures = run_case([*words, *options.to_arguments()], timeout_s=100)["figures"]
    assert 0 < figures["saved_rows"] == figures["best_saved_rows"] <= 1


def test_the_data_are_prepared_before_anything_is_measured(options: Options):
    assert next(plan.name for plan in run.plan_cases(options, [])) == "prepare"
    assert is_prepared(options)
    assert not is_prepared(replace(options, scale=8))


def test_error_of_a_failed_case_includes_its_output(tmp_path: Path):
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
    with pytest.raises(SystemExit, match="give NAME=PYTHON, NAME out of graphbolt, graphlearn"):
        run.plan_cases(options, [peer])


def test_ways_take_turns_and_slow_ones_do_less(options: Options):
    calls: list[tuple[str, int]] = []

    def work(name: str):
        return lambda i: (calls.append((name, i)), (10, 2))[1]

    turns = take_turns({"fast": work("fast"), "slow": work("slow")}, options, {"slow": 1})
    once = [("fast", 0), ("fast", 1), ("slow", 0)]
    assert calls == once * (1 + options.num_repeats)
    assert (turns["fast"].num_edges, turns["fast"].num_units, turns["fast"].num_batches) == (20, 4, 2)
    assert (turns["slow"].num_edges, turns["slow"].num_units, turns["slow"].num_batches) == (10, 2, 1)


def test_ratios_are_those_of_neighbouring_turns():
    plain = Turns(seconds=(1.0, 10.0, 1.0), num_edges=100, num_units=50, num_batches=1)
    other = Turns(seconds=(3.0, 30.0, 9.0), num_edges=200, num_units=100, num_batches=1)
    assert other.ratio_to(plain) == 1.5
    assert other.edges_per_s == 200 / 9
    assert plain.units_per_s == 50


def test_tables_go_between_their_markers(tmp_path: Path):
    machine = {"num_cores": 2, "cpu": "a core", "memory_gib": 4.0, "commit": "abc"}
    probe = {"dependent_read_ns": 100.0, "independent_read_ns": 4.0, "memcpy_gb_per_s": 20.0}
    figures = {"ms_per_batch": 3.14, "edges_per_s": 5e7, "share_of_limit": 0.25}
    case = {"figures": figures, "peak_rss_bytes": 2**30, "others_share": 0.02}
    ways = {f"{name}_edges_per_s": 3.14e7 for which, name, *_ in table.WAYS if which == "modes"}
    ways |= {"disjoint_ratio": 1.234, "labor_ratio": 20.5}
    ppr = {"default_seeds_per_s": 2345.0}
    result = {
        "machine": machine, "probes": [probe, probe], "made_at": "2030-01-02 03:04", "scale": 21,
        "cases": {"sampling": case, "modes": {**case, "figures": ways}, "ppr": {**case, "figures": ppr}},
    }  # fmt: skip
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n{table.WAYS_BEGIN}\n{table.WAYS_END}\nend\n")
    table.write_tables(result, readme)
    text = readme.read_text()
    assert text.startswith(f"before\n{table.BEGIN}\n| what |")
    assert f"\n{table.END}\nafter\n{table.WAYS_BEGIN}\n| way to sample |" in text
    assert text.endswith(f"\n{table.WAYS_END}\nend\n")
    assert "| sample and relabel, 1 thread | 3.1 ms per batch, 50 M edges/s | 25% | 1.0 GiB |" in text
    assert "| uniform, without replacement | 31 M edges/s |  |  |" in text
    assert "| disjoint trees | 31 M edges/s | 1.23 | at most 2 |" in text
    assert "| `labor` | 31 M edges/s | 20.50 |  |" in text
    assert "| neighbourhoods by personalised PageRank | 2.3 k seeds/s |  |  |" in text
    assert "old" not in text
    readme.write_text(f"{table.END}\n{table.BEGIN}\n")
    with pytest.raises(ValueError, match="in this order and once each"):
        table.write_tables(result, readme)


def test_the_readme_has_the_markers():
    text = (Path(__file__).parents[2] / "README.md").read_text()
    places = [text.index(marker) for marker in (table.BEGIN, table.END, table.WAYS_BEGIN, table.WAYS_END)]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("value", "shown"), [(3.14159, "3.14"), (81263.6, "81.3 k"), (5.4e7, "54 M"), (2.5e9, "2.5 G")]
)
def test_figures_are_short(value: float, shown: str):
    assert run.show(value) == shown


@pytest.mark.bench
def test_a_sheet_compares_every_figure_of_a_case_with_another_revision(options: Options):
    ratios = sheet.compare(options, ["sampling", "links"], ROOT.resolve(), rounds=2)
    assert set(ratios) == {"sampling", "links"}
    assert {"edges_per_s", "ms_per_batch", "peak_rss_bytes"} <= set(ratios["sampling"])
    assert all(len(values) == 2 and min(values) > 0 for of_case in ratios.values() for values in of_case.values())


def test_a_sheet_marks_figures_for_which_less_is_better():
    record = {"figures": {"edges_per_s": 2, "write_s": 3, "ratio": 4, "edges_per_batch": 5}, "peak_rss_bytes": 6}
    assert sheet.figures_of(record) == {"edges_per_s": 2, "write_s": 3, "peak_rss_bytes": 6}
    assert sheet.is_rate("edges_per_s")
    assert not sheet.is_cost("edges_per_s")
    assert sheet.is_cost("ms_per_batch")
