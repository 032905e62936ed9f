"""Beam runner that fails, to test the engine's error."""

from __future__ import annotations

from apache_beam.runners.runner import PipelineRunner


class BrokenRunner(PipelineRunner):
    """Runner whose pipelines always fail."""

    def run_pipeline(self, pipeline, options):
        raise RuntimeError("no machine is left")
