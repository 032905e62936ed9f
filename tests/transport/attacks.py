"""Attacks on a server from one process.

``python -m tests.transport.attacks KIND LOCATION TOKEN DATASET COUNT`` attacks until it has done it ``COUNT`` times or
its stdin ends: it says ``on`` when the attack is under way, ``all`` when it was done as often as it may be, and in the
end how often it was, and in how many seconds.
"""

from __future__ import annotations

import random
import resource
import select
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from hopstream.transport.location import Location
from hopstream.transport.messages import CANCEL, PING, PREFIX, REQUEST, Frame, encode_hello
from tests.transport.peer import message_bytes

PER_CONNECTION = 20
"""Mutated messages that are sent over one connection; most do not reach the last one."""
SPARE_FILES = 200
SEED = 20_261_126


@dataclass
class Aim:
    """Target of an attack.

    Attributes:
        location: Address of the server.
        token: The server's token.
        dataset: Id of the served dataset.
        count: The most repetitions of the attack.
    """

    location: Location
    token: str
    dataset: str
    count: int

    def connect(self) -> socket.socket:
        if self.location.path:
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(self.location.path)  # with a timeout it would not wait in the queue
            sock.settimeout(20)
            return sock
        return socket.create_connection((self.location.host, self.location.port), 20)

    def known(self) -> socket.socket:
        """A connection that has sent the token."""
        sock = self.connect()
        sock.sendall(encode_hello(self.token))
        return sock

    def request(self, op: str, arrays: list[np.ndarray] | None = None, **header: object) -> Frame:
        return Frame({"op": op, "dataset": self.dataset, **header}, arrays or [])

    def large(self, number: int, timeout_ms: int = 20_000) -> bytes:
        """A request whose answer has many frames."""
        ids = np.arange(8192, dtype=np.uint32)
        request = self.request("fetch", [ids], requests=[{"owner": "node", "names": ["x"], "ids": 0}])
        return message_bytes(REQUEST, number, request, timeout_ms)


GoOn = Callable[[int], bool]
"""Whether it is to be done once more, after so many times."""


def requests_of(aim: Aim) -> list[bytes]:
    """A message of every kind that a client sends."""
    ids = np.arange(20, dtype=np.uint32)
    owner = ["node", "to", "node", "in"]
    drawn = {"owner": owner, "count": 2, "ids": 0, "rng_seed": 1, "is_replacing": False, "wants_edge_ids": True}
    frames = [
        aim.request("describe"),
        aim.request("sample", [ids], requests=[drawn]),
        aim.request("sample", [ids, ids.astype(np.int64)], requests=[{**drawn, "count": -1, "trees": 1}]),
        aim.request("fetch", [ids], requests=[{"owner": "node", "names": ["x"], "ids": 0}]),
        aim.request("lookup", [ids], node_type="node"),
        aim.request("degrees", [ids], owner=owner),
        aim.request("find_edges", [ids, ids], owner=owner),
        aim.request("links", [ids], edge_type=owner[:3]),
        aim.request("split", node_type="node", name="train"),
        aim.request("stats"),
    ]
    return [*(message_bytes(REQUEST, 1, frame) for frame in frames), message_bytes(CANCEL, 1), message_bytes(PING, 1)]


def mutated(rng: random.Random, message: bytes) -> bytes:
    """A message with some bytes changed, missing or doubled."""
    data = bytearray(message)
    for _ in range(rng.randrange(1, 4)):
        if not data:
            return b""
        kind, at = rng.randrange(8), rng.randrange(len(data))
        if kind < 3:  # in the first bytes, which matter most
            data[rng.randrange(min(len(data), PREFIX.size))] = rng.choice((0, 1, 2, 3, 7, 127, 128, 255))
        elif kind < 5:
            data[at] = rng.randrange(256)
        elif kind == 5:
            del data[at:]
        elif kind == 6:
            data[at:at] = data[at : at + rng.randrange(40)]
        else:
            del data[at : at + rng.randrange(40)]
    return bytes(data)


def mutations(aim: Aim, go_on: GoOn) -> int:
    """Send a hello with the right, a wrong or no token, then requests, most of them mutated."""
    rng = random.Random(SEED)
    messages = requests_of(aim)
    hellos = [encode_hello(aim.token), encode_hello("wrong"), encode_hello(None)]
    num = 0
    while go_on(num):
        which = rng.randrange(10)
        hello = hellos[0] if which < 7 else hellos[which - 7]
        if rng.random() < 0.2:
            hello = mutated(rng, hello)
        said = [hello]
        for number in range(PER_CONNECTION):
            message = bytearray(rng.choice(messages))
            message[8] = number + 1
            said.append(mutated(rng, bytes(message)) if rng.random() < 0.7 else bytes(message))
        with suppress(OSError), aim.connect() as sock:
            sock.sendall(b"".join(said))
            sock.settimeout(0.001 if rng.random() < 0.95 else 0.05)
            while sock.recv(1 << 16):
                pass
        num += PER_CONNECTION
    return num


