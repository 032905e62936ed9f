"""Link: one connection of a client, on which several requests may be under way.

A link has no thread of its own. One of the threads that wait for answers reads for all of them; when its own answer is
complete, another thread takes over. If the connection is lost or the peer breaks the protocol, all requests under way
on the link fail, and the link is not used again.
"""

from __future__ import annotations

import errno
import itertools
import re
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from hopstream.arrays import Array
from hopstream.errors import AccessDenied, FormatError, HopstreamError, ServerBusy, StoreTimeout, VersionMismatch
from hopstream.transport.location import Location
from hopstream.transport.messages import (
    ANSWER,
    CANCEL,
    GOODBYE,
    LAST,
    MAGIC,
    MAX_MESSAGE_BYTES,
    MAX_WELCOME_TEXT,
    PING,
    PONG,
    REQUEST,
    VERSION,
    WELCOME,
    ArraySpec,
    Buffers,
    Frame,
    Prefix,
    Status,
    empty_arrays,
    encode_hello,
    encode_message,
)
from hopstream.transport.receiver import Receiver
from hopstream.transport.security import ClientSecurity
from hopstream.transport.stream import ByteStream, PlainStream, TlsStream, shut_down

FRESH_S = 0.05
"""Seconds after an answer within which a link counts as alive without a check."""
LEAVE_S = 10.0
"""Seconds to wait for a thread that is reading when its link is closed; it takes milliseconds."""
LOOK_S = 0.001
"""Seconds between checks whether the reading thread has released an answer."""
MAX_TIMEOUT_MS = (1 << 32) - 1
QUEUE_S = 0.01
"""Seconds before another attempt to enter a Unix socket's full queue."""
CLOSED_PLAIN = (
    "the connection was closed before an answer: the server has ended, is another program, or has TLS; start it again, "
    "check the port, or write tls://"
)
CLOSED_TLS = (
    "the connection was closed before an answer: the server has ended, is another program, or has no TLS; start it "
    "again, check the port, or write tcp://"
)
TLS_ALERT = 0x15
"""First byte that a server with TLS sends to a client without TLS."""
OWN_CERTIFICATE = re.compile(r"ALERT_(UNKNOWN_CA|\w*CERTIFICATE)")
"""Errors of OpenSSL with which a server refuses a client's certificate, or the lack of one."""
TOLD: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    ((ConnectionRefusedError, FileNotFoundError), "nothing listens there; start the server, or check the address"),
    (
        (PermissionError,),
        "this user may not open the socket; only the user who started the server may, or users who may enter its "
        "folder",
    ),
    (
        (socket.gaierror, UnicodeError),
        "the host's name is not known; check the address, or write the machine's IP address",
    ),
)
"""Cause of a failure to connect and its remedy, by class of the error."""


class LinkLost(Exception):
    """A connection could not be made, or ended; the text has the reason and a remedy."""


class ServerLeaving(LinkLost):
    """The server refuses connections because it is stopping, and may come back."""


class LinkGivenUp(LinkLost):
    """This side ended the connection, because its only answer was cancelled."""


class Sink(Protocol):
    """Receiver of the frames of an answer, one after the other."""

    def place(self, header: dict[str, Any], specs: Sequence[ArraySpec]) -> Sequence[Array]:
        """Check a frame's header, and return C-contiguous arrays to receive its arrays in."""
        ...

    def take(self, frame: Frame) -> None:
        """Check a frame, whose arrays are those of ``place``, and keep its content."""
        ...


class Answer:
    """Answer that is awaited."""

    __slots__ = ("error", "has_begun", "is_done", "number", "sink", "told")

    def __init__(self, number: int, sink: Sink) -> None:
        """Start without a frame."""
        self.number = number
        self.sink = sink
        self.is_done = self.has_begun = False
        self.error: Exception | None = None
        """Why no more frames arrive: the sink's error, or ``LinkLost``."""
        self.told: Frame | None = None
        """Error frame of the server."""

    def fail(self, error: Exception) -> None:
        """End the answer with an error."""
        self.error = self.error or error
        self.is_done = True


