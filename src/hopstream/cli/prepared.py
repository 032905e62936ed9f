"""What is said of a graph while it is prepared in bounded memory, phase by phase?"""

from __future__ import annotations

from hopstream.cli.chunk import show_chunked
from hopstream.cli.plan import show_prepare_plan
from hopstream.cli.progress import Clock, Facts, Output
from hopstream.cli.units import percent_text, plural_text
from hopstream.ingest.chunking.run import ChunkReport
from hopstream.partition.prepare import News, Resumed
from hopstream.partition.prepare_plan import PreparePlan
from hopstream.partition.settings import Progress


class Shown:
    """Shows what preparation tells, with the number of each phase."""

    def __init__(self, output: Output, bars: Progress) -> None:
        """Know no phase yet."""
        self._output, self._bars, self._clock = output, bars, Clock()
        self._numbers: dict[str, str] = {}

    def progress(self, stage: str, done: int, total: int) -> None:
        """Draw a bar: ``2/3 assign edges``."""
        number = self._numbers.get(stage.split()[0], "")
        self._bars(f"{number} {stage}".strip(), done, total)

    def news(self, news: News) -> None:
        """Write a plan, or what became of a phase."""
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
                text += f", {percent_text(news.cut)} of joined pairs cut"
            facts: Facts = {
                "method": news.method, "parts": news.num_parts, "pairs_cut": news.cut,
                "largest_over_share": dict(news.largest),
            }  # fmt: skip
            self._output.stage("assign", news.method, text, facts, self._clock.cost())
        self._clock = Clock()
