"""Names, reader and writer of GLT's partition files; the reader runs no pickled code.

A folder has ``META``, the part of every node and edge (``node_pb.pt`` and ``edge_pb.pt``, or folders ``node_pb`` and
``edge_pb`` with a file per type), and folders of each part. ``part<i>/graph`` has ``rows.pt``, ``cols.pt``, ``eids.pt``
and, for edges with weights, ``weights.pt``. ``part<i>/node_feat`` and ``part<i>/edge_feat`` have ``feats.pkl`` and
``ids.pkl``, or ``.pt`` from older versions, and copies of hot rows in ``cache_feats.pt`` and ``cache_ids.pt``. In a
graph with types, these folders have a folder per type. A folder written with ``graph_caching`` has all edges in
``graph``.

Ids count the nodes or edges of one type in the whole graph.

The files are Python pickles. The reader accepts numbers, text, bytes, lists, tuples and dictionaries, and, for tensors,
the names in the pickle of a tensor. It refuses every other name, and never looks up a function by its name.
"""

from __future__ import annotations

import io
import mmap
import pickletools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import torch
from torch import Tensor

from hopstream.compat.glt.partition_books import OffsetId2Index, PartitionBook, RangePartitionBook, table_of
from hopstream.compat.pyg.partition_files import PartitionMeta, check_part, ids_of, parts_of, tensor_of
from hopstream.dataset.settings import MAX_PARTS
from hopstream.errors import FormatError
from hopstream.load.files import check_stored, read_torch_file
from hopstream.schema import EDGE, NODE, EdgeType
from hopstream.uris import local_path

CHUNK_BYTES = 1 << 26
"""Bytes of a tensor per pickle: the limit of extra memory beside the tensor."""
_STORED = "torch.storage _load_from_bytes"
_MARK = object()


class _Name(str):
    """Dotted name of a function that a pickle calls."""

    __slots__ = ()


def read_value(path: Path) -> Any:
    """Read a pickle of numbers, text, lists, tuples and dictionaries.

    Raises:
        FormatError: The file is missing or damaged, or holds other values.
    """
    return next(_read(path, {}))


