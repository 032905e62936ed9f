"""Verb ``inspect``: shows the content of a dataset, on disk or served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hopstream.cli.options import JsonFlag, with_settings
from hopstream.cli.page import check_page_path, render_page, write_page
from hopstream.cli.progress import Clock, Cost, Facts, Json, Output, progress_bars
from hopstream.cli.server_flags import ClientAccess
from hopstream.cli.units import bytes_text, count_text, edge_type_text, plural_text, write_types
from hopstream.dataset.copying.local_copy import folder_of
from hopstream.errors import SettingsError
from hopstream.schema import EdgeType
from hopstream.uris import is_address, is_uri, local_path

if TYPE_CHECKING:
    from hopstream.cli.census import Census
    from hopstream.dataset.book import Delta
    from hopstream.dataset.settings import Progress

MAX_MATRIX_COLUMNS = 16
"""For more parts, only JSON and the page contain the matrix of edges between parts."""
SEEDS = "seeds "
"""Prefix of the names of loads that count a split; see ``Census.part_loads``."""
BARS = " ▁▂▃▄▅▆▇█"


@with_settings("access", ClientAccess)
def run(
    source: Annotated[
        str, typer.Argument(help="a dataset's folder, or a cluster.json", metavar="PATH", show_default=False)
    ],
    html: Annotated[Path | None, typer.Option(help="also write one page with plots")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="read every file and check its checksum and content")
    ] = False,
    json: JsonFlag = False,
    *,
    access: ClientAccess,
) -> None:
    """Show the content of a dataset: types, sizes, degrees, and quality of the cut."""
    output = Output(is_json=json)
    check_page_path(html)
    if is_address(source):
        raise SettingsError(f"{source} is an address; inspect takes a dataset's folder or a cluster file")
    path = folder_of(source) if is_uri(source) else local_path(source)
    is_cluster = path.name != "manifest.json" and (path.is_file() or (path.suffix == ".json" and not path.exists()))
    if is_cluster and verify:
        raise SettingsError(
            f"--verify reads the files of a dataset; {path} is a cluster file; give the dataset's folder"
        )
    clock = Clock()
    with progress_bars() as progress:
        census = (
            _census_of_cluster(path, access, progress) if is_cluster else _census_of_dataset(path, verify, progress)
        )
    _write_head(output, census, clock.cost(), is_verified=verify)
    write_types(output, census)
    _write_degrees(output, census)
    _write_parts(output, census)
    _write_matrix(output, census)
    if html is not None:
        write_page(output, html, render_page(census))


def _census_of_dataset(path: Path, verify: bool, progress: Progress) -> Census:
    from hopstream.cli.census import census_of_dataset, degrees_of_dataset
    from hopstream.dataset.layout import open_dataset

    dataset = open_dataset(path.parent if path.is_file() else path)
    if verify:
        dataset.verify(progress=progress)
    return census_of_dataset(dataset, degrees_of_dataset(dataset, progress))


def _census_of_cluster(path: Path, access: ClientAccess, progress: Progress) -> Census:
    from hopstream.cli.census import Census, degrees_of_store
    from hopstream.store.cluster import open_cluster, read_cluster
    from hopstream.store.settings import StoreSettings

    cluster = read_cluster(path)
    # The census is of what servers serve, so they are asked even if their files are on this machine.
    with open_cluster(cluster, StoreSettings(security=access.read(), prefer_local=False)) as store:
        splits: dict[tuple[str | EdgeType, str], int] = {
            (t, name): len(store.split(t, name)) for t, names in store.schema.splits.items() for name in names
        }
        for edge_type, names in store.schema.edge_splits.items():
            splits |= {(edge_type, name): len(store.edge_split(edge_type, name)) for name in names}
        return Census(
            name=str(path),
            dataset_id=store.dataset_id,
            graph_id=store.graph_id,
            schema=store.schema,
            book=store.book,
            splits=splits,
            time_attr=store.time_attr,
            weight_attr=store.weight_attr,
            has_neighbor_keys=store.has_neighbor_keys,
            degrees=tuple(degrees_of_store(store, progress)),
            made_by={},
            num_files=0,
            report=None,
            servers={entry.location: entry.parts for entry in cluster.servers},
        )


def _write_head(output: Output, census: Census, cost: Cost, *, is_verified: bool) -> None:
    text = f"{plural_text(census.num_parts, 'part')}, {count_text(census.num_nodes)} nodes, "
    text += f"{count_text(census.num_edges)} edges"
    if census.report is not None:
        text += f", {bytes_text(census.num_bytes)} in {plural_text(census.num_files, 'file')}"
    facts: Facts = {
        "dataset": census.name,
        "dataset_id": census.dataset_id,
        "graph_id": census.graph_id,
        "parts": census.num_parts,
        "directions": census.directions,
        "time_attr": census.time_attr,
        "weight_attr": census.weight_attr,
        "has_neighbor_keys": census.has_neighbor_keys,
        "nodes": census.num_nodes,
        "edges": census.num_edges,
        "bytes": census.num_bytes if census.report else None,
        "files": census.num_files if census.report else None,
        "cut": census.report.cut.fraction if census.report else None,
        "halo_hops": census.halo.hops if census.halo else None,
        "halo_edge_budget_bytes": census.halo.edge_budget_bytes if census.halo else None,
        "halo_budget_bytes": census.halo.budget_bytes if census.halo else None,
        "halo_bytes": list(census.halo.bytes) if census.halo else None,
        "deltas": [_delta_facts(delta) for delta in census.book.deltas],
        "is_verified": is_verified,
        "made_by": census.made_by,
    }
    output.stage("inspect", "", text, facts, cost)
    output.text(f"{'':<16} direction {' and '.join(census.directions)}")
    if census.stored_text():
        output.text(f"{'':<16} with {census.stored_text()}")
    if census.halo is not None:
        halo = census.halo
        budgets = {"edges": halo.edge_budget_bytes, "features": halo.budget_bytes}
        limits = [f"{what} up to {bytes_text(of)} per part" for what, of in budgets.items() if of is not None]
        reach = ", ".join([plural_text(halo.hops, "hop"), *limits])
        output.text(f"{'':<16} halo of {reach}: {bytes_text(sum(halo.bytes))} of copies beside the parts' own")
    if census.book.deltas:
        output.text(f"{'':<16} {_deltas_text(census)}")
    output.text(f"{'':<16} dataset {census.dataset_id}, graph {census.graph_id}")
    if census.made_by:
        output.text(f"{'':<16} made by {census.made_by_text()}")
    if is_verified:
        output.text(f"{'':<16} verified: every file is unchanged")


def _write_degrees(output: Output, census: Census) -> None:
    output.text()
    rows, facts = [], []
    for summary in census.degrees:
        numbers = (summary.smallest, summary.median, summary.p99, summary.largest, summary.num_isolated)
        smallest, median, p99, largest, isolated = map(count_text, numbers)
        name = edge_type_text(summary.edge_type)
        mean = f"{summary.mean:.1f}"
        bars = histogram_text(summary.histogram)
        rows.append((name, summary.direction, smallest, mean, median, p99, largest, isolated, bars))
        facts.append(
            {
                "degrees_of": summary.edge_type, "direction": summary.direction, "min": summary.smallest,
                "mean": summary.mean, "median": summary.median, "p99": summary.p99, "max": summary.largest,
                "isolated": summary.num_isolated, "log2_histogram": summary.histogram,
            }
        )  # fmt: skip
    headers = ("degrees of", "", ">min", ">mean", ">median", ">p99", ">max", ">isolated", "0, 1, 2-3, 4-7 …")
    output.table(headers, rows, facts)


def histogram_text(histogram: Sequence[int]) -> str:
    """Draw one character per bin; its height is the logarithm of the count."""
    heights = [count.bit_length() for count in histogram]
    top = max(*heights, 1)
    return "".join(BARS[-(-height * (len(BARS) - 1) // top)] for height in heights)


def _write_parts(output: Output, census: Census) -> None:
    from hopstream.dataset.balance import max_over_mean

    output.text()
    loads, parts = census.part_loads(), range(census.num_parts)
    shown = [bytes_text if name == "bytes" else count_text for name in loads]
    rows = [
        (str(part), *(show(load[part]) for show, load in zip(shown, loads.values(), strict=True))) for part in parts
    ]
    balance = {name: max_over_mean(load) for name, load in loads.items()}
    rows.append(("max/mean", *(f"{value:.2f}x" for value in balance.values())))
    facts: list[Facts] = [{"part": part, **_nested({n: load[part] for n, load in loads.items()})} for part in parts]
    facts.append({"balance": _nested(balance)})
    output.table((">part", *(f">{name}" for name in loads)), rows, facts)
    if census.servers:
        output.text()
        served = [(address, ", ".join(map(str, parts))) for address, parts in census.servers.items()]
        told: list[Facts] = [{"server": address, "parts": parts} for address, parts in census.servers.items()]
        output.table(("server", "parts"), served, told)


def _deltas_text(census: Census) -> str:
    """Return a line about the deltas appended since the dataset was written."""
    deltas = [_delta_facts(delta) for delta in census.book.deltas]
    num_edges, num_rows, num_held = (sum(d[name] for d in deltas) for name in ("edges", "rows", "edges_of_rows"))
    text = (
        f"{plural_text(len(deltas), 'delta')}: {count_text(num_edges)} edges appended, {count_text(num_rows)} rows of "
    )
    return f"{text}older nodes rewritten with {count_text(num_held)} edges; hopstream compact merges them"


def _delta_facts(delta: Delta) -> dict[str, int]:
    overlays = [overlay for of in delta.overlays.values() for overlay in of]
    return {
        "edges": sum(delta.num_edges.values()),
        "rows": sum(overlay.num_rows for overlay in overlays),
        "edges_of_rows": sum(overlay.num_edges for overlay in overlays),
    }


def _nested(values: Mapping[str, Json]) -> Facts:
    """Return values by name, with those of splits in a group ``seeds``."""
    seeds = {name.removeprefix(SEEDS): value for name, value in values.items() if name.startswith(SEEDS)}
    return {name: value for name, value in values.items() if not name.startswith(SEEDS)} | {"seeds": seeds}


def _write_matrix(output: Output, census: Census) -> None:
    if census.report is None or not census.report.edges_between:
        return
    between = census.report.edges_between
    output.facts({"edges_between": between})
    if len(between) == 1 or output.is_json:
        return
    output.text()
    if len(between) > MAX_MATRIX_COLUMNS:
        output.text(f"edges between {len(between)} parts: see --html or --json")
        return
    rows = [(str(p), *map(count_text, row)) for p, row in enumerate(between)]
    output.table((">from part", *(f">to {q}" for q in range(len(between)))), rows, ())
