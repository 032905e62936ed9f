"""Verb ``serve``: serves parts of a dataset from one process until it is stopped."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from hopstream.checks import check_choice
from hopstream.cli.options import JsonFlag, with_settings
from hopstream.cli.progress import Clock, Facts, Output
from hopstream.cli.sampling import Leftovers, Sampler, SamplingSource, sampler_of
from hopstream.cli.served import as_listed, brought_here, open_parts
from hopstream.cli.server_flags import LogSettings, ServerAccess, WatchSettings, logs_on_stderr, watched, watched_early
from hopstream.cli.units import bytes_text, count_text, plural_text
from hopstream.dataset.spot_check import Verify
from hopstream.errors import AccessDenied, SettingsError
from hopstream.stream.settings import SamplingLimits

if TYPE_CHECKING:
    from hopstream.store.local import LocalStore
    from hopstream.store.server import StoreServer

LOG = logging.getLogger(__name__)
EXIT_SLACK_S = 5.0
"""Seconds beyond the grace period after which a stopping server ends its own process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Parts, address and end of a server. The constructor checks every field.

    Raises:
        SettingsError: A field is out of range.
    """

    parts: str = field(
        default="all",
        metadata={"help": "the parts to serve: all, here (those in the folder), or numbers and ranges: 0,2 or 4-7"},
    )
    location: str = field(
        default="tcp://127.0.0.1:0",
        metadata={
            "help": "address to listen at: tcp://host:port, tls://host:port or unix:///path; port 0 takes a free one"
        },
    )
    server: int | None = field(
        default=None,
        metadata={"help": "instead of --parts and --location: which server of the folder's cluster.json, from 0"},
    )
    cache_dir: Path | None = field(
        default=None,
        metadata={
            "help": "copy the parts to this folder first, as pull does, and serve them from there; without it, parts "
            "at a URI are copied to the folder of HOPSTREAM_CACHE_DIR"
        },
    )
    verify: Verify = field(
        default="none",
        metadata={"help": "check of the files before they are served: some blocks of each, or everything"},
    )
    announce: Path | None = field(
        default=None, metadata={"help": "write the bound address to this file when ready, as a cluster.json"}
    )
    grace_s: float = field(default=10.0, metadata={"help": "seconds that running requests get to finish when stopping"})
    stop_on_eof: bool = field(
        default=False, metadata={"help": "stop also when stdin is closed, so that a server never outlives its starter"}
    )

    def __post_init__(self) -> None:
        """Check the fields that are not checked later."""
        if not 0 <= self.grace_s < 1e6:
            raise SettingsError(f"grace_s is {self.grace_s}; it must be 0 or more seconds")
        check_choice("verify", self.verify, get_args(Verify))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """Result of stopping a server.

    Attributes:
        all_answered: Every request under way was answered.
        left: Channels and threads that sampling left.
    """

    all_answered: bool
    left: Leftovers

    @property
    def is_clean(self) -> bool:
        """Whether all requests and threads have ended; if not, only ending the process stops them."""
        return self.all_answered and self.left.is_clean


@with_settings("settings", ServeSettings)
@with_settings("access", ServerAccess)
@with_settings("source", SamplingSource)
@with_settings("limits", SamplingLimits)
@with_settings("watching", WatchSettings)
@with_settings("logs", LogSettings)
def run(  # noqa: PLR0913 - one record for each group of flags
    source_dataset: Annotated[
        str,
        typer.Argument(help="a dataset's folder or URI", metavar="DATASET", show_default=False),
    ],
    *,
    settings: ServeSettings,
    access: ServerAccess,
    source: SamplingSource,
    limits: SamplingLimits,
    watching: WatchSettings,
    logs: LogSettings,
    json: JsonFlag = False,
) -> None:
    """Serve parts of a dataset until SIGTERM or Ctrl-C; with --cluster or --sample, sample for trainers.

    The exit status is 0 if every request under way was answered, else 1.
    """
    output, clock = Output(is_json=json), Clock()
    dataset = brought_here(source_dataset, settings, output)
    settings = as_listed(dataset, settings)
    with (
        logs_on_stderr(logs) as records,
        _StopRequests(settings) as stops,
        closing(open_parts(dataset, settings)) as store,
        watched_early(watching) as endpoint,
        sampler_of(store, dataset, source, limits, access) as sampler,
        _listen(store, dataset, settings, access, sampler) as server,
        watched(server, sampler.service, endpoint) as metrics,
    ):
        records.server = server.location
        sampler.serve_at(server.location)
        stops.stop_also(server)
        with _announced(settings.announce, server.location, store, dataset):
            parts = parts_text(store.parts, store.book.num_parts)
            samples = f"; samples in {plural_text(limits.num_threads, 'thread')}" if source.is_on else ""
            told = f"; metrics {metrics}" if metrics else ""
            facts: Facts = {
                "location": server.location,
                "parts": store.parts,
                "dataset_id": store.dataset_id,
                "process": os.getpid(),
                "sampling_threads": limits.num_threads if source.is_on else 0,
                "metrics": metrics,
            }
            output.stage("ready", server.location, parts + samples + told, facts, clock.cost())
            server.wait()
            ending = _end(server, sampler, settings.grace_s)
        _say_ended(output, server, ending)
        if not ending.is_clean:
            logging.shutdown()
            os._exit(1)


def _end(server: StoreServer, sampler: Sampler, grace_s: float) -> _Ending:
    """Stop a server in order.

    First it refuses new channels, then new calls. Then calls and batches under way may end within the grace period.
    """
    LOG.info("stopping; running requests have %g s to finish", grace_s)
    ends = time.monotonic() + grace_s
    sampler.refuse()
    all_answered = server.close(grace_s, is_final=False)  # not final: the server may be started again
    if not all_answered:
        LOG.error("calls were still running %g s after the server began to stop", grace_s)
    left = sampler.end(ends - time.monotonic())
    left.log()
    return _Ending(all_answered=all_answered, left=left)


def _say_ended(output: Output, server: StoreServer, ending: _Ending) -> None:
    """Write the server's counters, and what sampling left."""
    stats, left = server.stats, ending.left
    text = f"{plural_text(stats.num_requests, 'request')}, {bytes_text(stats.num_bytes)}"
    text += f", {count_text(stats.num_refusals)} refused" if stats.num_refusals else ""
    text += f", {count_text(stats.num_failures)} failed" if stats.num_failures else ""
    text += f"; {plural_text(len(left.channels), 'channel')} left" if left.channels else ""
    facts: Facts = {
        "requests": stats.num_requests, "refusals": stats.num_refusals, "failures": stats.num_failures,
        "bytes": stats.num_bytes, "left": left.facts, "clean": ending.is_clean,
    }  # fmt: skip
    output.stage("stop", server.location, text, facts)


