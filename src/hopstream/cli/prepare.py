"""Verb ``prepare``: cuts tables or a chunked graph into parts, in bounded memory.

``hopstream prepare`` and ``hopstream partition --memory`` do the same: both call ``prepare_and_show``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hopstream.cli.chunk import show_chunked
from hopstream.cli.halo import NewHaloFlags, show_halo
from hopstream.cli.options import JsonFlag, OutFolder, OverwriteFlag, with_settings
from hopstream.cli.progress import Clock, Facts, Output, progress_bars
from hopstream.cli.source import TableFlags
from hopstream.cli.units import percent_text, plural_text
from hopstream.cli.written import show_measured, show_prepare_plan, show_written
from hopstream.dataset.copying.local_copy import source_path
from hopstream.dataset.settings import PartitionSettings, Progress
from hopstream.engine.settings import WorkSettings
from hopstream.places.paths import AnyPath, path_of

if TYPE_CHECKING:
    from hopstream.preparation.prepare import News


@with_settings("tables", TableFlags)
@with_settings("work", WorkSettings)
@with_settings("halo", NewHaloFlags)
@with_settings("settings", PartitionSettings)
def run(  # noqa: PLR0913  one parameter for each flag that is no field of a record
    source: Annotated[
        str, typer.Argument(help="tables, a unigraph or a chunked graph, which are read piece by piece",
                             show_default=False),
    ],
    out: OutFolder,
    overwrite: OverwriteFlag = False,
    json: JsonFlag = False,
    *,
    settings: PartitionSettings,
    halo: NewHaloFlags,
    work: WorkSettings,
    tables: TableFlags,
) -> None:  # fmt: skip
    """Cut tables or a chunked graph of any size into parts, in bounded memory.

    The same command resumes interrupted work.
    """
    prepare_and_show(
        Output(is_json=json), source_path(source), path_of(out), work, settings, halo, tables, overwrite=overwrite
    )


def prepare_and_show(  # noqa: PLR0913, PLR0917  one record for each step
    output: Output, source: AnyPath, out: AnyPath, work: WorkSettings, settings: PartitionSettings, halo: NewHaloFlags,
    tables: TableFlags, *, overwrite: bool,
) -> None:  # fmt: skip
    """Prepare a dataset in bounded memory; show plan, progress and results."""
    from hopstream.ingest.tables import TableSettings
    from hopstream.preparation.prepare import prepare

    tables.check_source(source)
    with progress_bars() as progress:
        shown = PhaseProgress(output, progress)
        manifest = prepare(
            source, out, settings=settings, tables=TableSettings(**tables.of_tables), work=work, halo=halo.settings,
            overwrite=overwrite, progress=shown.progress, on_news=shown.news,
        )  # fmt: skip
    show_measured(output, manifest)
    if manifest.halo is not None:
        show_halo(output, manifest.halo)
    show_written(output, out, manifest)


class PhaseProgress:
    """Reporter of the progress of a preparation, with the number of each phase."""

    def __init__(self, output: Output, bars: Progress) -> None:
        """Start without phases."""
        self._output, self._bars, self._clock = output, bars, Clock()
        self._numbers: dict[str, str] = {}

    def progress(self, stage: str, done: int, total: int) -> None:
        """Draw a bar: ``2/3 assign edges``."""
        number = self._numbers.get(stage.split()[0], "")
        self._bars(f"{number} {stage}".strip(), done, total)

    def news(self, news: News) -> None:
        """Write a plan, or the result of a phase."""
        from hopstream.ingest.chunking.run import ChunkReport
        from hopstream.preparation.plan import PreparePlan
        from hopstream.preparation.prepare import Resumed

        if isinstance(news, PreparePlan):
            self._numbers = {phase.name: n for phase, n in zip(news.phases, news.numbers, strict=True)}
            show_prepare_plan(self._output, news)
        elif isinstance(news, Resumed):
            self._output.resumed(news.phase, news.num_tasks)
        elif isinstance(news, ChunkReport):
            show_chunked(self._output, news, self._clock)
        else:
            text = plural_text(news.num_parts, "part")
            if news.cut is not None:
                text += f", {percent_text(news.cut)} of adjacent pairs cut"
            facts: Facts = {
                "method": news.method, "parts": news.num_parts, "pairs_cut": news.cut,
                "largest_over_share": dict(news.largest),
            }  # fmt: skip
            self._output.stage("assign", news.method, text, facts, self._clock.cost())
        self._clock = Clock()
