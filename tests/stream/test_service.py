"""Checks a sampling server's answers to each of its operations, and its refusals."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hopstream.buffers import BufferPool
from hopstream.dataset.layout import open_dataset
from hopstream.errors import (
    AccessDenied,
    ChannelLost,
    FormatError,
    HopstreamError,
    SettingsError,
    StateError,
    StoreTimeout,
    StoreUnavailable,
)
from hopstream.load.loader import NeighborLoader
from hopstream.store.contract import Store
from hopstream.store.local import LocalStore
from hopstream.store.server import StoreServer
from hopstream.stream import service
from hopstream.stream.messages import decode_batch, encode_options, recipe_digest
from hopstream.stream.service import MAX_KEY_LENGTH, SamplingService
from hopstream.stream.settings import SamplingLimits
from hopstream.transport import limits
from hopstream.transport.messages import Frame
from tests.load.graphs import flat
from tests.store.processes import wait_until
from tests.stream.frames import call_of, sent
from tests.stream.serving import Caller, Served, asked, asked_all, channel_ids_at, serve_here

CONFIG: dict[str, Any] = {"num_neighbors": [2, 2], "batch_size": 25, "rng_seed": 3}
"""120 papers, so 5 batches."""
OPERATIONS = (
    "init_sampling_backend", "register_sampling_input", "start_new_epoch_sampling", "fetch_one_sampled_message",
    "fetch_sampled_messages", "destroy_sampling_input", "describe_channel", "describe_channels",
    "is_channel_epoch_done",
)  # fmt: skip


@pytest.fixture(scope="module")
def lasting(timed_parts: dict[int, Path]) -> Iterator[Served]:
    """One server with all parts, which samples from the folder."""

    def from_folder(store: Store) -> Store:
        store.close()
        return LocalStore(open_dataset(timed_parts[1]))

    limits = SamplingLimits(threads=1, max_channels=3, lease_s=60.0)
    with serve_here(timed_parts[1], limits, wrap=from_folder) as served:
        yield served


@pytest.fixture
def served(lasting: Served) -> Iterator[Served]:
    """The server, without channels and backends of other tests."""
    yield lasting
    for channel_id in channel_ids_at(lasting.services[0]):
        asked(lasting.servers[0], "destroy_sampling_input", channel_id=channel_id)
    lasting.services[0]._backends.clear()


@pytest.fixture
def server(served: Served) -> StoreServer:
    return served.servers[0]


def init(server: StoreServer, key: str = "train", loader: str = "NeighborLoader", **options: Any) -> int:
    header, arrays = encode_options({**CONFIG, **options})
    answer = asked(server, "init_sampling_backend", arrays, backend_key=key, loader=loader, options=header)
    return int(answer.header["backend_id"])


def register_header(backend_id: int, **changes: Any) -> dict[str, Any]:
    digest = recipe_digest("NeighborLoader", *encode_options({**CONFIG, **changes.pop("config_options", {})}))
    options, _ = encode_options({"seeds": ("paper", None)})
    return {
        "backend_id": backend_id, "config": digest, "worker_key": "rank 0", "options": options, "first": 0,
        "stride": 1, "credit": 2, **changes,
    }  # fmt: skip


def register(server: StoreServer, backend_id: int, **changes: Any) -> int:
    answer = asked(server, "register_sampling_input", **register_header(backend_id, **changes))
    return int(answer.header["channel_id"])


def begun(server: StoreServer, **changes: Any) -> int:
    """A channel whose epoch 0 was started."""
    channel_id = register(server, init(server), **changes)
    asked(server, "start_new_epoch_sampling", channel_id=channel_id, epoch=0)
    return channel_id


def wanted_batches(folder: Path, epoch: int = 0) -> list[dict[str, object]]:
    with NeighborLoader(folder, seeds=("paper", None), collate="numpy", **CONFIG) as loader:
        loader.set_epoch(epoch)
        return [flat(batch) for batch in loader]


def read(frame: Frame) -> dict[str, object]:
    return flat(decode_batch(frame, BufferPool(0)))


def test_an_input_is_registered_sampled_fetched_and_destroyed(
    served: Served, server: StoreServer, timed_parts: dict[int, Path]
) -> None:
    backend_id = init(server)
    channel_id = register(server, backend_id)
    assert asked(server, "start_new_epoch_sampling", channel_id=channel_id, epoch=0).header == {"turn": 0, "epoch": 0}
    got = [read(asked(server, "fetch_one_sampled_message", channel_id=channel_id, step=step)) for step in range(5)]
    assert got == wanted_batches(timed_parts[1])
    assert asked(server, "fetch_one_sampled_message", channel_id=channel_id, step=5).header == {"end_of_epoch": True}
    assert asked(server, "is_channel_epoch_done", channel_id=channel_id, epoch=0).header == {"is_done": True}
    assert asked(server, "destroy_sampling_input", channel_id=channel_id).header == {"was_there": True}
    assert asked(server, "destroy_sampling_input", channel_id=channel_id).header == {"was_there": False}
    assert (served.num_channels, served.num_backends) == (0, 0)


def test_all_channels_of_a_rank_are_destroyed_by_its_key(server: StoreServer, served: Served) -> None:
    """A client that never got the answer with its channel's id needs this."""
    for key in ("train", "val"):
        for rank in (0, 1):
            if (key, rank) != ("val", 1):
                config = {"batch_size": 25 if key == "train" else 30}
                register(
                    server,
                    init(server, key, **config),
                    worker_key=f"rank {rank}",
                    worker=f"{rank}",
                    config_options=config,
                )
    assert served.num_channels == 3
    assert asked(server, "destroy_sampling_input", worker_key="rank 0").header == {"was_there": True}
    (left,) = asked(server, "describe_channels").header["channels"]
    assert (left["worker"], served.num_backends) == ("1", 1)
    assert asked(server, "destroy_sampling_input", worker_key="rank 0").header == {"was_there": False}


