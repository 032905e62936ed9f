"""Checks that a sampling server stays sound whatever it is sent."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hopstream.errors import FormatError, HopstreamError
from hopstream.store.server import StoreServer
from hopstream.stream.messages import encode_options, recipe_digest
from hopstream.stream.settings import SamplingLimits
from hopstream.transport.messages import Frame
from tests.stream.frames import call_of, frame_of, sent
from tests.stream.fuzzing import Reached, mutated, sensible_requests
from tests.stream.serving import Caller, Served, asked, asked_all, channel_ids_at, serve_here

CONFIG: dict[str, Any] = {"num_neighbors": [2, 2], "batch_size": 25, "rng_seed": 3}
"""120 papers, so 5 batches."""
RENEWED_EVERY = 100
"""Requests after which the channel is made again; some requests destroy it."""
GROWTH_BYTES = 200 << 20
REACHING_SHARE = 0.5
SOAK_MESSAGES, SOAK_SHARDS, SOAK_S = 1_000_000, 10, 2400.0
OURS = {
    "FormatError", "SettingsError", "VersionMismatch", "ChannelLost", "StateError", "UnknownNameError", "IdRangeError",
    "StoreTimeout",
}  # fmt: skip
"""Errors that are no bugs of the server."""
needs_request_limit = pytest.mark.skipif(
    "max_request_bytes" not in {one.name for one in fields(SamplingLimits)}, reason="servers have no such limit yet"
)


@pytest.fixture
def served(timed_parts: dict[int, Path]) -> Iterator[Served]:
    """One server with all parts."""
    with serve_here(timed_parts[1], SamplingLimits(threads=1, max_channels=3, lease_s=60.0)) as served:
        yield served


def renew(call: Caller, served: Served) -> tuple[int, int]:
    """Destroy all channels, and start epoch 0 of a new one; return its id and that of its backend."""
    for channel_id in channel_ids_at(served.services[0]):
        call("destroy_sampling_input", channel_id=channel_id)
    options, arrays = encode_options(CONFIG)
    (frame,) = call("init_sampling_backend", arrays, backend_key="k", loader="NeighborLoader", options=options)
    backend_id = frame.header["backend_id"]
    inputs, _ = encode_options({"seeds": ("paper", None)})
    (frame,) = call(
        "register_sampling_input", backend_id=backend_id, config=recipe_digest("NeighborLoader", options, arrays),
        worker_key="rank 0", options=inputs, first=0, stride=1, credit=2,
    )  # fmt: skip
    channel_id = int(frame.header["channel_id"])
    call("start_new_epoch_sampling", channel_id=channel_id, epoch=0)
    return channel_id, int(backend_id)


@dataclass
class Outcome:
    """Outcome of mutated requests."""

    num_messages: int
    reached: Reached
    errors: Counter[str] = field(default_factory=Counter)
    bugs: dict[str, bytes] = field(default_factory=dict)
    growth_bytes: int = 0
    most_more: int = 0
    longest: str = ""
    took_s: float = 0.0

    @property
    def share(self) -> float:
        """Share of requests that reached an operation."""
        return self.reached.total / self.num_messages

    def check(self) -> None:
        print(  # noqa: T201
            f"{self.share:.1%} of {self.num_messages} reached an operation in {self.took_s:.1f} s; "
            f"grew by {self.growth_bytes >> 20} MiB; {dict(self.errors)}; {self.reached.by_operation}"
        )
        assert not self.bugs, self.bugs
        assert self.share >= REACHING_SHARE
        assert all(self.reached.by_operation.values()), self.reached.by_operation
        assert self.growth_bytes < GROWTH_BYTES
        assert self.most_more < 10_000, self.longest  # no message is much longer than the values it names


def fuzz(served: Served, num_messages: int, rng: np.random.Generator) -> Outcome:
    """Send mutated requests directly to decoding and answering, past the transport."""
    (server,) = served.servers
    process, started = psutil.Process(), time.monotonic()
    with Caller(server) as call:
        renew(call, served)
        before = 0
        outcome = Outcome(num_messages, Reached(server))
        requests: list[Frame] = []
        for number in range(num_messages):
            if number % RENEWED_EVERY == 0:
                counted = dict(outcome.reached.by_operation)
                requests = sensible_requests(server, *renew(call, served), CONFIG)
                outcome.reached.by_operation.update(counted)  # these calls were not mutated
                if number in (0, 1000):
                    before = process.memory_info().rss
            send(server, mutated(rng, requests[int(rng.integers(0, len(requests)))]), outcome)
            if number % 50 == 0:
                outcome.growth_bytes = max(outcome.growth_bytes, process.memory_info().rss - before)
        outcome.took_s = time.monotonic() - started
        channel_id, _ = renew(call, served)
        assert len(call("fetch_sampled_messages", channel_id=channel_id, step=0)) == 6
    return outcome


def send(server: StoreServer, ticket: bytes, outcome: Outcome) -> None:
    """Answer one request, and record the outcome."""
    try:
        request = frame_of(ticket)
    except FormatError as error:  # its connection ends
        outcome.errors["FormatError"] += 1
        assert len(str(error)) < 1000
        return
    for frame in server.answer(call_of(request)):
        told = sent(frame).header.get("error")
        if told is not None:
            outcome.errors[told["kind"]] += 1
            more = len(told["message"]) - len(ticket)
            if more > outcome.most_more:
                outcome.most_more, outcome.longest = more, told["message"][:100]
            if told["kind"] not in OURS:
                outcome.bugs[f"{told['message'][:200]}\n{told['traceback'][-1500:]}"] = ticket[:2000]


def test_unmutated_requests_are_valid(served: Served) -> None:
    """Each operation has a request, and servers refuse none of the unchanged requests."""
    (server,) = served.servers
    with Caller(server) as call:
        channel_id, backend_id = renew(call, served)
        requests = sensible_requests(server, channel_id, backend_id, CONFIG)
    assert {request.header["op"] for request in requests} == server.operation_names
    for request in requests:
        frames = [sent(frame).header for frame in server.answer(call_of(sent(request)))]
        op = request.header["op"]
        assert frames
        # The graph has splits of nodes alone.
        assert frames[-1].get("error", {}).get("kind") == ("UnknownNameError" if op == "edge_split" else None), op
        with Caller(server) as call:
            assert call("describe_channels")


@pytest.mark.slow
def test_mutated_requests_are_refused_without_harm(served: Served, rng: np.random.Generator) -> None:
    fuzz(served, 3000, rng).check()


@pytest.mark.soak
@pytest.mark.parametrize("shard", range(SOAK_SHARDS))
def test_a_million_mutated_requests_are_refused_without_harm(
    served: Served, rng: np.random.Generator, shard: int
) -> None:
    outcome = fuzz(served, SOAK_MESSAGES // SOAK_SHARDS, rng)
    outcome.check()
    assert outcome.took_s < SOAK_S / SOAK_SHARDS


@needs_request_limit
@pytest.mark.parametrize("op", ["init_sampling_backend", "register_sampling_input", "split", "no_such_operation"])
def test_a_request_of_too_many_bytes_is_refused(timed_parts: dict[int, Path], op: str) -> None:
    """The limit also holds for operations that ignore their arrays, before anything is decoded."""
    limits: Any = {"max_request_bytes": 1 << 20}
    with serve_here(timed_parts[1], SamplingLimits(threads=1, **limits)) as served:
        (server,) = served.servers
        options, _ = encode_options(CONFIG)
        header = {"backend_key": "k", "loader": "NeighborLoader", "options": options}
        with pytest.raises(HopstreamError, match=r"max-request-bytes|1048576"):
            asked_all(server, op, [np.zeros(1 << 20, np.uint8)], **header)
        with pytest.raises(HopstreamError, match=r"max-request-bytes|1048576"):
            asked_all(server, op, backend_key="x" * (1 << 20))
        assert served.num_channels == served.num_backends == 0
        assert asked(server, "init_sampling_backend", [np.zeros(1000, np.uint8)], **header).header["backend_id"] > 0


@needs_request_limit
def test_requests_of_256_mebibytes_are_accepted_by_default(timed_parts: dict[int, Path]) -> None:
    limits: Any = SamplingLimits()
    assert limits.max_request_bytes == 256 << 20
    with serve_here(timed_parts[1], SamplingLimits(threads=1)) as served:
        (server,) = served.servers
        process, most = psutil.Process(), np.ones((256 << 20) - 1000, np.uint8)
        before = process.memory_info().rss
        with pytest.raises(HopstreamError, match="node_type"):
            asked(server, "split", [most])
        assert process.memory_info().rss - before < 300 << 20  # it was there once
