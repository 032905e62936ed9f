"""Verb ``halo``: copies rows of other parts into the parts of a dataset."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hopstream.cli.options import JsonFlag, with_settings
from hopstream.cli.progress import Clock, Facts, Output, progress_bars
from hopstream.cli.units import bytes_text, percent_text, plural_text
from hopstream.engine.settings import MEMORY_HELP
from hopstream.errors import SettingsError
from hopstream.preparation.halo.settings import HaloSettings

if TYPE_CHECKING:
    from hopstream.dataset.halo_record import Halo
    from hopstream.preparation.halo.costs import HaloCosts
    from hopstream.preparation.halo.run import HaloReport

FEATURES_HELP = (
    "features to copy: none, all, or type:feature and type:* joined by commas, with edge types as src__rel__dst; "
    "with a budget, all of nodes"
)
EDGE_BUDGET_HELP = (
    "copy edges of the nodes with the most expected requests per byte, whatever their distance, up to this size per "
    "part, such as 1GiB, instead of those within hops"
)
BUDGET_HELP = (
    "copy features of the likeliest sampled rows, whatever their distance, up to this size per part, such as 2GiB"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HaloFlags:
    """The flags of ``hopstream halo``."""

    hops: int = field(default=1, metadata={"help": "copy edges of nodes within this many hops of a part; 0 for none"})
    features: str | None = field(default=None, metadata={"help": FEATURES_HELP})
    budget: str | None = field(default=None, metadata={"help": BUDGET_HELP})
    edge_budget: str | None = field(default=None, metadata={"help": EDGE_BUDGET_HELP})
    fanouts: str = field(
        default="15,10,5",
        metadata={"help": "neighbours per hop in training, joined by commas; determines which rows are likely"},
    )
    batch_size: int = field(
        default=1024, metadata={"help": "seeds per batch in training; determines which rows are likely"}
    )
    memory: str | None = field(default=None, metadata={"help": MEMORY_HELP})
    savings: bool = field(
        default=True, metadata={"help": "show the expected savings of the halo, which takes passes over all edges"}
    )
    settings: HaloSettings = field(init=False)

    def __post_init__(self) -> None:
        """Check every field."""
        try:
            fanouts = tuple(int(text) for text in self.fanouts.split(","))
        except ValueError:
            raise SettingsError(f"fanouts is {self.fanouts!r}; it must be integers such as 15,10,5") from None
        settings = HaloSettings(
            hops=self.hops, features=self.features, budget=self.budget, edge_budget=self.edge_budget, fanouts=fanouts,
            batch_size=self.batch_size,
        )  # fmt: skip
        object.__setattr__(self, "settings", settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewHaloFlags:
    """Flags that add a halo to a dataset when it is written."""

    halo_hops: int | None = field(
        default=None,
        metadata={
            "help": "copy edges of nodes within this many hops of a part into it; none if not given: see hopstream halo"
        },
    )
    halo_features: str | None = field(default=None, metadata={"help": FEATURES_HELP})
    halo_budget: str | None = field(default=None, metadata={"help": BUDGET_HELP})
    halo_edge_budget: str | None = field(default=None, metadata={"help": EDGE_BUDGET_HELP})
    settings: HaloSettings | None = field(init=False)

    def __post_init__(self) -> None:
        """Check every field."""
        given = (self.halo_hops, self.halo_features, self.halo_budget, self.halo_edge_budget)
        settings = None
        try:
            if any(value is not None for value in given):
                settings = HaloSettings(
                    hops=self.halo_hops or 0, features=self.halo_features, budget=self.halo_budget,
                    edge_budget=self.halo_edge_budget,
                )  # fmt: skip
        except SettingsError as error:
            raise SettingsError(f"halo_{error}") from error
        object.__setattr__(self, "settings", None if settings is None or settings.is_nothing else settings)


@with_settings("flags", HaloFlags)
def run(
    path: Annotated[Path, typer.Argument(help="a dataset's folder", metavar="PATH", show_default=False)],
    json: JsonFlag = False,
    *,
    flags: HaloFlags,
) -> None:
    """Copy rows of other parts into each part, so that fewer are fetched from servers.

    Batches stay the same.
    """
    from hopstream.preparation.halo.run import add_halo

    output, clock = Output(is_json=json), Clock()

    def show_plan(costs: HaloCosts) -> None:
        memory = f"; {costs.work.memory_text} of memory" if costs.work else ""
        text = f"up to {bytes_text(costs.copied_bytes)} of copies{memory}"
        output.stage("plan", "halo", text, {"halo_bytes": costs.copied_bytes})

    with progress_bars() as progress:
        report = add_halo(
            path.parent if path.name == "manifest.json" else path, settings=flags.settings, memory=flags.memory,
            with_savings=flags.savings, progress=progress, on_estimate=show_plan,
        )  # fmt: skip
    if report.manifest.halo is None:
        output.stage("done", "halo", _why_none(report.manifest.book.num_parts), {"halo": None}, clock.cost())
        return
    show_halo(output, report.manifest.halo, clock)
    if report.savings:
        _show_savings(output, report)


def show_halo(output: Output, halo: Halo, clock: Clock | None = None) -> None:
    """Write the size of a halo, and warn of node types without copies."""
    num_nodes = sum(sum(part.nodes.values()) for part in halo.parts)
    num_edges = sum(sum(part.edges.values()) for part in halo.parts)
    num_cached = sum(sum(part.cached.values()) for part in halo.parts)
    rows = plural_text(num_cached, "row")
    text = f"{plural_text(num_nodes, 'node')}, {plural_text(num_edges, 'edge')}, {rows} of features"
    facts: Facts = {
        "hops": halo.hops, "edge_budget_bytes": halo.edge_budget_bytes, "nodes": num_nodes, "edges": num_edges,
        "feature_rows": num_cached,
        "bytes": list(halo.bytes), "unreached": list(halo.unreached), "halo_id": halo.halo_id,
    }  # fmt: skip
    output.stage("halo", bytes_text(sum(halo.bytes)), text, facts, None if clock is None else clock.cost())
    for node_type in halo.unreached:
        why = (
            f"no node of it lies within {plural_text(halo.hops, 'hop')} of another part: give more hops, a budget, or "
            "store edges in both directions"
            if halo.budget_bytes is None
            else f"no row of it is sampled by {','.join(map(str, halo.fanouts))}, or none fits the budget"
        )
        output.text(f"warning: no features of {node_type!r} were copied; {why}")


def _show_savings(output: Output, report: HaloReport) -> None:
    """Write the expected savings of the halo, per part and in total."""
    num_bytes = () if report.manifest.halo is None else report.manifest.halo.bytes
    named = [*map(str, range(len(num_bytes))), "all"]
    rows, facts = [], []
    for name, size, saving in zip(named, (*num_bytes, sum(num_bytes)), (*report.savings, report.total), strict=True):
        rows.append((
            name, bytes_text(size), f"{saving.remote_rows:.0f}", percent_text(saving.row_share),
            f"{saving.remote_expanded:.0f}", percent_text(saving.expanded_share),
        ))  # fmt: skip
        fact: Facts = {
            "part": name, "bytes": size, "remote_rows": round(saving.remote_rows, 3),
            "rows_saved": round(saving.row_share, 6), "remote_expanded": round(saving.remote_expanded, 3),
            "expanded_saved": round(saving.expanded_share, 6),
        }  # fmt: skip
        facts.append(fact)
    output.text("expected per batch of seeds that a part owns:")
    headers = ("part", ">halo", ">remote rows", ">saved", ">remote expansions", ">saved")
    output.table(headers, rows, facts)


def _why_none(num_parts: int) -> str:
    return "none: the old halo is removed" if num_parts > 1 else "none: the one part has all rows"
