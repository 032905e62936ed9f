"""Tests that a server stays up, small and fast, whatever other clients send or fail to read."""

from __future__ import annotations

import logging
import random
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopstream.arrays import Array
from hopstream.dataset.layout import open_dataset
from hopstream.graph.graph import EdgeTable, Graph, NodeTable
from hopstream.preparation.write import write_parts
from hopstream.store.contract import FetchRequest, SampleRequest
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore
from hopstream.store.settings import StoreSettings
from hopstream.stream.messages import encode_options, recipe_digest
from hopstream.transport import receiver
from hopstream.transport.limits import MAX_DELAY_S, TransportLimits
from hopstream.transport.listener import FREE_ABANDONED, Listener
from hopstream.transport.location import Location
from hopstream.transport.messages import ALIGNMENT, CANCEL, PREFIX, REQUEST, Frame, Status, encode_hello
from hopstream.transport.receiver import INPUT_BYTES
from hopstream.transport.security import ClientSecurity, ServerSecurity
from tests.ports import free_ports
from tests.store.processes import END_S, ROOT, ServerProcess, environment, wait_until
from tests.stream.serving import SamplingProcess
from tests.transport.peer import Peer, message_bytes

TOKEN = "correct-horse-battery-staple"
LINKS = ("node", "to", "node")
NUM_NODES, NUM_EDGES, WIDTH = 8192, 40_000, 256
MAX_REQUEST = 1 << 20
"""Bytes that the server reads in one request, so that tests can send as much."""
HELLO_S = 5.0
"""Seconds after which a server ends a connection without a hello."""
MESSAGE_S = 10.0
"""Seconds after which a server ends a connection with an incomplete request."""
BACK_S = 2.0
"""Seconds after an attack until a server is back at its threads, files and memory."""
MAX_BYTES = 200 << 20
"""Private memory, in bytes, of a server under attack."""
KEPT = 0.8
"""Least share of its speed that a client keeps during an attack."""
KEPT_BESIDE_LARGE_ANSWERS = 0.6
NUM_CALLS, NUM_ROUNDS, MANY_ROUNDS = 300, 8, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of 8 MiB of features."""
    root = tmp_path_factory.mktemp("hostile") / "parts"
    rng = np.random.default_rng(7)
    x = rng.standard_normal((NUM_NODES, WIDTH)).astype(np.float32)
    src, dst = rng.integers(0, NUM_NODES, (2, NUM_EDGES))
    graph = Graph(
        nodes={
            "node": NodeTable(
                num_nodes=NUM_NODES,
                features={"x": x},
            )
        },
        edges={LINKS: EdgeTable(src_keys=src, dst_keys=dst)},
        splits={"node": {"train": np.arange(100)}},
    )
    write_parts(graph.check(), root, num_parts=2, method="hash", direction="both", links=[LINKS])
    return root


@pytest.fixture(scope="module")
def near(folder: Path) -> Iterator[LocalStore]:
    with LocalStore(open_dataset(folder)) as store:
        yield store


@pytest.fixture
def server(folder: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that must end without an error, whatever the attack."""
    with served(folder, tmp_path, "tcp://127.0.0.1:0") as process:
        yield process


@contextmanager
def served(folder: Path, tmp_path: Path, location: str, *more: str) -> Iterator[ServerProcess]:
    tmp_path.mkdir(exist_ok=True)
    secret, log = tmp_path / "token", tmp_path / "log"
    secret.write_text(TOKEN)
    secret.chmod(0o600)
    words = ("--location", location, "--token", secret, "--max-request-bytes", MAX_REQUEST, "--quiet", *more)
    with ServerProcess(folder, *words, log=log) as process:
        yield process
        assert log.read_text() == "", "the server had an error"
        process.terminate()
        assert process.wait() == 0


