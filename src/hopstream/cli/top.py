"""Verb ``top``: monitors the servers of a cluster and their sampling channels."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from hopstream.cli.options import JsonFlag, with_settings
from hopstream.cli.progress import Facts, Output, table_of
from hopstream.cli.serve import parts_text
from hopstream.cli.server_flags import ClientAccess
from hopstream.cli.units import bytes_text, count_text, percent_text, plural_text, printable_text
from hopstream.errors import AccessDenied, SettingsError, StoreUnavailable
from hopstream.uris import local_path

if TYPE_CHECKING:
    from hopstream.cli.survey import Numbers, ServerState
    from hopstream.store.cluster import Cluster

SERVER_HEADERS = (
    "server", "parts", ">requests/s", ">bytes/s", ">channels", ">runnable", ">in flight", ">waiting", ">buffered",
    ">threads", "state",
)  # fmt: skip
CHANNEL_HEADERS = (
    "channel of", "worker", "loader", ">epoch", ">fetched", ">credit", ">in flight", ">waiting", ">batches/s",
    ">sampling",
)  # fmt: skip
KEY_LENGTH = 60
"""Characters of a worker key that are shown: enough for rank, host, process and loader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopSettings:
    """Settings of the monitor. The constructor checks every field.

    Raises:
        SettingsError: A field is out of range.
    """

    once: bool = field(default=False, metadata={"help": "ask once and exit, with status 1 if a server does not answer"})
    interval_s: float = field(default=2.0, metadata={"help": "seconds between two rounds of asking"})
    timeout_s: float = field(default=5.0, metadata={"help": "seconds after which a server counts as not answering"})

    def __post_init__(self) -> None:
        """Check the times."""
        for name in ("interval_s", "timeout_s"):
            if not 0 < getattr(self, name) < 1e6:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be a number of seconds above 0")


@with_settings("settings", TopSettings)
@with_settings("access", ClientAccess)
def run(
    cluster: Annotated[
        str, typer.Argument(help="a cluster.json, or addresses of servers joined by commas", show_default=False)
    ],
    json: JsonFlag = False,
    *,
    settings: TopSettings,
    access: ClientAccess,
) -> None:
    """Show the load of servers and their sampling channels, until Ctrl-C.

    Rates are averages since the previous round; in the first round, since the server started or the channel was
    registered. If servers require a token, it must have admin rights.
    """
    from hopstream.cli.survey import Survey
    from hopstream.store.settings import StoreSettings

    found = _read(cluster)
    store_settings = StoreSettings(timeout_s=settings.timeout_s, security=access.read())
    output = Output(is_json=json)
    with Survey(found, store_settings) as survey:
        if settings.once:
            states = survey.ask()
            _write(output, states)
            _check_all(states)
            return
        try:
            with _shown(output) as show:
                while True:
                    show(survey.ask())
                    time.sleep(settings.interval_s)
        except KeyboardInterrupt:  # the usual way to end the verb
            return


def _read(source: str) -> Cluster:
    from hopstream.store.cluster import parse_locations, read_cluster

    if "://" in source:
        return parse_locations(source)
    return read_cluster(local_path(source), instead="the addresses of servers")


def _check_all(states: Sequence[ServerState]) -> None:
    refused = [state for state in states if state.is_refused]
    if refused:
        names = ", ".join(state.entry.location for state in refused)
        raise AccessDenied(f"{names}: {refused[0].reason}; top needs a token with admin rights: give --token-file")
    silent = [state for state in states if state.answer is None]
    if silent:
        names = ", ".join(state.entry.location for state in silent)
        raise StoreUnavailable(f"{len(silent)} of {plural_text(len(states), 'server')} did not answer: {names}")


@contextmanager
def _shown(output: Output) -> Iterator[Callable[[Sequence[ServerState]], None]]:
    """Give a function that shows a round: in place on a terminal, else below the previous one."""
    if output.is_json or not sys.stdout.isatty():

        def write(states: Sequence[ServerState]) -> None:
            _write(output, states)
            output.text()

        yield write
        return
    from rich.console import Group
    from rich.live import Live

    with Live(auto_refresh=False, vertical_overflow="crop") as live:

        def show(states: Sequence[ServerState]) -> None:
            tables = [table_of(SERVER_HEADERS, [_server_row(state) for state in states])]
            rows = _channel_rows(states)
            tables += [table_of(CHANNEL_HEADERS, rows)] if rows else []
            live.update(Group(*tables), refresh=True)

        yield show


