"""Run one verb in DGL's own interpreter and print its answer as JSON on the last line of stdout.

Called by the tests of ``test_beside_dgl.py``; imports nothing of Hopstream, for which the interpreter may be too old.
"""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import socket
import sys
from importlib import import_module
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")
os.environ["DGL_DIST_DEBUG"] = "1"  # load_partition checks what it loads
dgl: Any = import_module("dgl")
torch: Any = import_module("torch")
np: Any = import_module("numpy")

FUNCTIONS = {
    "": ("graph", "heterograph", "from_scipy", "from_networkx"),
    "data": ("load_tensors", "save_tensors"),
    "distributed": (
        "partition_graph", "load_partition", "load_partition_feats", "load_partition_book", "node_split", "edge_split",
        "dgl_partition_to_graphbolt",
    ),
}  # fmt: skip


def signatures() -> dict[str, list[list[str]]]:
    """Name, kind and default of every parameter, by function."""
    found = {}
    for module, names in FUNCTIONS.items():
        for name in names:
            of = getattr(dgl, module) if module else dgl
            found[f"{module}.{name}"] = getattr(of, name, None) or getattr(dgl.data.utils, name)
    book = dgl.distributed.graph_partition_book.RangePartitionBook
    for name, member in inspect.getmembers(book, inspect.isfunction):
        if not name.startswith("_") or name == "__init__":
            found[f"book.{name}"] = member
    return {
        name: [[p.name, p.kind.name, repr(p.default)] for p in inspect.signature(of).parameters.values()]
        for name, of in found.items()
    }


def load(config: str, part: str) -> dict[str, Any]:
    """Results of ``load_partition``, and the part of each node by its book."""
    graph, node_feats, edge_feats, book, name, ntypes, etypes = dgl.distributed.load_partition(config, int(part))
    return {
        "ends": lists(graph.edges(order="eid")), "ndata": lists(graph.ndata), "edata": lists(graph.edata),
        "node_feats": lists(node_feats), "edge_feats": lists(edge_feats), "metadata": book.metadata(),
        "per_ntype": lists(book.map_to_per_ntype(graph.ndata[dgl.NID])), "name": name, "ntypes": ntypes,
        "etypes": etypes, "parts": book.nid2partid(graph.ndata[dgl.NID]).tolist(),
    }  # fmt: skip


def partition(out: str, types: str, num_hops: str) -> dict[str, Any]:
    """Cut a random graph into two parts; return its edges and the original id of each new one."""
    torch.manual_seed(2)
    sizes = {"_N": 60} if types == "plain" else {"user": 50, "item": 40}
    etypes = [("_N", "_E", "_N")]
    if types == "typed":
        etypes = [("user", "likes", "item"), ("item", "liked", "user"), ("user", "knows", "user")]
    ends = {t: (torch.randint(sizes[t[0]], (300,)), torch.randint(sizes[t[2]], (300,))) for t in etypes}
    g = dgl.heterograph(ends, num_nodes_dict=sizes)
    for ntype, num_nodes in sizes.items():
        g.nodes[ntype].data["feat"] = torch.arange(num_nodes)
    nodes, edges = dgl.distributed.partition_graph(
        g, "g", 2, out, num_hops=int(num_hops), part_method="random", return_mapping=True
    )
    if types == "plain":
        nodes, edges = {"_N": nodes}, {etypes[0]: edges}
    return {
        "nodes": lists(nodes), "edges": {":".join(t): of.tolist() for t, of in edges.items()},
        "ends": {":".join(t): lists(of) for t, of in ends.items()},
    }  # fmt: skip


def split(config: str, part: str, mask: str, num_trainers: str, rank: str, options: str) -> list[int]:
    """The share that ``node_split`` gives one trainer."""
    dgl.distributed.role.get_num_trainers = lambda: int(num_trainers)
    book = dgl.distributed.load_partition_book(config, int(part))[0]
    given = json.loads(options)
    if "node_trainer_ids" in given:
        given["node_trainer_ids"] = torch.tensor(given["node_trainer_ids"])
    found = dgl.distributed.node_split(torch.tensor(json.loads(mask)), book, rank=int(rank), **given)
    return list(found.tolist())


def train_graph(config: str) -> dict[str, Any]:
    """A ``DistGraph`` of one part, as a trainer opens it in one process."""
    os.environ["DGL_DIST_MODE"] = "standalone"
    dgl.distributed.initialize("")
    g = dgl.distributed.DistGraph("g", part_config=config)
    numbers = torch.arange(g.num_nodes("a"))
    drawn = dgl.distributed.sample_neighbors(g, {"b": torch.arange(12)}, -1)
    return {"x": g.nodes["a"].data["x"][numbers].tolist(), "ntypes": g.ntypes, "num_in_edges": drawn.num_edges()}