def test_a_stream_holds_the_rest_of_the_epoch_and_its_end(server: StoreServer, timed_parts: dict[int, Path]) -> None:
    channel_id = begun(server)
    wanted = wanted_batches(timed_parts[1])
    first = asked_all(server, "fetch_sampled_messages", channel_id=channel_id, step=0, max_messages=2)
    assert [read(frame) for frame in first] == wanted[:2]
    *rest, end = asked_all(server, "fetch_sampled_messages", channel_id=channel_id, step=2)
    assert [read(frame) for frame in rest] == wanted[2:]
    assert end.header == {"end_of_epoch": True}


def test_a_broken_stream_resumes_at_the_first_missing_batch(
    served: Served, server: StoreServer, timed_parts: dict[int, Path]
) -> None:
    channel_id = begun(server)
    header = {"op": "fetch_sampled_messages", "dataset": server._answers._store.dataset_id, "channel_id": channel_id}
    stream = server.answer(call_of(Frame({**header, "step": 0})))
    wanted = wanted_batches(timed_parts[1])
    assert read(sent(next(stream))) == wanted[0]
    scheduler = served.services[0]._scheduler
    assert scheduler.totals["num_sending_bytes"] > 0
    stream.close()
    assert scheduler.totals["num_sending_bytes"] == 0
    *rest, _ = asked_all(server, "fetch_sampled_messages", channel_id=channel_id, step=1)
    assert [read(frame) for frame in rest] == wanted[1:]


def test_a_stream_ends_with_the_batch_that_failed(served: Served, server: StoreServer) -> None:
    channel_id = register(server, init(server))
    channel = served.services[0]._scheduler._channels[channel_id]
    make = channel.new_job

    class Failing:
        stage = "failing"

        def __init__(self) -> None:
            self._job = make()

        def __call__(self, epoch: int, step: int) -> Any:
            if step == 2:
                raise ValueError("batch 2 cannot be made")
            return self._job(epoch, step)

    channel.new_job = Failing
    asked(server, "start_new_epoch_sampling", channel_id=channel_id, epoch=1)
    header = {"op": "fetch_sampled_messages", "dataset": server._answers._store.dataset_id, "channel_id": channel_id}
    frames = [sent(one) for one in server.answer(call_of(Frame({**header, "step": 0})))]
    assert [next(iter(frame.header)) for frame in frames] == ["batch", "batch", "error"]
    assert "batch 2 cannot be made" in frames[-1].header["error"]["message"]


