"""Make malformed requests.

Either some bytes of a sensible request are changed, or fields and arrays of its header are changed, removed, added or
given another type. A request of the second kind is encoded again, so that it decodes and reaches an operation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from hopstream.store.contract import KEY
from hopstream.store.server import StoreServer
from hopstream.stream.messages import encode_options, recipe_digest
from hopstream.transport.messages import PREFIX, REQUEST, Frame, padded
from tests.transport.peer import message_bytes

DTYPES = ("int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64", "bool")
DEEP: list[Any] = []
for _ in range(200):
    DEEP = [DEEP]
EVIL = tuple(json.dumps(value) for value in (
    None, True, False, 0, 1, -1, 2, 7, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 53, (1 << 62) - 1, 1 << 62, (1 << 63) - 1,
    1 << 63, -(1 << 63), 1 << 64, 10**30, 10**400, -(10**30), 0.5, -0.5, 1e308, -1e308, 1e-320, math.nan, math.inf,
    -math.inf, "", "x", "paper", "user", "train", "in", "out", "nan", "\x00", "\ud800", "é" * 50, "x" * 100_000, [],
    [[]], {}, [0], [-1], [1 << 62], ["paper"], [None, None], ["user", "rates", "paper"], ["a", "b", "c", "d"],
    [["user", "rates", "paper"], "in"], DEEP, {"a": DEEP}, [0] * 5000, {"tuple": ["paper", None]}, {"tuple": 5},
    {"map": [[1, 2, 3]]}, {"map": [[[], 1]]}, {"map": [[{"tuple": [1]}, [1]]]}, {"array": 0}, {"array": 1},
    {"array": -1}, {"array": 1 << 62}, {"float": "nan"}, {"float": "inf"}, {"float": "1"}, {"record": "Links"},
    {"record": "Links", "fields": {}}, {"record": "PPRSettings", "fields": {"alpha": -1}}, {"record": 5, "fields": 5},
))  # fmt: skip
"""Values, as JSON, that a field is given in place of its own."""
SPLIT = "train"


def with_changed_bytes(rng: np.random.Generator, message: bytes) -> bytes:
    """A message with some bytes changed, taken out, put in or said twice."""
    data = bytearray(message)
    for _ in range(int(rng.integers(1, 4))):
        place, length = int(rng.integers(0, len(data))), int(rng.integers(1, 9))
        kind = rng.integers(0, 5)
        if kind == 0:
            data[place] = int(rng.integers(0, 256))
        elif kind == 1:
            data[place] = int(rng.choice(np.frombuffer(b'0123456789-{}[]",:.eNtfn', np.uint8)))
        elif kind == 2:
            del data[place : place + length]
        elif kind == 3:
            data[place:place] = data[place : place + length]
        else:
            data[place : place + length] = rng.integers(0, 256, length).astype(np.uint8).tobytes()
        if not data:
            return b""
    return bytes(data)


def with_changed_fields(rng: np.random.Generator, frame: Frame) -> bytes:
    """A request with one to three fields or arrays changed; few frames misdescribe their arrays."""
    header, arrays = json.loads(json.dumps(frame.header)), [np.array(array) for array in frame.arrays]
    for _ in range(int(rng.integers(1, 4))):
        if arrays and rng.random() < 0.4:
            place = int(rng.integers(0, len(arrays)))
            arrays[place : place + 1] = changed_array(rng, arrays[place])
        else:
            change_field(rng, header)
    specs = [[array.dtype.name, list(array.shape)] for array in arrays]
    if specs and rng.random() < 0.03:
        specs[0] = [str(rng.choice(DTYPES)), [int(rng.choice([0, 1, 5, 1 << 40]))]]
    return encoded(header, specs, arrays)


def change_field(rng: np.random.Generator, header: dict[str, Any]) -> None:
    """Change a field at any depth; the operation and the dataset rarely change."""
    at: Any = header
    while True:
        names = list(at) if isinstance(at, dict) else list(range(len(at)))
        if at is header:
            names = [name for name in names if name not in ("op", "dataset") or rng.random() < 0.02]
        if not names:
            return
        name = names[int(rng.integers(0, len(names)))]
        inner = at[name]
        if not (isinstance(inner, dict | list) and inner and rng.random() < 0.7):
            break
        at = inner
    kind = rng.random()
    if kind < 0.6:
        at[name] = json.loads(EVIL[int(rng.integers(0, len(EVIL)))])
    elif kind < 0.75 and type(at[name]) is int:
        at[name] += int(rng.integers(-3, 4)) * int(rng.choice([1, 1, 1 << 20]))
    elif kind < 0.85:
        del at[name]
    elif kind < 0.95 and isinstance(at, dict):
        at[f"{name}x"] = at.pop(name)
    else:
        at[name] = [at[name]]


def changed_array(rng: np.random.Generator, array: np.ndarray) -> list[np.ndarray]:
    """Replace an array by one of other values, dtype, length or shape, by two copies or by none."""
    kind = int(rng.integers(0, 6))
    if kind == 0:
        return []
    if kind == 1:
        return [array, array]
    if kind == 2:
        with np.errstate(all="ignore"):
            return [array.astype(str(rng.choice(DTYPES)))]
    if kind == 3:
        return [np.resize(array, int(rng.choice([0, 1, len(array) + 1, 3 * len(array) + 2])))]
    if kind == 4:
        return [array.reshape(1, -1)]
    if array.size and array.dtype.kind in "iuf":
        array.flat[int(rng.integers(0, array.size))] = changed_value(rng, array.dtype)
    return [array]


def changed_value(rng: np.random.Generator, dtype: np.dtype) -> Any:
    if dtype.kind == "f":
        return dtype.type(rng.choice([np.nan, np.inf, -np.inf, -1.0, 0.0]))
    limits = np.iinfo(dtype)
    choices = [limits.min, limits.max, max(limits.min, -1), 0, 119, 120, min(limits.max, 1 << 40)]
    return choices[int(rng.integers(0, len(choices)))]


def encoded(header: Mapping[str, Any], specs: Sequence[Any], arrays: Sequence[np.ndarray]) -> bytes:
    """Encode as ``encode_message`` does, also messages that it refuses."""
    text = json.dumps({**header, "arrays": specs}).encode(errors="surrogatepass")
    body_bytes = sum(padded(array.nbytes) for array in arrays)
    prefix = PREFIX.pack(REQUEST, 0, 0, len(text), 1, body_bytes, 1000, 0)
    return prefix + b"".join(piece.ljust(padded(len(piece)), b"\0") for piece in (text, *map(as_bytes, arrays)))


def as_bytes(array: np.ndarray) -> bytes:
    return array.tobytes()


def sensible_requests(server: StoreServer, channel_id: int, backend_id: int, config: Mapping[str, Any]) -> list[Frame]:
    """Requests for every operation of a sampling server, with arrays and records where permitted.

    Args:
        server: A server of the small graph of times and weights.
        channel_id: A channel there, in an epoch.
        backend_id: The channel's backend.
        config: The backend's options.
    """
    dataset = server._answers._store.dataset_id
    requests: list[Frame] = []

    def add(op: str, arrays: Sequence[np.ndarray] = (), **header: Any) -> None:
        requests.append(Frame({"op": op, "dataset": dataset, **header}, arrays))

    keys = np.arange(20)
    rates, owner = ["user", "rates", "paper"], ["user", "rates", "paper", "in"]
    for op in ("describe", "stats", "describe_channels"):
        add(op)
    of_channel = {"channel_id": channel_id, "epoch": 0, "turn": 0}
    add("start_new_epoch_sampling", **of_channel, first_step=1)
    for op in ("fetch_one_sampled_message", "fetch_sampled_messages"):
        add(op, **of_channel, step=2, lowest=1, wait_s=0.0, max_messages=2)
    for op in ("describe_channel", "is_channel_epoch_done"):
        add(op, **of_channel)
    more = {"edge_features": [], "node_features": {"paper": ["x"]}, "eps": np.inf}
    options, arrays = encode_options({**config, **more})
    add("init_sampling_backend", arrays, backend_key="fuzz", loader="NeighborLoader", options=options)
    options, arrays = encode_options({"seeds": ("paper", np.arange(20)), "rank": 0, "world_size": 1})
    add(
        "register_sampling_input", arrays, backend_id=backend_id, options=options, worker_key="fuzz",
        config=recipe_digest("NeighborLoader", *encode_options(config)), first=0, stride=1, credit=2,
    )  # fmt: skip
    add("lookup", [keys], node_type="paper")
    add("split", node_type="paper", name=SPLIT)
    add("degrees", [keys], owner=owner)
    add("find_edges", [keys, keys], owner=owner)
    add("links", [keys], edge_type=rates)
    add("edge_split", edge_type=rates, name=SPLIT)
    add("fetch", [keys, keys], requests=[{"owner": "paper", "names": [KEY], "ids": n} for n in (0, 1)])
    drawn = {"owner": owner, "count": 2, "ids": 0, "rng_seed": 1, "is_replacing": False, "wants_edge_ids": True}
    add("sample", [keys, keys], requests=[drawn, {**drawn, "strategy": "weighted", "times": 1, "is_inclusive": False}])
    add("destroy_sampling_input", channel_id=channel_id)  # the last, as all others need it
    return requests


class Reached:
    """Counts the requests that reach an operation of a server, by its name."""

    def __init__(self, server: StoreServer) -> None:
        self.by_operation = dict.fromkeys(server.operation_names, 0)
        for operations in (server._answers._operations, server._operations):
            for name, operation in list(operations.items()):
                operations[name] = self._counting(name, operation)  # type: ignore[index]
        facts: Any = server._answers._facts
        server._answers._facts = SimpleNamespace(to_frame=self._counting("describe", facts.to_frame))  # type: ignore[assignment]

    @property
    def total(self) -> int:
        return sum(self.by_operation.values())

    def _counting(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.by_operation[name] += 1
            return operation(*arguments, **named)

        return counted


def mutated(rng: np.random.Generator, request: Frame) -> bytes:
    """Damage a request in one of both ways: fields with a chance of 3/4, bytes else."""
    if rng.random() < 0.25:
        return with_changed_bytes(rng, message_bytes(REQUEST, 1, request))
    return with_changed_fields(rng, request)
