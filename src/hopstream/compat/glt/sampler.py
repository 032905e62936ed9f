"""Records of what GraphLearn-for-PyTorch's loaders sample from, and how."""

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
    """Nodes to sample around.

    Attributes:
        node: int64[n], ids; a list or an array is taken, too.
        input_type: Their node type; None in a graph with one.

    Raises:
        SchemaError: ``node`` is no list of ids.
    """

    node: Tensor
    input_type: str | None = None

    def __post_init__(self) -> None:
        """Make ids int64."""
        self.node = id_list_given(self.node, "node")

    def __len__(self) -> int:
        """How many nodes."""
        return self.node.numel()

    def __getitem__(self, index: Any) -> NodeSamplerInput:
        """The input of some places: int64[n] or bool[n], a list, or one integer, which gives an input of one node."""
        return NodeSamplerInput(self.node[places_given(index, self.node)], self.input_type)

    def share_memory(self) -> Self:
        """Move ids to memory that other processes can map; returns the same input."""
        self.node.share_memory_()  # type: ignore[no-untyped-call]
        return self


@dataclass(frozen=True)
class RemoteNodePathSamplerInput:
    """Nodes to sample around that servers sample, as a file of ids.

    Attributes:
        node_path: A file that ``torch.save`` wrote, and that the process of the loader can read.
        input_type: Their node type; None in a graph with one.
    """

    node_path: str
    input_type: str | None


@dataclass(frozen=True)
class RemoteNodeSplitSamplerInput:
    """Nodes to sample around that servers sample, as a split of the dataset.

    Attributes:
        split: The split, or its value.
        input_type: Their node type; None in a graph with one.

    Raises:
        ValueError: There is no such split.
    """

    split: Split
    input_type: str | None

    def __post_init__(self) -> None:
        """Make the split one of ``Split``."""
        object.__setattr__(self, "split", Split(self.split))


RemoteSamplerInput = RemoteNodePathSamplerInput | RemoteNodeSplitSamplerInput


@dataclass(eq=False)
class EdgeSamplerInput:
    """Links to sample around.

    Attributes:
        row: int64[n], ids of sources.
        col: int64[n], ids of destinations.
        label: Labels, n of them, or None.
        input_type: The edge type; None in a graph with one.
        neg_sampling: Which negatives come with them: a ``NegativeSampling``, PyG's, a mode or a mapping, or None.

    Raises:
        SchemaError: ``row`` or ``col`` is no list of ids, or the lengths differ.
        SettingsError: ``neg_sampling`` is nothing of the kind.
    """

    row: Tensor
    col: Tensor
    label: Tensor | None = None
    input_type: tuple[str, str, str] | None = None
    neg_sampling: NegativeSampling | None = None

    def __post_init__(self) -> None:
        """Make ids int64, and check lengths."""
        self.row, self.col = id_list_given(self.row, "row"), id_list_given(self.col, "col")
        for name, column in (("col", self.col), ("label", self.label)):
            if column is not None and len(column) != len(self.row):
                raise SchemaError(f"{name} has {len(column)} rows and row has {len(self.row)}; give one per link")
        self.neg_sampling = read_negative_sampling(self.neg_sampling)

    def __len__(self) -> int:
        """How many links."""
        return self.row.numel()

    def __getitem__(self, index: Any) -> EdgeSamplerInput:
        """The input of some places, as for nodes."""
        places = places_given(index, self.row)
        label = None if self.label is None else self.label[places]
        return EdgeSamplerInput(self.row[places], self.col[places], label, self.input_type, self.neg_sampling)

    def share_memory(self) -> Self:
        """Move ids and labels to memory that other processes can map; returns the same input."""
        for column in (self.row, self.col, self.label):
            if column is not None:
                column.share_memory_()  # type: ignore[no-untyped-call]
        return self


SamplerInput = NodeSamplerInput | EdgeSamplerInput


def places_given(index: Any, of: Tensor) -> Tensor:
    """int64[n] or bool[n], places among ids, on their device; one integer is a list of one."""
    if isinstance(index, Tensor) and index.dim() == 1:
        return index.to(of.device)
    return id_list_given([index] if isinstance(index, int) else index, "index").to(of.device)


class SamplingType(Enum):
    """What a loader samples around."""

    NODE = 0
    LINK = 1
    SUBGRAPH = 2
    RANDOM_WALK = 3


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How a loader samples; two loaders can share a sampling backend if theirs are equal.

    Attributes:
        sampling_type: What it samples around.
        num_neighbors: Neighbours per hop, for all edge types or per edge type; None where there are no hops.
        batch_size: Seeds per batch.
        shuffle: Seeds come in another order in every epoch.
        drop_last: A last batch with fewer seeds is left out.
        with_edge: Batches have ids of edges.
        collect_features: Batches have features.
        with_neg: Batches of links have negatives.
        with_weight: Neighbours are drawn in proportion to the weights of edges.
        edge_dir: ``in`` follows edges from destinations to sources, ``out`` the other way.
        seed: What all that is random follows from; None for what the session draws.

    Raises:
        SettingsError: A field is outside what it accepts.
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
        """Check every field but the fan-outs, which only make sense on a graph."""
        if not isinstance(self.sampling_type, SamplingType):
            raise SettingsError(f"sampling_type is {self.sampling_type!r}; give a SamplingType, such as NODE")
        object.__setattr__(self, "batch_size", read_integer("batch_size", self.batch_size, 1, MAX_BATCH_SIZE))
        for name in ("shuffle", "drop_last", "with_edge", "collect_features", "with_neg", "with_weight"):
            object.__setattr__(self, name, read_flag(name, getattr(self, name)))
        check_choice("edge_dir", self.edge_dir, get_args(Direction))
        if self.seed is not None:
            object.__setattr__(self, "seed", read_integer("seed", self.seed))
