"""Verb ``warm``: compiles kernels before the first start, for example while an image is built."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hopstream.cli.options import JsonFlag
from hopstream.cli.progress import Clock, Facts, Output, progress_bars
from hopstream.cli.units import plural_text

if TYPE_CHECKING:
    from hopstream.graph.graph import Graph
    from hopstream.schema import EdgeType

NUM_NODES, NUM_EDGES = 60, 400
_TABLES = """{
  "nodes": {"user": {"files": "user.csv", "id": "id", "features": ["age", "bio"]}, "tag": {"from_edges": true}},
  "edges": [
    {"type": ["user", "likes", "user"], "files": "likes.csv", "src": "src", "dst": "dst",
     "features": ["stars", "note"]},
    {"type": ["user", "wears", "tag"], "files": "likes.csv", "src": "src", "dst": "note"}
  ]
}"""
COMPILE_S = 600.0
"""Timeout of requests in seconds, long enough to compile their kernels first."""
LIKES, WEARS = ("user", "likes", "user"), ("user", "wears", "tag")
_SPEC = """
seed_op <op_name: "seed" node_set_name: "user">
sampling_ops <op_name: "hop" input_op_names: "seed" edge_set_name: "likes" sample_size: 3 strategy: RANDOM_UNIFORM>
"""


def run(json: JsonFlag = False) -> None:
    """Compile all kernels, and keep them in NUMBA_CACHE_DIR or the user's cache folder.

    The command runs preparation, servers, loaders and exports on small graphs. Kernels that are already compiled are
    only loaded.
    """
    from hopstream.kernels.compiling import cache_folder

    output, clock = Output(is_json=json), Clock()
    with tempfile.TemporaryDirectory() as folder, progress_bars() as progress:
        for done, (name, step) in enumerate(STEPS.items()):
            progress(f"compile {name}", 0, 1)
            progress("compile", done, len(STEPS))
            step(Path(folder))
            progress(f"compile {name}", 1, 1)
        progress("compile", len(STEPS), len(STEPS))
    facts: Facts = {"folder": str(cache_folder()), "steps": list(STEPS)}
    output.stage("done", str(cache_folder()), plural_text(len(STEPS), "step"), facts, clock.cost())


def _write_datasets(folder: Path) -> None:
    from hopstream.ingest.synthetic import rmat_graph
    from hopstream.preparation.write import write_parts
    from hopstream.schema import EDGE

    write_parts(_make_graph(), folder / "plain", num_parts=2, method="hash", links=(EDGE,))
    columns: dict[str, Any] = {"time_attr": "time", "weight_attr": "weight", "neighbor_keys": True, "links": (EDGE,)}
    write_parts(_make_graph(), folder / "timed", num_parts=2, method="hash", direction="both", **columns)
    write_parts(_make_graph(), folder / "streamed", num_parts=2, method="ldg", direction="both", **columns)
    even: dict[str, Any] = {"method": "fennel", "balance_edges": True, "balance_splits": True}
    write_parts(rmat_graph(6, num_features=2, num_classes=2), folder / "even", num_parts=2, **even)


def _make_graph() -> Graph:
    """Make a graph whose nodes have features, times and a split, and whose edges have times and weights.

    Kernels copy rows and elements in words of 1, 2, 4 or 8 bytes, so there are features of each size.
    """
    import numpy as np

    from hopstream.arrays import RaggedArray
    from hopstream.ingest import graph_from_arrays

    rng = np.random.default_rng(0)
    of_nodes: dict[str, Any] = {"x": rng.random((NUM_NODES, 4)), "y": rng.integers(0, 3, NUM_NODES)}
    offsets = np.arange(NUM_NODES + 1)
    for dtype in ("int8", "int16", "int32", "int64"):
        values = np.arange(NUM_NODES).astype(dtype)
        of_nodes |= {dtype: values, f"ragged_{dtype}": RaggedArray(values, offsets)}
    of_edges: dict[str, Any] = {"time": rng.integers(0, 100, NUM_EDGES), "weight": rng.random(NUM_EDGES)}
    return graph_from_arrays(
        rng.integers(0, NUM_NODES, (2, NUM_EDGES)),
        num_nodes=NUM_NODES,
        node_features=of_nodes,
        edge_features=of_edges,
        splits={"train": np.arange(0, NUM_NODES, 2)},
    )


def _serve(folder: Path) -> None:
    """Start servers, and load batches from them."""
    from hopstream.dataset.layout import open_dataset
    from hopstream.load.links import LinkNeighborLoader
    from hopstream.load.loader import NeighborLoader
    from hopstream.store.local import LocalStore
    from hopstream.store.server import StoreServer
    from hopstream.store.settings import StoreSettings

    far: dict[str, Any] = {
        "store_settings": StoreSettings(prefer_local=False, timeout_s=COMPILE_S),
        "timeout_s": COMPILE_S,
    }
    of_links: list[dict[str, Any]] = [{}, {"weight_attr": "weight"}, {"time_attr": "time", "temporal_strategy": "last"}]
    for name, ways in (("plain", _WAYS[:2]), ("timed", _WAYS)):
        with closing(LocalStore(open_dataset(folder / name))) as store, StoreServer(store) as server:
            for options in ways:
                with NeighborLoader(server.location, [3, 2], **far, **_LOADING, **options) as loader:
                    list(loader)
            for of_link in of_links if name == "timed" else ():
                with LinkNeighborLoader(
                    server.location, [3, 2], exclude_links=True, batch_size=16, collate="numpy", **far, **of_link
                ) as links:
                    list(links)


def _keep_rows(_: Path) -> None:
    """Make a row cache grow, drop announced rows and age, which batches of small graphs do not cause."""
    import numpy as np

    from hopstream.arrays import RaggedArray
    from hopstream.kernels.row_cache import halve_counts
    from hopstream.schema import NODE, FeatureSchema
    from hopstream.store.row_cache import RowCache, RowTable

    cache, num_ids, num_rows = RowCache(1 << 22), 1 << 13, 8
    table = cast(RowTable, cache.table(NODE, {"x": FeatureSchema(dtype="float32", is_ragged=True)}, num_ids))
    cache.announce([(table, np.arange(num_ids))]).clear()
    found = cache.find(table, np.arange(num_rows), None)
    x = RaggedArray(np.zeros(num_rows, np.float32), np.arange(num_rows + 1))
    found.keep({"x": x}, found.fresh_at)
    found.end()
    halve_counts(table.rows.index)


def _load(folder: Path) -> None:
    """Iterate over loaders, one for each way of sampling."""
    from hopstream.load.loader import NeighborLoader

    with NeighborLoader(folder / "plain", [3, 2], shuffle=True, **_LOADING) as loader:
        list(loader)
    for options in _WAYS:
        with NeighborLoader(folder / "timed", [3, 2], **_LOADING, **options) as loader:
            list(loader)


def _load_links(folder: Path) -> None:
    from hopstream.load.links import LinkNeighborLoader
    from hopstream.sample.negatives import NegativeSampling

    weighted = NegativeSampling("binary", 1, dst_weight=[1.0] * NUM_NODES)
    ways: list[dict[str, Any]] = [{}, {"weight_attr": "weight"}]
    for options in ways:
        for negatives in ("binary", "triplet", weighted):
            with LinkNeighborLoader(
                folder / "timed", [3, 2], neg_sampling=negatives, exclude_links=True, batch_size=16, collate="numpy",
                **options,
            ) as loader:  # fmt: skip
                list(loader)


def _walk(folder: Path) -> None:
    from hopstream.dataset.layout import open_dataset
    from hopstream.load.hgt import HGTLoader
    from hopstream.load.ppr import PPRLoader
    from hopstream.sample.walks import random_walks
    from hopstream.schema import EDGE
    from hopstream.store.local import LocalStore

    for loader in (
        PPRLoader(folder / "timed", "train", batch_size=16, collate="numpy"),
        HGTLoader(folder / "timed", [4], "train", batch_size=16, collate="numpy"),
    ):
        with loader:
            list(loader)
    ways: list[dict[str, Any]] = [
        {}, {"p": 2.0, "q": 0.5}, {"p": 1e-3, "q": 1e3, "weight_attr": "weight"}, {"weight_attr": "weight"},
        {"restart_prob": 0.2},
    ]  # fmt: skip
    for options in ways:
        random_walks(folder / "timed", range(NUM_NODES), walk_length=4, **options)
    with closing(LocalStore(open_dataset(folder / "timed"))) as store:
        tables = store.tables(EDGE, store.directions[0])
        tables.long_rows.count(tables, MANY_EDGES)


def _prepare_in_pieces(folder: Path) -> None:
    """Chunk a graph, prepare it, append, compact, reshard, add a halo, and verify the result."""
    import numpy as np

    from hopstream.engine.settings import WorkSettings
    from hopstream.ingest.chunked.writing import write_chunked
    from hopstream.load.loader import NeighborLoader
    from hopstream.preparation.append.run import append
    from hopstream.preparation.audit.run import verify_dataset
    from hopstream.preparation.compact import compact
    from hopstream.preparation.halo.run import add_halo
    from hopstream.preparation.prepare import prepare
    from hopstream.preparation.reshard.reshard_job import reshard
    from hopstream.schema import EDGE

    source = write_chunked(_make_graph(), folder / "chunks").parent
    columns: dict[str, Any] = {"time_attr": "time", "weight_attr": "weight", "neighbor_keys": True}
    prepare(source, folder / "prepared", num_parts=2, method="ldg", work=WorkSettings(num_workers=0), **columns)
    of_edges: dict[str, Any] = {"time": np.arange(4), "weight": np.ones(4)}
    append(folder / "prepared", edges={EDGE: (np.arange(4), np.arange(4, 8), of_edges)})
    with NeighborLoader(folder / "prepared", [3, 2], **_LOADING) as loader:
        list(loader)
    compact(folder / "prepared", num_workers=0)
    reshard(folder / "prepared", folder / "cut", num_parts=3, method="hash", num_workers=0)
    add_halo(folder / "cut", hops=1)
    verify_dataset(folder / "cut")


def _sample_with_halo(folder: Path) -> None:
    """Sample and fetch from a local part with a halo, and a remote part on a server."""
    from hopstream.dataset.layout import open_dataset
    from hopstream.load.loader import NeighborLoader
    from hopstream.preparation.halo.run import add_halo
    from hopstream.store.local import LocalStore
    from hopstream.store.remote import RemoteStore
    from hopstream.store.routed import RoutedStore
    from hopstream.store.server import StoreServer
    from hopstream.store.settings import StoreSettings

    add_halo(folder / "plain", hops=0, features="all", budget="1KB")
    add_halo(folder / "timed", hops=1, features="all")
    for name in ("plain", "timed"):
        dataset = open_dataset(folder / name)
        with closing(LocalStore(dataset, [1])) as far, StoreServer(far) as server:
            stores = [
                LocalStore(dataset, [0]),
                RemoteStore(server.location, StoreSettings(prefer_local=False, timeout_s=COMPILE_S)),
            ]
            with RoutedStore(stores) as store, NeighborLoader(store, [3, 2], timeout_s=COMPILE_S, **_LOADING) as loader:
                list(loader)


def _export(folder: Path) -> None:
    """Prepare typed tables with string ids, export subgraphs, and read them."""
    from importlib.util import find_spec

    from hopstream.export.run import export_subgraphs
    from hopstream.load.ppr import PPRLoader
    from hopstream.preparation.prepare import prepare
    from hopstream.sample.ppr_settings import PPRSettings
    from hopstream.tfgnn.tfrecord import example_blocks

    tables = folder / "tables"
    tables.mkdir()
    names = [f"n{number:02d}" for number in range(NUM_NODES)]
    rows = [f"{name},{number},word {number}" for number, name in enumerate(names)]
    (tables / "user.csv").write_text("\n".join(["id,age,bio", *rows]))
    edges = [f"{name},{names[-number]},{number}.5,note {number % 5}" for number, name in enumerate(names)]
    (tables / "likes.csv").write_text("\n".join(["src,dst,stars,note", *edges]))
    (tables / "metadata.json").write_text(_TABLES)
    (tables / "spec.pbtxt").write_text(_SPEC)
    prepare(tables, folder / "users", num_parts=2, method="hash", direction="out")
    report = export_subgraphs(folder / "users", tables / "spec.pbtxt", folder / "samples/train.tfrecord", num_workers=0)
    if find_spec("torch") is not None:  # loaders of examples need torch, which a server's image does not have
        from hopstream.load.examples import ExampleLoader

        with ExampleLoader(report.paths, schema=report.schema_path, batch_size=8, collate="numpy") as examples:
            list(examples)
    for _ in example_blocks(report.paths):
        pass
    channels: dict[EdgeType | tuple[EdgeType, ...], float] = {LIKES: 0.5, WEARS: 0.5}
    settings = PPRSettings(direction="out", typed_channel_ratios=channels)
    with PPRLoader(folder / "users", "user", settings, batch_size=16, collate="numpy") as loader:
        list(loader)


MANY_EDGES = 1 << 40
"""Number of scanned edges that is enough to make the index of long rows of any graph."""
_LOADING: Mapping[str, Any] = {"seeds": "train", "batch_size": 16, "collate": "numpy"}
_TIMES: Mapping[str, Any] = {"time_attr": "time", "input_time": [50] * (NUM_NODES // 2)}
_WAYS: Sequence[Mapping[str, Any]] = (
    {}, {"disjoint": True}, {"weight_attr": "weight"}, {"weight_attr": "weight", "sampling": "top_k"},
    {"sampling": "labor"}, _TIMES, {**_TIMES, "temporal_strategy": "last"}, {**_TIMES, "weight_attr": "weight"},
    {"subgraph_type": "induced"}, {"subgraph_type": "induced", "disjoint": True}, {"subgraph_type": "bidirectional"},
)  # fmt: skip
"""Options of node loaders, one for each way of sampling."""
STEPS: Mapping[str, Callable[[Path], None]] = {
    "preparation": _write_datasets,
    "servers": _serve,
    "rows kept": _keep_rows,
    "loaders": _load,
    "links": _load_links,
    "walks": _walk,
    "preparation in pieces": _prepare_in_pieces,
    "halos": _sample_with_halo,
    "exports": _export,
}
"""Name to step, in order; the first one writes the datasets that the others use."""