@pytest.mark.parametrize("op", ["fetch_one_sampled_message", "fetch_sampled_messages"])
def test_only_the_bytes_of_batches_are_counted_by_the_service(served: Served, server: StoreServer, op: str) -> None:
    """The transport counts the bytes of all other answers."""
    channel_id = register(server, init(server))
    scheduler = served.services[0]._scheduler
    channel = scheduler._channels[channel_id]
    make = channel.new_job()

    class FailingAtTwo:
        stage = "failing"

        def __call__(self, epoch: int, step: int) -> Frame:
            return make(epoch, step // (step != 2))

    channel.new_job = FailingAtTwo
    asked(server, "start_new_epoch_sampling", channel_id=channel_id, epoch=0)

    def counted(step: int, **more: Any) -> list[tuple[str, bool]]:
        header = {"op": op, "dataset": server._answers._store.dataset_id, "channel_id": channel_id, "step": step}
        found = []
        for frame in server.answer(call_of(Frame({**header, **more}))):
            found.append((next(iter(frame.header)), frame.is_counted))
            assert scheduler.totals["num_sending_bytes"] == (frame.num_bytes if frame.is_counted else 0)
        return found

    assert counted(4, max_messages=1) == [("batch", True)]
    assert counted(5) == [("end_of_epoch", False)]
    assert counted(2) == [("error", False)]


def test_a_named_batch_is_made_for_any_share_repeatedly(server: StoreServer, timed_parts: dict[int, Path]) -> None:
    channel_id = begun(server, first=1, stride=3)
    wanted = wanted_batches(timed_parts[1])
    for step in (4, 0, 4, 2, 1, 3, 0):
        frame = asked(server, "fetch_one_sampled_message", channel_id=channel_id, step=step)
        assert read(frame) == wanted[step]
    assert asked(server, "fetch_one_sampled_message", channel_id=channel_id, step=5).header == {"end_of_epoch": True}


def test_a_share_is_every_stride_th_batch(server: StoreServer, timed_parts: dict[int, Path]) -> None:
    wanted = wanted_batches(timed_parts[1])
    for first in (0, 1):
        channel_id = begun(server, first=first, stride=2, worker_key=f"share {first}")
        *frames, _ = asked_all(server, "fetch_sampled_messages", channel_id=channel_id, step=first)
        assert [read(frame) for frame in frames] == wanted[first::2]


def test_an_epoch_may_start_at_any_batch(server: StoreServer, timed_parts: dict[int, Path]) -> None:
    channel_id = register(server, init(server))
    asked(server, "start_new_epoch_sampling", channel_id=channel_id, epoch=1, first_step=3)
    *frames, _ = asked_all(server, "fetch_sampled_messages", channel_id=channel_id, step=3)
    assert [read(frame) for frame in frames] == wanted_batches(timed_parts[1], epoch=1)[3:]


def test_starting_an_epoch_is_monotonic_and_idempotent(server: StoreServer) -> None:
    channel_id = begun(server)

    def state() -> tuple[int, int]:
        header = asked(server, "fetch_one_sampled_message", channel_id=channel_id, step=0).header
        found = asked(server, "describe_channel", channel_id=channel_id).header["channel"]
        return header["batch"]["epoch"], found["num_epoch_fetched"]

    assert state() == (0, 1)
    asked(server, "start_new_epoch_sampling", channel_id=channel_id, epoch=0)
    assert state() == (0, 2)
    asked(server, "start_new_epoch_sampling", channel_id=channel_id, epoch=2)
    asked(server, "start_new_epoch_sampling", channel_id=channel_id, epoch=1)
    assert state() == (2, 1)
    asked(server, "start_new_epoch_sampling", channel_id=channel_id, epoch=0, turn=1)
    assert state() == (0, 1)
    for behind in ({"turn": 0}, {"turn": 0, "epoch": 2}):
        with pytest.raises(ChannelLost, match=r"iteration 0, epoch .* was requested; the channel is at iteration 1"):
            asked(server, "fetch_one_sampled_message", channel_id=channel_id, step=0, **behind)
    with pytest.raises(StateError, match="iteration 1, epoch 1, was requested; the channel is at iteration 1, epoch 0"):
        asked(server, "fetch_one_sampled_message", channel_id=channel_id, step=0, epoch=1)
    assert asked(server, "is_channel_epoch_done", channel_id=channel_id, epoch=1).header == {"is_done": False}


FIELDS = {
    "start_new_epoch_sampling": ("epoch", "turn", "first_step"),
    "fetch_one_sampled_message": ("step", "turn", "epoch", "lowest", "wait_s"),
    "fetch_sampled_messages": ("step", "turn", "epoch", "lowest", "wait_s", "max_messages"),
    "is_channel_epoch_done": ("epoch",),
    "register_sampling_input": ("first", "stride", "credit"),
}
NUMBERS: list[Any] = [(op, name, value) for op, names in FIELDS.items() for name in names for value in (1 << 62, -1)]
NUMBERS += [
    ("fetch_one_sampled_message", name, value)
    for name in ("step", "wait_s")
    for value in ((1 << 63) - 1, 1 << 63, 10**400, True, 1.0, 1e300, "1")
]


@pytest.mark.parametrize(("op", "name", "value"), NUMBERS)
def test_no_number_from_a_client_breaks_a_channel_permanently(
    server: StoreServer, timed_parts: dict[int, Path], op: str, name: str, value: Any
) -> None:
    channel_id = begun(server)
    header = {"channel_id": channel_id, "epoch": 0, "turn": 0, "step": 4, "wait_s": 0.0}
    if op == "register_sampling_input":
        header = register_header(init(server), worker_key="another")
    is_integer = type(value) is int and 0 <= value < 1 << 63
    if is_integer or name == "wait_s":
        with suppress(StateError, FormatError):  # another turn was asked for; wait_s is "1" or below 0
            asked_all(server, op, **{**header, name: value})
    else:
        with pytest.raises(FormatError, match=f"header field '{name}' is "):
            asked_all(server, op, **{**header, name: value})
    found = asked(server, "start_new_epoch_sampling", channel_id=channel_id, epoch=0, turn=1).header
    if found != {"turn": 1, "epoch": 0}:
        assert (op, found[name]) == ("start_new_epoch_sampling", value)
        asked(server, "destroy_sampling_input", channel_id=channel_id)
        channel_id = begun(server)
    got = [read(asked(server, "fetch_one_sampled_message", channel_id=channel_id, step=step)) for step in range(5)]
    assert got == wanted_batches(timed_parts[1])


def test_nothing_is_fetched_before_an_epoch_starts(server: StoreServer) -> None:
    channel_id = register(server, init(server))
    with pytest.raises(StateError, match="no epoch was started"):
        asked(server, "fetch_one_sampled_message", channel_id=channel_id, step=0)
    assert asked(server, "is_channel_epoch_done", channel_id=channel_id, epoch=0).header == {"is_done": False}


def test_a_channel_is_described(server: StoreServer) -> None:
    channel_id = begun(server, credit=2, worker="rank 0 at here")

    def described() -> dict[str, Any]:
        found: dict[str, Any] = asked(server, "describe_channel", channel_id=channel_id).header["channel"]
        return found

    wait_until(lambda: described()["num_waiting"] == 2, "the credit is used up")
    found = described()
    for name, wanted in {
        "worker": "rank 0 at here", "loader": "NeighborLoader", "epoch": 0, "num_steps": 5, "num_own_steps": 5,
        "credit": 2, "is_epoch_done": False, "num_in_flight": 0, "num_made": 2, "num_failed": 0, "num_fetched": 0,
    }.items():  # fmt: skip
        assert found[name] == wanted, name
    assert found["num_buffered_bytes"] > 0
    every = asked(server, "describe_channels").header
    assert [one["channel"] for one in every["channels"]] == [found["channel"]]
    assert not {"channel_id", "worker_key", "backend_id"} & (found.keys() | every["channels"][0].keys())
    assert str(channel_id) not in str(every)  # readers of this cannot use the channel
    assert (every["totals"]["num_channels"], every["totals"]["num_waiting"]) == (1, 2)


def test_registering_again_finds_the_channel(served: Served, server: StoreServer) -> None:
    backend_id = init(server)
    assert register(server, backend_id) == register(server, backend_id)
    assert served.num_channels == 1
    with pytest.raises(SettingsError, match="worker_key is taken by another input"):
        register(server, backend_id, first=1)
    assert served.num_channels == 1


def test_a_backend_is_made_once_per_key(served: Served, server: StoreServer) -> None:
    assert init(server) == init(server) != init(server, key="val")
    assert served.num_backends == 2
    with pytest.raises(SettingsError, match="backend 'train' has other options"):
        init(server, batch_size=26)
    with pytest.raises(SettingsError, match="backend 'train' has other options"):
        init(server, loader="LinkNeighborLoader")


def test_the_last_channel_removes_its_backend(served: Served, server: StoreServer) -> None:
    backend_id = init(server)
    channels = [register(server, backend_id, worker_key=f"rank {rank}") for rank in range(2)]
    for channel_id, num_left in zip(channels, (1, 0), strict=True):
        asked(server, "destroy_sampling_input", channel_id=channel_id)
        assert served.num_backends == num_left
    with pytest.raises(ChannelLost, match=r"backend .* does not exist"):
        register(server, backend_id)
    assert init(server) != backend_id


BAD_INPUTS: dict[str, tuple[dict[str, Any], type[HopstreamError], str]] = {
    "other options": ({"config": "another"}, SettingsError, "options of sampling differ"),
    "an option of the backend": ({"options": {"batch_size": 3}}, SettingsError, "batch_size is an option of the back"),
    "an unknown split": (
        {"options": {"seeds": {"tuple": ["paper", "nope"]}}}, HopstreamError, "nope",
    ),
    "no such seed": ({"options": {"seeds": {"tuple": ["paper", [9999]]}}}, HopstreamError, "9999"),
    "a bad rank": (
        {"options": {"seeds": {"tuple": ["paper", None]}, "rank": 7, "world_size": 2}}, SettingsError, "rank is 7",
    ),
    "no options": ({"options": None}, FormatError, "must be an object"),
    "malformed options": ({"options": {"seeds": {}}}, FormatError, "not an option"),
    "no key": ({"worker_key": None}, FormatError, "worker_key"),
    "an empty key": ({"worker_key": ""}, FormatError, "'worker_key' is ''; it must be printable characters"),
    "a blank key": ({"worker_key": "  "}, FormatError, "must be printable"),
    "a key that forges logs": ({"worker_key": "rank 0\x1b[2K"}, FormatError, "must be printable"),
    "a long key": ({"worker_key": "x" * (MAX_KEY_LENGTH + 1)}, FormatError, "has 1001 characters"),
    "no credit": ({"credit": 0}, FormatError, "'credit' is 0"),
    "a negative share": ({"first": -1}, FormatError, "'first' is -1"),
    "no stride": ({"stride": 0}, FormatError, "'stride' is 0"),
    "a flag for a number": ({"stride": True}, FormatError, "'stride' is True"),
    "another backend": ({"backend_id": 5}, ChannelLost, "backend 5 does not exist"),
    "a negative backend": ({"backend_id": -5}, FormatError, "'backend_id' is -5"),
    "an unknown option": ({"options": {"anchors": None}}, SettingsError, "anchors"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_a_registration_that_fails_leaves_nothing(served: Served, server: StoreServer, name: str) -> None:
    changes, kind, message = BAD_INPUTS[name]
    backend_id = init(server)
    with pytest.raises(kind, match=message):
        register(server, **{"backend_id": backend_id, **changes})
    assert served.num_channels == 0
    assert register(server, backend_id)
    assert served.num_channels == 1


def test_the_number_of_channels_is_limited(served: Served, server: StoreServer) -> None:
    backend_id = init(server)
    channels = [register(server, backend_id, worker_key=f"rank {rank}") for rank in range(3)]
    with pytest.raises(StoreUnavailable, match=r"the server has 3 channels, the maximum \(--max-channels\)"):
        register(server, backend_id, worker_key="rank 3")
    asked(server, "destroy_sampling_input", channel_id=channels[0])
    register(server, backend_id, worker_key="rank 3")
    assert served.num_channels == 3


def test_a_full_server_refuses_before_it_builds_a_loader(
    served: Served, server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend_id = init(server)
    for rank in range(3):
        register(server, backend_id, worker_key=f"rank {rank}")
    monkeypatch.setattr(SamplingService, "_new_loader", lambda *_: pytest.fail("a loader was built"))
    full = r"the server has 3 channels, the maximum \(--max-channels\); close loaders"
    with pytest.raises(StoreUnavailable, match=full):
        register(server, backend_id, worker_key="rank 3")
    header = {"backend_key": "val", "loader": "NeighborLoader", "options": {"num_neighbors": [2]}}
    with pytest.raises(StoreUnavailable, match=full):
        asked(server, "init_sampling_backend", **header, worker_key="rank 3")
    assert served.num_backends == 1
    asked(server, "init_sampling_backend", **header, worker_key="rank 0")  # rank 0 has its channel
    monkeypatch.setattr(service, "MAX_BACKENDS", 2)
    with pytest.raises(StoreUnavailable, match="the server has 2 backends, the maximum; close loaders"):
        asked(server, "init_sampling_backend", **{**header, "backend_key": "test"})


BAD_BACKENDS: dict[str, tuple[dict[str, Any], type[HopstreamError], str]] = {
    "an unknown loader": ({"loader": "Popen"}, SettingsError, "'Popen' is not a loader"),
    "no loader": ({"loader": None}, FormatError, "'loader' is None"),
    "no key": ({"backend_key": 5}, FormatError, "'backend_key' is 5"),
    "an empty key": ({"backend_key": ""}, FormatError, "'backend_key' is ''; it must be printable characters"),
    "an empty key of a rank": ({"worker_key": ""}, FormatError, "'worker_key' is ''"),
    "no loader's name": ({"loader": ""}, SettingsError, "'' is not a loader"),
    "a key that forges logs": ({"backend_key": "x\nerror: all is lost"}, FormatError, "must be printable"),
    "a long key": ({"backend_key": "x" * (MAX_KEY_LENGTH + 1)}, FormatError, "has 1001 characters"),
    "no options": ({"options": []}, FormatError, "they must be an object"),
    "an input": ({"options": {"seeds": None, "rank": 1}}, SettingsError, "rank, seeds is an input"),
    "an unknown array": ({"options": {"num_neighbors": {"array": 3}}}, FormatError, "is not an option"),
}


@pytest.mark.parametrize("name", BAD_BACKENDS)
def test_an_invalid_backend_is_refused(served: Served, server: StoreServer, name: str) -> None:
    changes, kind, message = BAD_BACKENDS[name]
    header = {"backend_key": "train", "loader": "NeighborLoader", "options": {"num_neighbors": [2]}, **changes}
    with pytest.raises(kind, match=message):
        asked(server, "init_sampling_backend", **header)
    assert served.num_backends == 0


@pytest.mark.parametrize(
    "option", ["source", "collate", "num_threads", "buffer_bytes", "transform", "self", "no_such_option"]
)
def test_consumer_options_are_refused_by_a_server(served: Served, server: StoreServer, option: str) -> None:
    backend_id = init(server, **{option: "x"})
    with pytest.raises(SettingsError):
        register(server, backend_id, config_options={option: "x"})
    assert served.num_channels == 0


BAD_CALLS: dict[str, tuple[str, dict[str, Any], type[HopstreamError]]] = {
    **{
        f"{op} of channel {value!r}": (op, {"channel_id": value, "epoch": 0, "step": 0}, kind)
        for op in OPERATIONS[2:]
        if op not in ("describe_channels", "destroy_sampling_input")
        for value, kind in ((12345, ChannelLost), (-1, FormatError), ("1", FormatError), (None, FormatError))
    },
    "destroy channel -1": ("destroy_sampling_input", {"channel_id": -1}, FormatError),
    "destroy nothing": ("destroy_sampling_input", {}, FormatError),
    "destroy key 5": ("destroy_sampling_input", {"worker_key": 5}, FormatError),
    "destroy an empty key": ("destroy_sampling_input", {"worker_key": ""}, FormatError),
    "no epoch": ("start_new_epoch_sampling", {"channel_id": 1}, FormatError),
    "epoch -1": ("start_new_epoch_sampling", {"channel_id": 1, "epoch": -1}, FormatError),
    "turn -1": ("start_new_epoch_sampling", {"channel_id": 1, "epoch": 0, "turn": -1}, FormatError),
    "first_step 0.5": ("start_new_epoch_sampling", {"channel_id": 1, "epoch": 0, "first_step": 0.5}, FormatError),
    "step -1": ("fetch_one_sampled_message", {"channel_id": 1, "step": -1}, FormatError),
    "turn x": ("fetch_one_sampled_message", {"channel_id": 1, "step": 0, "turn": "x"}, FormatError),
    "wait_s -1": ("fetch_one_sampled_message", {"channel_id": 1, "step": 0, "wait_s": -1}, FormatError),
    "wait_s x": ("fetch_one_sampled_message", {"channel_id": 1, "step": 0, "wait_s": "x"}, FormatError),
    "wait_s huge": ("fetch_one_sampled_message", {"channel_id": 1, "step": 0, "wait_s": 10**400}, ChannelLost),
    "no messages": ("fetch_sampled_messages", {"channel_id": 1, "step": 0, "max_messages": 0}, FormatError),
    "many messages": ("fetch_sampled_messages", {"channel_id": 1, "step": 0, "max_messages": 1 << 60}, FormatError),
    "epoch x": ("is_channel_epoch_done", {"channel_id": 1, "epoch": "x"}, FormatError),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_an_invalid_call_is_refused(server: StoreServer, name: str) -> None:
    op, header, kind = BAD_CALLS[name]
    with pytest.raises(kind):
        asked_all(server, op, **header)


def test_every_operation_needs_the_token(timed_parts: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DELAY_S", 0.0)
    with serve_here(timed_parts[1], token="open-sesame") as served:
        (server,) = served.servers
        assert set(OPERATIONS) <= set(served.services[0].operations)
        for op in served.services[0].operations:
            for token in (None, "open-sesam", "open-sesame2"):
                with pytest.raises(AccessDenied, match="token is missing or wrong"):
                    asked_all(server, op, token=token, channel_id=1)
        assert server.stats.num_requests == 0
        (frame,) = asked_all(server, "describe_channels", token="open-sesame")
        assert frame.header["channels"] == []


def test_requests_for_another_dataset_are_refused(server: StoreServer) -> None:
    for op in OPERATIONS:
        with pytest.raises(HopstreamError, match="the request is for another"):
            asked_all(server, op, dataset="another")


class Gate:
    """Open a graph when an event permits it, and count the calls."""

    def __init__(self, open_graph: Callable[[], Any]) -> None:
        self._open_graph = open_graph
        self.may_go = threading.Event()
        self.num_calls = 0
        self.failures: list[BaseException] = []

    def __call__(self) -> Any:
        self.num_calls += 1
        assert self.may_go.wait(20)
        if self.failures:
            raise self.failures.pop()
        return self._open_graph()


@pytest.fixture
def gated(timed_parts: dict[int, Path]) -> Iterator[tuple[SamplingService, Gate]]:
    gate = Gate(lambda: LocalStore(open_dataset(timed_parts[1])))
    service = SamplingService(gate, SamplingLimits(threads=1, lease_s=60.0))
    yield service, gate
    gate.may_go.set()
    service.close()


def init_request() -> Frame:
    options, arrays = encode_options(CONFIG)
    header = {"backend_key": "train", "loader": "NeighborLoader", "options": options}
    return sent(Frame(header, arrays))


@pytest.mark.parametrize("failure", [None, ZeroDivisionError("a bug")])
def test_callers_wait_for_a_backend_under_construction(
    gated: tuple[SamplingService, Gate], failure: BaseException | None
) -> None:
    service, gate = gated
    gate.failures = [failure] if failure else []
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(service.init_sampling_backend, init_request()) for _ in range(4)]
        wait_until(lambda: gate.num_calls == 1, "the first caller opens the graph")
        assert not any(future.done() for future in futures)
        gate.may_go.set()
        if failure is None:
            assert len({future.result(20)[0]["backend_id"] for future in futures}) == 1
        else:
            # A later caller makes the backend again, and its graph can be opened.
            errors = [future.exception(20) for future in futures]
            assert any(error is not None and str(failure) in str(error) for error in errors)
    assert service.init_sampling_backend(init_request())[0]["backend_id"] > 0
    assert len(service._backends) == 1


def test_waiters_for_the_graph_get_its_opening_error() -> None:
    """The waiters share an attempt, and get its error unchanged, also if it is a timeout."""
    began, go, num_tries = threading.Event(), threading.Event(), 0

    def open_graph() -> LocalStore:
        nonlocal num_tries
        num_tries += 1
        began.set()
        assert go.wait(30)
        raise StoreTimeout("part 3 gave no answer")

    service = SamplingService(open_graph, SamplingLimits(threads=1))
    with ThreadPoolExecutor(5) as pool:
        calls = [pool.submit(service._graph_of_all)]
        assert began.wait(30)
        calls += [pool.submit(service._graph_of_all) for _ in range(4)]
        wait_until(lambda: sum(call.running() for call in calls) == 5, "all of them ask")
        threading.Event().wait(0.1)  # until they wait
        go.set()
        for call in calls[:1]:
            assert str(call.exception(30)) == "part 3 gave no answer"
        told = {str(call.exception(30)) for call in calls}
    service.close()
    assert told == {"part 3 gave no answer"} and num_tries < 5


def test_backends_without_registrations_are_removed(timed_parts: dict[int, Path]) -> None:
    with serve_here(timed_parts[1], SamplingLimits(threads=1, lease_s=0.05)) as served:
        (server,) = served.servers
        first = init(server, key="abandoned")

        wait_until(lambda: first not in served.services[0]._backends, "the backend is given up")


def test_requests_that_are_too_large_are_refused(timed_parts: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_OPTION_BYTES", 16 << 10)
    with serve_here(timed_parts[1], SamplingLimits(threads=1, max_request_bytes=17 << 10)) as served:
        (server,) = served.servers
        backend_id = init(server)
        options, arrays = encode_options({"seeds": ("paper", np.arange(17 << 7) % 100)})
        with pytest.raises(SettingsError, match=r"the server takes 17408 \(--max-request-bytes\)"):
            asked(server, "register_sampling_input", arrays, **register_header(backend_id, options=options))
        options, arrays = encode_options({"seeds": ("paper", np.arange(1 << 11) % 100)})
        asked(server, "register_sampling_input", arrays, **register_header(backend_id, options=options))
        with pytest.raises(SettingsError, match="may have at most 16384; the options of a loader are small"):
            asked(
                server, "init_sampling_backend", [np.zeros((16 << 10) + 1, np.uint8)], backend_key="large",
                loader="NeighborLoader", options={},
            )  # fmt: skip
        assert (served.num_channels, served.num_backends) == (1, 1)


def test_memory_bounds_batches_and_inputs(timed_parts: dict[int, Path]) -> None:
    """Batches and their idle memory have five eighths, inputs an eighth."""
    limits = SamplingLimits(threads=2, memory_bytes=800_000)
    with serve_here(timed_parts[1], limits) as served:
        pool = served.services[0]._buffers
        assert (pool._capacity_bytes, pool._limit_bytes) == (125_000, 500_000)
        backend_id = init(served.servers[0])
        options, arrays = encode_options({"seeds": ("paper", np.zeros(13_000, np.int64))})
        header = {**register_header(backend_id), "options": options}
        with pytest.raises(SettingsError, match=r"104000 bytes; all inputs may have 100000 \(--memory-bytes\)"):
            asked(served.servers[0], "register_sampling_input", arrays, **header)
        channel_id = begun(served.servers[0])
        assert len(asked_all(served.servers[0], "fetch_sampled_messages", channel_id=channel_id, step=0)) == 6
    with serve_here(timed_parts[1], SamplingLimits(threads=2)) as served:
        pool = served.services[0]._buffers
        assert (pool._capacity_bytes, pool._limit_bytes) == (2 * service.BUFFER_BYTES, None)


def test_a_batch_without_enough_memory_is_an_error(timed_parts: dict[int, Path]) -> None:
    with serve_here(timed_parts[1], SamplingLimits(threads=1, memory_bytes=800_000)) as served:
        served.services[0]._buffers = BufferPool(0, 0)
        channel_id = register(served.servers[0], init(served.servers[0]))
        channel = served.services[0]._scheduler._channels[channel_id]
        make = channel.new_job

        class Hungry:
            stage = "taking memory"

            def __call__(self, epoch: int, step: int) -> Frame:
                if step == 4:
                    served.services[0]._buffers.take((1 << 20,), np.uint8)
                return make()(epoch, step)

        channel.new_job = Hungry
        asked(served.servers[0], "start_new_epoch_sampling", channel_id=channel_id, epoch=0)
        with pytest.raises(SettingsError, match="the 500000 bytes that --memory-bytes leaves to batches"):
            asked(served.servers[0], "fetch_one_sampled_message", channel_id=channel_id, step=4)


def test_all_loaders_share_one_graph(served: Served, server: StoreServer) -> None:
    for key in ("train", "val"):
        register(server, init(server, key=key))
    assert len({id(backend.store) for backend in served.services[0]._backends.values()}) == 1


@pytest.mark.slow
def test_cycles_leave_nothing(timed_parts: dict[int, Path]) -> None:
    """200 times register, epoch, destroy: memory, threads and file descriptors stay as they were."""

    def cycle(number: int) -> None:
        options, arrays = encode_options(CONFIG)
        header = {"backend_key": f"key {number}", "loader": "NeighborLoader", "options": options}
        (answer,) = call("init_sampling_backend", arrays, **header)
        header = register_header(answer.header["backend_id"], first=number % 2, stride=2)
        (answer,) = call("register_sampling_input", **header)
        channel_id = answer.header["channel_id"]
        call("start_new_epoch_sampling", channel_id=channel_id, epoch=0)
        call("fetch_sampled_messages", channel_id=channel_id, step=number % 2, max_messages=1 + number % 3)
        call("destroy_sampling_input", channel_id=channel_id)

    process, found = psutil.Process(), []
    with serve_here(timed_parts[2], SamplingLimits(threads=2)) as served, Caller(served.servers[0]) as call:
        for number in range(260):
            cycle(number)
            if number in (59, 259):
                gc.collect()
                num_threads = sum("hopstream" in thread.name for thread in threading.enumerate())
                found.append((num_threads, process.num_fds(), len(gc.get_objects()), process.memory_info().rss))
        assert served.num_channels == served.num_backends == 0
    before, after = found
    assert after[0] <= before[0] + 4  # pools of connections grow to their full size, not with cycles
    assert after[1] <= before[1] + 2
    assert after[2] < before[2] + 2000
    assert after[3] < before[3] + (16 << 20)


def test_closing_lists_open_channels(timed_parts: dict[int, Path]) -> None:
    with serve_here(timed_parts[1]) as served:
        (server,) = served.servers
        channel_id = begun(server, worker="rank 0 at here")
        (left,) = served.services[0].close()
        assert left["worker"] == "rank 0 at here"
        with pytest.raises(HopstreamError):
            asked(server, "fetch_one_sampled_message", channel_id=channel_id, step=0)
        assert served.services[0].close() == []