class State:
    """Threads, descriptors and memory of a server."""

    def __init__(self, pid: int) -> None:
        self._root = Path(f"/proc/{pid}")
        self.threads, self.files, self.num_bytes = self.now()

    def now(self) -> tuple[int, int, int]:
        status = (self._root / "status").read_text(encoding="ascii")
        num_bytes = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon:"))
        return len(list((self._root / "task").iterdir())), len(list((self._root / "fd").iterdir())), num_bytes

    def check_back(self, what: str, within_s: float = BACK_S) -> None:
        """Check that threads and descriptors return to their numbers soon, and that memory stayed small."""
        began = time.monotonic()
        while (found := self.now())[0] > self.threads or found[1] > self.files:
            assert time.monotonic() < began + within_s, (
                f"after {what}: {found[0]} threads of {self.threads}, {found[1]} descriptors of {self.files}"
            )
            time.sleep(0.01)
        say(f"{what}: back in {time.monotonic() - began:.2f} s; {found[2] >> 20} MiB, {self.num_bytes >> 20} before")
        assert found[2] < MAX_BYTES


def say(text: str) -> None:
    print(text)  # noqa: T201


class Honest:
    """A client that checks its answers and measures their time."""

    def __init__(self, location: str, near: LocalStore, timeout_s: float = 20.0) -> None:
        settings = StoreSettings(timeout_s=timeout_s, prefer_local=False, security=ClientSecurity(token=TOKEN))
        self._store = RemoteStore(location, settings)
        self._wanted = [_asked(near, number) for number in range(16)]
        self.num_calls = 0
        for _ in range(2 * len(self._wanted)):
            self.call()

    def call(self) -> float:
        """Send a request and check the answer; return the seconds."""
        number = self.num_calls % len(self._wanted)
        self.num_calls += 1
        began = time.perf_counter()
        got = _asked(self._store, number)
        took_s = time.perf_counter() - began
        assert got == self._wanted[number], "an answer is another one"
        return took_s

    def median_s(self) -> float:
        return statistics.median(self.call() for _ in range(NUM_CALLS))

    def __enter__(self) -> Honest:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()


def _asked(store: Any, number: int) -> object:
    ids = np.arange(20, dtype=np.int64) + 20 * number
    request = SampleRequest(edge_type=LINKS, direction="in", ids=ids, count=3, rng_seed=number, wants_edge_ids=True)
    (reply,) = store.sample([request])
    (columns,) = store.fetch([FetchRequest(entity="node", names=("x",), ids=ids)])
    return [np.asarray(part).tolist() for part in (reply.counts, reply.neighbor_ids, reply.edge_ids, columns["x"])]


