"""Says how much memory it takes to assign nodes to parts."""

from __future__ import annotations

from hopstream.assign.libraries import BIG_ENDS
from hopstream.dataset.settings import PartitionSettings
from hopstream.engine.allotment import Needs

PROCESS_BYTES = 180 << 20
"""What a process takes that has loaded its libraries and compiled kernels, and reads edges."""
LEAST_EDGE_BYTES = 64 << 20
"""What edges get at least; more of them go through files."""
NODE_BYTES = 36
"""What methods that look at edges take per node: where its neighbours stand, its weight, its part, the row of its
limits, the order in which isolated nodes get parts, and the key of its id in a dataset."""
OWNER_BYTES, SHUFFLE_BYTES = 4, 8
"""What the others take per node: its part, and the order in which random parts are given."""
GROUP_BYTES, DEGREE_BYTES = 4, 8
"""What each thing that is to be even takes per node, and its edges where they are to be."""
CLASS_BYTES = 12
"""What classes of nodes take per node while they are read: the value, and its number among the distinct ones."""
LIBRARY_NODE_BYTES = 24
"""What the libraries take per node that has neighbours, beside what they take per edge."""
THREAD_BYTES = 50 << 20
"""What each thread but the first takes: a block of a million edges."""
EDGE_BYTES = {"kaminpar": 30, "metis": 200}
COMPRESSED_EDGE_BYTES = 12
"""What the libraries take per edge, which is not for us to bound; KaMinPar's for graphs that it holds compressed."""


def looks_at_edges(settings: PartitionSettings) -> bool:
    """Whether edges are read to assign nodes."""
    return settings.num_parts > 1 and (settings.method not in ("random", "hash") or settings.balance_edges)


def assign_bytes(num_nodes: int, num_edges: int, settings: PartitionSettings) -> int:
    """What nodes, threads and the method's library take, beside the process and the edges."""
    is_compressed = settings.method == "kaminpar" and 2 * num_edges > BIG_ENDS
    per_edge = COMPRESSED_EDGE_BYTES if is_compressed else EDGE_BYTES.get(settings.method, 0)
    num_connected = min(num_nodes, 2 * num_edges) if per_edge else 0
    num_bytes = num_nodes * _node_bytes(settings) + num_connected * LIBRARY_NODE_BYTES + num_edges * per_edge
    return num_bytes + (settings.num_threads - 1) * THREAD_BYTES


def _node_bytes(settings: PartitionSettings) -> int:
    """What assignment takes per node, splits that have nodes in common aside."""
    even_bytes = GROUP_BYTES * (bool(settings.balance_ntypes) + settings.balance_edges + settings.balance_splits)
    degree_bytes = DEGREE_BYTES * settings.balance_edges
    if settings.method == "hash" or settings.num_parts == 1:
        return OWNER_BYTES
    if settings.method == "random":
        class_bytes = CLASS_BYTES * bool(settings.balance_ntypes)
        return OWNER_BYTES + max(SHUFFLE_BYTES, degree_bytes + max(class_bytes, even_bytes))
    return NODE_BYTES + even_bytes + degree_bytes


def assign_needs(num_nodes: int, num_edges: int, settings: PartitionSettings, worker_bytes: int = 0) -> Needs:
    """What assigning needs.

    Args:
        num_nodes: Nodes of all types.
        num_edges: Edges of all types.
        settings: The method.
        worker_bytes: What each worker takes that waits meanwhile.
    """
    least = PROCESS_BYTES + assign_bytes(num_nodes, num_edges, settings) + looks_at_edges(settings) * LEAST_EDGE_BYTES
    remedy = ", or use ldg or fennel" if settings.method in EDGE_BYTES else ""
    what = f"method {settings.method!r} on {num_nodes} nodes and {num_edges} edges needs"
    return Needs(alone_bytes=least, parent_bytes=least, worker_bytes=worker_bytes, what=what, remedy=remedy)


def memory_for_edges(num_nodes: int, num_edges: int, settings: PartitionSettings, num_bytes: int) -> int:
    """What edges may take of the bytes of the process that assigns nodes."""
    return num_bytes - PROCESS_BYTES - assign_bytes(num_nodes, num_edges, settings)