def graphbolt(config: str, part: str) -> dict[str, Any]:
    """Tensors and dtypes of GraphBolt's graph of a part, after DGL's own checks."""
    graph = dgl.distributed.load_partition(config, int(part), use_graphbolt=True)[0]
    tensors = {"indptr": graph.csc_indptr, "indices": graph.indices}
    if graph.type_per_edge is not None:
        tensors["types"] = graph.type_per_edge
    tensors |= {f"node {name}": tensor for name, tensor in graph.node_attributes.items()}
    tensors |= {f"edge {name}": tensor for name, tensor in graph.edge_attributes.items()}
    return {
        "tensors": lists(tensors), "dtypes": {name: str(tensor.dtype) for name, tensor in tensors.items()},
        "ids": [graph.node_type_to_id, graph.edge_type_to_id],
    }  # fmt: skip


def to_graphbolt(config: str, options: str) -> None:
    """Write GraphBolt's files by DGL's own function."""
    del os.environ["DGL_DIST_DEBUG"]  # in which DGL stores more
    dgl.distributed.dgl_partition_to_graphbolt(config, **json.loads(options))


def sample_graphbolt(config: str, part: str, fanouts: str) -> dict[str, Any]:
    """Edges into a part's nodes that DGL samples in GraphBolt's graph, by numbers over all types."""
    graph, _, _, book, *_ = dgl.distributed.load_partition(config, int(part), use_graphbolt=True)
    own = torch.cat([book.map_to_homo_nid(book.partid2nids(int(part), t), t) for t in book.ntypes])
    sample = dgl.distributed.graph_services._sample_neighbors_graphbolt
    found = sample(graph, book, own, torch.tensor(json.loads(fanouts)))
    return {"ends": lists([found.global_src, found.global_dst]), "eids": found.global_eids.tolist()}


def train_graphbolt(config: str, folder: str) -> dict[str, Any]:
    """Edges of the blocks of an epoch that DGL's trainer samples from DGL's server, by edge type."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    machines = os.path.join(folder, "ip_config.txt")  # noqa: PTH118
    with open(machines, "w") as file:  # noqa: PTH123
        file.write(f"127.0.0.1 {port}\n")
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=_serve, args=(machines, config))
    server.start()
    try:
        return _train(machines, config)
    finally:
        server.join(20)
        server.kill()


def _serve(machines: str, config: str) -> None:
    dgl.distributed.DistGraphServer(0, machines, 1, 1, config, use_graphbolt=True).start()


def _train(machines: str, config: str) -> dict[str, Any]:
    os.environ.update(DGL_DIST_MODE="distributed", DGL_GROUP_ID="0")
    dgl.distributed.initialize(machines)
    g = dgl.distributed.DistGraph("g", part_config=config)
    address = os.path.join(os.path.dirname(machines), "group")  # noqa: PTH118, PTH120
    torch.distributed.init_process_group("gloo", init_method=f"file://{address}", rank=0, world_size=1)
    seeds = {t: torch.arange(g.num_nodes(t)) for t in g.ntypes}
    seeds = seeds if len(seeds) > 1 else seeds[g.ntypes[0]]
    sampler = dgl.dataloading.NeighborSampler([2, -1])
    counts: dict[str, int] = {}
    for _, _, blocks in dgl.dataloading.DistNodeDataLoader(g, seeds, sampler, batch_size=8):
        for etype in blocks[-1].canonical_etypes:
            counts[":".join(etype)] = counts.get(":".join(etype), 0) + blocks[-1].num_edges(etype)
    dgl.distributed.exit_client()
    return {"uses_graphbolt": g._use_graphbolt, "counts": counts}


def blocks(path: str, schema: str) -> dict[str, Any]:
    """Sums over the edges of DGL's blocks, layer by layer, and the sizes of blocks.

    Args:
        path: Arrays of blocks in an ``.npz`` file: ``<block>/<edge type>``, and ``x/<node type>`` of the input nodes.
        schema: Sizes of the sides of each block as JSON.
    """
    arrays, sizes = np.load(path), json.loads(schema)
    h = {name[2:]: torch.from_numpy(arrays[name]) for name in arrays.files if name.startswith("x/")}
    found = []
    for number, (num_src, num_dst) in enumerate(sizes):
        ends = {
            tuple(name.split("/")[1].split(":")): tuple(torch.from_numpy(arrays[name]))
            for name in arrays.files
            if name.startswith(f"{number}/")
        }
        block = dgl.create_block(ends, num_src, num_dst)
        for t, x in h.items():
            block.srcnodes[t].data["h"] = x
        sums = {t: (dgl.function.copy_u("h", "m"), dgl.function.sum("m", "h")) for t in ends}
        block.multi_update_all(sums, "sum")
        zeros = {t: torch.zeros(size, 2, dtype=torch.float64) for t, size in num_dst.items()}
        h = {t: block.dstnodes[t].data.get("h", zeros[t]) for t in num_dst}
        found.append({t: block.num_dst_nodes(t) for t in num_dst})
    return {"sums": lists(h), "num_dst": found}


def lists(tensors: Any) -> Any:
    """Tensors as lists of numbers."""
    return {n: t.tolist() for n, t in tensors.items()} if hasattr(tensors, "items") else [t.tolist() for t in tensors]


VERBS = {
    of.__name__: of
    for of in (
        signatures, load, partition, split, train_graph, graphbolt, to_graphbolt, sample_graphbolt, train_graphbolt,
        blocks,
    )
}  # fmt: skip

if __name__ == "__main__":
    answer = VERBS[sys.argv[1]](*sys.argv[2:])
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
