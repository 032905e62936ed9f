"""Makes a Hopstream loader of what GraphLearn-for-PyTorch and GiGL say about sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hopstream.compat.glt.distributed.batches import BatchForm, LinkForm, SubgraphForm, features_wanted
from hopstream.compat.glt.distributed.graph_facts import GLTFacts, GraphFacts
from hopstream.compat.glt.sampler import EdgeSamplerInput, NodeSamplerInput, SamplingConfig, SamplingType
from hopstream.errors import SettingsError
from hopstream.load.ablp import ABLPLoader
from hopstream.load.links import LinkNeighborLoader
from hopstream.load.loader import NeighborLoader
from hopstream.load.ppr import PPRLoader
from hopstream.load.service import BatchService
from hopstream.load.setup import SubgraphLoader
from hopstream.sample.ppr_settings import PPRSettings
from hopstream.schema import EdgeType, type_label
from hopstream.store.contract import Store

Fanout = Sequence[int] | Mapping[EdgeType, Sequence[int]] | None
FORMS = {SamplingType.LINK: LinkForm, SamplingType.SUBGRAPH: SubgraphForm}
"""Forms of GLT's batches that differ from those around nodes, which are GiGL's as well."""


def fanout_of(facts: GraphFacts, num_neighbors: Fanout) -> dict[EdgeType, list[int]]:
    """Neighbours per hop of every edge type that is followed, and none along those that hold labels.

    Args:
        facts: The graph.
        num_neighbors: A list for all edge types, or exactly the edge types that are followed with a list each, all
            equally long; from 0, or from ``facts.least_count``.

    Raises:
        SettingsError: It is anything else.
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
        raise SettingsError(f"num_neighbors has different numbers of hops: {given}; give as many for every edge type")
    if any(not isinstance(count, int) or count < facts.least_count for counts in given.values() for count in counts):
        raise SettingsError(f"num_neighbors is {num_neighbors}; counts are integers from {facts.least_count}")
    num_hops = max(map(len, given.values()), default=0)
    return {**given, **{edge_type: [0] * num_hops for edge_type in facts.label_types}}


def form_of(facts: GraphFacts, config: SamplingConfig, ppr: PPRSettings | None) -> BatchForm:
    """What renames the attributes of a loader's batches."""
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
    """A loader whose batches have the attributes that ``BatchForm`` names.

    Args:
        source: A store of the whole graph, or servers that sample.
        facts: The graph.
        config: How it is sampled; ``edge_dir`` is the direction that is followed.
        given: What is sampled around.
        weight_attr: The edge feature by which edges are drawn where ``config.with_weight``.
        ppr: Find neighbourhoods by personalised PageRank instead of hop by hop.
        labels: Label nodes of the seeds, by supervision edge type, as ``ABLPLoader`` takes them.
        rng_seed: What order and draws follow from, where ``config.seed`` says none.
        **options: Of the loader: ``num_threads``, ``prefetch``, ``pin_memory`` and so on.

    Raises:
        SettingsError: A setting that cannot be met.
        IdRangeError: A seed that is no node.
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
