"""Constructor of Hopstream loaders from GLT's and GiGL's settings, and converter of their batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from hopstream.compat.glt.distributed.graph_facts import (
    LABEL,
    GLTFacts,
    GraphFacts,
    join_columns,
    reversed_type,
    tensor_info,
    torch_dtype,
)
from hopstream.compat.glt.sampler import EdgeSamplerInput, NodeSamplerInput, SamplingConfig, SamplingType
from hopstream.errors import SettingsError
from hopstream.load.ablp import ABLPLoader
from hopstream.load.links import LinkNeighborLoader
from hopstream.load.loader import NeighborLoader
from hopstream.load.ppr import PPRLoader
from hopstream.load.service import BatchService
from hopstream.load.setup import SubgraphLoader
from hopstream.sample.ppr_settings import PPR, PPRSettings
from hopstream.schema import EdgeType, type_label
from hopstream.store.contract import Store

KEPT = frozenset({"ppr_edge_index", "ppr_edge_attr", "y_positive", "y_negative", "edge_label_index", "edge_label",
                  "src_index", "dst_pos_index", "dst_neg_index"})  # fmt: skip
"""Attributes of Hopstream's batches that keep their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchForm:
    """Converter of one loader's batches to GLT's names; the loader calls it as its ``transform``.

    ``n_id`` becomes ``node``, ``e_id`` becomes ``edge``, and columns become ``x``, ``edge_attr`` and ``y``. ``batch``
    has the ids of the seeds. Edges lead from neighbours to seeds: with ``edge_dir="out"`` they are reversed, with the
    names of reverse types. Edge types that hold labels are left out. Edges have ids if they have features, or if
    ``facts`` wants ids of all. A batch with types also has ``num_sampled_nodes`` and ``num_sampled_edges`` as
    dictionaries by type.

    Attributes:
        facts: Facts of the graph.
        config: Settings of sampling, and contents of batches.
        is_ppr: Edges lead from seeds to their PageRank neighbourhoods.
    """

    facts: GraphFacts
    config: SamplingConfig
    is_ppr: bool = False

    def __call__(self, data: Data | HeteroData) -> Data | HeteroData:
        """Return a batch with GLT's names, which shares the tensors."""
        if isinstance(data, Data):
            made = Data()
            (node_type,), edge_types = self.facts.schema.nodes, list(self.facts.schema.edges)
            self._set_nodes(made, data, node_type)
            has_own_edges = bool(edge_types) and not self.is_ppr
            self._set_edges(made, data, edge_types[0] if has_own_edges else None, is_ppr=self.is_ppr)
            self._set_seeds(made, data, data)
            return made
        typed = HeteroData()
        for node_type in data.node_types:
            self._set_nodes(typed[node_type], data[node_type], node_type)
            self._set_seeds(typed[node_type], data[node_type], data[node_type])
        for edge_type in data.edge_types:
            if edge_type in self.facts.label_types or "edge_index" not in data[edge_type]:
                continue
            is_ppr = edge_type[1] == PPR
            if self.is_ppr and not is_ppr and not data[edge_type].edge_index.size(1):
                continue
            self._set_edges(
                typed[self._shown(edge_type)], data[edge_type], None if is_ppr else edge_type, is_ppr=is_ppr
            )
        for name, value in data._global_store.items():
            typed[name] = value
        if self.facts.kind == "labeled":
            return self._untyped(typed)
        for name, types in (("num_sampled_nodes", typed.node_types), ("num_sampled_edges", typed.edge_types)):
            if found := {t: typed[t][name] for t in types if name in typed[t]}:
                setattr(typed, name, found)
        return typed

    def _shown(self, edge_type: EdgeType) -> EdgeType:
        return edge_type if self.config.edge_dir == "in" or edge_type[1] == PPR else reversed_type(edge_type)

    def _set_nodes(self, made: Any, given: Any, node_type: str) -> None:
        made["node"] = given["n_id"]
        schema = self.facts.schema.nodes[node_type]
        names = self.facts.node_columns(node_type) if self.config.collect_features else ()
        self._set_tensor(made, "x", given, schema, names, len(given["n_id"]))
        if LABEL in schema and LABEL in given and "batch_size" in given:
            made[LABEL] = given[LABEL]
        made["num_sampled_nodes"] = torch.tensor(given["num_sampled_nodes"])

    def _set_edges(self, made: Any, given: Any, edge_type: EdgeType | None, *, is_ppr: bool = False) -> None:
        edge_index = given["edge_index"]
        made["edge_index"] = edge_index if self.config.edge_dir == "in" or is_ppr else edge_index.flip(0)
        if edge_type is None:
            if "edge_attr" in given:
                made["edge_attr"] = given["edge_attr"]
        else:
            schema, columns = self.facts.schema.edges[edge_type], self.facts.edge_columns(edge_type)
            names = columns if self.config.collect_features and self.config.with_edge else ()
            self._set_tensor(made, "edge_attr", given, schema, names, edge_index.size(1))
            if self.config.with_edge and "e_id" in given and (columns or self.facts.has_all_edge_ids):
                made["edge"] = given["e_id"]
        if "num_sampled_edges" in given:
            made["num_sampled_edges"] = torch.tensor(given["num_sampled_edges"])
        for name in KEPT & set(given.keys()):
            made[name] = given[name]

    def _set_seeds(self, made: Any, given: Any, nodes: Any) -> None:
        if "batch_size" in given:
            made["batch_size"] = int(given["batch_size"])
            if "n_id" in nodes:
                made["batch"] = nodes["n_id"][: int(given["batch_size"])]
        for name in KEPT & set(given.keys()):
            made[name] = given[name]

    @staticmethod
    def _set_tensor(made: Any, name: str, given: Any, schema: Any, names: Sequence[str], num_rows: int) -> None:
        columns = [given[one] for one in names if one in given]
        if columns:
            made[name] = join_columns(columns)
        elif num_rows == 0 and (info := tensor_info(schema, names)) is not None:
            made[name] = torch.empty((num_rows, info[0]), dtype=torch_dtype(info[1]))

    def _untyped(self, typed: HeteroData) -> Data:
        """Convert the batch of a labeled graph, with its only types, to one without types."""
        data = Data(**typed._global_store)
        for store in typed.stores[1:]:
            for name, value in store.items():
                data[name] = value
        return data