def silent(aim: Aim, go_on: GoOn) -> int:
    """Connect and send nothing, over as many connections as this process may open."""
    return _held(aim, go_on, lambda sock, number: None)


def half_open(aim: Aim, go_on: GoOn) -> int:
    """Send a part of a hello, and shut down sending."""
    hello = encode_hello(aim.token)

    def say(sock: socket.socket, number: int) -> None:
        sock.sendall(hello[: number % len(hello)])
        sock.shutdown(socket.SHUT_WR)

    return _held(aim, go_on, say)


def cut_short(aim: Aim, go_on: GoOn) -> int:
    """Send a part of a hello, of every length, and nothing more."""
    hello = encode_hello(aim.token)
    return _held(aim, go_on, lambda sock, number: sock.sendall(hello[: number % len(hello)]))


def _held(aim: Aim, go_on: GoOn, say: Callable[[socket.socket, int], None]) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard > 0 else soft, hard))
    room = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_FILES)
    held: list[socket.socket] = []
    num = 0
    while go_on(num):
        if len(held) >= room:
            held.pop(0).close()
        with suppress(OSError):  # the server has closed it
            held.append(aim.connect())
            say(held[-1], num)
        num += 1
    wait_for_end()
    for sock in held:
        sock.close()
    return num


def slow_senders(aim: Aim, go_on: GoOn) -> int:
    """Send a byte a second: half of the senders a hello, the others a request."""
    message = encode_hello(aim.token) + aim.large(1)
    begun = len(encode_hello(aim.token)) + PREFIX.size
    senders: dict[int, tuple[socket.socket, int]] = {}
    num = 0
    while go_on(num):
        for number in range(60):
            with suppress(OSError):
                if number not in senders:
                    num += 1
                    senders[number] = aim.connect(), begun if number % 2 else 0
                    senders[number][0].sendall(message[: senders[number][1]])
            sock, at = senders[number]
            try:
                sock.sendall(message[at : at + 1])
                senders[number] = sock, at + 1
            except OSError:
                sock.close()
                del senders[number]
        wait_for_end(1.0)
    for sock, _ in senders.values():
        sock.close()
    return num


def slow_readers(aim: Aim, go_on: GoOn) -> int:
    """Ask for large answers and read a byte a second of each."""
    readers: list[socket.socket] = []
    for _ in range(50):
        sock = aim.known()
        sock.sendall(aim.large(1, 60_000))
        readers.append(sock)
    num = len(readers)
    while go_on(num):
        for sock in readers:
            with suppress(OSError):
                sock.recv(1)
        num += 1
        wait_for_end(1.0)
    for sock in readers:
        sock.close()
    return num


def abandoned(aim: Aim, go_on: GoOn) -> int:
    """Ask for a large answer, and leave or cancel before it has come."""
    num = 0
    while go_on(num):
        with suppress(OSError), aim.known() as sock:
            sock.sendall(aim.large(1))
            sock.recv(1000)
            if num % 2:
                sock.sendall(message_bytes(CANCEL, 1) + message_bytes(PING, 2))  # the cancelled answer may not come
                sock.recv(1000)
        num += 1
    return num


ATTACKS: dict[str, Callable[[Aim, GoOn], int]] = {
    one.__name__: one for one in (mutations, silent, half_open, cut_short, slow_senders, slow_readers, abandoned)
}
_ENDED = select.poll()


def wait_for_end(seconds: float | None = None) -> bool:
    """Wait for the end of stdin; return whether it has ended."""
    return bool(_ENDED.poll(None if seconds is None else 1000 * seconds))


def main(arguments: list[str]) -> None:
    kind, location, token, dataset, count = arguments
    _ENDED.register(0, select.POLLIN | select.POLLHUP)
    aim = Aim(Location.parse(location), token, dataset, int(count))
    began = time.monotonic()
    is_told = False

    def go_on(num: int) -> bool:
        nonlocal is_told
        if num and not is_told:
            print("on", flush=True)  # noqa: T201
            is_told = True
        if num < aim.count:
            return not wait_for_end(0)
        print("all", flush=True)  # noqa: T201
        return False

    num = ATTACKS[kind](aim, go_on)
    print(num, f"{time.monotonic() - began:.2f}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
