"""Converts a mini-batch to PyG's ``Data`` or ``HeteroData``.

Attributes have PyG's names and meaning. Tensors share the memory of the batch's arrays. Only read-only arrays, and
arrays that must be pinned and are not, are copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch_geometric.data import Data, HeteroData

from hopstream.arrays import Array, Column, RaggedArray
from hopstream.errors import SettingsError
from hopstream.load.batch import Attributes, ColumnChoice, MiniBatch
from hopstream.sample.ppr_settings import PPR
from hopstream.schema import (
    EDGE,
    EDGE_ATTRIBUTES,
    NODE,
    NODE_ATTRIBUTES,
    EdgeType,
    FeatureSchema,
    GraphSchema,
    type_label,
)

OFFSETS = "_offsets"
"""A ragged feature ``tags`` becomes ``tags`` (values) and ``tags_offsets``."""


class PinnedBuffers:
    """Allocator of arrays in page-locked memory, so that copies to a GPU overlap with computation.

    torch reuses such memory itself, and waits for pending copies from it.
    """

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return a pinned array with undefined content."""
        torch_dtype = torch.from_numpy(np.empty(0, dtype)).dtype
        array: Array = torch.empty(shape, dtype=torch_dtype, pin_memory=True).numpy()
        return array


def check_can_pin() -> None:
    """Raise ``SettingsError`` without a CUDA device."""
    if not torch.cuda.is_available():
        raise SettingsError("pin_memory=True needs a CUDA device, and torch finds none here; use pin_memory=False")


def check_names(schema: GraphSchema, columns: ColumnChoice, attached_names: frozenset[str]) -> None:
    """Refuse features that would hide an attribute of a batch, or each other.

    Args:
        schema: The graph's types.
        columns: Features to fetch.
        attached_names: Names that the loader may attach beside the attributes of all batches.

    Raises:
        SettingsError: Two columns, or a column and an attribute, have the same name.
    """
    node_names = {t: _attribute_names(schema.nodes[t], names) for t, names in columns.nodes.items()}
    edge_names = {t: _attribute_names(schema.edges[t], names) for t, names in columns.edges.items()}
    if schema.is_homogeneous:
        names = [*node_names[NODE], *edge_names.get(EDGE, [])]
        _check_distinct("the graph", names, NODE_ATTRIBUTES | EDGE_ATTRIBUTES | attached_names)
        return
    for node_type, names in node_names.items():
        _check_distinct(repr(node_type), names, NODE_ATTRIBUTES | attached_names)
    for edge_type, names in edge_names.items():
        _check_distinct(type_label(edge_type), names, EDGE_ATTRIBUTES | attached_names)


def to_pyg(batch: MiniBatch, is_homogeneous: bool, is_pinned: bool = False) -> Data | HeteroData:
    """Wrap a batch's arrays as tensors.

    Args:
        batch: The batch; the result shares its memory.
        is_homogeneous: Return ``Data``, with the attributes of the only node type and edge type.
        is_pinned: Copy arrays into pinned memory, unless they are pinned.

    Returns:
        ``Data`` or ``HeteroData`` with ``n_id``, ``edge_index``, ``num_sampled_nodes``, and ``input_id`` and
        ``batch_size`` of the seeds. Also ``e_id`` if edge keys were requested, ``num_sampled_edges`` if edges are in
        the order of hops, and ``batch`` if trees are disjoint. Each feature has its own name: a tensor, a list of
        ``str``, or values and ``<name>_offsets`` for ragged rows. Attributes of the loader come last; in ``Data`` they
        are dicts by edge type if several edge types have them.
    """
    data = Data() if is_homogeneous else HeteroData()
    for node_type, keys in batch.node_keys.items():
        store = data if is_homogeneous else data[node_type]
        store["n_id"] = to_tensor(keys, is_pinned)
        set_columns(store, batch.node_features[node_type], is_pinned)
        store["num_sampled_nodes"] = batch.num_sampled_nodes[node_type]
        if batch.trees is not None:
            store["batch"] = to_tensor(batch.trees[node_type], is_pinned)
        if node_type == batch.seed_type:
            store["input_id"] = to_tensor(batch.input_ids, is_pinned)
            store["batch_size"] = batch.batch_size
    if is_homogeneous and not batch.edge_index:
        data["edge_index"] = torch.empty((2, 0), dtype=torch.int64)
    for edge_type, edge_index in batch.edge_index.items():
        store = data if is_homogeneous else data[edge_type]
        _set_edges(store, batch, edge_type, edge_index, is_pinned)
    if not isinstance(batch.seed_type, str):
        store = data if is_homogeneous else data[batch.seed_type]
        store["input_id"] = to_tensor(batch.input_ids, is_pinned)
        store["batch_size"] = batch.batch_size
    for entity, attributes in _attached(batch, is_homogeneous).items():
        store = data if is_homogeneous or entity is None else data[entity]
        for name, value in attributes.items():
            if isinstance(value, RaggedArray):
                set_columns(store, {name: value}, is_pinned)
            else:
                store[name] = _to_tensors(value, is_pinned)
    return data


