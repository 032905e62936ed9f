"""Converter of mini-batches to DGL's blocks (message flow graphs), one per layer of a model.

The nodes of a batch are in the order of hops. So the nodes and edges of every block are the first ones of the batch:
block ``k`` of ``n`` has the edges of the first ``n - k`` hops. A node that an early hop found keeps its neighbours in
all layers. DGL's samplers draw them again for each layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hopstream.arrays import Array, Column, IntArray
from hopstream.compat.dgl.convert import dgl_names
from hopstream.compat.dgl.graphs import ALL, EID, NID, DGLGraph, EdgeView, Frame, NodeView
from hopstream.compat.dgl.tensors import find_dgl, to_tensor
from hopstream.errors import SettingsError, UnknownNameError
from hopstream.load.batch import MiniBatch
from hopstream.schema import EdgeType, GraphSchema

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockArrays:
    """Arguments of ``dgl.create_block`` as arrays, which are views of a batch's arrays.

    Attributes:
        edges: Edge type to int64[num_edges] and int64[num_edges], positions of sources and destinations.
        num_src_nodes: Node type to the number of source nodes; the first of them are the destination nodes.
        num_dst_nodes: Node type to the number of destination nodes.
    """

    edges: Mapping[EdgeType, tuple[IntArray, IntArray]]
    num_src_nodes: Mapping[str, int]
    num_dst_nodes: Mapping[str, int]


def block_arrays(batch: MiniBatch) -> list[BlockArrays]:
    """Return the blocks of a batch, from the input layer to the output layer.

    Args:
        batch: A batch of a loader with ``collate="numpy"`` that follows edges from destinations to sources.

    Raises:
        SettingsError: The edges of the batch are not in the order of hops, or lead the other way.
    """
    counts = batch.num_sampled_edges
    if counts is None:
        raise SettingsError("edges of this batch are not in the order of hops; use subgraph_type='directional'")
    num_hops = max(len(numbers) for numbers in batch.num_sampled_nodes.values()) - 1
    blocks = []
    for depth in range(num_hops, 0, -1):
        num_dst = {t: sum(numbers[:depth]) for t, numbers in batch.num_sampled_nodes.items()}
        edges = {}
        for t, edge_index in batch.edge_index.items():
            src, dst = edge_index[:, : sum(counts[t][:depth])]
            if len(dst) and int(dst.max()) >= num_dst[t[2]]:
                raise SettingsError("edges of this batch lead away from the seeds; use direction='in' for blocks")
            edges[t] = (src, dst)
        num_src = {t: sum(numbers[: depth + 1]) for t, numbers in batch.num_sampled_nodes.items()}
        blocks.append(BlockArrays(edges=edges, num_src_nodes=num_src, num_dst_nodes=num_dst))
    return blocks


class DataByType(MutableMapping[str, Any]):
    """Data of several types: name to a dict by type."""

    def __init__(self, frames: Mapping[Any, Frame]) -> None:
        """Make a view of the types' data."""
        self._frames = frames

    def __getitem__(self, name: str) -> dict[Any, Tensor]:
        """Return the tensors of a name, by type."""
        found = {of: frame[name] for of, frame in self._frames.items() if name in frame}
        if not found:
            raise UnknownNameError(f"no type has data {name!r}; there are {list(self)}")
        return found

    def __setitem__(self, name: str, value: Mapping[Any, Any]) -> None:
        """Set the tensors of a name, by type."""
        for of, tensor in value.items():
            self._frames[of][name] = tensor

    def __delitem__(self, name: str) -> None:
        """Remove the tensors of a name."""
        for of in self[name]:
            del self._frames[of][name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(dict.fromkeys(name for frame in self._frames.values() for name in frame))

    def __len__(self) -> int:
        """Return the number of names."""
        return len(list(iter(self)))


class Block(DGLGraph):
    """A block with DGL's names, for processes without DGL: nodes of two sides, and edges between them.

    ``edges(etype=…)`` gives the ends of edges, and ``torch.stack(block.edges())`` an ``edge_index`` for PyG's layers:
    ``conv((h, h[: block.num_dst_nodes()]), edge_index)``.
    """

    is_block = True

    def __init__(self, arrays: BlockArrays) -> None:
        """Take the ends of edges, without data."""
        super().__init__(arrays.num_src_nodes, arrays.edges)
        self._dst_frames = {t: Frame(number, f"destinations {t!r}") for t, number in arrays.num_dst_nodes.items()}
        self._device: Any = "cpu"

    @property
    def srctypes(self) -> list[str]:
        """Node types of sources."""
        return self.ntypes

    @property
    def dsttypes(self) -> list[str]:
        """Node types of destinations."""
        return self.ntypes

    def num_src_nodes(self, ntype: str | None = None) -> int:
        """Return the number of source nodes of a type, or of all types."""
        return self.num_nodes(ntype)

    def num_dst_nodes(self, ntype: str | None = None) -> int:
        """Return the number of destination nodes of a type, or of all types."""
        frames = self._dst_frames.values() if ntype is None else [_Destinations(self).node_frame(ntype)]
        return sum(frame.num_rows for frame in frames)

    number_of_src_nodes, number_of_dst_nodes = num_src_nodes, num_dst_nodes

    @property
    def srcnodes(self) -> NodeView:
        """Data of sources by type."""
        return NodeView(self)

    @property
    def dstnodes(self) -> NodeView:
        """Data of destinations by type."""
        return NodeView(_Destinations(self))

    @property
    def edges(self) -> EdgeView:
        """Data by edge type; a call returns ends of edges on the block's device."""
        return _BlockEdges(self)

    @property
    def srcdata(self) -> Any:
        """Data of sources; with several types, each value is a dict by type."""
        return self.node_frame() if len(self._node_frames) == 1 else DataByType(self._node_frames)

    @property
    def dstdata(self) -> Any:
        """Data of destinations; with several types, each value is a dict by type."""
        return next(iter(self._dst_frames.values())) if len(self._dst_frames) == 1 else DataByType(self._dst_frames)

    @property
    def edata(self) -> Any:
        """Data of edges; with several edge types, each value is a dict by edge type."""
        return self.edge_frame() if len(self._edge_frames) == 1 else DataByType(self._edge_frames)

    def in_degrees(self, v: Any = ALL, etype: EdgeType | str | None = None) -> Tensor | int:
        """Return int64[n], the number of edges of a type into each destination; see ``DGLGraph``."""
        found = super().in_degrees(v, etype)
        if isinstance(found, int) or not isinstance(v, str):
            return found
        return found[: self.num_dst_nodes(self.to_canonical_etype(etype)[2])]

    @property
    def device(self) -> Any:
        """The device of the block's tensors."""
        return self._device

    def to(self, device: Any) -> Block:
        """Return the block with its data on another device."""
        made = Block(BlockArrays(edges=self._ends, num_src_nodes=_sizes(self._node_frames),
                                 num_dst_nodes=_sizes(self._dst_frames)))  # fmt: skip
        made._device = device
        for new, old in zip(made._all_frames(), self._all_frames(), strict=True):
            new.update({name: tensor.to(device) for name, tensor in old.items()})
        return made

    def _all_frames(self) -> list[Frame]:
        return [*self._node_frames.values(), *self._dst_frames.values(), *self._edge_frames.values()]

    def __repr__(self) -> str:
        """Return counts, as DGL prints them."""
        return (
            f"Block(num_src_nodes={_sizes(self._node_frames)}, num_dst_nodes={_sizes(self._dst_frames)}, "
            f"num_edges={_sizes(self._edge_frames)})"
        )


class _Destinations(DGLGraph):
    """View of a block whose nodes are the destinations."""

    def __init__(self, block: Block) -> None:
        self._node_frames, self._edge_frames, self._ends = block._dst_frames, {}, {}


class _BlockEdges(EdgeView):
    """``block.edges``, with results on the block's device."""

    def __call__(self, form: str = "uv", order: str | None = None, etype: Any = None) -> Any:
        found = super().__call__(form, order, etype)
        device = self._graph.device
        return tuple(one.to(device) for one in found) if isinstance(found, tuple) else found.to(device)


def _sizes(frames: Mapping[Any, Frame]) -> dict[Any, int]:
    return {of: frame.num_rows for of, frame in frames.items()}


def to_blocks(batch: MiniBatch, schema: GraphSchema) -> list[Any]:
    """Convert a batch to blocks, from the input layer to the output layer.

    Nodes have their keys as ``_ID``, and edges theirs if the batch has edge keys. Features of nodes are data of the
    first block's sources and of the last block's destinations. Features of edges are data of every block. Text and
    ragged features are left out. Tensors share the memory of the batch.

    Args:
        batch: As for ``block_arrays``.
        schema: The graph's schema; a graph without types has DGL's types ``_N`` and ``_E``.

    Returns:
        ``DGLBlock`` objects, or ``Block`` objects of this module with the same data.

    Raises:
        SettingsError: As for ``block_arrays``.
    """
    node_names, edge_names = dgl_names(schema)
    dgl, blocks = find_dgl(), []
    for arrays in block_arrays(batch):
        named = BlockArrays(
            edges={edge_names[t]: ends for t, ends in arrays.edges.items()},
            num_src_nodes={node_names[t]: number for t, number in arrays.num_src_nodes.items()},
            num_dst_nodes={node_names[t]: number for t, number in arrays.num_dst_nodes.items()},
        )
        block = Block(named) if dgl is None else _dgl_block(dgl, named)
        for t, keys in batch.node_keys.items():
            for views, numbers in ((block.srcnodes, arrays.num_src_nodes), (block.dstnodes, arrays.num_dst_nodes)):
                views[node_names[t]].data[NID] = to_tensor(keys[: numbers[t]])
        for edge_type, (src, _) in arrays.edges.items():
            keys_of = {EID: batch.edge_keys[edge_type]} if batch.edge_keys else {}
            columns = {**batch.edge_features.get(edge_type, {}), **keys_of}
            _fill(block.edges[edge_names[edge_type]].data, columns, len(src))
        blocks.append(block)
    for t, features in batch.node_features.items():
        if blocks:
            name, first, last = node_names[t], blocks[0], blocks[-1]
            _fill(first.srcnodes[name].data, features, first.num_src_nodes(name))
            _fill(last.dstnodes[name].data, features, last.num_dst_nodes(name))
    return blocks


def _fill(data: Any, columns: Mapping[str, Column], num_rows: int) -> None:
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            rows: Array = column[:num_rows]
            data[name] = to_tensor(rows)


def _dgl_block(dgl: Any, arrays: BlockArrays) -> Any:
    ends = {t: (to_tensor(src), to_tensor(dst)) for t, (src, dst) in arrays.edges.items()}
    return dgl.create_block(ends, dict(arrays.num_src_nodes), dict(arrays.num_dst_nodes))
