"""Checks that senseless requests are refused in words, before anything is gathered."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from hopstream.errors import (
    FormatError,
    HopstreamError,
    IdRangeError,
    SettingsError,
    UnknownNameError,
    VersionMismatch,
)
from hopstream.store.answer import ROW_BYTES
from hopstream.store.contract import KEY
from hopstream.store.server import StoreServer
from hopstream.store.settings import ServerLimits
from hopstream.transport.failures import raise_error
from hopstream.transport.messages import PREFIX, REQUEST, Frame
from tests.store.cases import BUYS, Case
from tests.store.processes import environment
from tests.store.test_server import CITES, IDS, request_of
from tests.transport.peer import Peer, message_bytes


@pytest.fixture(scope="module")
def server(find_case: Callable[[str, int], Case]) -> Iterator[StoreServer]:
    limits = ServerLimits(max_ids=50, max_reply_bytes=100_000)
    with StoreServer(find_case("typed", 3).shared(), limits=limits) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: StoreServer) -> Iterator[Peer]:
    with Peer(server.location) as client:
        yield client


SAMPLE: dict[str, object] = {"owner": [*CITES, "in"], "ids": 0, "count": 2, "is_replacing": False, "rng_seed": 1}
PAIRS = np.zeros((2, 3), np.uint32)
LABOR: dict[str, object] = {"first": 1, "second": 2, "share": 0.5}


def one(**fields: object) -> dict[str, object]:
    """A request of one sample with some fields replaced."""
    return {"op": "sample", "requests": [{**SAMPLE, **fields}]}


BAD_WAYS: list[tuple[dict[str, object], list[np.ndarray], type[HopstreamError], str]] = [
    (one(surprise=1), [IDS], FormatError, "unknown fields .*'surprise'"),
    (
        {"op": "fetch", "requests": [{"owner": "paper", "names": [], "ids": 0, "surprise": 1}]},
        [IDS],
        FormatError,
        "unknown fields .*'surprise'",
    ),
    (one(is_replacing=1), [IDS], FormatError, "'is_replacing' is 1; it must be true or false"),
    (one(wants_edge_ids="no"), [IDS], FormatError, "'wants_edge_ids' is no"),
    (one(is_inclusive=None), [IDS], FormatError, "'is_inclusive' is None"),
    (one(strategy="best"), [IDS], FormatError, "'strategy' is 'best'; it must be one of uniform"),
    (one(strategy=None), [IDS], FormatError, "'strategy' is 'None'"),
    (one(strategy={"a": 1}), [IDS], FormatError, "'strategy' is"),
    (one(strategy="weighted"), [IDS], SettingsError, "needs weights"),
    (one(strategy="last"), [IDS], SettingsError, "needs times"),
    (one(strategy="labor", labor=LABOR), [IDS], SettingsError, "needs the keys of neighbours"),
    (one(labor=LABOR), [IDS], SettingsError, "'uniform' takes no labor seeds"),
    (one(labor=3), [IDS], FormatError, "'labor' is 3"),
    (one(labor={"first": 1}), [IDS], FormatError, "'labor' is .*; it must hold first, second and share"),
    (one(labor={**LABOR, "third": 1}), [IDS], FormatError, "'labor' is"),
    (one(labor={**LABOR, "first": 1 << 64}), [IDS], FormatError, "'first' is"),
    (one(labor={**LABOR, "second": 0.5}), [IDS], FormatError, "'second' is 0.5"),
    (one(labor={**LABOR, "share": 1}), [IDS], FormatError, "'share' is 1; it must be a number of at least 0 and below"),
    (one(labor={**LABOR, "share": True}), [IDS], FormatError, "'share' is True"),
    (one(labor={**LABOR, "share": "0"}), [IDS], FormatError, "'share' is 0"),
    (one(trees=5), [IDS], FormatError, "the header names array 5;"),
    (one(trees="1"), [IDS], FormatError, "the header names array '1';"),
    (one(trees=1), [IDS, IDS.astype(np.float64)], FormatError, "array 1 is float64.*must be uint32|int64"),
    (one(trees=1), [IDS, IDS[:2]], SettingsError, "trees is .*wanted int64.3"),
    (one(trees=1), [IDS, IDS + (1 << 23)], SettingsError, "trees hold 8388610"),
    (one(trees=1), [IDS, IDS.astype(np.int64) - 1], SettingsError, "trees hold -1"),
    (one(times=1), [IDS, np.zeros((3, 1), np.int64)], FormatError, "must be uint32|int64.n"),
    (one(times=1), [IDS, np.zeros(4, np.int64)], SettingsError, "times is .*wanted int64.3"),
    (one(times=1), [IDS, np.zeros(3, np.bool_)], FormatError, "array 1 is bool"),
    (one(excluded=0), [IDS], FormatError, "must be uint32|int64.n, n"),
    (one(excluded=1), [IDS, PAIRS[:1]], SettingsError, "excluded is"),
    (one(excluded=1), [IDS, PAIRS.T.copy()], SettingsError, "excluded is"),
    (one(excluded=1), [IDS, PAIRS.reshape(2, 3, 1)], FormatError, "must be uint32|int64.n, n"),
    (one(times=1), [IDS, np.zeros(4, np.uint32)], SettingsError, "times is uint32.4.; wanted int64.3"),
    (one(excluded=1), [IDS, PAIRS + 60], IdRangeError, "60"),
    (one(excluded=1), [IDS, PAIRS.astype(np.int64) - 1], IdRangeError, "-1"),
    (one(excluded=1), [IDS, np.zeros((2, 51), np.uint32)], SettingsError, "51 excluded pairs and candid.* is 50"),
    (one(candidates=1), [IDS, IDS[::-1].copy()], SettingsError, "candidates.1. is 1 after 2"),
    (one(candidates=1), [IDS, IDS + 58], IdRangeError, "60"),
    (one(candidates=1), [IDS, IDS - np.int64(1)], IdRangeError, "-1"),
    (one(candidates=1), [IDS, np.arange(51, dtype=np.uint32)], SettingsError, "51 excluded pairs and candidates"),
    (one(candidates=1, excluded=2), [IDS, np.arange(26, dtype=np.uint32), np.zeros((2, 25), np.uint32)], SettingsError,
     "51 excluded pairs and candidates .* the maximum is 50"),
    ({"op": "sample", "requests": [{**SAMPLE, "candidates": 1}] * 3}, [IDS, np.arange(20, dtype=np.uint32)],
     SettingsError, "60 excluded pairs and candidates"),
    ({"op": "find_edges"}, [IDS, IDS], FormatError, "None is not a node type or"),
    ({"op": "find_edges", "owner": "paper"}, [IDS, IDS], FormatError, "an edge type with"),
    ({"op": "find_edges", "owner": [*CITES, "in"]}, [IDS], FormatError, "the header names array 1;"),
    ({"op": "find_edges", "owner": [*CITES, "in"]}, [IDS, IDS[:2]], SettingsError, "neighbor_ids"),
    ({"op": "find_edges", "owner": [*CITES, "in"]}, [IDS, IDS + 58], IdRangeError, "60"),
    ({"op": "find_edges", "owner": [*CITES, "in"]}, [np.zeros(51, np.uint32)] * 2, SettingsError, "takes 50"),
    ({"op": "links"}, [IDS], FormatError, "None is not .source, relation, destination"),
    ({"op": "links", "edge_type": ["a", "b"]}, [IDS], FormatError, "is not .source"),
    ({"op": "links", "edge_type": list(CITES)}, [IDS], UnknownNameError, "keeps no links"),
    ({"op": "links", "edge_type": ["a", "b", "c"]}, [IDS], UnknownNameError, "unknown edge type"),
    ({"op": "links", "edge_type": list(CITES)}, [np.zeros(51, np.int64)], SettingsError, "takes 50"),
    ({"op": "edge_split", "edge_type": list(CITES)}, [], FormatError, "'name'"),
    ({"op": "edge_split", "edge_type": list(CITES), "name": "train"}, [], UnknownNameError, "has no split 'train'"),
    ({"op": "edge_split", "edge_type": "paper", "name": "train"}, [], FormatError, "'paper'|paper is not"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("header", "arrays", "error", "message"),
    [
        ({}, [], FormatError, "'op' is None"),
        ({"op": 3}, [], FormatError, "'op' is 3"),
        ({"op": "exec"}, [], FormatError, "unknown operation 'exec'; known: .'describe', 'sample'"),
        ({"op": "sample", "dataset": "other"}, [], VersionMismatch, "serves dataset .*open the store again"),
        ({"op": "sample", "dataset": None}, [], FormatError, "'dataset'"),
        ({"op": "sample"}, [], FormatError, "'requests'"),
        ({"op": "sample", "requests": [3]}, [], FormatError, "'requests'"),
        ({"op": "sample", "requests": [{}]}, [], FormatError, "array None"),
        ({"op": "sample", "requests": [{**SAMPLE, "ids": 1}]}, [IDS], FormatError, "the header names array 1;"),
        ({"op": "sample", "requests": [{**SAMPLE, "ids": -1}]}, [IDS], FormatError, "the header names array -1;"),
        ({"op": "sample", "requests": [{**SAMPLE, "ids": True}]}, [IDS], FormatError, "the header names array True;"),
        ({"op": "sample", "requests": [SAMPLE]}, [IDS.astype(np.float32)], FormatError, "must be uint32|int64"),
        ({"op": "sample", "requests": [SAMPLE]}, [IDS.reshape(1, 3)], FormatError, "must be uint32|int64"),
        ({"op": "sample", "requests": [{**SAMPLE, "count": -2}]}, [IDS], FormatError, "'count' is -2"),
        ({"op": "sample", "requests": [{**SAMPLE, "count": 1 << 40}]}, [IDS], FormatError, "'count'"),
        ({"op": "sample", "requests": [{**SAMPLE, "count": "3"}]}, [IDS], FormatError, "'count' is 3"),
        ({"op": "sample", "requests": [{**SAMPLE, "rng_seed": -1}]}, [IDS], FormatError, "'rng_seed'"),
        ({"op": "sample", "requests": [{**SAMPLE, "owner": "paper"}]}, [IDS], FormatError, "an edge type with"),
        ({"op": "sample", "requests": [{**SAMPLE, "owner": ["a", "b", "c", "in"]}]}, [IDS], UnknownNameError, "'b'"),
        ({"op": "sample", "requests": [SAMPLE]}, [IDS + 58], IdRangeError, "60"),
        ({"op": "sample", "requests": [SAMPLE]}, [-IDS.astype(np.int64)], IdRangeError, "-1"),
        ({"op": "sample", "requests": [SAMPLE]}, [np.zeros(51, np.uint32)], SettingsError, "51 ids .* takes 50"),
        ({"op": "sample", "requests": [SAMPLE] * 17}, [IDS], SettingsError, "51 ids .* takes 50"),
        ({"op": "sample", "requests": [SAMPLE] * 20_000}, [IDS[:0]], SettingsError, "20000 requests"),
        ({"op": "sample", "requests": [{**SAMPLE, "count": 1 << 30, "is_replacing": True}]}, [IDS], SettingsError,
         "the answer has .* bytes or more; this server sends at most 100000"),
        ({"op": "fetch", "requests": [{"owner": "paper", "names": "feat", "ids": 0}]}, [IDS], FormatError, "'names'"),
        ({"op": "fetch", "requests": [{"owner": "paper", "names": [3], "ids": 0}]}, [IDS], FormatError, "'names'"),
        ({"op": "fetch", "requests": [{"owner": "paper", "names": ["feat"] * 2, "ids": 0}]}, [IDS], FormatError,
         "a name twice"),
        ({"op": "fetch", "requests": [{"owner": "paper", "names": ["ghost"], "ids": 0}]}, [IDS], UnknownNameError,
         "ghost"),
        ({"op": "fetch", "requests": [{"owner": 3, "names": ["feat"], "ids": 0}]}, [IDS], FormatError, "3 is not"),
        ({"op": "fetch", "requests": [{"owner": "paper", "names": ["feat"], "ids": 0}]}, [IDS + 58], IdRangeError,
         "60"),
        ({"op": "lookup", "node_type": "paper"}, [], FormatError, "the header names array 0;"),
        ({"op": "lookup", "node_type": "paper"}, [IDS + 58], IdRangeError, "60"),
        ({"op": "lookup", "node_type": "ghost"}, [IDS], UnknownNameError, "ghost"),
        ({"op": "lookup", "node_type": "paper"}, [np.zeros(51, np.int64)], SettingsError, "takes 50"),
        ({"op": "degrees", "owner": "paper"}, [IDS], FormatError, "an edge type with"),
        ({"op": "degrees", "owner": [*CITES, "in"]}, [IDS + 58], IdRangeError, "60"),
        ({"op": "split", "node_type": "paper", "name": "ghost"}, [], UnknownNameError, "ghost"),
        ({"op": "split", "node_type": "paper"}, [], FormatError, "'name'"),
        *BAD_WAYS,
    ],
)  # fmt: skip
def test_invalid_requests_are_refused(
    typed_case: Case, client: Peer, header: dict[str, object], arrays: Sequence[np.ndarray],
    error: type[HopstreamError], message: str,
) -> None:  # fmt: skip
    frames = client.ask(request_of(typed_case, header, *arrays))
    assert len(frames) == 1
    with pytest.raises(error, match=message):
        raise_error(frames[0], "the server", "a test")


@pytest.fixture
def timed_server(timed_case: Case) -> Iterator[StoreServer]:
    with StoreServer(timed_case.shared(), limits=ServerLimits(max_ids=50)) as server:
        yield server


def good_requests(case: Case) -> list[Frame]:
    fetch = {"owner": "paper", "names": ["feat", "title", KEY], "ids": 0}
    return [
        request_of(case, {"op": "sample", "requests": [SAMPLE, {**SAMPLE, "count": -1, "wants_edge_ids": True}]}, IDS),
        request_of(case, {"op": "fetch", "requests": [fetch]}, IDS),
        request_of(case, {"op": "degrees", "owner": [*CITES, "out"]}, IDS),
        request_of(case, {"op": "split", "node_type": "paper", "name": "train"}),
        Frame({"op": "describe"}),
    ]


def good_ways(case: Case) -> list[Frame]:
    """A request per way of drawing, with every array that it may have."""
    arrays = [IDS, IDS, IDS.astype(np.int64), np.stack([IDS, IDS]), np.arange(9, dtype=np.uint32)]
    places = {"ids": 0, "trees": 1, "times": 2, "excluded": 3, "candidates": 4}
    owner = [*BUYS, "in"]
    ways: list[dict[str, object]] = [
        {"strategy": "uniform", "is_replacing": True},
        {"strategy": "weighted"},
        {"strategy": "top_k"},
        {"strategy": "last", "is_inclusive": False},
        {"strategy": "labor", "labor": LABOR},
    ]
    sample = {**SAMPLE, "owner": owner, "wants_edge_ids": True, **places}
    return [
        *[request_of(case, {"op": "sample", "requests": [{**sample, **way}]}, *arrays) for way in ways],
        request_of(case, {"op": "find_edges", "owner": owner}, IDS, IDS),
        request_of(case, {"op": "links", "edge_type": list(BUYS)}, IDS),
        request_of(case, {"op": "edge_split", "edge_type": list(BUYS), "name": "train"}),
    ]


def test_mutated_requests_never_bring_the_server_down(
    typed_case: Case, server: StoreServer, rng: np.random.Generator
) -> None:
    send_mutated(server, good_requests(typed_case), rng)


def test_mutated_requests_in_every_way_never_bring_the_server_down(
    timed_case: Case, timed_server: StoreServer, rng: np.random.Generator
) -> None:
    send_mutated(timed_server, good_ways(timed_case), rng)


def send_mutated(server: StoreServer, good: list[Frame], rng: np.random.Generator) -> None:
    """Send requests with some bytes after the prefix changed; the server may end their connections."""
    client = Peer(server.location)
    for request in good:
        assert "error" not in client.ask(request)[-1].header
    num_refused = num_ended = 0
    for turn in range(800):
        client.send(mutated(good[turn % len(good)], turn + 1000, rng, is_cut=turn % 7 == 0))
        try:
            header = list(client.frames(turn + 1000))[-1].header
        except (EOFError, ConnectionError):  # the header is malformed
            num_ended += 1
            client.close()
            client = Peer(server.location)
            continue
        num_refused += "error" in header
        if "error" in header:
            assert header["error"]["kind"] in (
                "FormatError", "VersionMismatch", "UnknownNameError", "IdRangeError", "SettingsError",
            ), header["error"]  # fmt: skip
    assert num_refused + num_ended > 320 and num_refused > 160, (num_refused, num_ended)
    for request in good:
        assert "error" not in client.ask(request)[-1].header
    client.close()


def mutated(request: Frame, number: int, rng: np.random.Generator, *, is_cut: bool) -> bytes:
    """The message of a request with changed bytes, or with less of its header than it claims."""
    message = bytearray(message_bytes(REQUEST, number, request))
    kind, flags, zero, header_bytes, *rest = PREFIX.unpack_from(message)
    for _ in range(rng.integers(1, 4)):
        position = rng.integers(PREFIX.size, len(message))
        is_text = position < PREFIX.size + header_bytes and rng.random() < 0.8
        message[position] = rng.integers(32, 127) if is_text else rng.integers(0, 256)
    if is_cut:
        kept = int(rng.integers(1, header_bytes))
        padded_bytes = kept + -kept % 8
        del message[PREFIX.size + padded_bytes : PREFIX.size + header_bytes + -header_bytes % 8]
        PREFIX.pack_into(message, 0, kind, flags, zero, kept, *rest)
    return bytes(message)


def test_a_neighbour_without_edge_id_weighs_eight_bytes(typed_case: Case) -> None:
    """Three rows of two neighbours fill a frame."""
    for frame_bytes, num_frames in [(3 * (ROW_BYTES + 16), 1), (3 * (ROW_BYTES + 16) - 1, 2)]:
        with (
            StoreServer(typed_case.shared(), limits=ServerLimits(frame_bytes=frame_bytes)) as server,
            Peer(server.location) as client,
        ):
            frames = client.ask(request_of(typed_case, one(), IDS))
        assert len(frames) == num_frames


def test_frames_of_features_are_four_times_as_large_while_most_memory_for_answers_is_free(typed_case: Case) -> None:
    fetch = {"op": "fetch", "requests": [{"owner": "paper", "names": [KEY], "ids": 0}]}
    request = request_of(typed_case, fetch, np.arange(48, dtype=np.uint32))
    for max_bytes, num_frames in [(1 << 30, 3), (3 << 20, 12)]:  # a call reserves 2 MiB
        limits = ServerLimits(frame_bytes=4 * 8, max_bytes=max_bytes)
        with StoreServer(typed_case.shared(), limits=limits) as server, Peer(server.location) as client:
            assert len(client.ask(request)) == num_frames


@pytest.mark.parametrize("times", [[], [1 << 40]])
def test_edges_scanned_by_top_k_count_towards_the_limit(timed_case: Case, times: list[int]) -> None:
    """The answer has 700 bytes; item 0's edges before a time are scanned for its heaviest."""
    hub = timed_case.shared().lookup("item", np.zeros(1, np.int64)).repeat(60)
    record = {**SAMPLE, "owner": [*BUYS, "in"], "count": 1, "strategy": "top_k"}
    arrays = [hub, *(np.full(60, time) for time in times)]
    request = request_of(
        timed_case, {"op": "sample", "requests": [{**record, **({"times": 1} if times else {})}]}, *arrays
    )
    with (
        StoreServer(timed_case.shared(), limits=ServerLimits(max_reply_bytes=1000)) as server,
        Peer(server.location) as client,
    ):
        frame = client.ask(request)[0]
    if not times:
        raise_error(frame, "the server", "a test")
    else:
        with pytest.raises(SettingsError, match=r"would read at least \d+ edges; this server reads at most 16000"):
            raise_error(frame, "the server", "a test")


