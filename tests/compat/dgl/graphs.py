import numpy as np

import hopstream

TYPES = {"b": 12, "a": 17, "c": 1}


def typed_graph(rng_seed=3):
    """Graph of three node types, one with a single node, and four edge types, one without edges.

    It has splits of nodes and of edges, and features of both.
    """
    rng = np.random.default_rng(rng_seed)

    def ends(src, dst, num):
        return np.stack([rng.integers(0, TYPES[src], num), rng.integers(0, TYPES[dst], num)])

    return hopstream.graph_from_arrays(
        {
            ("a", "to", "b"): ends("a", "b", 40),
            ("b", "rev", "a"): ends("b", "a", 30),
            ("a", "to", "a"): ends("a", "a", 25),
            ("c", "none", "b"): ends("c", "b", 0),
        },
        num_nodes=TYPES,
        node_features={
            "a": {"x": rng.random((17, 3)).astype(np.float32), "is_new": rng.random(17) > 0.5},
            "b": {"year": np.arange(12)},
        },
        edge_features={("a", "to", "b"): {"weight": rng.random(40)}},
        splits={"a": {"train": np.arange(0, 17, 2), "held": np.arange(3)}},
        edge_splits={("b", "rev", "a"): {"val": np.arange(5)}},
    )  # fmt: skip


def plain_graph(num_nodes=30, num_edges=120, rng_seed=1):
    rng = np.random.default_rng(rng_seed)
    return hopstream.graph_from_arrays(
        rng.integers(0, num_nodes, (2, num_edges)),
        num_nodes=num_nodes,
        node_features={"feat": rng.random((num_nodes, 4)).astype(np.float32)},
        edge_features={"weight": np.arange(num_edges)},
        splits={"train": np.arange(0, num_nodes, 3)},
    )


def some_owners(graph, num_parts, rng_seed=5):
    rng = np.random.default_rng(rng_seed)
    return {t: rng.integers(0, num_parts, table.num_nodes).astype(np.int32) for t, table in graph.nodes.items()}
