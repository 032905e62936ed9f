"""Opens the engine that runs a job's tasks: local processes, a Ray cluster, or a Beam runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from hopstream.checks import check_choice
from hopstream.engine.contract import Engine, OnDone
from hopstream.engine.settings import EngineName, EngineSettings, Progress
from hopstream.engine.tasks import Task, kind_of, task
from hopstream.errors import SettingsError

__all__ = ["Engine", "EngineName", "EngineSettings", "OnDone", "Progress", "Task", "kind_of", "open_engine", "task"]


def open_engine(
    name: EngineName = "local", *, num_workers: int | None = None, address: str | None = None,
    beam_options: Sequence[str] = (), settings: EngineSettings | None = None,
) -> Engine:  # fmt: skip
    """Open an engine by its name.

    Args:
        name: ``local``, ``ray`` or ``beam``.
        num_workers: Number of tasks that run at once. Local: worker processes; 0 (the default) runs tasks in this
            process. Ray: an upper bound; the default is the number of the cluster's processors. Beam: only the value of
            ``Engine.num_workers``; ``beam_options`` set the real number.
        address: Address of the Ray cluster, as for ``ray.init``; None starts a cluster here unless one is connected.
        beam_options: Options of the Beam pipeline, such as ``["--runner=FlinkRunner"]``.
        settings: Deadlines and retries.

    Raises:
        SettingsError: There is no such engine, or an option belongs to another engine.
        MissingDependencyError: Ray or Beam is not installed.
        EngineError: The cluster cannot be reached.
    """
    # The engines are imported late: a worker process imports this package too, and needs no engine.
    check_choice("engine", name, get_args(EngineName))
    if address is not None and name != "ray":
        raise SettingsError(f"address is {address!r}, but the engine {name} has no address; leave it out")
    if beam_options and name != "beam":
        raise SettingsError(f"beam_options are {list(beam_options)}, but the engine is {name}; leave them out")
    if name == "ray":
        from hopstream.engine.on_ray import ray_engine

        return ray_engine(address, num_workers=num_workers, settings=settings)
    if name == "beam":
        from hopstream.engine.on_beam import beam_engine

        return beam_engine(beam_options, num_workers=num_workers, settings=settings)
    from hopstream.engine.local import local_engine

    return local_engine(num_workers or 0, settings=settings)
