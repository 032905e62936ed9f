"""Frames of sample requests: writes and reads them, and splits requests into calls.

Rows of ids, trees and times are split together. Each piece of a request has all its candidates, and the excluded pairs
of the nodes that the piece expands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from hopstream.arrays import Array, IntArray
from hopstream.dataset.book import PartitionBook, ends_of, number_dtype
from hopstream.errors import FormatError, SettingsError
from hopstream.schema import Direction, EdgeType
from hopstream.store.contract import MAX_COUNT, STRATEGIES, LaborSeeds, SampleRequest, Strategy
from hopstream.store.requests import SEED_STOP
from hopstream.store.wire import Piece, RowCost, cut_pieces, entity_from_json, entity_to_json
from hopstream.transport.messages import Frame

ID_DTYPES = ("uint32", "int64")
ARRAYS = ("ids", "trees", "times", "excluded", "candidates")
FIELDS = frozenset(
    (
        *ARRAYS, "owner", "count", "is_replacing", "rng_seed", "wants_edge_ids", "wants_edge_keys", "strategy",
        "is_inclusive", "labor",
    )
)  # fmt: skip
"""Known fields of a request. A request with another field is refused, because it comes from a newer version."""


def take_rows(request: SampleRequest, rows: slice | IntArray) -> SampleRequest:
    """Return a request for some rows: ids with their trees and times."""
    found = {name: getattr(request, name) for name in ("ids", "trees", "times")}
    return replace(request, **{name: array[rows] for name, array in found.items() if array is not None})


def cut_request(request: SampleRequest, piece: Piece) -> SampleRequest:
    """Return a request for a piece's rows, with the excluded pairs of their nodes."""
    if piece.num_rows == len(request.ids):
        return request
    return only_own_pairs(take_rows(request, piece.rows))


def only_own_pairs(request: SampleRequest) -> SampleRequest:
    """Drop excluded pairs of nodes that the request does not expand."""
    if request.excluded is None:
        return request
    is_own = np.isin(request.excluded[0], request.ids)
    return replace(request, excluded=request.excluded[:, is_own] if is_own.any() else None)


def as_int64(request: SampleRequest) -> SampleRequest:
    """Copy the request's arrays to aligned int64 arrays, as kernels need them."""
    found = {name: getattr(request, name) for name in ARRAYS}
    return replace(request, **{name: array.astype(np.int64) for name, array in found.items() if array is not None})


def num_others(request: SampleRequest) -> int:
    """Count excluded pairs and candidates, which cannot be split like rows."""
    num_pairs = 0 if request.excluded is None else request.excluded.shape[1]
    return num_pairs + (0 if request.candidates is None else len(request.candidates))


def sample_calls(requests: Sequence[SampleRequest], max_ids: int) -> Iterator[tuple[list[Piece], list[SampleRequest]]]:
    """Split requests into calls within a server's limit on ids, and on excluded pairs plus candidates.

    Yields:
        pieces: Rows of a call.
        cut: A request for each piece.

    Raises:
        SettingsError: One request has too many pairs and candidates for a call.
    """
    for pieces in cut_pieces([RowCost(len(request.ids), 1) for request in requests], max_ids):
        cut = [cut_request(requests[piece.request], piece) for piece in pieces]
        first, num_held = 0, 0
        for i, request in enumerate(cut):
            num_more = num_others(request)
            if num_more > max_ids:
                raise SettingsError(
                    f"a request brings {num_more} excluded pairs and candidates; the server takes at most {max_ids}; "
                    "expand fewer nodes at a time, or serve the parts with larger max_ids"
                )
            if num_held + num_more > max_ids:
                yield pieces[first:i], cut[first:i]
                first, num_held = i, 0
            num_held += num_more
        yield pieces[first:], cut[first:]


def write_samples(requests: Sequence[SampleRequest], book: PartitionBook) -> tuple[list[dict[str, Any]], list[Array]]:
    """Encode checked requests as records and arrays; records name arrays by position, and may share them."""
    arrays: list[Array] = []
    places: dict[tuple[int, np.dtype[Any]], int] = {}

    def place(array: IntArray, dtype: np.dtype[Any]) -> int:
        known = places.get((id(array), dtype))
        if known is not None:
            return known
        places[id(array), dtype] = len(arrays)
        arrays.append(array.astype(dtype, copy=False))
        return len(arrays) - 1

    records: list[dict[str, Any]] = []
    for request in requests:
        near, far = (number_dtype(book.num_ids(t)) for t in ends_of(request.edge_type, request.direction))
        of_candidates = far if request.trees is None else np.dtype(np.int64)
        both = np.promote_types(near, far)
        dtypes: tuple[np.dtype[Any], ...] = near, np.dtype(np.uint32), np.dtype(np.int64), both, of_candidates
        record = _settings(request)
        for name, dtype in zip(ARRAYS, dtypes, strict=True):
            array = getattr(request, name)
            if array is not None:
                record[name] = place(array, dtype)
        records.append(record)
    return records, arrays