def read_tensor(path: Path) -> Tensor:
    """Read and concatenate the tensors of a file with one or more pickles.

    Raises:
        FormatError: The file is missing or damaged, or holds other values, or tensors that do not fit each other.
    """

    def stored(data: bytes) -> Any:
        return read_torch_file(path, tensors_only=True, data=data)

    def rebuilt(storage: Any, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
        if not isinstance(storage, torch.storage.TypedStorage):
            raise TypeError("a tensor without its values")
        whole = torch.empty(0, dtype=storage.dtype).set_(storage._untyped_storage)
        tensor = whole.as_strided(size, stride, offset)
        check_stored(path, tensor)
        return tensor

    calls: dict[str, Callable[..., Any]] = {
        _STORED: stored, "torch._utils _rebuild_tensor_v2": rebuilt, "collections OrderedDict": dict,
    }  # fmt: skip
    tensors = list(_read(path, calls))
    if not all(isinstance(tensor, Tensor) and tensor.dim() for tensor in tensors):
        raise FormatError(f"{path} holds things other than tensors of rows")
    first = tensors[0]
    for tensor in tensors[1:]:
        if (tensor.dtype, tensor.shape[1:]) != (first.dtype, first.shape[1:]):
            raise FormatError(
                f"{path} holds rows {tensor.dtype}{list(tensor.shape[1:])} after rows "
                f"{first.dtype}{list(first.shape[1:])}"
            )
    return first if len(tensors) == 1 else torch.cat(tensors)


def write_value(path: Path, value: Any) -> None:
    """Write a dictionary, list, tuple, text, integer, bool or None as a pickle."""
    path.write_bytes(b"\x80\x02" + b"".join(_opcodes(value)) + b".")


def write_tensor(path: Path, tensor: Tensor) -> None:
    """Write a tensor as GLT reads it: one or more pickles in sequence, each of some rows."""
    num_rows = max(1, CHUNK_BYTES // max(1, tensor[:1].numel() * tensor.element_size()))
    with path.open("wb") as file:
        for start in range(0, max(1, len(tensor)), num_rows):
            stored = io.BytesIO()
            torch.save(tensor[start : start + num_rows].clone(), stored)
            file.write(b"\x80\x04c" + _STORED.replace(" ", "\n").encode() + b"\n")
            file.write(b"\x8e" + struct.pack("<Q", stored.getbuffer().nbytes))
            file.write(stored.getbuffer())
            file.write(b"\x85R.")  # a tuple of the bytes, from which torch makes a tensor


def _opcodes(value: Any) -> Iterator[bytes]:
    """Yield the opcodes of a value, in protocol 2."""
    if value is None or isinstance(value, bool):
        yield {None: b"N", True: b"\x88", False: b"\x89"}[value]
    elif isinstance(value, int):
        yield b"J" + struct.pack("<i", value)
    elif isinstance(value, str):
        yield b"X" + struct.pack("<I", len(value.encode())) + value.encode()
    else:
        start, end = {"dict": (b"}(", b"u"), "list": (b"](", b"e"), "tuple": (b"(", b"t")}[type(value).__name__]
        yield start
        for one in (part for item in value.items() for part in item) if isinstance(value, dict) else value:
            yield from _opcodes(one)
        yield end


def _read(path: Path, calls: Mapping[str, Callable[..., Any]]) -> Iterator[Any]:
    """Yield the values of a file with one or more pickles in sequence."""
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise FormatError(f"{path} is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                while mapped.tell() < len(mapped):
                    yield _Machine(calls).run(mapped)  # type: ignore[arg-type]  # it reads like a file
    except FormatError:
        raise
    except OSError as error:
        raise FormatError(f"{path} cannot be read ({error.strerror}); wanted a file of GLT's partitions") from error
    except Exception as error:  # a damaged file causes errors of any type, such as a pop from an empty stack
        raise FormatError(f"{path} cannot be read as GLT's pickled values ({type(error).__name__}: {error})") from error


class _Machine:
    """Interpreter of one pickle; it knows only the opcodes of the values that the module accepts."""

    def __init__(self, calls: Mapping[str, Callable[..., Any]]) -> None:
        self.calls = calls
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, file: BinaryIO) -> Any:
        """Read to the end of the pickle, and return its value."""
        for opcode, arg, _ in pickletools.genops(file):
            self._do(opcode.name, arg)
        return self.stack.pop()

    def _do(self, opcode: str, arg: Any) -> None:
        stack = self.stack
        if opcode in _IGNORED:
            return
        if opcode in _VALUES:
            stack.append(arg)
        elif opcode in _CONSTANTS:
            stack.append(_CONSTANTS[opcode]())
        elif opcode in _TUPLES:
            num = _TUPLES[opcode]
            stack[-num:] = [tuple(stack[-num:])]
        elif opcode == "TUPLE":
            stack.append(tuple(self._marked()))
        elif opcode in ("APPEND", "APPENDS"):
            values = [stack.pop()] if opcode == "APPEND" else self._marked()
            _of_kind(stack[-1], list).extend(values)
        elif opcode in ("SETITEM", "SETITEMS"):
            pairs = [stack.pop(), stack.pop()][::-1] if opcode == "SETITEM" else self._marked()
            _of_kind(stack[-1], dict).update(zip(pairs[::2], pairs[1::2], strict=True))
        elif opcode in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            self.memo[len(self.memo) if arg is None else arg] = stack[-1]
        elif opcode in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[arg])
        else:
            self._call(opcode, arg)

    def _call(self, opcode: str, arg: Any) -> None:
        """Push a known name, or call the function of a known name."""
        stack = self.stack
        if opcode == "GLOBAL":
            stack.append(self._known(arg))
        elif opcode == "STACK_GLOBAL":
            name, module = _of_kind(stack.pop(), str), _of_kind(stack.pop(), str)
            stack.append(self._known(f"{module} {name}"))
        elif opcode == "REDUCE":
            args, name = _of_kind(stack.pop(), tuple), _of_kind(stack.pop(), _Name)
            stack.append(self.calls[name](*args))
        else:
            raise ValueError(f"it holds more than values: {opcode}")

    def _known(self, name: str) -> _Name:
        if name not in self.calls:
            raise ValueError(f"it names {name[:200]!r}, which is not read")
        return _Name(name)

    def _marked(self) -> list[Any]:
        """Pop and return the values since the last mark."""
        stack = self.stack
        start = next(place for place in range(len(stack) - 1, -1, -1) if stack[place] is _MARK)
        values = stack[start + 1 :]
        del stack[start:]
        return values


def _of_kind(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"a {type(value).__name__} where a {kind.__name__} is wanted")
    return value


_IGNORED = frozenset({"PROTO", "FRAME", "STOP"})
_VALUES = frozenset({
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
})  # fmt: skip
_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "MARK": lambda: _MARK,
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple,
}  # fmt: skip
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


