"""What does an engine say of a runner that fails?"""

from __future__ import annotations

from apache_beam.runners.runner import PipelineRunner


class BrokenRunner(PipelineRunner):
    """Runs nothing."""

    def run_pipeline(self, pipeline, options):
        raise RuntimeError("no machine is left")