def _settings(request: SampleRequest) -> dict[str, Any]:
    record: dict[str, Any] = {
        "owner": entity_to_json((request.edge_type, request.direction)),
        "count": int(request.count),
        "is_replacing": bool(request.is_replacing),
        "rng_seed": int(request.rng_seed),
        "wants_edge_ids": bool(request.wants_edge_ids),
        "strategy": request.strategy,
    }
    if request.wants_edge_keys:
        record["wants_edge_keys"] = True
    if request.times is not None:
        record["is_inclusive"] = bool(request.is_inclusive)
    if request.labor is not None:
        labor = request.labor
        record["labor"] = {"first": int(labor.first), "second": int(labor.second), "share": float(labor.share)}
    return record


def read_sample(frame: Frame, record: Mapping[str, Any]) -> SampleRequest:
    """Decode a record as a request; its arrays are views of the frame.

    Several records may name the same array. Arrays are not checked against each other here.

    Raises:
        FormatError: The record is malformed, or holds a field that this version does not know.
    """
    unknown = sorted(record.keys() - FIELDS)
    if unknown:
        raise FormatError(
            f"a request has the unknown fields {str(unknown)[:100]}; install one version on servers and clients"
        )
    edge_type, direction = edge_entity(record)
    strategy = record.get("strategy", "uniform")
    if strategy not in STRATEGIES:
        raise FormatError(f"'strategy' is {str(strategy)[:100]!r}; it must be one of {', '.join(STRATEGIES)}")
    return SampleRequest(
        edge_type=edge_type,
        direction=direction,
        ids=frame.array(record.get("ids"), ID_DTYPES),
        count=_integer(record, "count", -1, MAX_COUNT),
        is_replacing=_flag(record, "is_replacing"),
        rng_seed=_integer(record, "rng_seed", 0, SEED_STOP - 1),
        wants_edge_ids=_flag(record, "wants_edge_ids"),
        wants_edge_keys=_flag(record, "wants_edge_keys"),
        strategy=cast(Strategy, strategy),
        trees=_array(frame, record, "trees"),
        times=_array(frame, record, "times"),
        is_inclusive=_flag(record, "is_inclusive", default=True),
        excluded=_array(frame, record, "excluded", 2),
        candidates=_array(frame, record, "candidates"),
        labor=_labor(record.get("labor")),
    )


def edge_entity(record: Mapping[str, Any]) -> tuple[EdgeType, Direction]:
    """Return the edge type and direction of a record.

    Raises:
        FormatError: The record is for a node type, or is malformed.
    """
    entity = entity_from_json(record.get("owner"))
    if isinstance(entity, str):
        raise FormatError(f"'owner' is node type {entity[:100]!r}; it must be an edge type with a direction")
    return entity


def _array(frame: Frame, record: Mapping[str, Any], name: str, ndim: int = 1) -> IntArray | None:
    index = record.get(name)
    return None if index is None else frame.array(index, ID_DTYPES, ndim)


def _labor(value: object) -> LaborSeeds | None:
    if value is None:
        return None
    if not isinstance(value, dict) or value.keys() != {"first", "second", "share"}:
        raise FormatError(f"'labor' is {str(value)[:100]}; it must hold first, second and share")
    share = value["share"]
    if not isinstance(share, int | float) or isinstance(share, bool) or not 0 <= share < 1:
        raise FormatError(f"'share' is {str(share)[:100]}; it must be a number of at least 0 and below 1")
    first, second = (_integer(value, name, 0, SEED_STOP - 1) for name in ("first", "second"))
    return LaborSeeds(first=first, second=second, share=float(share))


def _flag(record: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    value = record.get(name, default)
    if not isinstance(value, bool):
        raise FormatError(f"{name!r} is {str(value)[:100]}; it must be true or false")
    return value


def _integer(record: Mapping[str, Any], name: str, low: int, high: int) -> int:
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise FormatError(f"{name!r} is {str(value)[:100]}; it must be an integer from {low} to {high}")
    return value
