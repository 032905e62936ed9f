"""How does a TF-GNN ``SamplingSpec`` become a plan?"""

from __future__ import annotations

from typing import Any

from hopstream.errors import SettingsError
from hopstream.sample.plan import SEEDS, SampleOp, SamplePlan, SubgraphType
from hopstream.schema import EdgeType, GraphSchema
from hopstream.store.contract import Strategy
from hopstream.tfgnn.graph_schema import edge_set_names, schema_message
from hopstream.tfgnn.sampling_spec import LATEST_K, RANDOM_UNIFORM, RANDOM_WEIGHTED, TOP_K, check_spec, seed_of

STRATEGIES: dict[int, Strategy] = {
    TOP_K: "top_k", RANDOM_UNIFORM: "uniform", RANDOM_WEIGHTED: "weighted", LATEST_K: "last",
}  # fmt: skip


def plan_of_spec(spec: Any, schema: GraphSchema, *, subgraph_type: SubgraphType = "directional") -> SamplePlan:
    """The plan of a spec over a dataset: edges are followed from source to target, and every seed grows its own tree.

    Args:
        spec: A ``SamplingSpec`` message.
        schema: The dataset's schema. Edge sets are called as ``edge_set_names`` says.
        subgraph_type: ``directional``: the edges that were drawn; ``induced``: all between the nodes found.

    Raises:
        SchemaError: The spec contradicts itself or the schema.
        SettingsError: It starts from links.
    """
    message = schema_message(schema)
    check_spec(spec, message)
    if spec.WhichOneof("seed_type") != "seed_op":
        raise SettingsError("the spec starts from links; plans start from nodes")
    seed_name, seed_set = seed_of(spec, message)
    edge_types = edge_set_names(schema)
    names = {seed_name: SEEDS}
    ops: list[SampleOp] = []
    for number, op in enumerate(spec.sampling_ops):
        names[op.op_name] = f"{number}/{op.op_name}"
        ops.append(
            SampleOp(
                name=names[op.op_name], inputs=tuple(names[i] for i in op.input_op_names),
                edge_type=edge_types[op.edge_set_name], direction="out", count=op.sample_size,
                strategy=STRATEGIES[op.strategy], expands="reached",
            )
        )  # fmt: skip
    return SamplePlan(
        seed_types=(seed_set,), ops=tuple(ops), num_hops=len(ops), wants_edge_ids=True, is_disjoint=True,
        subgraph_type=subgraph_type,
    )  # fmt: skip


def repeated_edge_types(plan: SamplePlan) -> set[EdgeType]:
    """Edge types that several ops follow, so that an edge may be drawn twice."""
    followed = [op.edge_type for op in plan.ops]
    return {edge_type for edge_type in followed if followed.count(edge_type) > 1}
