"""Listener: accepts connections, and answers requests in a few threads that never wait for a client.

All threads wait for the same descriptors. The thread that wakes reads a request and answers it, while another thread
watches the connection. So a small request needs one thread only, and a cancel is noticed during the answer. If a client
does not read its answer, the listener sets the answer and its current frame aside until the client reads.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopstream.arrays import Array
from hopstream.errors import FormatError, SettingsError
from hopstream.transport.binding import listen_at
from hopstream.transport.calls import CALL_BYTES, Call, Peer
from hopstream.transport.failures import error_frame
from hopstream.transport.limits import Account, Misdeeds, TransportLimits
from hopstream.transport.location import Location
from hopstream.transport.messages import (
    ANSWER,
    CANCEL,
    GOODBYE,
    HELLO,
    MAGIC,
    PING,
    PONG,
    REQUEST,
    VERSION,
    ArraySpec,
    Buffers,
    Frame,
    Prefix,
    Status,
    empty_arrays,
    encode_message,
    encode_welcome,
)
from hopstream.transport.poller import READ, WRITE, Poller, new_poller
from hopstream.transport.receiver import Receiver
from hopstream.transport.security import ServerSecurity
from hopstream.transport.stream import ByteStream, PlainStream, TlsStream
from hopstream.transport.tokens import ANYONE, MAX_TOKEN_BYTES, Identity

LOG = logging.getLogger(__name__)
TICK_S = 0.25
"""Seconds between checks of deadlines; also the longest wait of an idle thread."""
SPARE_THREADS = 2
"""Largest number of threads that stay idle; others end after a while."""
SPARE_TICKS = 4
"""Idle waits after which a surplus thread ends."""
MAX_ACCEPTED = 64
"""Connections that are accepted in one go."""
SLOWEST_BYTES_PER_S = 1e6
MESSAGE_S = 10.0
"""Seconds within which a message must arrive, plus one second per ``SLOWEST_BYTES_PER_S`` bytes."""
MAX_REQUEST_HEADER_BYTES = 4 << 20
HEADER_FACTOR = 16
"""Bytes of memory per byte of a request's header once it is parsed."""
MAX_CALL_S = 3600.0
IDLE_READER_S = 2.0
"""Seconds after which a client that does not read loses its connection if others need the room."""
STUCK_S = 60.0
"""Seconds after which a client that does not read loses its connection in any case."""
MAX_CANCELLED = 8
"""Largest number of cancelled answers of one connection whose frames the client has not read."""
MAX_CALLS_OF_ONE = 64
"""Largest number of requests of one connection under way."""
MAX_UNTOLD = 1000
"""Largest number of pongs and refusals that wait for a client that does not read; one more ends its connection."""
FREE_REFUSALS, REFUSALS_FORGIVEN_S = 3, 60.0
"""Wrong tokens of one address that are refused without delay, and the seconds in which as many are forgiven."""
FREE_ABANDONED, ABANDONED_FORGIVEN_S = 256, 10.0
"""Abandoned calls of one address that do not delay its next hello, and the seconds in which as many are forgiven.

A killed trainer with 64 connections abandons fewer calls. Measured on two cores with a client that only requests large
answers and leaves: with the delay, the client does so 25 times a second and other clients keep 0.9 of their speed;
without the delay, it does so 300 times a second and other clients keep 0.4.
"""
LEAVE_S = 2.0
"""Seconds for which a client with a removed token gets answers, so that requests sent before the goodbye succeed."""
ABORT_S = 2.0
"""Seconds that cancelled calls have to end when the listener closes."""

Handler = Callable[["Call"], Iterator[Frame]]
"""Function from a request to frames of the answer; runs in any thread, may be closed between two frames."""