def _attached(batch: MiniBatch, is_homogeneous: bool) -> Attributes:
    """Return attributes of the loader; for ``Data``, those of several edge types are dicts by edge type."""
    edge_types = [entity for entity in batch.attributes if isinstance(entity, tuple) and entity[1] != PPR]
    if not is_homogeneous or len(edge_types) < 2:
        return batch.attributes
    shared: dict[str, dict[EdgeType, Any]] = {}
    for edge_type in edge_types:
        for name, value in batch.attributes[edge_type].items():
            shared.setdefault(name, {})[edge_type] = value
    return {**{entity: of for entity, of in batch.attributes.items() if entity not in edge_types}, None: shared}


def _to_tensors(value: Any, is_pinned: bool) -> Any:
    """Convert an array, or all arrays in nested mappings, to tensors."""
    if isinstance(value, np.ndarray):
        return to_tensor(value, is_pinned)
    if isinstance(value, Mapping):
        return {name: _to_tensors(item, is_pinned) for name, item in value.items()}
    return value


def _set_edges(store: Any, batch: MiniBatch, edge_type: EdgeType, edge_index: Array, is_pinned: bool) -> None:
    store["edge_index"] = to_tensor(edge_index, is_pinned)
    if edge_type in batch.edge_keys:
        store["e_id"] = to_tensor(batch.edge_keys[edge_type], is_pinned)
    set_columns(store, batch.edge_features[edge_type], is_pinned)
    if batch.num_sampled_edges is not None:
        store["num_sampled_edges"] = batch.num_sampled_edges[edge_type]


def set_columns(store: Any, columns: Mapping[str, Column], is_pinned: bool) -> None:
    """Put columns into a storage of ``Data`` under their names, in the forms of ``to_pyg``."""
    for name, column in columns.items():
        if not isinstance(column, RaggedArray):
            store[name] = to_tensor(column, is_pinned)
        elif column.is_string:
            store[name] = list(column)
        else:
            store[name] = to_tensor(column.values, is_pinned)
            store[name + OFFSETS] = to_tensor(column.offsets, is_pinned)


def to_tensor(array: Array, is_pinned: bool) -> torch.Tensor:
    """Convert an array to a tensor; they share memory if the array is writable and need not be pinned."""
    base: object = array.base
    if isinstance(base, torch.Tensor) and base.shape == array.shape:
        return base  # made by PinnedBuffers; torch tracks pending copies per storage, so the storage must be torch's
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.pin_memory() if is_pinned else tensor


def _attribute_names(features: Mapping[str, FeatureSchema], names: tuple[str, ...]) -> list[str]:
    ragged = [name + OFFSETS for name in names if features[name].is_ragged]
    return [*names, *ragged]


def _check_distinct(where: str, names: list[str], reserved: frozenset[str]) -> None:
    for name in names:
        if name in reserved:
            raise SettingsError(
                f"feature {name!r} of {where} would hide the batch's own {name!r}; leave it out with node_features or "
                "edge_features, or use collate='numpy'"
            )
        if names.count(name) > 1:
            raise SettingsError(
                f"{where} has two columns that would both be called {name!r} in a batch; leave one out with "
                "node_features or edge_features, or use collate='numpy'"
            )
