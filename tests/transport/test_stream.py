"""Tests that a reader over TLS wakes whenever its bytes have arrived, however they arrive."""

from __future__ import annotations

import select
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopstream.transport.stream import RECORD_BYTES, TlsStream
from tests.store.authority import Authority

WAIT_S = 10.0


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("root")


def pump(tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, sock: socket.socket) -> None:
    """Complete the server's handshake."""
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            sock.sendall(outgoing.read())
            incoming.write(sock.recv(1 << 16))
        else:
            sock.sendall(outgoing.read())
            return


@pytest.fixture
def ends(authority: Authority) -> Iterator[tuple[TlsStream, ssl.SSLObject, ssl.MemoryBIO, socket.socket]]:
    """A client's stream, and of a server: its TLS object, its outgoing bytes and its socket."""
    identity = authority.issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    with tempfile.TemporaryDirectory() as folder:
        chain = Path(folder, "chain.pem")
        chain.write_bytes(identity.certificate + identity.key)
        context.load_cert_chain(chain)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), WAIT_S)
        far, _ = listener.accept()
    far.settimeout(WAIT_S)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    shaking = threading.Thread(target=pump, args=(tls, incoming, outgoing, far), daemon=True)
    shaking.start()
    client = ssl.create_default_context(cadata=authority.root.decode())
    stream = TlsStream(client.wrap_socket(near, server_hostname="localhost", do_handshake_on_connect=False))
    while stream.handshake() is not True:
        select.select([stream.fileno()], [], [], WAIT_S)
    shaking.join(WAIT_S)
    yield stream, tls, outgoing, far
    stream.close()
    far.close()


@pytest.mark.parametrize("num_bytes", [70_000, 120_000, 400_000])
@pytest.mark.parametrize("cut", [5, 1_000, 20_000, 40_000, 65_000])
def test_a_reader_wakes_after_any_partial_record(
    ends: tuple[TlsStream, ssl.SSLObject, ssl.MemoryBIO, socket.socket], num_bytes: int, cut: int
) -> None:
    stream, tls, outgoing, far = ends
    for start in range(0, num_bytes, RECORD_BYTES):
        tls.write(bytes(min(RECORD_BYTES, num_bytes - start)))
    wire = outgoing.read()
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLIN)
    target, done = memoryview(bytearray(num_bytes)), 0
    far.sendall(wire[:cut])
    assert poll.poll(WAIT_S * 1000)
    done += stream.recv_into(target) or 0
    sending = threading.Thread(target=far.sendall, args=(wire[cut:],), daemon=True)
    stream.expect(num_bytes - done)
    sending.start()
    while done < num_bytes:
        assert stream.has_pending() or poll.poll(WAIT_S * 1000), f"{num_bytes - done} bytes have arrived unseen"
        done += stream.recv_into(target[done:]) or 0
        stream.expect(num_bytes - done)
    sending.join(WAIT_S)