class Attack:
    """An attack in a process of its own."""

    def __init__(self, kind: str, location: str, dataset: str, count: int = 1 << 60) -> None:
        command = [sys.executable, "-m", "tests.transport.attacks", kind, location, TOKEN, dataset, str(count)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment(), text=True
        )
        self.kind, self.num, self.took_s = kind, 0, 0.0

    def hear(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == word

    def has_said(self, word: str) -> bool:
        """Whether the process has printed a word, which must be its next one."""
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN | select.POLLHUP)
        if not poll.poll(0):
            return False
        self.hear(word)
        return True

    def end(self) -> None:
        """End the attack; set how often it was done, and the seconds it took."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:
            process.stdin.close()
            words = process.stdout.read().split()[-2:]
        assert process.wait(END_S) == 0
        self.num, self.took_s = int(words[0]), float(words[1])

    def __enter__(self) -> Attack:
        self.hear("on")
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None and not self.num:
            with suppress(AssertionError, ValueError, IndexError):
                self.end()
            self._process.kill()
            self._process.wait(END_S)


def kept_speed(honest: Honest, attack: Callable[[], Attack], least: int = 1) -> list[float]:
    """Share of its speed that a client keeps, per round; no more than ``least`` rounds if one suffices."""
    shares: list[float] = []
    while len(shares) < least or (len(shares) < NUM_ROUNDS and max(shares) < KEPT):
        before_s = honest.median_s()
        with attack() as under_way:
            during_s = honest.median_s()
            under_way.end()
        after_s = honest.median_s()
        shares.append((before_s + after_s) / 2 / during_s)
        say(
            f"{under_way.kind}: {under_way.num / under_way.took_s:.0f} a second; a call took {1e3 * before_s:.2f} ms "
            f"before, {1e3 * during_s:.2f} ms meanwhile, {1e3 * after_s:.2f} ms after: {shares[-1]:.2f} kept"
        )
    return shares


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["mutations", "silent", "half_open", "cut_short", "slow_senders", "slow_readers", "abandoned"]
)
def test_a_client_keeps_its_speed(server: ServerProcess, near: LocalStore, kind: str) -> None:
    with Honest(server.location, near) as honest:
        state = State(server.pid)
        attack = partial(Attack, kind, server.location, near.dataset_id)
        if kind == "abandoned":
            # A client with the token has large answers made, as many as the processors can, until it has abandoned as
            # many as it may; it cancels every second one.
            with attack(2 * FREE_ABANDONED) as first:
                while not first.has_said("all"):
                    honest.call()
                first.end()
        shares = kept_speed(honest, attack, MANY_ROUNDS if kind == "abandoned" else 1)
        state.check_back(kind, BACK_S + MAX_DELAY_S)
        honest.call()
    if kind == "abandoned":  # most rounds show KEPT; without a delay one in ten does, so the best round tells nothing
        assert statistics.median(shares) >= KEPT_BESIDE_LARGE_ANSWERS
    else:
        assert max(shares) >= KEPT


@pytest.mark.parametrize(
    "count",
    [pytest.param(20_000, marks=pytest.mark.slow), pytest.param(1_000_000, marks=pytest.mark.soak)],
)
def test_mutated_messages_neither_stop_a_server_nor_change_answers(
    folder: Path, near: LocalStore, tmp_path: Path, count: int
) -> None:
    """Damaged messages of all kinds neither stop a server nor change the answers to others."""
    location = f"unix://{tmp_path}/socket"  # a port would have to remember too many closed connections
    with served(folder, tmp_path, location, "--patient") as server, Honest(server.location, near) as honest:
        state = State(server.pid)
        attack = Attack("mutations", server.location, near.dataset_id, count)
        with attack:
            while not attack.has_said("all"):
                honest.call()
            attack.end()
        say(f"{attack.num} messages in {attack.took_s:.0f} s, {honest.num_calls} calls beside them")
        assert attack.num >= count
        state.check_back("mutated messages", BACK_S + MAX_DELAY_S)
        honest.call()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["silent", "half_open", "cut_short"])
def test_ten_thousand_strangers(server: ServerProcess, near: LocalStore, kind: str) -> None:
    """Connections without a hello leave room for others, take few descriptors, and are closed."""
    with Honest(server.location, near) as honest:
        state = State(server.pid)
        most = 0
        with Attack(kind, server.location, near.dataset_id, 10_000) as attack:
            num_new = 0
            while not attack.has_said("all"):
                honest.call()
                most = max(most, state.now()[1])
                with Honest(server.location, near):
                    num_new += 1
            for _ in range(20):
                honest.call()
            wait_until(lambda: state.now()[1] <= state.files, "strangers are ended", HELLO_S + BACK_S)
            attack.end()
        say(f"{attack.num} connections in {attack.took_s:.1f} s, at most {most} descriptors; {num_new} new clients")
        state.check_back(kind)
    assert most < state.files + 128 + 64 + 20  # max_strangers, those accepted at once, and the new clients


def test_a_received_hello_is_read_before_its_connection_is_dropped(tmp_path: Path) -> None:
    """Connections that come at once, beyond the limit of strangers, are let in if they said hello."""
    security, limits = ServerSecurity(token=TOKEN), TransportLimits(max_strangers=2)
    where = Location.parse(f"unix://{tmp_path}/socket")
    listener = Listener(where, lambda call: iter([Frame({}, is_last=True)]), security=security, limits=limits)
    try:
        listener._poller.forget(listener._socket.fileno())  # until the next tick no connection is accepted
        with ExitStack() as stack:
            peers = [stack.enter_context(Peer(str(where), says_hello=False)) for _ in range(20)]
            for number, peer in enumerate(peers):
                peer.send(encode_hello(TOKEN if number % 2 else None)[: 10 if number % 2 == 0 else None])
            for peer in peers[1::2]:
                assert peer.read_welcome() == (Status.OK, "")
                assert peer.ask(Frame({})) == [Frame({}, [], True)]
    finally:
        listener.close(5.0)


@pytest.mark.slow
def test_a_hello_that_stops(server: ServerProcess) -> None:
    """A connection ends in time whichever byte of its hello is the last one sent."""
    state = State(server.pid)
    hello = encode_hello(TOKEN)
    peers = [Peer(server.location, says_hello=False) for _ in hello]
    try:
        began = time.monotonic()
        for num_bytes, peer in enumerate(peers):
            peer.send(hello[:num_bytes])
        wait_until(lambda: state.now()[1] >= state.files + len(peers), "all are accepted")
        for peer in peers:
            assert peer.is_closed_within(HELLO_S + 1.0)
        assert HELLO_S - 0.5 < time.monotonic() - began < HELLO_S + 1.0
        state.check_back("hellos that stopped")
    finally:
        for peer in peers:
            peer.close()


def request_of(num_bytes: int, dataset: str, in_header: bool) -> bytes:
    """A request for degrees whose header and arrays have the given number of bytes, at least 400."""
    ids = np.arange(8, dtype=np.int64)
    header: dict[str, object] = {"op": "degrees", "dataset": dataset, "owner": [*LINKS, "in"], "pad": ""}

    def said(frame: Frame) -> tuple[bytes, int]:
        data = message_bytes(REQUEST, 1, frame)
        found = PREFIX.unpack_from(data)
        return data, found[3] + found[5]

    frame = Frame(header, [ids] if in_header else [ids, np.zeros(0, np.uint8)])
    size = said(frame)[1]
    if not in_header:
        room = max(0, (num_bytes - size - 20) // ALIGNMENT * ALIGNMENT)
        frame.arrays = [ids, np.zeros(room, np.uint8)]
        size = said(frame)[1]
    frame.header["pad"] = "x" * (num_bytes - size)
    data, size = said(frame)
    assert size == num_bytes
    return data


@pytest.mark.slow
def test_requests_of_every_length(server: ServerProcess, near: LocalStore) -> None:
    """Requests around each limit are answered, refused, or end the connection; the next is answered."""
    state = State(server.pid)
    wanted = near.degrees(LINKS, "in", np.arange(8)).tolist()
    dataset = near.dataset_id
    around = [INPUT_BYTES, INPUT_BYTES - PREFIX.size, 2 * INPUT_BYTES, MAX_REQUEST]
    lengths = [400 + n for n in range(20)] + [size + n for size in around for n in range(-17, 18)]
    with Peer(server.location, TOKEN) as peer:
        for num_bytes in lengths:
            for in_header in (True, False):
                number = peer._number = peer._number + 1
                data = bytearray(request_of(num_bytes, dataset, in_header))
                data[8:16] = number.to_bytes(8, "little")
                peer.send(bytes(data))
                *_, last = peer.frames(number)
                if num_bytes <= MAX_REQUEST:
                    assert np.concatenate(last.arrays).tolist() == wanted, (num_bytes, last.header)
                else:
                    assert last.header["error"]["kind"] == "SettingsError"
                    assert f"has {num_bytes} bytes" in last.header["error"]["message"]
    with Peer(server.location, TOKEN) as peer:  # of no bytes: not even an object
        peer.send(PREFIX.pack(REQUEST, 0, 0, 0, 1, 0, 1000, 0))
        (frame,) = peer.frames(1)
        assert frame.header["error"]["kind"] == "FormatError"
    for num_bytes in range(1, 400):
        with Peer(server.location, TOKEN) as peer:
            text = b"{" + b" " * (num_bytes - 1)
            peer.send(PREFIX.pack(REQUEST, 0, 0, num_bytes, 1, 0, 1000, 0) + text + bytes(-num_bytes % ALIGNMENT))
            assert peer.is_closed_within(END_S)
    for header_bytes, body_bytes in [
        (0, 1 << 63),
        (0, (1 << 64) - 1),
        (8, 1 << 63),
        (MAX_REQUEST, 1),
        (1, MAX_REQUEST),
    ]:
        with Peer(server.location, TOKEN) as peer:
            peer.send(PREFIX.pack(REQUEST, 0, 0, header_bytes, 1, body_bytes, 1000, 0))
            (frame,) = peer.frames(1)
            assert frame.header["error"]["kind"] == "SettingsError"
    for header_bytes in ((16 << 20) + 1, (1 << 32) - 1):
        with Peer(server.location, TOKEN) as peer:
            peer.send(PREFIX.pack(REQUEST, 0, 0, header_bytes, 1, 0, 1000, 0))
            assert peer.is_closed_within(END_S)
    with Honest(server.location, near) as honest:
        honest.call()
    state.check_back("requests of every length")


@pytest.mark.slow
def test_slow_senders_are_ended(server: ServerProcess, near: LocalStore) -> None:
    """A byte a second is too slow for a hello, and for a request."""
    state = State(server.pid)
    message = message_bytes(REQUEST, 1, Frame({"op": "describe"}, [np.zeros(50_000)]))
    strangers = [Peer(server.location, says_hello=False) for _ in range(20)]
    known = [Peer(server.location, TOKEN) for _ in range(20)]
    began = time.monotonic()
    ended: dict[str, float] = {}
    try:
        for peer in known:
            peer.send(message[: PREFIX.size])
        at = 0
        while len(ended) < 2 and time.monotonic() < began + 30:
            for name, peers, said in (
                ("hello", strangers, encode_hello(TOKEN)),
                ("request", known, message[PREFIX.size :]),
            ):
                if name in ended:
                    continue
                with suppress(OSError):
                    for peer in peers:
                        peer.send(said[at : at + 1])
                if all(peer.is_closed_within(0.001) for peer in peers):
                    ended[name] = time.monotonic() - began
            at += 1
            time.sleep(1.0)
    finally:
        for peer in (*strangers, *known):
            peer.close()
    say(f"ended: {ended}")
    assert HELLO_S - 1 < ended["hello"] < HELLO_S + 2.5
    assert MESSAGE_S - 1 < ended["request"] < MESSAGE_S + 2.5
    state.check_back("slow senders")


@pytest.mark.slow
def test_fifty_slow_readers(server: ServerProcess, near: LocalStore) -> None:
    """Unread large answers take a frame each and no thread; other calls are answered as fast as before."""
    with Honest(server.location, near) as honest:
        state = State(server.pid)
        attack = Attack("slow_readers", server.location, near.dataset_id)
        with attack:
            wait_until(lambda: state.now()[1] >= state.files + 50, "all have asked")
            wait_until(lambda: state.now()[0] <= state.threads, "no thread waits for a reader", 10.0)
            for _ in range(100):
                honest.call()
            num_bytes = state.now()[2]
            attack.end()
        say(f"50 slow readers: {(num_bytes - state.num_bytes) >> 20} MiB more")
        assert num_bytes < state.num_bytes + (200 << 20)
        state.check_back("slow readers")


@pytest.mark.slow
def test_a_thousand_abandoned_calls(folder: Path, near: LocalStore, tmp_path: Path) -> None:
    """Large answers whose clients left, or cancelled them, leave nothing behind."""
    with served(folder, tmp_path, "tcp://127.0.0.1:0", "--patient") as server, Honest(server.location, near) as honest:
        state = State(server.pid)
        for _ in range(4):
            with Attack("abandoned", server.location, near.dataset_id, 250) as attack:
                while not attack.has_said("all"):
                    honest.call()
                attack.end()
            state.check_back(f"{attack.num} abandoned calls in {attack.took_s:.1f} s")
        assert state.now()[2] < state.num_bytes + (64 << 20)


NUM_WAITING, AT_ONCE = 1000, 50


@pytest.fixture
def slow_sampler(folder: Path) -> Iterator[SamplingProcess]:
    """A server whose batches take a while."""
    (port,) = free_ports(1)
    words = ["--all-parts", "--slow", 0.5]
    process = SamplingProcess(folder, 0, f"tcp://127.0.0.1:{port}", 0, words)
    try:
        process.start()
        process.wait_ready()
        yield process
        assert process.stop() == 0
    finally:
        process.ensure_ended()


@pytest.mark.slow
def test_a_thousand_abandoned_waits(slow_sampler: SamplingProcess, near: LocalStore) -> None:
    """A client that waits for a batch and leaves, or cancels, also frees the thread that waits for it."""
    location = slow_sampler.location
    config, arrays = encode_options({"num_neighbors": [3], "batch_size": 4})
    inputs, seeds = encode_options({"seeds": ("node", None)})
    digest = recipe_digest("NeighborLoader", config, arrays)

    def asked(peer: Peer, op: str, arrays: Sequence[Array] = (), **header: object) -> dict[str, Any]:
        (frame,) = peer.ask(Frame({"op": op, "dataset": near.dataset_id, **header}, arrays))
        assert "error" not in frame.header, frame.header
        return frame.header

    with Peer(location) as peer, Honest(location, near) as honest:
        backend = asked(peer, "init_sampling_backend", arrays, backend_key="k", loader="NeighborLoader", options=config)
        channel = asked(
            peer, "register_sampling_input", seeds, backend_id=backend["backend_id"], config=digest, worker_key="w",
            options=inputs, first=0, stride=1, credit=1,
        )["channel_id"]  # fmt: skip
        asked(peer, "start_new_epoch_sampling", channel_id=channel, epoch=0, turn=0)
        state = State(slow_sampler.pid)
        most = 0
        for first in range(0, NUM_WAITING, AT_ONCE):
            peers = [Peer(location) for _ in range(AT_ONCE)]
            for number, waiting in enumerate(peers):
                header = {"channel_id": channel, "epoch": 0, "turn": 0, "step": 1000 + first + number, "wait_s": 30.0}
                op = "fetch_one_sampled_message"
                waiting.start(Frame({"op": op, "dataset": near.dataset_id, **header}), 30_000)
            wait_until(lambda: state.now()[1] >= state.files + AT_ONCE, "all wait")
            wait_until(lambda: state.now()[0] >= state.threads + AT_ONCE // 2, "threads wait")
            most = max(most, state.now()[0])
            honest.call()
            for number, waiting in enumerate(peers):
                if number % 2:
                    waiting.send(message_bytes(CANCEL, 1))
                waiting.close()
            state.check_back(f"{AT_ONCE} waits")
        say(f"at most {most} threads, {state.threads} before")
        assert state.now()[2] < state.num_bytes + (64 << 20)
        assert asked(peer, "destroy_sampling_input", channel_id=channel)["was_there"]
        honest.call()


NUM_STREAMS = 10_000


@pytest.mark.slow
def test_data_of_unauthenticated_clients_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the right token the server reads no prefix and no header."""
    parsed: list[str] = []
    read_prefix, read_header = receiver.read_prefix, receiver.read_header
    monkeypatch.setattr(receiver, "read_prefix", lambda *given: (parsed.append("prefix"), read_prefix(*given))[1])
    monkeypatch.setattr(receiver, "read_header", lambda *given: (parsed.append("header"), read_header(*given))[1])
    asked: list[object] = []

    def answer(call: object) -> Iterator[Frame]:
        asked.append(call)
        yield Frame({}, is_last=True)

    listener = Listener(Location.parse(f"unix://{tmp_path}/socket"), answer, security=ServerSecurity(token=TOKEN))
    location = str(listener.location)
    rng = random.Random(11)
    caplog.set_level(logging.ERROR)
    request = message_bytes(REQUEST, 1, Frame({"op": "describe"}))
    try:
        for _ in range(NUM_STREAMS):
            with suppress(ConnectionError, BlockingIOError), connected(location) as peer:
                peer.sendall(_without_token(rng) + request * rng.randrange(3))
                peer.settimeout(0.0)
                peer.recv(1000)
        wait_until(lambda: listener.num_connections == 0, "all streams are ended")
        assert parsed == [] and asked == []
        with Peer(location, TOKEN) as peer:  # clients with the token are answered
            peer.ask(Frame({"op": "describe"}))
        assert parsed == ["prefix", "header"] and len(asked) == 1
    finally:
        listener.close(5.0)


def connected(location: str) -> socket.socket:
    """A connection to a Unix socket, which waits if the queue is full."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(location.removeprefix("unix://"))
    return sock


def _without_token(rng: random.Random) -> bytes:
    """Messages of a client that has no token."""
    hello = bytearray(encode_hello(TOKEN))
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randbytes(rng.randrange(100))
    if kind == 1:
        return encode_hello(None)
    if kind == 2:
        return encode_hello("".join(chr(rng.randrange(33, 127)) for _ in range(rng.randrange(1, 257))))
    if kind == 3:  # a token that is almost right
        hello[16 + rng.randrange(len(TOKEN))] ^= 1 << rng.randrange(7)
        return bytes(hello)
    if kind == 4:  # the right one, and too many or too few of its bytes
        hello[6] = rng.choice([n for n in range(256) if n != len(TOKEN)])
        return bytes(hello)
    hello[rng.choice((0, 1, 2, 3, 4, 5))] ^= 1 << rng.randrange(8)  # another magic or version
    return bytes(hello)