META = "META"
Book = Tensor | PartitionBook


class GraphPartitionData(NamedTuple):
    """Edges of one type in a part.

    Attributes:
        edge_index: int64[n] each: sources (rows) and destinations (cols).
        eids: int64[n], edge ids; None in a folder with ``graph_caching`` that does not keep them.
        weights: float[n], or None.
    """

    edge_index: tuple[Tensor, Tensor]
    eids: Tensor | None
    weights: Tensor | None = None


class FeaturePartitionData(NamedTuple):
    """Features of one type in a part.

    Attributes:
        feats: Tensor of n rows.
        ids: int64[n], the ids of the rows.
        cache_feats: Rows copied from other parts, or None.
        cache_ids: int64[m], the ids of the copied rows, or None.
    """

    feats: Tensor | None
    ids: Tensor | None
    cache_feats: Tensor | None
    cache_ids: Tensor | None


def load_partition(
    root_dir: str | Path,
    partition_idx: int,
    graph_caching: bool = False,
    device: torch.device | str = torch.device("cpu"),  # noqa: B008  GLT's
) -> tuple[int, int, Any, Any, Any, Any, Any]:
    """Read one part.

    Args:
        root_dir: The folder of ``META``.
        partition_idx: The part.
        graph_caching: Read all edges, from the folder ``graph``, instead of the part's.
        device: Device of the tensors.

    Returns:
        The number of parts, ``partition_idx``, ``GraphPartitionData``, ``FeaturePartitionData`` of nodes and of edges,
        or None without them, and the part of every node and of every edge: int64 tensors, or ``RangePartitionBook`` if
        the file holds one. In a graph with types, dicts of these by type.

    Raises:
        FormatError: A file is missing, damaged, or contradicts the others.
        IdRangeError: There is no such part.
    """
    root = local_path(root_dir)
    meta = read_meta(root)
    tables = read_tables(root, meta, partition_idx, graph_caching=graph_caching)
    if meta.is_hetero:
        found: list[Any] = [tables.edges, tables.node_feat or None, tables.edge_feat or None, *tables[3:]]
    else:
        found = [next(iter(table.values()), None) for table in tables]
    graph, node_data, edge_data, node_book, edge_book = (_on(torch.device(device), one) for one in found)
    return meta.num_parts, partition_idx, graph, node_data, edge_data, node_book, edge_book


class PartTables(NamedTuple):
    """Tables of a part by type; the types of a graph without types are ``NODE`` and ``EDGE``.

    Attributes:
        edges: Edges by type; None for a type without a folder.
        node_feat: Features by node type, for types with features.
        edge_feat: Features by edge type, for types with features.
        node_pb: The part of each node.
        edge_pb: The part of each edge, if known.
    """

    edges: dict[EdgeType, GraphPartitionData | None]
    node_feat: dict[str, FeaturePartitionData]
    edge_feat: dict[EdgeType, FeaturePartitionData]
    node_pb: dict[str, Book]
    edge_pb: dict[EdgeType, Book]


def read_tables(root: Path, meta: PartitionMeta, partition_idx: int, *, graph_caching: bool) -> PartTables:
    """Read one part, as ``load_partition`` does."""
    check_part(root, meta, partition_idx)
    part = root / f"part{partition_idx}"
    if not part.is_dir():
        raise FormatError(f"{root} has no folder {part.name}; copy the part there")

    def read(folder: Path, types: Iterable[Any] | None, single: Any, read_one: Callable[[Path], Any]) -> dict[Any, Any]:
        return {single: read_one(folder)} if types is None else {t: read_one(folder / as_str(t)) for t in types}

    def book(path: Path, *, is_needed: bool = True) -> Book | None:
        return read_book(path.with_name(f"{path.name}.pt"), meta, partition_idx, is_needed=is_needed)

    nodes, edges = (meta.node_types, NODE), (meta.edge_types, EDGE)
    return PartTables(
        edges=read(root / "graph" if graph_caching else part / "graph", *edges, read_edges),
        node_feat=_there(read(part / "node_feat", *nodes, read_features)),
        edge_feat=_there(read(part / "edge_feat", *edges, read_features)),
        node_pb=read(root / "node_pb", *nodes, book),
        edge_pb=_there(read(root / "edge_pb", *edges, partial(book, is_needed=not graph_caching))),
    )


