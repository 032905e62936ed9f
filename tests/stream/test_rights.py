"""Tests that a token permits exactly the requests that docs/operations.md lists for its rights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopstream.dataset.layout import open_dataset
from hopstream.errors import AccessDenied, HopstreamError, RemoteError
from hopstream.preparation.write import write_parts
from hopstream.store import open_store
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from hopstream.stream.messages import encode_options, recipe_digest
from hopstream.stream.service import SamplingService
from hopstream.stream.settings import SamplingLimits
from hopstream.transport import listener
from hopstream.transport.connection import Connection
from hopstream.transport.location import Location
from hopstream.transport.messages import ArraySpec, Frame, empty_arrays
from hopstream.transport.security import ClientSecurity, ServerSecurity
from tests.load.graphs import CITES, RATES, make_timed_graph
from tests.store.processes import wait_until

PAGE = Path(__file__).parents[2] / "docs/operations.md"
TOKENS: Mapping[str, str | None] = {"no token": None, "wrong token": "guess", "`read`": "rrr", "`admin`": "aaa"}
NOT_LET_IN, DENIED, ANSWERED, NO_PATH = "not let in", "denied", "answered", "answered, without `path`"
BACKEND = encode_options({"num_neighbors": [2], "batch_size": 30})
INPUT = encode_options({"seeds": ("paper", "train")})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One part with data for every operation."""
    graph = make_timed_graph(np.random.default_rng(3))
    graph = replace(graph, edge_splits={RATES: {"train": np.arange(0, 100, 2)}}).check()
    root = tmp_path_factory.mktemp("rights") / "parts"
    write_parts(graph, root, num_parts=1, method="hash", direction="both", links=list(graph.edges))
    return root


@pytest.fixture
def server(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreServer]:
    """A sampling server with two tokens, which refuses strangers without delay."""
    monkeypatch.setattr(listener, "FREE_REFUSALS", 1 << 20)
    table = tmp_path / "tokens"
    table.touch(mode=0o600)
    table.write_text("# who may what\ntrainer read rrr\n\nops admin aaa\n")
    service = SamplingService(lambda: open_store(folder), SamplingLimits(threads=1))
    with (
        LocalStore(open_dataset(folder)) as store,
        StoreServer(
            store, security=ServerSecurity(token_file=table), path=folder,
            operations={**service.operations, "fail": lambda frame: fail(folder)},
        ) as running,
    ):  # fmt: skip
        yield running
        service.close()


def fail(folder: Path) -> Iterator[Frame]:
    """An operation with a bug."""
    raise ZeroDivisionError(f"a bug in {folder}/part-00000")
    yield


class Frames:
    """Collect the frames of an answer."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def place(self, header: dict[str, Any], specs: Sequence[ArraySpec]) -> Sequence[np.ndarray]:
        return empty_arrays(specs)

    def take(self, frame: Frame) -> None:
        self.frames.append(frame)


@dataclass
class Asker:
    """Send requests to a server with one token."""

    connection: Connection
    dataset_id: str

    def __call__(self, op: str, arrays: Any = (), **header: object) -> Frame:
        """The first frame of an answer."""
        answer = Frames()
        self.connection.call(Frame({"op": op, "dataset": self.dataset_id, **header}, arrays), 20.0, op, answer)
        return answer.frames[0]


@contextmanager
def asking(server: StoreServer, token: str | None) -> Iterator[Asker]:
    connection = Connection(Location.parse(server.location), ClientSecurity(token=token))
    try:
        yield Asker(connection, server._answers._store.dataset_id)
    finally:
        connection.close()


def init(ask: Asker) -> int:
    options, arrays = BACKEND
    answer = ask("init_sampling_backend", arrays, backend_key="b", loader="NeighborLoader", options=options)
    return int(answer.header["backend_id"])


def register(ask: Asker, backend_id: int) -> int:
    options, arrays = INPUT
    answer = ask(
        "register_sampling_input", arrays, backend_id=backend_id, config=recipe_digest("NeighborLoader", *BACKEND),
        worker_key="rank 0", options=options, first=0, stride=1, credit=2,
    )  # fmt: skip
    return int(answer.header["channel_id"])


def requests(ids: Mapping[str, int]) -> dict[str, Callable[[Asker], object]]:
    """A valid request of each kind; ``ids`` are those of an admin's backend and channel."""
    few = np.arange(3, dtype=np.uint32)
    cites, channel = [*CITES, "in"], ids["channel"]
    return {
        "describe": lambda ask: ask("describe"),
        "sample": lambda ask: ask(
            "sample", [few], requests=[
                {"owner": cites, "ids": 0, "count": 2, "is_replacing": False, "rng_seed": 1, "wants_edge_ids": False}
            ],
        ),
        "fetch": lambda ask: ask("fetch", [few], requests=[{"owner": "paper", "names": ["x"], "ids": 0}]),
        "lookup": lambda ask: ask("lookup", [few], node_type="paper"),
        "degrees": lambda ask: ask("degrees", [few], owner=cites),
        "find_edges": lambda ask: ask("find_edges", [few, few], owner=cites),
        "links": lambda ask: ask("links", [few], edge_type=list(CITES)),
        "split": lambda ask: ask("split", node_type="paper", name="train"),
        "edge_split": lambda ask: ask("edge_split", edge_type=list(RATES), name="train"),
        "init_sampling_backend": init,
        "register_sampling_input": lambda ask: register(ask, ids["backend"]),
        "start_new_epoch_sampling": lambda ask: ask("start_new_epoch_sampling", channel_id=channel, epoch=0),
        "fetch_one_sampled_message": lambda ask: ask("fetch_one_sampled_message", channel_id=channel, step=0),
        "fetch_sampled_messages": lambda ask: ask(
            "fetch_sampled_messages", channel_id=channel, step=0, max_messages=1
        ),
        "is_channel_epoch_done": lambda ask: ask("is_channel_epoch_done", channel_id=channel, epoch=0),
        "describe_channel": lambda ask: ask("describe_channel", channel_id=channel),
        "destroy_sampling_input": lambda ask: ask("destroy_sampling_input", channel_id=1),
        "describe_channels": lambda ask: ask("describe_channels"),
        "stats": lambda ask: ask("stats"),
    }  # fmt: skip