class SubgraphForm(BatchForm):
    """Converter of induced subgraphs; ``mapping`` has the positions of the seeds in ``node``."""

    __slots__ = ()

    def _set_seeds(self, made: Any, given: Any, nodes: Any) -> None:
        super()._set_seeds(made, given, nodes)
        if "batch_size" in given:
            made["mapping"] = torch.arange(int(given["batch_size"]))


class LinkForm(BatchForm):
    """Converter of batches around links.

    ``edge_label_index`` has the ends of links in the order of ``edge_index``: destinations come first with
    ``edge_dir="out"``, and always in graphs without types. Batches have no labels of nodes.
    """

    __slots__ = ()

    def __call__(self, data: Data | HeteroData) -> Data | HeteroData:
        """Return a batch with GLT's names, which shares the tensors."""
        made = super().__call__(data)
        for store in made.stores:
            for name in ("batch", LABEL):
                store.pop(name, None)
            if "edge_label_index" in store and (isinstance(made, Data) or self.config.edge_dir == "out"):
                store["edge_label_index"] = store["edge_label_index"].flip(0)
        if isinstance(made, Data):
            made["batch_size"] = 0
        return made


def message_of(data: Data | HeteroData) -> dict[str, torch.Tensor]:
    """Flatten a batch to a dict of tensors for a channel.

    Keys are names of attributes with their type as a prefix. ``"#IS_HETERO"`` says whether there are types. An
    attribute of a type is ``paper.node`` or ``author__writes__paper.edge_index``. An attribute of the batch by edge
    type is ``y_positive.user__buys__item``.
    """
    message = {"#IS_HETERO": torch.tensor(isinstance(data, HeteroData))}
    stores: list[tuple[str, Any]] = [("", data.stores[0])]
    if isinstance(data, HeteroData):
        stores += [(f"{t}.", data[t]) for t in data.node_types]
        stores += [(f"{_text(t)}.", data[t]) for t in data.edge_types]
    for prefix, store in stores:
        for name, value in store.items():
            is_by_type = isinstance(value, dict)
            named = {f"{name}.{_text(t)}": one for t, one in value.items()} if is_by_type else {name: value}
            for key, one in named.items():
                if isinstance(one, torch.Tensor | int):
                    message[prefix + key] = torch.as_tensor(one)
    return message


def _text(given: str | EdgeType) -> str:
    return given if isinstance(given, str) else "__".join(given)


def features_wanted(
    facts: GraphFacts, config: SamplingConfig
) -> tuple[dict[str, list[str]], dict[EdgeType, list[str]]]:
    """Return the columns that batches need, by node type and by edge type; always with labels of nodes."""
    nodes: dict[str, list[str]] = {node_type: [] for node_type in facts.schema.nodes}
    edges: dict[EdgeType, list[str]] = {edge_type: [] for edge_type in facts.schema.edges}
    for node_type, names in nodes.items():
        names += facts.node_columns(node_type) if config.collect_features else ()
        names += [LABEL] if facts.has_labels(node_type) else []
    for edge_type, names in edges.items():
        names += facts.edge_columns(edge_type) if config.collect_features and config.with_edge else ()
    return nodes, edges


Fanout = Sequence[int] | Mapping[EdgeType, Sequence[int]] | None
FORMS = {SamplingType.LINK: LinkForm, SamplingType.SUBGRAPH: SubgraphForm}
"""Converters of GLT's batches that differ from those around nodes, which GiGL uses too."""


