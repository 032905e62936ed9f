"""Checks that names of types survive JSON, and that failures survive frames."""

from __future__ import annotations

import json

import pytest

from hopstream.errors import (
    FormatError,
    HopstreamError,
    IdRangeError,
    RemoteError,
    ServerBusy,
    StoreTimeout,
    StoreUnavailable,
    UnknownNameError,
    VersionMismatch,
)
from hopstream.store.wire import entity_from_json, entity_to_json
from hopstream.transport.failures import SHARED_ERRORS, encode_error, raise_error, without_paths
from hopstream.transport.messages import Frame
from tests.transport.peer import carried


@pytest.mark.parametrize("owner", ["paper", ("a", "b", "c")])
def test_owners_survive_a_round_trip(owner: str | tuple[str, str, str]) -> None:
    full = owner if isinstance(owner, str) else (owner, "out")
    assert entity_from_json(json.loads(json.dumps(entity_to_json(full)))) == full  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, 3, ["a", "b", "in"], ["a", "b", "c", "up"], ["a", "b", 3, "in"], {}])
def test_invalid_owners_are_refused(value: object) -> None:
    with pytest.raises(FormatError):
        entity_from_json(value)


def told(error: Exception) -> None:
    try:
        raise error
    except Exception as raised:
        frame = carried(encode_error(raised))
    raise_error(frame, "part 2 at tcp://there:1", "sample(a)")


def test_a_client_error_is_returned_as_the_same_error() -> None:
    with pytest.raises(IdRangeError) as caught:
        told(IdRangeError("ids[3] is 9"))
    assert str(caught.value) == "ids[3] is 9"
    where, lines = caught.value.__notes__
    assert where == "answered by part 2 at tcp://there:1 to sample(a)"
    assert lines.startswith("--- server traceback ---\nTraceback (most recent call last):\n")
    assert "raise error" in lines
    with pytest.raises(UnknownNameError, match="no ghost"):
        told(UnknownNameError("no ghost"))


def test_a_server_error_is_returned_with_its_traceback() -> None:
    with pytest.raises(RemoteError) as caught:
        told(ZeroDivisionError("by zero"))
    assert str(caught.value).startswith("part 2 at tcp://there:1 failed in sample(a): ZeroDivisionError: by zero\n")
    assert caught.value.remote_traceback.startswith("Traceback (most recent call last):\n")
    assert "raise error" in caught.value.remote_traceback
    assert not hasattr(caught.value, "__notes__")


OF_PEER = 'Traceback (most recent call last):\n  File "/srv/secret/x.py", line 3'


def test_a_remote_error_keeps_its_message_and_traceback() -> None:
    error = encode_error(RemoteError("part 1 at tcp://peer:1 failed in fetch(): OSError: x", OF_PEER)).header["error"]
    assert error["message"] == "part 1 at tcp://peer:1 failed in fetch(): OSError: x"
    assert OF_PEER in error["traceback"]


@pytest.mark.parametrize(
    "error",
    [
        RemoteError("part 1 at tcp://peer:1 failed in fetch(): OSError: /srv/secret/y", OF_PEER),
        OSError(5, "Input/output error", "/srv/secret/z"),
    ],
)
def test_restricted_clients_get_only_the_class_of_a_server_error(error: Exception) -> None:
    kind = type(error).__name__
    told = without_paths(encode_error(error), {"/data/set"}, "fetch").header["error"]
    text = f"{kind} in fetch; the server's log says more, at level info"
    assert told == {"kind": kind, "message": text, "traceback": ""}


def test_unavailability_errors_are_sent_without_paths() -> None:
    error = StoreUnavailable("unix:///run/secret/1 cannot be reached; /mnt/secret/part3 is gone")
    told = without_paths(encode_error(error), {"/data/set"}, "fetch").header["error"]
    assert told["message"] == "unix://… cannot be reached; … is gone"


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (f"it was late: x\n--- server traceback ---\n{OF_PEER}", "it was late: x"),
        ("unix:///run/user/1/h-a/0, '/mnt/roots/part3' (file:///x/y)", "unix://…, '…' (file://…)"),
        ("/data/set/part-0: no /data/set", "…/part-0: no …"),
        ("part 1 at tcp://peer:1 and tls://[::1]:2/ : paper/cites, 3/4", None),
    ],
)
def test_restricted_clients_get_no_server_paths(message: str, wanted: str | None) -> None:
    told = without_paths(encode_error(StoreTimeout(message)), {"/data", "/data/set"}, "fetch").header["error"]
    assert told == {"kind": "StoreTimeout", "message": wanted or message, "traceback": ""}


@pytest.mark.parametrize("kind", [*SHARED_ERRORS, "StoreUnavailable"])
def test_tracebacks_of_all_servers_are_unchanged(kind: str) -> None:
    sent = "Traceback (most recent call last):\n  one\n    two\n" + kind
    frame = carried(Frame({"error": {"kind": kind, "message": "m", "traceback": sent}}))
    with pytest.raises(HopstreamError) as caught:
        raise_error(frame, "there", "work")
    assert type(caught.value).__name__ == kind
    assert caught.value.__notes__[-1] == f"--- server traceback ---\n{sent}"


def test_a_server_that_has_no_room_is_busy() -> None:
    with pytest.raises(ServerBusy, match=r"part 2 at tcp://there:1 is too busy for sample\(a\): no room"):
        told(ServerBusy("no room"))


def test_a_server_that_shuts_down_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable, match="part 2 at tcp://there:1 cannot answer"):
        told(StoreUnavailable("shutting down"))


@pytest.mark.parametrize("error", ["no", 3, {"kind": "SystemExit"}, {"kind": "__builtins__", "message": 3}, []])
def test_errors_of_unknown_form_are_still_errors(error: object) -> None:
    with pytest.raises((FormatError, RemoteError)):
        raise_error(carried(Frame({"error": error})), "part 2", "sample()")


def test_a_forwarded_error_names_its_original_server() -> None:
    with pytest.raises(VersionMismatch) as first:
        raise_error(encode_error(VersionMismatch("the server serves dataset a")), "tcp://b:2", "sample()")
    with pytest.raises(VersionMismatch) as second:
        raise_error(encode_error(first.value), "tcp://a:1", "get_batch()")
    assert str(second.value) == "the server serves dataset a; answered by tcp://b:2 to sample()"
    assert second.value.__notes__[0] == "answered by tcp://a:1 to get_batch()"