class Opening:
    """A link that is being made, and that another thread can cancel. Safe to use from many threads."""

    def __init__(self) -> None:
        """Start without anything to shut down."""
        self._lock = threading.Lock()
        self._shut_down: Callable[[], None] | None = None
        self._is_given_up = False

    @property
    def is_given_up(self) -> bool:
        """Whether the link was cancelled."""
        return self._is_given_up

    def take(self, shut_down: Callable[[], None]) -> None:
        """Set the function that ends the current wait.

        Raises:
            LinkLost: The link was cancelled.
        """
        with self._lock:
            if self._is_given_up:
                raise LinkLost("it was closed")
            self._shut_down = shut_down

    def leave(self) -> None:
        """Forget the function, because the socket is about to be closed or the link is complete."""
        with self._lock:
            self._shut_down = None

    def give_up(self) -> None:
        """Cancel the link, and wake the thread that waits for it."""
        with self._lock:
            self._is_given_up = True
            if self._shut_down is not None:
                self._shut_down()


class Link:
    """A connection to a server that has accepted it. Safe to use from many threads."""

    def __init__(
        self, location: Location, security: ClientSecurity, ends: float, opening: Opening | None = None
    ) -> None:
        """Connect and say hello.

        Args:
            location: The server.
            security: Token and certificates.
            ends: Deadline, by ``time.monotonic``.
            opening: Lets another thread cancel the link.

        Raises:
            LinkLost: No connection can be made.
            StoreTimeout: The deadline has passed.
            AccessDenied: The server refused the token.
            VersionMismatch: The server speaks another version of the protocol.
            ServerBusy: The server has as many connections as allowed.
            SettingsError: A token or certificate cannot be read.
        """
        opening = opening or Opening()
        self._stream = _connect(location, security, ends, opening)
        self._poll = select.poll()
        self._poll.register(self._stream.fileno(), select.POLLIN)
        try:
            self._say_hello(security.current_token(), location, ends)
        except BaseException:
            opening.leave()
            self._stream.close()
            raise
        opening.leave()
        self._receiver = Receiver(self._stream, self._check, self._place, self._is_wanted)
        self._answers: dict[int, Answer] = {}
        self._numbers = itertools.count(1)
        self._reading, self._sending = threading.Lock(), threading.Lock()
        self._changed = threading.Condition()
        self._num_followers = 0
        self._filling = 0
        """Number of the answer whose arrays are being received or passed to its sink; 0 for none."""
        self._is_pumping = False
        """Whether the reading thread is active, and so may be writing into arrays."""
        self._reader = 0
        """Identifier of the current or last reading thread."""
        self._read_at = 0.0
        self.is_leaving = self.comes_back = False
        """Whether the server has sent goodbye, and whether it may come back."""
        self.lost: Exception | None = None
        """Error that ended the link; None while it is usable."""

    @property
    def num_under_way(self) -> int:
        """Number of answers under way."""
        return len(self._answers)

    @property
    def is_usable(self) -> bool:
        """Whether requests may be sent."""
        return self.lost is None and not self.is_leaving

    def is_fresh(self, now: float) -> bool:
        """Check that an idle link is usable: neither closed by the server nor ended by a goodbye."""
        if now - self._read_at < FRESH_S:
            return self.is_usable
        if self._answers or not self._reading.acquire(blocking=False):
            return self.is_usable
        try:
            self._stream.expect(1)
            if self._poll.poll(0):
                self._pump()
        except Exception as error:
            self._fail(error)
        finally:
            self._reading.release()
        if self.lost is not None:
            self._release()
        return self.is_usable

    def start(self, frame: Frame, sink: Sink, ends: float) -> Answer:
        """Send a request.

        Args:
            frame: The request.
            sink: Receives the answer, in the thread that reads.
            ends: Deadline of the answer.

        Raises:
            LinkLost: The connection is lost.
            StoreTimeout: The server did not accept the request in time.
        """
        timeout_ms = max(1, min(MAX_TIMEOUT_MS, int((ends - time.monotonic()) * 1000)))
        answer = Answer(next(self._numbers), sink)
        self._answers[answer.number] = answer
        try:
            self._send(encode_message(REQUEST, answer.number, frame, timeout_ms=timeout_ms), ends)
        except BaseException:
            self._forget(answer)
            raise
        return answer

    def wait(self, answer: Answer, ends: float) -> bool:
        """Read until an answer is complete or the deadline passes; return whether it is complete."""
        while not answer.is_done:
            if self._reading.acquire(blocking=False):
                try:
                    self._read_for(answer, ends)
                finally:
                    self._reading.release()
                    if self.lost is not None:
                        self._release()
                    if self._num_followers:
                        with self._changed:
                            self._changed.notify_all()
            else:
                with self._changed:
                    self._num_followers += 1
                    try:
                        self._changed.wait_for(
                            lambda: answer.is_done or not self._reading.locked(), ends - time.monotonic()
                        )
                    finally:
                        self._num_followers -= 1
            if not answer.is_done and time.monotonic() >= ends:
                return False
        return True

    def cancel(self, answer: Answer) -> None:
        """Cancel an answer, and close the connection if nothing else is under way.

        The answer's arrays are not written any more.
        """
        self._forget(answer)
        ends = time.monotonic() + LEAVE_S
        while self._filling == answer.number and self._is_pumping and self._reader != threading.get_ident():
            if time.monotonic() >= ends:
                break
            time.sleep(LOOK_S)
        if not self._answers:
            self.close(LinkGivenUp("the connection was closed because its only call was cancelled"))
            return
        with suppress(LinkLost, StoreTimeout):
            self._send(encode_message(CANCEL, answer.number), time.monotonic() + 1.0)

    def ping(self, ends: float) -> None:
        """Wait until the server answers a ping.

        Raises:
            LinkLost: The connection is lost.
            StoreTimeout: The server did not answer in time.
        """
        pong = Answer(next(self._numbers), _Nothing())
        self._answers[pong.number] = pong
        try:
            self._send(encode_message(PING, pong.number), ends)
            if not self.wait(pong, ends):
                raise StoreTimeout("the server did not answer a ping in time")
            if pong.error is not None:
                raise pong.error
        finally:
            self._forget(pong)

    def close(self, why: Exception | None = None) -> None:
        """End the connection at once: fail all requests under way, and wake the reading thread."""
        self._fail(why or LinkLost("it was closed"))

    def wait_until_left(self, ends: float) -> None:
        """Wait until no thread reads; nothing is read from a closed link after that."""
        if self._reading.acquire(timeout=max(0.0, ends - time.monotonic())):
            self._reading.release()
            self._release()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            if self.lost is None:
                self.lost = error
            for answer in list(self._answers.values()):
                answer.fail(error)
            self._answers.clear()
            self._changed.notify_all()
        self._stream.shut_down()
        self._release()

    def _release(self) -> None:
        """Free the descriptor of a lost connection; if a thread still uses it, that thread frees it."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            if self._sending.acquire(blocking=False):
                self._stream.close()
                self._sending.release()
        finally:
            self._reading.release()

    def _forget(self, answer: Answer) -> None:
        self._answers.pop(answer.number, None)

    def _read_for(self, answer: Answer, ends: float) -> None:
        """Read for all threads until an answer is complete or the deadline passes; called by the reader."""
        try:
            while not answer.is_done and self.lost is None:
                self._read_at = time.monotonic()
                left_s = ends - self._read_at
                if left_s <= 0:
                    return
                if not self._receiver.has_buffered and not self._stream.has_pending():
                    self._stream.expect(self._receiver.wanted)
                    self._poll.poll(left_s * 1000)
                self._pump()
        except Exception as error:
            self._fail(error if not isinstance(error, OSError) else LinkLost(str(error)))
        if self.lost is not None and not answer.is_done:
            answer.fail(self.lost)

    def _pump(self) -> None:
        """Read all messages that have arrived."""
        self._reader, self._is_pumping = threading.get_ident(), True
        try:
            while self.lost is None:
                message = self._receiver.next()
                if message is None:
                    if self._receiver.is_at_end:
                        raise LinkLost("the server closed the connection")
                    return
                try:
                    self._take(*message)
                finally:
                    self._filling = 0
                if not self._receiver.has_buffered and not self._stream.has_pending():
                    return
        finally:
            self._is_pumping = False

    def _take(self, prefix: Prefix, frame: Frame | None) -> None:
        if prefix.kind == GOODBYE:
            self.is_leaving, self.comes_back = True, prefix.flags != LAST
            return
        answer = self._answers.get(prefix.number)
        if answer is None:
            return
        if frame is not None and prefix.header_bytes and not answer.is_done:
            try:
                if "error" in frame.header:
                    answer.told = frame
                else:
                    answer.sink.take(frame)
            except Exception as error:
                answer.fail(error)
        is_last = prefix.kind == PONG or prefix.flags == LAST
        if is_last or answer.is_done:
            answer.is_done = True
            self._forget(answer)
            if self._num_followers:
                with self._changed:
                    self._changed.notify_all()
            if not is_last:
                self._cancel_rest(answer)

    def _cancel_rest(self, answer: Answer) -> None:
        """Cancel the rest of an answer that the sink refused."""
        with suppress(LinkLost, StoreTimeout):
            self._send(encode_message(CANCEL, answer.number), time.monotonic() + 1.0)

    def _check(self, prefix: Prefix) -> bool:
        if prefix.kind not in (ANSWER, PONG, GOODBYE):
            raise FormatError(f"a message of kind {prefix.kind} came, which a server does not send")
        if prefix.body_bytes > MAX_MESSAGE_BYTES:
            raise FormatError(f"a frame has {prefix.body_bytes} bytes; it may have at most {MAX_MESSAGE_BYTES}")
        return prefix.kind != ANSWER or prefix.number in self._answers

    def _is_wanted(self, prefix: Prefix) -> bool:
        """Return whether the arrays of a message may still be written; ``cancel`` waits for a write under way."""
        if prefix.kind != ANSWER or prefix.number in self._answers:
            return True
        self._filling = 0
        return False

    def _place(self, prefix: Prefix, header: dict[str, Any], specs: Sequence[ArraySpec]) -> Sequence[Array] | None:
        self._filling = prefix.number  # before the lookup: ``cancel`` has the opposite order
        answer = self._answers.get(prefix.number)
        if answer is None:
            self._filling = 0
            return None
        if "error" in header:
            return empty_arrays(specs)
        answer.has_begun = True
        try:
            return answer.sink.place(header, specs)
        except Exception as error:
            answer.fail(error)
            return None

    def _send(self, buffers: Buffers, ends: float) -> None:
        """Send a whole message; a message that was sent partly ends the connection."""
        if not self._sending.acquire(timeout=max(0.0, ends - time.monotonic())):
            raise StoreTimeout("other requests are still being sent")
        try:
            if self.lost is not None:
                kind = LinkGivenUp if isinstance(self.lost, LinkGivenUp) else LinkLost
                raise kind(str(self.lost))
            self._send_whole(deque(buffers), ends)
        except (OSError, ValueError) as error:  # ValueError: the socket was closed meanwhile
            lost = LinkLost(
                "the server did not read the request in time" if isinstance(error, StoreTimeout) else str(error)
            )
            self._fail(lost)
            raise error if isinstance(error, StoreTimeout) else lost from error
        finally:
            self._sending.release()
            if self.lost is not None:
                self._release()

    def _send_whole(self, out: deque[memoryview], ends: float) -> None:
        while not self._stream.send(out):
            _wait(self._stream, select.POLLOUT, ends)

    def _say_hello(self, token: str | None, location: Location, ends: float) -> None:
        out = deque([memoryview(encode_hello(token))])
        try:
            self._send_whole(out, ends)
        except StoreTimeout:
            raise
        except OSError:
            pass  # the server has closed the connection; the welcome before that has the reason
        head = self._read_exactly(WELCOME.size, location, ends)
        magic, version, status, _, _, text_bytes = WELCOME.unpack(head)
        if magic != MAGIC or text_bytes > MAX_WELCOME_TEXT:
            raise LinkLost(_stranger(head, location))
        text = self._read_exactly(text_bytes, location, ends).decode(errors="replace")
        if version != VERSION:
            raise VersionMismatch(f"the server speaks version {version} of the protocol; this one speaks {VERSION}")
        if status == Status.REFUSED:
            raise AccessDenied(text)
        if status == Status.BUSY:
            raise ServerBusy(text)
        if status == Status.LEAVING:
            raise ServerLeaving(text)
        if status != Status.OK:
            raise LinkLost(text or "the server refused the connection")

    def _read_exactly(self, num_bytes: int, location: Location, ends: float) -> bytes:
        target, done = memoryview(bytearray(num_bytes)), 0
        while done < num_bytes:
            try:
                read = self._stream.recv_into(target[done:])
            except ConnectionError:
                read = 0
            except OSError as error:
                raise LinkLost(_told(error, location)) from error
            if read is None:
                _wait(self._stream, select.POLLIN, ends)
            elif read == 0:
                if done and target[0] == TLS_ALERT:
                    raise LinkLost(_stranger(target[:done].tobytes(), location))
                raise LinkLost(
                    "the connection was closed before an answer: the server has ended, or refused the client's "
                    "certificate"
                    if location.has_tls
                    else CLOSED_PLAIN
                )
            else:
                done += read
        return target.tobytes()


class _Nothing:
    """Sink that accepts no frame."""

    def place(self, header: dict[str, Any], specs: Sequence[ArraySpec]) -> Sequence[Array]:
        raise FormatError("a ping was answered with a frame")

    def take(self, frame: Frame) -> None:
        raise FormatError("a ping was answered with a frame")


def _connect(location: Location, security: ClientSecurity, ends: float, opening: Opening) -> ByteStream:
    """Open a socket, with TLS if the location has it."""
    try:
        sock = _open(location, ends, opening)
    except TimeoutError as error:
        raise StoreTimeout("no connection could be made in time") from error
    except (OSError, UnicodeError) as error:
        raise LinkLost(_told(error, location)) from error
    if not location.has_tls:
        return PlainStream(sock)
    try:
        name, context = security.server_name or location.host, security.context()
        opening.leave()
        if opening.is_given_up:  # the socket may have been shut down, and then cannot be wrapped
            raise LinkLost("it was closed")
        wrapped = context.wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)
    except BaseException as error:
        opening.leave()
        sock.close()
        if isinstance(error, OSError | ValueError) and not isinstance(error, HopstreamError):
            raise LinkLost(_told(error, location)) from error
        raise
    stream = TlsStream(wrapped)
    try:
        opening.take(stream.shut_down)
        while (state := stream.handshake()) is not True:
            _wait(stream, select.POLLIN if state is None else select.POLLOUT, ends)
    except BaseException as error:
        opening.leave()
        stream.close()
        if isinstance(error, OSError) and not isinstance(error, HopstreamError):
            raise LinkLost(_told(error, location)) from error
        raise
    return stream


def _open(location: Location, ends: float, opening: Opening) -> socket.socket:
    """Connect to the first address of a host that accepts; each address has a share of the time."""
    if location.path:
        return _connected(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), location.path, ends, opening)
    failure: OSError | None = None
    found = socket.getaddrinfo(location.host, location.port, type=socket.SOCK_STREAM)
    for num_tried, (family, kind, protocol, _, address) in enumerate(found):
        now = time.monotonic()
        share_ends = now + (ends - now) / (len(found) - num_tried)
        try:
            return _connected(socket.socket(family, kind, protocol), address, share_ends, opening)
        except OSError as error:
            if failure is None or isinstance(error, TimeoutError):
                failure = error
    raise failure or OSError("the host has no address")


def _connected(sock: socket.socket, address: Any, ends: float, opening: Opening) -> socket.socket:
    try:
        while True:
            opening.take(partial(shut_down, sock))
            left_s = ends - time.monotonic()
            sock.settimeout(max(1e-3, left_s))
            try:
                sock.connect(address)
                break
            except BlockingIOError:  # the queue of a Unix socket is full; for TCP the system waits by itself
                if left_s <= 0:
                    raise TimeoutError("the server did not accept the connection") from None
                time.sleep(QUEUE_S)
    except BaseException:
        opening.leave()
        sock.close()
        raise
    return sock


def _wait(stream: ByteStream, events: int, ends: float) -> None:
    poll = select.poll()
    poll.register(stream.fileno(), events)
    left_s = ends - time.monotonic()
    if left_s <= 0 or not poll.poll(left_s * 1000):
        raise StoreTimeout("it gave no answer in time")


def _stranger(head: bytes, location: Location) -> str:
    """Describe a server that did not answer with a welcome."""
    if head[:1] == bytes([TLS_ALERT]) and not location.has_tls:
        return "the server has TLS; write tls:// instead of tcp://"
    return "the program at this address is not a hopstream server of this version; check the port"


def _told(error: Exception, location: Location) -> str:
    """Return why no connection could be made, with a remedy."""
    for kinds, text in TOLD:
        if isinstance(error, kinds):
            return text
    if isinstance(error, ssl.SSLError):
        return _told_of_tls(error)
    if isinstance(error, ConnectionError):
        return CLOSED_TLS if location.has_tls else CLOSED_PLAIN
    if isinstance(error, OSError) and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return "no network route leads to the address; check the address, the network and the firewall"
    return f"{error}; start the server, or check the address, the certificates and the firewall"


def _told_of_tls(error: ssl.SSLError) -> str:
    text = str(error)
    if any(words in text.upper() for words in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "EOF OCCURRED")):
        return "the server has no TLS; write tcp:// instead of tls://, or give the server a certificate"
    reason = text.split("(_ssl")[0].strip()
    if OWN_CERTIFICATE.search(text.upper()):
        return (
            f"no TLS connection could be made ({reason}): the server refuses the certificate of this client; give one "
            "that leads to the server's --client-ca, and that has not expired"
        )
    return f"no TLS connection could be made ({reason}); check the roots, the certificates and the host name in them"