def fanout_of(facts: GraphFacts, num_neighbors: Fanout) -> dict[EdgeType, list[int]]:
    """Return neighbours per hop of every message-passing edge type, and 0 along those that hold labels.

    Args:
        facts: Facts of the graph.
        num_neighbors: A list for all edge types, or a list for each message-passing edge type, all of one length;
            counts are at least ``facts.least_count``.

    Raises:
        SettingsError: ``num_neighbors`` has another form.
    """
    followed = facts.message_types
    if isinstance(num_neighbors, Mapping):
        if facts.kind == "homogeneous":
            raise SettingsError("num_neighbors is a mapping, and the dataset is homogeneous; give a list")
        given = {facts.edge_type(edge_type): list(counts) for edge_type, counts in num_neighbors.items()}
        if set(given) != set(followed):
            raise SettingsError(
                f"num_neighbors names {', '.join(map(type_label, given)) or 'no edge type'}; it must name exactly "
                f"those that are followed: {', '.join(map(type_label, followed))}"
            )
    elif isinstance(num_neighbors, list | tuple):
        given = {edge_type: list(num_neighbors) for edge_type in followed}
    else:
        raise SettingsError(f"num_neighbors is {num_neighbors!r}; give neighbours per hop, as a list or per edge type")
    if len({len(counts) for counts in given.values()}) > 1:
        raise SettingsError(
            f"num_neighbors has different numbers of hops: {given}; give the same number for every edge type"
        )
    if any(not isinstance(count, int) or count < facts.least_count for counts in given.values() for count in counts):
        raise SettingsError(f"num_neighbors is {num_neighbors}; counts are integers from {facts.least_count}")
    num_hops = max(map(len, given.values()), default=0)
    return {**given, **{edge_type: [0] * num_hops for edge_type in facts.label_types}}


def form_of(facts: GraphFacts, config: SamplingConfig, ppr: PPRSettings | None) -> BatchForm:
    """Return the converter of a loader's batches."""
    form = FORMS.get(config.sampling_type, BatchForm) if isinstance(facts, GLTFacts) else BatchForm
    return form(facts=facts, config=config, is_ppr=ppr is not None)


def make_loader(  # noqa: PLR0913 - what to sample, from where, and how batches are consumed
    source: Store | BatchService,
    facts: GraphFacts,
    config: SamplingConfig,
    given: NodeSamplerInput | EdgeSamplerInput,
    *,
    weight_attr: str | None = None,
    ppr: PPRSettings | None = None,
    labels: Mapping[EdgeType, Any] | None = None,
    rng_seed: int = 0,
    **options: Any,
) -> SubgraphLoader:
    """Make a loader whose batches have the attributes of ``BatchForm``.

    Args:
        source: A store of the whole graph, or servers that sample.
        facts: Facts of the graph.
        config: Settings of sampling; ``edge_dir`` is the direction in which edges are followed.
        given: The seeds.
        weight_attr: The edge feature with weights, for ``config.with_weight``.
        ppr: Settings of personalised PageRank; None samples hop by hop.
        labels: Label nodes of the seeds, by supervision edge type, as ``ABLPLoader`` takes them.
        rng_seed: Seed of order and draws if ``config.seed`` is None.
        **options: Options of the loader: ``num_threads``, ``prefetch``, ``pin_memory`` and others.

    Raises:
        SettingsError: A setting is refused.
        IdRangeError: A seed is no node.
    """
    nodes, edges = features_wanted(facts, config)
    common: dict[str, Any] = {
        "batch_size": config.batch_size, "shuffle": config.shuffle, "drop_last": config.drop_last,
        "node_features": nodes, "edge_features": edges, "transform": form_of(facts, config, ppr),
        "rng_seed": rng_seed if config.seed is None else config.seed, **options,
    }  # fmt: skip
    if isinstance(given, NodeSamplerInput) and ppr is not None:
        del common["edge_features"]
        seeds = _seeds(facts, given)
        if labels is not None:
            return ABLPLoader(source, ppr, seeds, supervision=list(labels), labels=labels, **common)
        return PPRLoader(source, seeds, ppr, **common)
    sampling: dict[str, Any] = {"direction": config.edge_dir}
    if config.with_weight:
        if weight_attr is None:
            raise SettingsError("with_weight is True, and the dataset has no weights; write it with weight_attr")
        sampling["weight_attr"] = weight_attr
    if config.sampling_type is SamplingType.SUBGRAPH:
        sampling["subgraph_type"] = "induced"
    fanout = fanout_of(facts, config.num_neighbors)
    if labels is not None and isinstance(given, NodeSamplerInput):
        seeds, common = _seeds(facts, given), {**sampling, **common}
        return ABLPLoader(source, fanout, seeds, supervision=list(labels), labels=labels, **common)
    if isinstance(given, NodeSamplerInput):
        return NeighborLoader(source, fanout, _seeds(facts, given), **sampling, **common)
    links = (facts.edge_type(given.input_type), (given.row.numpy(), given.col.numpy()))
    label = None if given.label is None else given.label.numpy()
    return LinkNeighborLoader(
        source, fanout, links, edge_label=label, neg_sampling=given.neg_sampling, **sampling, **common
    )


def _seeds(facts: GraphFacts, given: NodeSamplerInput) -> Any:
    keys = given.node.numpy()
    node_type = facts.node_type(given.input_type)
    return keys if facts.kind == "homogeneous" else (node_type, keys)