def _write(output: Output, states: Sequence[ServerState]) -> None:
    """Write one round."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    output.table(SERVER_HEADERS, [_server_row(state) for state in states], [_server_facts(s, now) for s in states])
    facts = [_channel_facts(state, channel, now) for state, channel in _channels(states)]
    rows = _channel_rows(states)
    if rows:
        output.text()
    output.table(CHANNEL_HEADERS, rows, facts)


def _channels(states: Sequence[ServerState]) -> Iterator[tuple[ServerState, Numbers]]:
    for state in states:
        for channel in () if state.answer is None else state.answer.channels.values():
            yield state, channel


def _server_row(state: ServerState) -> tuple[str, ...]:
    answer = state.answer
    if answer is None:
        parts = state.entry.parts
        known = parts_text(parts, max(parts) + 1).partition(" of ")[0] if parts else ""
        return (
            state.entry.location, known, *[""] * 8,
            f"{'refused' if state.is_refused else 'no answer'}: {printable_text(state.reason)}",
        )  # fmt: skip
    rates = (f"{state.per_s('num_requests'):.1f}", bytes_text(round(state.per_s("num_bytes"))))
    head = (state.entry.location, parts_text(answer.parts, answer.num_parts), *rates)
    totals = answer.totals
    if totals is None:
        return (*head, *[""] * 6, "does not sample")
    names = ("num_channels", "num_runnable", "num_in_flight", "num_waiting")
    counts = [count_text(int(totals[name])) for name in names]
    return (*head, *counts, bytes_text(int(totals["num_buffered_bytes"])), str(totals["num_threads"]), "ok")


def _channel_rows(states: Sequence[ServerState]) -> list[tuple[str, ...]]:
    return [
        (
            state.entry.location,
            printable_text(str(channel["worker"]), KEY_LENGTH),
            printable_text(str(channel["loader"]), KEY_LENGTH),
            "" if channel["epoch"] < 0 else str(channel["epoch"]),
            f"{channel['num_epoch_fetched']}/{channel['num_own_steps']}",
            str(channel["credit"]),
            str(channel["num_in_flight"]),
            str(channel["num_waiting"]),
            f"{state.batches_per_s(channel):.1f}",
            percent_text(state.sampling_share(channel)),
        )
        for state, channel in _channels(states)
    ]


def _server_facts(state: ServerState, now: str) -> Facts:
    answer = state.answer
    if answer is None:
        return {
            "server": state.entry.location, "parts": state.entry.parts, "answers": False, "reason": state.reason,
            "time": now,
        }  # fmt: skip
    facts: Facts = {
        "server": state.entry.location,
        "parts": answer.parts,
        "answers": True,
        "samples": answer.totals is not None,
        "requests_per_s": state.per_s("num_requests"),
        "bytes_per_s": state.per_s("num_bytes"),
        "requests": answer.stats["num_requests"],
        "refusals": answer.stats["num_refusals"],
        "failures": answer.stats["num_failures"],
        "bytes": answer.stats["num_bytes"],
        "uptime_s": answer.stats["uptime_s"],
    }
    totals = {name.removeprefix("num_"): number for name, number in (answer.totals or {}).items()}
    return {**facts, **totals, "time": now}


def _channel_facts(state: ServerState, channel: Numbers, now: str) -> Facts:
    return {
        "channel": channel["channel"],
        "server": state.entry.location,
        "worker": channel["worker"],
        "loader": channel["loader"],
        "epoch": channel["epoch"],
        "fetched": channel["num_epoch_fetched"],
        "steps": channel["num_own_steps"],
        "mid_epoch": channel["is_mid_epoch"],
        "credit": channel["credit"],
        "in_flight": channel["num_in_flight"],
        "waiting": channel["num_waiting"],
        "batches_per_s": state.batches_per_s(channel),
        "sampling_share": state.sampling_share(channel),
        "made": channel["num_made"],
        "failed": channel["num_failed"],
        "age_s": channel["age_s"],
        "idle_s": channel["idle_s"],
        "time": now,
    }