class Listener:
    """Listener at one address that answers requests until it is closed."""

    def __init__(
        self,
        location: Location,
        handler: Handler,
        *,
        security: ServerSecurity | None = None,
        limits: TransportLimits | None = None,
        poller: Poller | None = None,
    ) -> None:
        """Start to listen and to answer, in own threads.

        Args:
            location: Address; port 0 lets the system choose.
            handler: Answers requests.
            security: Certificates and tokens.
            limits: Limits on clients.
            poller: Poller of connections; None for the best one of the system.

        Raises:
            StoreUnavailable: The listener cannot listen at the address, for example because the port is in use.
            SettingsError: Certificate and key do not belong together.
        """
        self._handler = handler
        self._security = security or ServerSecurity()
        self._limits = limits or TransportLimits()
        self._security.context()
        self._socket = listen_at(location)
        self.location = location if location.path else replace(location, port=self._socket.getsockname()[1])
        """Address with the port that the system chose."""
        self.account = Account(self._limits.max_bytes)
        """Account of the bytes of requests, and of answers that are being sent."""
        self.num_refused_tokens = self.num_refused_calls = 0
        self._poller = poller or new_poller()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._peers: dict[int, Peer] = {}
        self._strangers: dict[int, Peer] = {}
        self._refused = Misdeeds(FREE_REFUSALS, REFUSALS_FORGIVEN_S)
        self._abandoned = Misdeeds(FREE_ABANDONED, ABANDONED_FORGIVEN_S)
        self._ready: deque[Call] = deque()
        self._wake_end, self._woken_end = socket.socketpair()
        self._woken_end.setblocking(False)
        self._wake_end.setblocking(False)
        self._woken_fd = self._woken_end.fileno()
        self._num_idle = self._num_threads = 0
        self._threads: set[threading.Thread] = set()
        self._ticked_at = time.monotonic()
        self._ticking = threading.Lock()
        self._is_accepting = True
        self._is_leaving = self._is_final = self._is_closed = self._is_freed = False
        self._poller.arm(self._socket.fileno(), READ)
        self._poller.arm(self._woken_fd, READ)
        for _ in range(SPARE_THREADS):
            self._start_thread()

    @property
    def num_connections(self) -> int:
        """Number of connections, including those without a hello."""
        return len(self._peers)

    @property
    def num_calls(self) -> int:
        """Number of requests that are being answered."""
        return self.account.num_calls

    def close(self, grace_s: float, *, is_final: bool = True) -> bool:
        """Stop accepting, finish requests under way, and end; a second call only waits.

        Args:
            grace_s: Seconds that requests under way have to finish; then they are cancelled.
            is_final: Tell clients that the server will not come back. Otherwise clients without a replica wait for it.

        Returns:
            True if every request under way was answered.
        """
        with self._changed:
            is_first = not self._is_leaving
            if is_first:
                self._is_leaving, self._is_final = True, is_final
            peers = list(self._peers.values())
        if is_first:
            self._stop_listening()
            for peer in peers:
                self._say_goodbye(peer, is_final=is_final)
        with self._changed:
            is_clean = self._changed.wait_for(lambda: self.account.num_calls == 0, grace_s)
            self._is_closed = True
            peers = list(self._peers.values())
        for peer in peers:
            if is_clean:
                self._flush_last(peer)
            self._drop(peer)
        self._wake()
        ends = time.monotonic() + ABORT_S
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(max(0.0, ends - time.monotonic()))
        self._free_if_left()
        return is_clean

    def _free_if_left(self) -> None:
        """Free the poller once all threads have ended; if a call takes too long, the last thread does it."""
        with self._lock:
            is_last = self._is_closed and not self._num_threads and not self._is_freed
            self._is_freed = self._is_freed or is_last
        if is_last:
            self._poller.close()
            self._wake_end.close()
            self._woken_end.close()

    # Threads.

    def _start_thread(self) -> bool:
        """Start a thread; return whether the system allowed it. Called without the lock."""
        thread = threading.Thread(target=self._work, name=f"hopstream-serve {self.location}", daemon=True)
        with self._lock:
            self._num_threads += 1
            self._num_idle += 1
        try:
            thread.start()
        except RuntimeError:  # the system cannot start another thread
            with self._lock:
                self._num_threads -= 1
                self._num_idle -= 1
            return False
        return True

    def _work(self) -> None:
        """Run the loop of a thread: wait for a descriptor, serve it, and wait again."""
        num_ticks = 0
        self._threads.add(threading.current_thread())
        while not self._is_closed:
            try:
                events = self._poller.poll(TICK_S)
                if time.monotonic() - self._ticked_at >= TICK_S:
                    self._tick()
                if events:
                    num_ticks = 0
                    self._work_on(events)
                    continue
            except Exception:  # an error of one event must not end the thread
                if not self._is_closed:
                    LOG.exception("a thread of the server failed, and goes on")
                    time.sleep(TICK_S)
            num_ticks += 1
            if num_ticks >= SPARE_TICKS and self._leave_if_spare():
                self._free_if_left()
                return
        with self._lock:
            self._num_threads -= 1
            self._num_idle -= 1
            self._threads.discard(threading.current_thread())
        self._wake()  # so that the next thread ends
        self._free_if_left()

    def _work_on(self, events: Sequence[tuple[int, int]]) -> None:
        """Serve a descriptor, after making sure that another thread waits for the others."""
        with self._lock:
            self._num_idle -= 1
            needs_thread = self._num_idle < 1 and self._num_threads < self._limits.max_calls + SPARE_THREADS
        try:
            if needs_thread:
                self._start_thread()
            for fd, mask in events:
                self._serve(fd, mask)
        finally:
            with self._lock:
                self._num_idle += 1

    def _leave_if_spare(self) -> bool:
        with self._lock:
            if self._num_idle <= SPARE_THREADS:
                return False
            self._num_threads -= 1
            self._num_idle -= 1
            self._threads.discard(threading.current_thread())
            return True

    def _wake(self) -> None:
        """Wake a thread for ready calls."""
        with suppress(OSError):
            self._wake_end.send(b"\0")

    def _serve(self, fd: int, mask: int) -> None:
        peer = self._peers.get(fd)
        if peer is not None:
            self._guarded(peer, self._attend, mask)
        elif fd == self._woken_fd:
            self._run_ready()
        elif self._is_accepting and fd == self._socket.fileno():
            self._accept()

    def _run_ready(self) -> None:
        with suppress(OSError):
            self._woken_end.recv(1)
        call = self._ready.popleft() if self._ready else None
        self._poller.arm(self._woken_fd, READ)
        if call is not None:
            self._go_on(call)

    def _dispatch(self, calls: Sequence[Call]) -> None:
        """Let other threads resume some calls."""
        for call in calls:
            self._ready.append(call)
            self._wake()

    # Connections.

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTED):
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if self._is_leaving:
                    return
                LOG.warning("no connection can be accepted at %s now: %s", self.location, error)
                return  # the next tick arms it again
            self._greet(sock, address)
        with self._lock:
            if self._is_accepting:
                self._poller.arm(self._socket.fileno(), READ)

    def _greet(self, sock: socket.socket, address: Any) -> None:
        """Accept a connection; if too many have sent no hello, close the oldest of those."""
        try:
            context = self._security.context()
            stream: ByteStream
            if context is None:
                stream = PlainStream(sock)
            else:
                stream = TlsStream(context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False))
        except (OSError, SettingsError) as error:
            LOG.info("a connection could not be accepted: %s", error)
            sock.close()
            return
        shown = address[0] if isinstance(address, tuple) else "a Unix socket"
        peer = Peer(stream, shown, has_shaken_hands=context is None)
        with self._lock:
            is_late = self._is_leaving or self._is_closed
            if not is_late:
                self._peers[peer.fd] = self._strangers[peer.fd] = peer
        if is_late:  # no thread reads this socket after the listener closes
            stream.close()
            return
        self._guarded(peer, self._hear_first)
        with self._lock:
            has_room = len(self._strangers) <= self._limits.max_strangers
            oldest = None if has_room else next(iter(self._strangers.values()))
        if oldest is not None:
            self._drop(oldest)

    def _hear_first(self, peer: Peer, _: int) -> None:
        """Watch a new connection; read a hello that has arrived, before later connections can displace it."""
        peer.is_reading = True
        try:
            if peer.has_shaken_hands:
                self._meet(peer)
        except BaseException:
            self._drop(peer)
            raise
        finally:
            self._leave_reading(peer)

    def _arm(self, peer: Peer) -> None:
        """Watch for the events that the peer needs; called with its lock."""
        if peer.is_closed:
            return
        events = (0 if peer.is_reading or peer.answered_at else READ) | (WRITE if peer.out or peer.wants_write else 0)
        if events:
            self._poller.arm(peer.fd, events)

    def _guarded(self, peer: Peer, attend: Callable[[Peer, int], None], mask: int = 0) -> None:
        """Serve a connection; an error ends this connection only."""
        try:
            attend(peer, mask)
        except OSError as error:
            is_handshake = isinstance(error, ssl.SSLError) and not peer.has_shaken_hands
            level = logging.WARNING if is_handshake else logging.DEBUG
            LOG.log(level, "the connection of %s ended: %s", peer.address, error)
            self._drop(peer)
        except FormatError as error:
            LOG.warning("the connection of %s is ended: %s", peer.address, error)
            self._drop(peer)
        except Exception:
            LOG.exception("the connection of %s is ended", peer.address)
            self._drop(peer)

    def _attend(self, peer: Peer, mask: int) -> None:
        with peer.lock:
            if peer.is_closed:
                return
            may_read = bool(mask & READ or peer.wants_write) and not peer.is_reading
            peer.is_reading = peer.is_reading or may_read
        calls: list[Call] = []
        try:
            with peer.lock:
                resumed = self._flushed(peer) if mask & WRITE else []
                if not may_read:
                    self._arm(peer)
            calls += resumed
            if may_read:
                self._read(peer, calls)
        except BaseException:
            self._drop(peer)  # before another thread can see the connection
            for call in calls:
                self._end(call)
            raise
        finally:
            if may_read:
                self._leave_reading(peer)
        if len(calls) > 1:
            self._dispatch(calls[1:])
        if calls:
            self._go_on(calls[0])

    def _leave_reading(self, peer: Peer) -> None:
        """Let another thread read, and close the connection if it has ended meanwhile."""
        with peer.lock:
            peer.is_reading = False
            if peer.is_closed:
                peer.stream.close()
            else:
                self._arm(peer)

    def _flushed(self, peer: Peer) -> list[Call]:
        """Write waiting bytes, and return the calls that can resume. Called with the peer's lock."""
        if peer.is_closed:
            return []
        peer.progress_at = time.monotonic()
        if not peer.stream.send(peer.out):
            return []
        peer.num_untold = peer.num_cancelled = 0
        self.account.add(-peer.held_bytes)
        resumed, peer.parked, peer.held_bytes = list(peer.parked.values()), {}, 0
        return resumed

    def _read(self, peer: Peer, calls: list[Call]) -> None:
        """Read messages that have arrived, and append requests to ``calls``."""
        if peer.receiver is None and not self._meet(peer):
            return
        receiver = peer.receiver
        if receiver is None:
            return
        while not peer.is_closed:
            message = receiver.next()
            if message is None:
                if receiver.is_at_end:
                    raise ConnectionResetError("the client has closed it")
                break
            self._take(peer, *message, calls)
            if not receiver.has_buffered and not peer.stream.has_pending():
                break  # the poller reports later bytes and the end of the stream

    def _meet(self, peer: Peer) -> bool:
        """Continue the handshake and the hello; return whether the peer was admitted."""
        if peer.answered_at and not peer.wants_write:
            return False
        if not peer.has_shaken_hands:
            stream = peer.stream
            assert isinstance(stream, TlsStream)  # noqa: S101 - other streams need no handshake
            state = stream.handshake()
            peer.wants_write = state is False
            if not state:
                return False
            peer.has_shaken_hands = True
        while (wanted := _hello_bytes(peer.hello)) > len(peer.hello):
            target = memoryview(bytearray(wanted - len(peer.hello)))
            read = peer.stream.recv_into(target)
            if read is None:
                return False
            peer.hello += target[:read]
            if read == 0 or not MAGIC.startswith(bytes(peer.hello[:4])):
                raise ConnectionResetError("the client sent no hello")
        _, version, _, _ = HELLO.unpack_from(peer.hello)
        if version != VERSION:
            text = f"the server speaks version {VERSION} of the protocol, and the client {version}"
            self._turn_away(peer, Status.OTHER_VERSION, text)
            return False
        return self._admit(peer, bytes(peer.hello[HELLO.size :]))

    def _admit(self, peer: Peer, token: bytes) -> bool:
        """Check a token; return whether the peer was admitted. A delayed peer is checked again later."""
        tokens = self._security.tokens
        identity = ANYONE if tokens is None else tokens.find(token)
        if not peer.answered_at:
            delay_s = self._delay_s(peer, is_known=identity is not None)
            if delay_s:
                peer.answered_at = time.monotonic() + delay_s
                return False
        with peer.lock:
            peer.answered_at, peer.wants_write = 0.0, False
        if identity is None:
            self._turn_away(peer, Status.REFUSED, "the token is missing or wrong")
            return False
        if self._is_leaving:
            status = Status.GONE if self._is_final else Status.LEAVING
            self._turn_away(peer, status, "the server is shutting down")
            return False
        with self._lock:
            num_known = len(self._peers) - len(self._strangers)
            has_room = num_known < self._limits.max_connections
            if has_room:
                self._strangers.pop(peer.fd, None)
        if not has_room:
            self._turn_away(peer, Status.BUSY, f"the server has {num_known} connections, the maximum (max_connections)")
            return False
        peer.identity = identity
        peer.receiver = Receiver(peer.stream, lambda prefix: self._check(peer, prefix), _place)
        max_calls = min(MAX_CALLS_OF_ONE, self._limits.max_calls)
        self._send(peer, [memoryview(encode_welcome(Status.OK, "", self._limits.max_request_bytes, max_calls))])
        return True

    def _delay_s(self, peer: Peer, *, is_known: bool) -> float:
        """Return the delay of the answer to a hello, from the history of its address; counts a wrong token."""
        if is_known:
            delay_s = self._abandoned.delay_s(peer.address)
            if delay_s:
                LOG.info("a connection of %s waits %g s: calls from there were abandoned", peer.address, delay_s)
            return delay_s
        with self._lock:
            self.num_refused_tokens += 1
        LOG.warning("%s refused a connection of %s: its token is missing or wrong", self.location, peer.address)
        self._refused.add(peer.address, 1)
        return self._refused.delay_s(peer.address)

    def _turn_away(self, peer: Peer, status: Status, text: str) -> None:
        """Refuse a connection with a status and a reason, and close it."""
        with peer.lock:
            peer.out.append(memoryview(encode_welcome(status, text)))
            with suppress(OSError):
                peer.stream.send(peer.out)
        self._drop(peer)

    def _say_goodbye(self, peer: Peer, *, is_final: bool) -> None:
        """Send goodbye, so that the client sends no more requests over this connection."""
        if peer.receiver is None:
            self._drop(peer)
            return
        peer.is_leaving = True
        with suppress(OSError):
            self._send(peer, encode_message(GOODBYE, 0, is_last=is_final))

    def _flush_last(self, peer: Peer) -> None:
        with peer.lock, suppress(OSError):
            if peer.out and not peer.is_closed:
                peer.stream.send(peer.out)

    def _drop(self, peer: Peer) -> None:
        """Close a connection and cancel its requests."""
        with self._lock:
            if self._peers.get(peer.fd) is peer:
                del self._peers[peer.fd]
            if self._strangers.get(peer.fd) is peer:
                del self._strangers[peer.fd]
        with peer.lock:
            if peer.is_closed:
                return
            peer.is_closed = True
            self._poller.forget(peer.fd)
            if peer.is_reading:  # the reading thread closes it, so that it never reads from a reused descriptor
                peer.stream.shut_down()
            else:
                peer.stream.close()
            num_abandoned = sum(number in peer.parked or not one._has_ended for number, one in peer.calls.items())
            calls, parked = list(peer.calls.values()), list(peer.parked.values())
            peer.parked = {}
            peer.out.clear()
            coming, peer.coming_bytes = peer.coming_bytes, 0
            self.account.add(-peer.held_bytes)
            peer.held_bytes = 0
        if coming:
            self._give_back(coming)
        if num_abandoned:
            self._abandoned.add(peer.address, num_abandoned)
        for call in calls:
            call._give_up()
        for call in parked:
            self._end(call)

    def _stop_listening(self) -> None:
        with self._lock:
            self._is_accepting = False
            self._poller.forget(self._socket.fileno())
            self._socket.close()
        if self.location.path:
            with suppress(OSError):
                Path(self.location.path).unlink()

    # Requests.

    def _check(self, peer: Peer, prefix: Prefix) -> bool:
        """Check the prefix of a message; return whether there is room for it."""
        if prefix.kind != REQUEST:
            if prefix.kind not in (CANCEL, PING) or prefix.header_bytes or prefix.body_bytes:
                raise FormatError(f"a message of kind {prefix.kind} came, which a client does not send")
            return True
        if prefix.header_bytes > MAX_REQUEST_HEADER_BYTES:
            raise FormatError(
                f"a request has a header of {prefix.header_bytes} bytes; the maximum is {MAX_REQUEST_HEADER_BYTES}"
            )
        size = prefix.header_bytes * HEADER_FACTOR + prefix.body_bytes
        if prefix.number in peer.calls:
            raise FormatError(f"request {prefix.number} came twice")
        refusal = self._refusal(peer, prefix.header_bytes + prefix.body_bytes, size)
        if refusal is not None:
            kind, text = refusal
            self.num_refused_calls += 1
            self._send(peer, encode_message(ANSWER, prefix.number, error_frame(kind, text), is_last=True))
            return False
        with peer.lock:
            is_closed = peer.is_closed
            if not is_closed:
                peer.coming_ends = time.monotonic() + MESSAGE_S + size / SLOWEST_BYTES_PER_S
                peer.coming_bytes = size + CALL_BYTES
        if is_closed:
            self._give_back(size + CALL_BYTES)
        return not is_closed

    def _refusal(self, peer: Peer, sent_bytes: int, size: int) -> tuple[str, str] | None:
        """Return why a request is refused; None if memory was reserved for it.

        Args:
            peer: Connection of the client.
            sent_bytes: Bytes of the request on the wire.
            size: Bytes of the request in memory.
        """
        limits = self._limits
        if peer.is_leaving:
            return "StoreUnavailable", "the server is shutting down"
        if peer.revoked_at and time.monotonic() > peer.revoked_at + LEAVE_S:
            return "AccessDenied", "the token is not valid any more; connect again with another"
        if sent_bytes > limits.max_request_bytes:
            most = limits.max_request_bytes
            return "SettingsError", f"the request has {sent_bytes} bytes; the server takes {most} (--max-request-bytes)"
        if size + CALL_BYTES > limits.max_bytes:
            text = f"the request has {sent_bytes} bytes; all requests may have {limits.max_bytes - CALL_BYTES} together"
            return "SettingsError", text
        text = self._no_room(peer, size)
        if text and self._end_idle_reader():
            text = self._no_room(peer, size)
        return ("ServerBusy", text) if text else None

    def _end_idle_reader(self) -> bool:
        """Close the connection that has not read for the longest time, if that is long.

        Returns:
            Whether a connection was closed.
        """
        before = time.monotonic() - IDLE_READER_S
        with self._lock:
            peers = list(self._peers.values())
        idle = [peer for peer in peers if (peer.parked or peer.held_bytes) and peer.progress_at < before]
        if not idle:
            return False
        longest = min(idle, key=lambda one: one.progress_at)
        LOG.info("the connection of %s is closed to make room: it does not read its answers", longest.address)
        self._drop(longest)
        return True

    def _no_room(self, peer: Peer, size: int) -> str:
        """Return why there is no room for a request; empty if memory was reserved for it."""
        limits = self._limits
        if self.account.num_calls >= limits.max_calls:
            return f"the server answers {limits.max_calls} requests, the maximum (max_calls)"
        if len(peer.calls) >= MAX_CALLS_OF_ONE:
            return f"{len(peer.calls)} requests are under way on the connection, the maximum"
        if self._num_idle < 1 and not self._start_thread():
            return "the server cannot start a thread for the call"
        if not self.account.begin(size + CALL_BYTES):
            return f"requests and answers take {self.account.taken} bytes of at most {limits.max_bytes}"
        return ""

    def _take(self, peer: Peer, prefix: Prefix, frame: Frame | None, calls: list[Call]) -> None:
        """Handle a message."""
        if prefix.kind == PING:
            self._send(peer, encode_message(PONG, prefix.number))
        elif prefix.kind == CANCEL:
            self._cancel(peer, prefix.number)
        elif frame is not None:
            with peer.lock:
                if peer.is_closed:
                    return
                num_bytes, peer.coming_bytes = peer.coming_bytes, 0
                ends = time.monotonic() + min(prefix.timeout_ms / 1000, MAX_CALL_S)
                call = Call(peer, prefix.number, frame, ends, num_bytes, self.account)
                peer.calls[prefix.number] = call
            calls.append(call)

    def _cancel(self, peer: Peer, number: int) -> None:
        call = peer.calls.get(number)
        if call is None:
            return
        call._give_up()
        with peer.lock:
            is_parked = peer.parked.pop(number, None) is not None
        if is_parked:
            self._end(call)

    def _go_on(self, call: Call) -> None:
        """Make and send frames until the answer ends, or the client must read first."""
        peer = call._peer
        while not call.is_over and not call._has_ended:
            try:
                if call._frames is None:
                    call._frames = iter(self._handler(call))
                frame = next(call._frames, None)
                is_last = frame is None or frame.is_last
                buffers = encode_message(ANSWER, call._number, frame, is_last=is_last)
            except Exception as error:
                LOG.exception("a request could not be answered")
                is_last = True
                frame = error_frame("RemoteError", f"{type(error).__name__}; the server's log says more")
                buffers = encode_message(ANSWER, call._number, frame, is_last=True)
            call._has_ended = is_last
            frame_bytes = sum(map(len, buffers))
            if (frame_bytes > CALL_BYTES or call._is_large) and not (frame is not None and frame.is_counted):
                self._charge(call, frame_bytes)
            try:
                if not self._send(peer, buffers, call):
                    return
            except OSError as error:
                LOG.debug("the connection of %s ended: %s", peer.address, error)
                self._drop(peer)
        self._end(call)

    def _send(self, peer: Peer, buffers: Buffers, call: Call | None = None) -> bool:
        """Send what the client accepts; return whether that was all. Otherwise the call waits for the client."""
        with peer.lock:
            if peer.is_closed:
                return True
            is_first = not peer.out
            peer.out.extend(buffers)
            if is_first:
                peer.progress_at = time.monotonic()
                if peer.stream.send(peer.out):
                    return True
            if call is not None:
                peer.parked[call._number] = call
            else:
                peer.num_untold += 1
                if peer.num_untold > MAX_UNTOLD:
                    raise ConnectionResetError("the client does not read the messages that it receives")
            self._arm(peer)
            return False

    def _charge(self, call: Call, frame_bytes: int) -> None:
        """Count a frame's bytes beyond those reserved; a frame that exists is never refused."""
        wanted = max(call._request_bytes + frame_bytes, call._reserved_bytes)
        self.account.add(wanted - call._num_bytes)
        call._num_bytes = wanted
        call._is_large = frame_bytes > CALL_BYTES

    def _end(self, call: Call) -> None:
        """Free a call's resources; no thread is answering it."""
        peer = call._peer
        with peer.lock:
            if peer.calls.get(call._number) is not call:
                return
            del peer.calls[call._number]
            is_held = bool(peer.out) and not peer.is_closed  # frames of the call have not left
            if is_held:
                peer.held_bytes += call._num_bytes
                peer.num_cancelled += 1
            is_too_much = peer.num_cancelled > MAX_CANCELLED
        frames, call._frames = call._frames, None
        close = getattr(frames, "close", None)
        if close is not None:
            try:
                close()
            except Exception:
                LOG.exception("the end of an answer could not be sent")
        self._give_back(0 if is_held else call._num_bytes)
        if is_too_much:
            LOG.info("the connection of %s is closed: it cancels answers that it does not read", peer.address)
            self._drop(peer)

    def _give_back(self, num_bytes: int) -> None:
        """Free the memory reserved for a request."""
        if self.account.end(num_bytes) and self._is_leaving:
            with self._changed:
                self._changed.notify_all()

    # Deadlines.

    def _tick(self) -> None:
        """Enforce deadlines; one thread at a time."""
        if not self._ticking.acquire(blocking=False):
            return
        try:
            now = self._ticked_at = time.monotonic()
            with self._lock:
                peers = list(self._peers.values())
                if self._is_accepting:
                    self._poller.arm(self._socket.fileno(), READ)
            tokens = self._security.tokens
            in_force = None if tokens is None else tokens.value()
            for peer in peers:
                try:
                    self._revoke(peer, in_force, now)
                    self._look_after(peer, now)
                except Exception:
                    LOG.exception("the connection of %s is ended", peer.address)
                    self._drop(peer)
        finally:
            self._ticking.release()

    def _look_after(self, peer: Peer, now: float) -> None:
        if peer.receiver is None:
            if peer.answered_at:
                if now >= peer.answered_at:
                    with peer.lock:  # a thread answers it now, even if TLS has already read all its bytes
                        peer.wants_write = bool(peer.answered_at)
                        self._arm(peer)
            elif now - peer.since > self._limits.hello_s:
                self._drop(peer)
            return
        if peer.revoked_at and now > peer.revoked_at + LEAVE_S:
            self._drop(peer)
            return
        is_late = bool(peer.coming_bytes) and now > peer.coming_ends
        is_late = is_late or (bool(peer.out) and now > peer.progress_at + STUCK_S)
        for number, call in list(peer.calls.items()):
            if now > call.ends:
                if not call.is_over:
                    call._give_up()
                is_late = is_late or number in peer.parked
        if is_late:  # the client neither writes nor reads
            LOG.info("the connection of %s is closed: it was too slow", peer.address)
            self._drop(peer)

    def _revoke(self, peer: Peer, in_force: Sequence[Identity] | None, now: float) -> None:
        """Send goodbye to a client whose token was removed."""
        if in_force is None or peer.identity is None or peer.revoked_at or peer.identity in in_force:
            return
        peer.revoked_at = now
        with suppress(OSError):
            self._send(peer, encode_message(GOODBYE, 0))


def _hello_bytes(hello: bytearray) -> int:
    """Return the length of a hello from its first bytes; of another version only the fixed part is read."""
    if len(hello) < HELLO.size:
        return HELLO.size
    _, version, token_bytes, _ = HELLO.unpack_from(hello)
    if version != VERSION:
        return HELLO.size
    if token_bytes > MAX_TOKEN_BYTES:
        raise ConnectionResetError("the client sent no hello")
    return HELLO.size + int(token_bytes)


def _place(prefix: Prefix, header: dict[str, Any], specs: Sequence[ArraySpec]) -> Sequence[Array]:
    return empty_arrays(specs)