class _StopRequests:
    """Context that stops a server on signals or at the end of stdin, even if these precede its start."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._server: StoreServer | None = None
        self._is_asked = False
        self._ended = threading.Event()
        self._previous: dict[int, Any] = {}

    def stop_also(self, server: StoreServer) -> None:
        """Stop this server on request; at once if a stop was requested already."""
        self._server = server
        if self._is_asked:
            server.stop()

    def __enter__(self) -> _StopRequests:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._on_signal)
        if self._settings.stop_on_eof:
            threading.Thread(target=self._wait_for_eof, name="hopstream-stdin", daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._ask()

    def _ask(self) -> None:
        self._is_asked = True
        if self._server is not None:
            self._server.stop()

    def _wait_for_eof(self) -> None:
        """Wait until the process at the other end of stdin closes it or dies, then stop."""
        try:
            while os.read(0, 4096):
                pass
        except OSError:  # stdin has been closed from the start
            pass
        self._ask()
        if not self._ended.wait(self._settings.grace_s + EXIT_SLACK_S):
            os._exit(1)


def _listen(
    store: LocalStore, dataset: Path, settings: ServeSettings, access: ServerAccess, sampler: Sampler
) -> StoreServer:
    from hopstream.store.server import StoreServer
    from hopstream.transport.location import Location

    security = access.read()
    has_tls = Location.parse(settings.location).has_tls
    if has_tls and security.certificate is None:
        raise SettingsError(f"--location {settings.location} needs a certificate; give --tls-cert and --tls-key")
    if security.certificate is not None and not has_tls:
        raise SettingsError(f"--tls-cert is only for tls://, and --location is {settings.location}; change one of them")
    try:
        return StoreServer(
            store, settings.location, security=security, limits=sampler.server_limits, path=dataset,
            operations=sampler.operations,
        )  # fmt: skip
    except AccessDenied as error:  # the user chose the address, so it is a wrong setting
        raise SettingsError(str(error)) from error


@contextmanager
def _announced(path: Path | None, location: str, store: LocalStore, dataset: Path) -> Iterator[None]:
    """Write a cluster file of this server, and remove it at the end of the context."""
    if path is None:
        yield
        return
    from hopstream.engine.atomic_folder import errors_named
    from hopstream.store.cluster import Cluster, ServerEntry, write_cluster

    entry = ServerEntry(location=location, parts=store.parts, path=dataset.resolve())
    with errors_named(path):
        write_cluster(path, Cluster(dataset_id=store.dataset_id, servers=(entry,)))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def parts_text(parts: Sequence[int], num_parts: int) -> str:
    """Format parts for people, with ranges: ``parts 0, 2-5 of 8``."""
    runs: list[list[int]] = []
    for part in parts:
        if runs and runs[-1][-1] == part - 1:
            runs[-1][1:] = [part]
        else:
            runs.append([part])
    shown = ", ".join("-".join(map(str, run)) for run in runs)
    return f"part{'s' if len(parts) > 1 else ''} {shown} of {num_parts}"
