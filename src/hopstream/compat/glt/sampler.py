"""Records of seeds and settings of GraphLearn-for-PyTorch's loaders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Self, get_args

from torch import Tensor

from hopstream.checks import check_choice, read_flag, read_integer
from hopstream.compat.glt.typing import Split
from hopstream.compat.pyg.id_values import id_list_given
from hopstream.errors import SchemaError, SettingsError
from hopstream.sample.negatives import NegativeSampling as NegativeSampling
from hopstream.sample.negatives import read_negative_sampling
from hopstream.schema import Direction

MAX_BATCH_SIZE = (1 << 31) - 1


@dataclass(eq=False)
class NodeSamplerInput:
    """Nodes as seeds.

    Attributes:
        node: int64[n], ids; a list or an array is converted.
        input_type: Their node type; None in a graph with one node type.

    Raises:
        SchemaError: ``node`` is no list of ids.
    """

    node: Tensor
    input_type: str | None = None

    def __post_init__(self) -> None:
        """Convert ids to int64."""
        self.node = id_list_given(self.node, "node")

    def __len__(self) -> int:
        """Return the number of nodes."""
        return self.node.numel()

    def __getitem__(self, index: Any) -> NodeSamplerInput:
        """Return the input at some indices: int64[n], bool[n], a list, or one integer for one node."""
        return NodeSamplerInput(self.node[places_given(index, self.node)], self.input_type)

    def share_memory(self) -> Self:
        """Move ids to memory that other processes can map; return the same input."""
        self.node.share_memory_()  # type: ignore[no-untyped-call]
        return self


@dataclass(frozen=True)
class RemoteNodePathSamplerInput:
    """Nodes as seeds of servers, from a file of ids.

    Attributes:
        node_path: A file that ``torch.save`` wrote; the loader's process must be able to read it.
        input_type: Their node type; None in a graph with one node type.
    """

    node_path: str
    input_type: str | None


@dataclass(frozen=True)
class RemoteNodeSplitSamplerInput:
    """Nodes as seeds of servers, from a split of the dataset.

    Attributes:
        split: The split, or its value.
        input_type: Their node type; None in a graph with one node type.

    Raises:
        ValueError: There is no such split.
    """

    split: Split
    input_type: str | None

    def __post_init__(self) -> None:
        """Convert the split to ``Split``."""
        object.__setattr__(self, "split", Split(self.split))


RemoteSamplerInput = RemoteNodePathSamplerInput | RemoteNodeSplitSamplerInput


@dataclass(eq=False)
class EdgeSamplerInput:
    """Links as seeds.

    Attributes:
        row: int64[n], ids of sources.
        col: int64[n], ids of destinations.
        label: n labels, or None.
        input_type: The edge type; None in a graph with one edge type.
        neg_sampling: Settings of negatives: a ``NegativeSampling``, PyG's, a mode or a mapping, or None.

    Raises:
        SchemaError: ``row`` or ``col`` is no list of ids, or the lengths differ.
        SettingsError: ``neg_sampling`` is none of these.
    """

    row: Tensor
    col: Tensor
    label: Tensor | None = None
    input_type: tuple[str, str, str] | None = None
    neg_sampling: NegativeSampling | None = None

    def __post_init__(self) -> None:
        """Convert ids to int64, and check lengths."""
        self.row, self.col = id_list_given(self.row, "row"), id_list_given(self.col, "col")
        for name, column in (("col", self.col), ("label", self.label)):
            if column is not None and len(column) != len(self.row):
                raise SchemaError(f"{name} has {len(column)} rows and row has {len(self.row)}; give one per link")
        self.neg_sampling = read_negative_sampling(self.neg_sampling)

    def __len__(self) -> int:
        """Return the number of links."""
        return self.row.numel()

    def __getitem__(self, index: Any) -> EdgeSamplerInput:
        """Return the input at some indices; see ``NodeSamplerInput``."""
        places = places_given(index, self.row)
        label = None if self.label is None else self.label[places]
        return EdgeSamplerInput(self.row[places], self.col[places], label, self.input_type, self.neg_sampling)

    def share_memory(self) -> Self:
        """Move ids and labels to memory that other processes can map; return the same input."""
        for column in (self.row, self.col, self.label):
            if column is not None:
                column.share_memory_()  # type: ignore[no-untyped-call]
        return self


SamplerInput = NodeSamplerInput | EdgeSamplerInput


def places_given(index: Any, of: Tensor) -> Tensor:
    """Return int64[n] or bool[n], indices of ids, on the ids' device; one integer becomes a list of one."""
    if isinstance(index, Tensor) and index.dim() == 1:
        return index.to(of.device)
    return id_list_given([index] if isinstance(index, int) else index, "index").to(of.device)


class SamplingType(Enum):
    """Kind of a loader's seeds and subgraphs."""

    NODE = 0
    LINK = 1
    SUBGRAPH = 2
    RANDOM_WALK = 3


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """Settings of a loader's sampling; loaders with equal settings can share a sampling backend.

    Attributes:
        sampling_type: Kind of seeds and subgraphs.
        num_neighbors: Neighbours per hop, for all edge types or by edge type; None without hops.
        batch_size: Seeds per batch.
        shuffle: Shuffle the seeds in every epoch.
        drop_last: Drop a last batch with fewer seeds.
        with_edge: Include ids of edges in batches.
        collect_features: Include features in batches.
        with_neg: Include negatives in batches of links.
        with_weight: Draw neighbours in proportion to the weights of edges.
        edge_dir: ``in`` follows edges from destinations to sources, ``out`` the other way.
        seed: Seed of order and draws; None for the loader's default.

    Raises:
        SettingsError: A field is out of its range.
    """

    sampling_type: SamplingType
    num_neighbors: Sequence[int] | Mapping[tuple[str, str, str], Sequence[int]] | None
    batch_size: int
    shuffle: bool
    drop_last: bool
    with_edge: bool
    collect_features: bool
    with_neg: bool
    with_weight: bool
    edge_dir: Literal["in", "out"]
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check every field except the fan-outs, which need a graph."""
        if not isinstance(self.sampling_type, SamplingType):
            raise SettingsError(f"sampling_type is {self.sampling_type!r}; give a SamplingType, such as NODE")
        object.__setattr__(self, "batch_size", read_integer("batch_size", self.batch_size, 1, MAX_BATCH_SIZE))
        for name in ("shuffle", "drop_last", "with_edge", "collect_features", "with_neg", "with_weight"):
            object.__setattr__(self, name, read_flag(name, getattr(self, name)))
        check_choice("edge_dir", self.edge_dir, get_args(Direction))
        if self.seed is not None:
            object.__setattr__(self, "seed", read_integer("seed", self.seed))
