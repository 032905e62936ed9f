"""Answers which nodes, and which anchors with their labels, a server has for one compute rank.

An answer is columns of int64, sent in frames of bounded size: every frame names the columns that it brings a piece of,
and the last one says how long each column is in all. Nodes and anchors ascend, so they are read in blocks, kept as runs
and sent as runs where those are shorter. The client says for which parts it asks, so that of several servers that serve
a part only one answers for it, and any other can do so in its place.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hopstream.arrays import Array, IntArray, offsets_of
from hopstream.errors import FormatError, SettingsError
from hopstream.kernels.hashing import derive_seed
from hopstream.load.labels import Labels, read_labels
from hopstream.load.options import MAX_RNG_SEED, read_integer
from hopstream.schema import EdgeType, type_label
from hopstream.store.answer import Operation
from hopstream.store.contract import KEY, MAX_COUNT, FetchRequest, SampleRequest, Store
from hopstream.store.pieces import RowCost, cut_pieces
from hopstream.store.requests import check_split
from hopstream.store.wire import Bytes, Frame, direction_from_json, edge_type_from_json, encode_frame
from hopstream.stream.runs import AscendingKeys, Piece, blocks_of
from hopstream.stream.sharding import ServerSlice

Question = tuple[str, str | None, tuple[int, ...]]
"""Node type, split and parts."""
FRAME_ROWS = 1 << 17
"""Most numbers of one column in one frame: a megabyte."""
BLOCK_ANCHORS = 1 << 13
"""Anchors whose labels are looked for at once."""
KEPT_BYTES = 256 << 20
"""Memory of the keys that a server keeps, because other ranks will ask for other slices of the same."""
MAX_KEY = (1 << 63) - 1
MAX_KEPT = 64
"""Questions whose keys are kept, however few keys they have."""


class RankInputs:
    """Answers what a compute rank asks before it makes its loaders. Safe to use from many threads."""

    def __init__(self, graph: Callable[[], Store]) -> None:
        """Answer from what ``graph`` gives: the store over all parts of the dataset."""
        self._graph = graph
        self._lock = threading.Lock()
        self._reading = threading.Lock()  # ranks start together and ask the same: one reads, the others find it kept
        self._kept: OrderedDict[Question, AscendingKeys] = OrderedDict()
        self._num_found = self._num_read = 0
        self.operations: Mapping[str, Operation] = {
            "get_node_ids": self.get_node_ids,
            "get_ablp_input": self.get_ablp_input,
        }
        """Operations by name, for ``StoreServer``."""

    @property
    def lookups(self) -> tuple[int, int]:
        """How often the keys that were needed were kept, and how often they had to be read."""
        with self._lock:
            return self._num_found, self._num_read

    def get_node_ids(self, frame: Frame) -> Iterator[Bytes]:
        """Keys of nodes that some parts own: ``{node_type, split, parts, server_slice, runs}`` to a column ``keys``.

        They are ascending; ``split`` null means all nodes, ``server_slice`` null all of them. With ``runs`` true a
        frame may hold runs of keys, and says so.

        Raises:
            UnknownNameError: There is no such node type or split.
            SettingsError: The slice is none, or a part is unknown.
        """
        store = self._graph()
        keys, num_keys = self._keys(store, frame, frame.text("node_type"))
        yield from _cut_keys("keys", keys, frame)
        yield _ending(keys=num_keys)

    def get_ablp_input(self, frame: Frame) -> Iterator[Bytes]:
        """Anchors as ``get_node_ids`` answers them, with their labels.

        Asks ``{node_type, split, parts, server_slice, runs, supervision_edge_type, negative_edge_type, label_direction,
        max_labels, rng_seed}``. The columns are ``anchors``, ``positive_counts`` and ``positives``, which has the keys
        of the label nodes of one anchor after the other, and where there is a ``negative_edge_type``
        ``negative_counts`` and ``negatives``.

        Raises:
            UnknownNameError: There is no such node type, split or edge type.
            SettingsError: The types do not belong together, the dataset does not hold the direction, or a number is out
                of range.
        """
        store = self._graph()
        labels = _labels(store, frame)
        node_type, wanted = frame.text("node_type"), labels.anchor_type(labels.positive[0])
        if node_type != wanted:
            raise SettingsError(
                f"node_type is {node_type!r}; anchors of {type_label(labels.positive[0])} with label_direction "
                f"{labels.direction!r} are of type {wanted!r}"
            )
        rng_seed = read_integer("rng_seed", frame.header.get("rng_seed", 0), 0, MAX_RNG_SEED)
        anchors, num_anchors = self._keys(store, frame, node_type)
        yield from _cut_keys("anchors", anchors, frame)
        named = [("positive", labels.positive[0]), *(("negative", other) for other in labels.negative.values())]
        totals = {"anchors": num_anchors}
        for name, edge_type in named:
            totals |= {f"{name}_counts": num_anchors, f"{name}s": 0}
            for counts, keys in _read_labels(store, labels, edge_type, anchors, rng_seed):
                totals[f"{name}s"] += len(keys)
                yield from _cut(f"{name}_counts", counts)
                yield from _cut(f"{name}s", keys)
        yield _ending(**totals)

    def _keys(self, store: Store, frame: Frame, node_type: str) -> tuple[list[Piece], int]:
        """The slice of a request, of keys that may be kept, and how many these are."""
        split = None if frame.header.get("split") is None else frame.text("split")
        store.schema.check_node_type(node_type)
        if split is not None:
            check_split(store, node_type, split)
        parts = _parts(store, frame)
        server_slice = _slice(frame.header.get("server_slice"))
        wanted = (node_type, split, parts)
        keys = self._find(wanted)
        if keys is None:
            with self._reading:
                keys = self._find(wanted)
                if keys is None:
                    keys = owned_keys(store, node_type, split, parts)
                    self._keep(wanted, keys)
        start, stop = server_slice.bounds(len(keys))
        return list(keys.cut(start, stop)), stop - start

    def _find(self, wanted: Question) -> AscendingKeys | None:
        with self._lock:
            if wanted in self._kept:
                self._kept.move_to_end(wanted)
                self._num_found += 1
            return self._kept.get(wanted)

    def _keep(self, wanted: Question, keys: AscendingKeys) -> None:
        """Keep keys for the next rank that asks, as long as all that are kept are not too many."""
        with self._lock:
            self._kept[wanted] = keys
            self._num_read += 1
            while len(self._kept) > MAX_KEPT or sum(kept.nbytes for kept in self._kept.values()) > KEPT_BYTES:
                self._kept.popitem(last=False)


def owned_keys(store: Store, node_type: str, split: str | None, parts: Sequence[int]) -> AscendingKeys:
    """Keys of the nodes that some parts own, ascending; with ``split`` only those in it."""
    blocks = _ascending(store, node_type, parts)
    if split is not None:
        in_split = store.split(node_type, split)
        blocks = (block[_are_in(block, in_split)] for block in blocks)
    return AscendingKeys.of(blocks, FRAME_ROWS)


def _are_in(keys: IntArray, others: IntArray) -> Array:
    """bool[n], which keys are among others, which ascend."""
    if not len(others):
        return np.zeros(len(keys), bool)
    found: Array = others[np.searchsorted(others, keys).clip(max=len(others) - 1)] == keys
    return found


def _ascending(store: Store, node_type: str, parts: Sequence[int]) -> Iterator[IntArray]:
    """The keys that some parts own, ascending, in blocks: those of one part ascend by id, so the parts are merged.

    Of every part some keys are read ahead; those up to the last one read of some part can have none before them.
    """
    offsets = store.book.offsets(node_type)
    unread = [range(int(offsets[part]), int(offsets[part + 1])) for part in parts]
    ahead = [np.empty(0, np.int64) for _ in parts]
    size = max(1, FRAME_ROWS // max(1, len(parts)))
    while any(unread) or any(map(len, ahead)):
        asked = [ids[: size - len(keys)] for ids, keys in zip(unread, ahead, strict=True)]
        unread = [ids[len(some) :] for ids, some in zip(unread, asked, strict=True)]
        read = _keys_of(store, node_type, np.concatenate([np.arange(some.start, some.stop) for some in asked]))
        pieces = np.split(read, np.cumsum([len(some) for some in asked])[:-1])
        ahead = [np.concatenate(both) for both in zip(ahead, pieces, strict=True)]
        last = min((int(keys[-1]) for keys, ids in zip(ahead, unread, strict=True) if ids), default=MAX_KEY)
        nums = [int(np.searchsorted(keys, last, "right")) for keys in ahead]
        yield np.sort(np.concatenate([keys[:num] for keys, num in zip(ahead, nums, strict=True)]), kind="stable")
        ahead = [keys[num:] for keys, num in zip(ahead, nums, strict=True)]


def _read_labels(
    store: Store, labels: Labels, edge_type: EdgeType, anchors: list[Piece], rng_seed: int
) -> Iterator[tuple[IntArray, IntArray]]:
    """Labels of some anchors after the other: how many each has, and their keys.

    Draws are a function of the anchor, the edge type and the seed, so they are the same whoever draws them.
    """
    near, far = labels.anchor_type(edge_type), labels.label_type(edge_type)
    most = labels.max_labels if labels.max_labels >= 0 else MAX_COUNT
    for keys in blocks_of(anchors, BLOCK_ANCHORS):
        ids = store.lookup(near, keys)
        weights = store.degrees(edge_type, labels.direction, ids).clip(max=most)
        for (piece,) in cut_pieces([RowCost(len(ids), 0, offsets_of(weights))], FRAME_ROWS):
            request = SampleRequest(
                edge_type=edge_type,
                direction=labels.direction,
                ids=ids[piece.start : piece.start + piece.num_rows],
                count=labels.max_labels,
                rng_seed=derive_seed("labels", rng_seed, type_label(edge_type)),
            )
            reply = store.sample([request])[0]
            yield reply.counts.astype(np.int64), _keys_of(store, far, reply.neighbor_ids.astype(np.int64))


def _keys_of(store: Store, node_type: str, ids: IntArray) -> IntArray:
    column = store.fetch([FetchRequest(owner=node_type, names=(KEY,), ids=ids)])[0][KEY]
    return np.asarray(column, np.int64)


def _labels(store: Store, frame: Frame) -> Labels:
    header = frame.header
    negative = header.get("negative_edge_type")
    return read_labels(
        store,
        edge_type_from_json(header.get("supervision_edge_type")),
        None if negative is None else edge_type_from_json(negative),
        direction_from_json(header.get("label_direction")),
        header.get("max_labels", -1),
    )


def _parts(store: Store, frame: Frame) -> tuple[int, ...]:
    value, num_parts = frame.header.get("parts"), store.book.num_parts
    if not isinstance(value, list) or not all(type(part) is int for part in value):
        raise FormatError(f"header field 'parts' is {str(value)[:100]}; it must be a list of numbers of parts")
    unknown = [part for part in value if not 0 <= part < num_parts]
    if unknown or len(set(value)) < len(value):
        raise SettingsError(
            f"parts are {str(value)[:100]}; give each once, and of 0..{num_parts - 1}, which the dataset has"
        )
    return tuple(sorted(value))


def _slice(value: Any) -> ServerSlice:
    if value is None:
        return ServerSlice(0, 0, 1, 1)
    names = ("server_rank", "start_numerator", "end_numerator", "denominator")
    if not isinstance(value, dict) or set(value) != set(names):
        raise FormatError(f"header field 'server_slice' is {str(value)[:200]}; it must have {', '.join(names)}")
    return ServerSlice(*(value[name] for name in names))


def _cut_keys(name: str, keys: list[Piece], frame: Frame) -> Iterator[Bytes]:
    if frame.header.get("runs") is True:
        for piece in keys:
            yield encode_frame({"columns": [name], "runs": piece.is_runs}, [piece.numbers])
    else:
        for block in blocks_of(keys, FRAME_ROWS):
            yield encode_frame({"columns": [name]}, [block])


def _cut(name: str, column: Array) -> Iterator[Bytes]:
    for start in range(0, len(column), FRAME_ROWS):
        yield encode_frame({"columns": [name]}, [np.asarray(column[start : start + FRAME_ROWS], np.int64)])


def _ending(**num_rows: int) -> Bytes:
    return encode_frame({"columns": [], "num_rows": num_rows})