WARM = """
import importlib, pkgutil, sys
import numpy as np
from numba.core.dispatcher import Dispatcher
import hopstream.kernels
from hopstream.dataset.layout import open_dataset
from hopstream.store.answer import warm_up
from hopstream.store.contract import SampleRequest
from hopstream.store.local import LocalStore

def versions():
    names = [module.name for module in pkgutil.iter_modules(hopstream.kernels.__path__, "hopstream.kernels.")]
    modules = [importlib.import_module(name) for name in names]
    kernels = {(m.__name__, n): k for m in modules for n, k in vars(m).items() if isinstance(k, Dispatcher)}
    return {name: len(kernel.signatures) for name, kernel in kernels.items()}

store = LocalStore(open_dataset(sys.argv[1]))
warm_up(store)
before = versions()
ids = np.arange(5)
limits = [{}, {"trees": ids}, {"times": ids}, {"trees": ids, "times": ids}]
ways = [{}, {"is_replacing": True}, {"strategy": "weighted"}]
buys = ("user", "buys", "item")
for direction in ("in", "out"):
    for way in ways:
        for limit in limits:
            request = SampleRequest(edge_type=buys, direction=direction, ids=ids, count=3, **way, **limit)
            store.sample([request])
            store.num_drawn_bound(request)
    store.find_edges(buys, direction, ids, ids)
    store.degrees(buys, direction, ids)
store.links(buys, ids)
print({kernel: number for kernel, number in versions().items() if number != before[kernel]})
"""


def test_clients_that_draw_uniformly_or_by_weight_wait_for_no_kernel(timed_case: Case) -> None:
    command = [sys.executable, "-c", WARM, str(timed_case.root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment(), check=False)
    assert (done.stdout.strip(), done.stderr) == ("{}", "")
