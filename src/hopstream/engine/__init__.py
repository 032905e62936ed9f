"""Opens the engine that runs a job's tasks: this machine's processes, a Ray cluster, or a Beam runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from hopstream.checks import check_choice
from hopstream.engine.contract import Engine, OnDone
from hopstream.engine.job import Job
from hopstream.engine.settings import EngineName, EngineSettings, Progress
from hopstream.engine.tasks import Task, kind_of, task
from hopstream.errors import SettingsError

__all__ = [
    "Engine",
    "EngineName",
    "EngineSettings",
    "Job",
    "OnDone",
    "Progress",
    "Task",
    "kind_of",
    "open_engine",
    "task",
]


def open_engine(
    name: EngineName = "local", *, num_workers: int | None = None, address: str | None = None,
    beam_options: Sequence[str] = (), settings: EngineSettings | None = None,
) -> Engine:  # fmt: skip
    """Open an engine by its name.

    Args:
        name: ``local``, ``ray`` or ``beam``.
        num_workers: How many tasks run at once. Local: processes, and 0 (the default) is this process. Ray: at most as
            many as the cluster has processors, which is the default. Beam: what ``Engine.num_workers`` says; who is
            told by ``beam_options``.
        address: Where the Ray cluster is, as ``ray.init`` takes it; None starts one here unless one is connected.
        beam_options: Options of the Beam pipeline, such as ``["--runner=FlinkRunner"]``.
        settings: Deadlines and retries.

    Raises:
        SettingsError: There is no such engine, or an option is not that engine's.
        MissingDependencyError: Ray or Beam is not installed.
        EngineError: The cluster cannot be reached.
    """
    # Imported when they are needed: a worker imports this room too, and needs none of them.
    check_choice("engine", name, get_args(EngineName))
    if address is not None and name != "ray":
        raise SettingsError(f"address is {address!r}; the engine {name} has none")
    if beam_options and name != "beam":
        raise SettingsError(f"beam_options are {list(beam_options)}; the engine {name} has none")
    if name == "ray":
        from hopstream.engine.on_ray import ray_engine

        return ray_engine(address, num_workers=num_workers, settings=settings)
    if name == "beam":
        from hopstream.engine.on_beam import beam_engine

        return beam_engine(beam_options, num_workers=num_workers, settings=settings)
    from hopstream.engine.local import local_engine

    return local_engine(num_workers or 0, settings=settings)