def cat_feature_cache(
    partition_idx: int, feat_pdata: FeaturePartitionData, feat_pb: Book
) -> tuple[float, Tensor, Tensor, Book]:
    """Put the copies of hot rows before a part's own rows.

    Args:
        partition_idx: The part.
        feat_pdata: Its features.
        feat_pb: The part of each id.

    Returns:
        The share of copies among the rows; the rows, copies first; int64[largest id + 1], the row of each id in the
        part, and 0 for other ids; and the book, in which ids of copies belong to this part. Without copies, the given
        features and book are returned.

    Raises:
        FormatError: ``feat_pdata`` has no features.
    """
    feats, ids, cache_feats, cache_ids = feat_pdata
    if feats is None or ids is None:
        raise FormatError("feat_pdata has no feats or no ids; read the part's features first")
    if cache_feats is None or cache_ids is None:
        return 0.0, feats, _rows_of(ids), feat_pb
    rows = _rows_of(torch.cat([cache_ids, ids]))
    rows[cache_ids] = torch.arange(len(cache_ids), device=ids.device)
    book = table_of(feat_pb)
    book[cache_ids] = partition_idx
    return len(cache_ids) / (len(cache_ids) + len(ids) or 1), torch.cat([cache_feats, feats]), rows, book


def as_str(of_type: str | EdgeType) -> str:
    """Return the name of a type in paths."""
    return of_type if isinstance(of_type, str) else "__".join(of_type)


def read_meta(root: Path) -> PartitionMeta:
    """Read ``META``.

    Raises:
        FormatError: The file is missing or damaged, or lacks a field.
    """
    path = root / META
    values = read_value(path)
    if not isinstance(values, dict):
        raise FormatError(f"{path} holds {type(values).__name__}; it must be a dictionary with num_parts and data_cls")
    num_parts, data_cls = values.get("num_parts"), values.get("data_cls")
    if type(num_parts) is not int or not 1 <= num_parts <= MAX_PARTS:
        got = num_parts if isinstance(num_parts, int) else type(num_parts).__name__
        raise FormatError(f"{path} has num_parts {got}; it must be an integer from 1 to {MAX_PARTS}")
    if data_cls not in ("homo", "hetero"):
        got = repr(data_cls[:20]) if isinstance(data_cls, str) else type(data_cls).__name__
        raise FormatError(f"{path} has data_cls {got}; it must be 'homo' or 'hetero'")
    is_hetero = data_cls == "hetero"
    return PartitionMeta(
        values=values,
        num_parts=num_parts,
        node_types=tuple(_names(path, "node_types", values)) if is_hetero else None,
        edge_types=tuple(cast(EdgeType, t) for t in _names(path, "edge_types", values)) if is_hetero else None,
        is_sorted=False,
    )


def read_book(path: Path, meta: PartitionMeta, partition_idx: int, *, is_needed: bool = True) -> Book | None:
    """Read the part of each id; return None if the file is missing and not needed.

    Raises:
        FormatError: The file is missing and needed, or holds other values.
    """
    if not is_needed and not path.is_file():
        return None
    value = read_torch_file(path, tensors_only=True, stand_ins=_STAND_INS)
    if not isinstance(value, _Saved):
        return parts_of(path, value, meta.num_parts)
    ids = ids_of(path, vars(value), "partition_bounds").tolist()
    if len(ids) != meta.num_parts or ids != sorted({0, *ids} - {0}):
        raise FormatError(
            f"{path} has partition_bounds of {len(ids)} parts; wanted {meta.num_parts} that ascend from 0"
        )
    return RangePartitionBook(list(zip([0, *ids], ids, strict=False)), partition_idx)


def read_edges(folder: Path) -> GraphPartitionData | None:
    """Read the edges in a folder; return None if the folder is missing.

    Raises:
        FormatError: A file is missing or damaged, or the files do not fit each other.
    """
    if not folder.is_dir():
        return None
    rows, cols, eids = (_read_ids(folder / f"{name}.pt") for name in ("rows", "cols", "eids"))
    if rows is None or cols is None:
        raise FormatError(f"{folder} has no {'rows' if rows is None else 'cols'}.pt; copy it there")
    weights = _read_rows(folder / "weights.pt")
    for name, values in (("cols", cols), ("eids", eids), ("weights", weights)):
        if values is not None and len(values) != len(rows):
            raise FormatError(f"{folder / name}.pt has {len(values)} rows; rows.pt has {len(rows)}")
    return GraphPartitionData(edge_index=(rows, cols), eids=eids, weights=weights)