def outcome(question: Callable[[Asker], Any], ask: Asker, op: str) -> str:
    """The outcome of a request."""
    try:
        answer = question(ask)
    except AccessDenied as error:
        if "token is missing or wrong" in str(error):
            return NOT_LET_IN
        assert str(error) == f"{op} needs admin rights, and the token of 'trainer' has read rights"
        return DENIED
    return NO_PATH if op == "describe" and answer.header["path"] is None else ANSWERED


def measured(server: StoreServer) -> list[str]:
    """The measured table, as lines of Markdown."""
    with ExitStack() as stack:
        askers = {name: stack.enter_context(asking(server, token)) for name, token in TOKENS.items()}
        admin = askers["`admin`"]
        backend_id = init(admin)
        channel_id = register(admin, backend_id)
        admin("start_new_epoch_sampling", channel_id=channel_id, epoch=0)
        asked = requests({"backend": backend_id, "channel": channel_id})
        assert set(asked) == server.operation_names - {"fail"}
        lines = [f"| operation | {' | '.join(TOKENS)} |", "|---" * (len(TOKENS) + 1) + "|"]
        for op, question in asked.items():
            found = [outcome(question, ask, op) for ask in askers.values()]
            lines.append(f"| `{op}` | {' | '.join(found)} |")
        return lines


def test_rights_match_the_documented_table(server: StoreServer) -> None:
    table = measured(server)
    text = PAGE.read_text()
    assert "\n".join(table) in text, "docs/operations.md has another table; it is:\n" + "\n".join(table)
    # Clients that are not let in send no request.
    num_asked = 3 + 2 * (len(table) - 2)
    wait_until(lambda: server.stats.num_requests == num_asked and server.stats.num_refusals == 2, "all are counted")
    assert server.stats.num_failures == 0


def test_only_admins_get_and_map_the_folder(server: StoreServer, folder: Path) -> None:
    found = {}
    for token in ("rrr", "aaa"):
        security = ClientSecurity(token=token)
        with RemoteStore(server.location, StoreSettings(security=security)) as store:
            found[token] = store.facts.path
        with open_store(server.location, StoreSettings(security=security)) as store:
            assert isinstance(store, LocalStore) == (token == "aaa")
            assert len(store.split("paper", "train")) == 30
    assert found == {"rrr": None, "aaa": folder.resolve()}


def test_only_admins_get_paths_in_errors(server: StoreServer, folder: Path) -> None:
    told: dict[str, HopstreamError] = {}
    for token in ("rrr", "aaa"):
        with asking(server, token) as ask, pytest.raises(RemoteError) as failure:
            ask("fail")
        told[token] = failure.value
    assert str(folder) in str(told["aaa"]) and "Traceback" in str(told["aaa"]) and __file__ in str(told["aaa"])
    message = str(told["rrr"])
    assert message.endswith("ZeroDivisionError in fail; the server's log says more, at level info")
    assert not any(word in message for word in ("a bug", "Traceback", str(folder), __file__))


def test_rights_follow_the_token_file(server: StoreServer, tmp_path: Path) -> None:
    def stats() -> object:
        with asking(server, "rrr") as ask:
            return ask("stats").header["num_requests"]

    table = tmp_path / "tokens"
    with pytest.raises(AccessDenied, match="stats needs admin rights"):
        stats()
    for text in ("trainer admin rrr\n", "trainer admin\n"):  # half a file is ignored; the previous table stays
        table.write_text(text)
        assert stats()
    table.write_text("another admin xxx\n")
    with pytest.raises(AccessDenied, match="token is missing or wrong"):
        stats()