def read_features(folder: Path) -> FeaturePartitionData | None:
    """Read the features in a folder; return None if the folder is missing.

    Raises:
        FormatError: A file is missing or damaged, or the files do not fit each other.
    """
    if not folder.is_dir():
        return None
    feats, cache_feats = _read_rows(folder / "feats.pkl"), _read_rows(folder / "cache_feats.pt")
    ids, cache_ids = _read_ids(folder / "ids.pkl"), _read_ids(folder / "cache_ids.pt")
    if feats is None or ids is None:
        raise FormatError(f"{folder} has no {'feats' if feats is None else 'ids'}.pkl; copy it there")
    if cache_feats is None or cache_ids is None:
        cache_feats = cache_ids = None
    for name, rows, of in (("feats", feats, ids), ("cache_feats", cache_feats, cache_ids)):
        if rows is not None and of is not None and len(rows) != len(of):
            raise FormatError(f"{folder / name} has {len(rows)} rows, and there are {len(of)} ids")
    return FeaturePartitionData(feats=feats, ids=ids, cache_feats=cache_feats, cache_ids=cache_ids)


def _read_rows(path: Path) -> Tensor | None:
    """Read a tensor of rows, or None without a file; older versions write ``.pt`` in place of ``.pkl``."""
    if path.suffix == ".pkl":
        if path.is_file():
            return read_tensor(path)
        path = path.with_suffix(".pt")
    return tensor_of(path, {"value": read_torch_file(path, tensors_only=True)}, "value") if path.is_file() else None


def _read_ids(path: Path) -> Tensor | None:
    values = _read_rows(path)
    return None if values is None else ids_of(path, {"value": values}, "value")


def _names(path: Path, field: str, values: dict[Any, Any]) -> list[Any]:
    """Check and return names of types: strings, or tuples of three."""
    found = values.get(field)
    if isinstance(found, list | tuple):
        names = [tuple(name) if field == "edge_types" and isinstance(name, list) else name for name in found]
        if all(_is_name(field, name) for name in names) and len(set(names)) == len(names):
            return names
    wanted = "names" if field == "node_types" else "(source, relation, destination)"
    raise FormatError(f"{path} has {field} that are not a list of distinct {wanted}")


def _is_name(field: str, name: Any) -> bool:
    texts = (name,) if field == "node_types" else name if isinstance(name, tuple) and len(name) == 3 else (None,)
    return all(isinstance(text, str) and "/" not in text and text not in ("", ".", "..") for text in texts)


def _there(by_type: dict[Any, Any]) -> dict[Any, Any]:
    return {of_type: value for of_type, value in by_type.items() if value is not None}


def _on(device: torch.device, value: Any) -> Any:
    """Move tensors to a device, also in named tuples and dicts by type."""
    if device.type == "cpu" or value is None:
        return value
    if isinstance(value, dict):
        return {key: _on(device, one) for key, one in value.items()}
    if isinstance(value, tuple):
        moved = [_on(device, one) for one in value]
        return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)
    return value.to(device) if isinstance(value, Tensor) else value


def _rows_of(ids: Tensor) -> Tensor:
    """Return int64[largest id + 1], the row of each id, and 0 for missing ids."""
    found = torch.zeros(int(ids.max()) + 1 if len(ids) else 0, dtype=torch.int64, device=ids.device)
    found[ids] = torch.arange(len(ids), device=ids.device)
    return found


class _Saved:
    """Stand-in for a saved ``RangePartitionBook`` or its ``OffsetId2Index``."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, for a search for tensors."""
        return vars(self)


_STAND_INS: dict[str, type] = {
    "graphlearn_torch.partition.partition_book.RangePartitionBook": _Saved,
    "graphlearn_torch.partition.partition_book.OffsetId2Index": _Saved,
    "graphlearn_torch.partition.base.GLTPartitionBook": Tensor,
    "graphlearn_torch.partition.partition_book.GLTPartitionBook": Tensor,
    f"{RangePartitionBook.__module__}.RangePartitionBook": _Saved,
    f"{OffsetId2Index.__module__}.OffsetId2Index": _Saved,
    f"{RangePartitionBook.__module__}.GLTPartitionBook": Tensor,
}
"""Names in saved books, of GLT and of this package, to the classes that replace them."""
