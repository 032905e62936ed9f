"""Checks that the division of tables into files makes no difference."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.ingest.chunked import EdgeRange, open_chunked
from tests.ingest.chunked.folders import Folder, lines

EDGE = "n:to:n"
NUM_NODES, NUM_EDGES = 23, 61
PAIRS = np.random.default_rng(5).integers(0, NUM_NODES, (NUM_EDGES, 2))
FEAT = np.arange(NUM_NODES * 6, dtype=np.int32).reshape(NUM_NODES, 2, 3)
WEIGHT = np.arange(NUM_EDGES, dtype=np.float64)


def cuts_of(num_rows: int):
    return st.lists(st.integers(0, num_rows), max_size=6).map(lambda inner: [0, *sorted(inner), num_rows])


def lists_of(rows: np.ndarray) -> pa.Table:
    flat = rows.reshape(len(rows), 6)
    column = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])
    return pa.table([column], names=["v"]).replace_schema_metadata({"shape": str(rows.shape)})


def spec_of(folder: Folder, stem: str, file_format: str, contents: list) -> dict:
    suffix = {"csv": "csv", "numpy": "npy", "parquet": "parquet"}[file_format]
    names = [folder.write(f"{stem}-{n}.{suffix}", content) for n, content in enumerate(contents)]
    return {"format": {"name": file_format}, "data": names}


@settings(max_examples=10, deadline=None)
@given(
    edge_format=st.sampled_from(["csv", "numpy", "parquet"]),
    feat_format=st.sampled_from(["numpy", "parquet"]),
    edge_cuts=cuts_of(NUM_EDGES),
    feat_cuts=cuts_of(NUM_NODES),
    weight_cuts=cuts_of(NUM_EDGES),
    is_counted=st.booleans(),
    is_ended=st.booleans(),
    max_rows=st.integers(1, 80),
    rows=st.tuples(st.integers(0, NUM_NODES), st.integers(0, NUM_NODES)).map(sorted),
)
def test_any_cut_into_files_gives_the_same_edges_and_columns(
    edge_format, feat_format, edge_cuts, feat_cuts, weight_cuts, is_counted, is_ended, max_rows, rows
):
    with TemporaryDirectory() as name:
        folder = Folder(Path(name))
        written = {
            "csv": lambda pairs: lines(pairs) if is_ended else lines(pairs).removesuffix("\n"),
            "numpy": lambda pairs: pairs,
            "parquet": lambda pairs: pa.table({"s": pairs[:, 0], "d": pairs[:, 1]}),
        }[edge_format]
        feats = [FEAT[a:b] for a, b in pairwise(feat_cuts)]
        folder.metadata = {
            "graph_name": "g",
            "node_type": ["n"],
            "num_nodes_per_type": [NUM_NODES],
            "edge_type": [EDGE],
            "num_edges_per_type": [NUM_EDGES],
            "edges": {EDGE: spec_of(folder, "e", edge_format, [written(PAIRS[a:b]) for a, b in pairwise(edge_cuts)])},
            "node_data": {
                "n": {
                    "f": spec_of(
                        folder, "f", feat_format, [lists_of(f) for f in feats] if feat_format == "parquet" else feats
                    )
                }
            },
            "edge_data": {EDGE: {"w": spec_of(folder, "w", "numpy", [WEIGHT[a:b] for a, b in pairwise(weight_cuts)])}},
        }
        if is_counted:
            folder.metadata["num_edges_per_chunk"] = [[b - a for a, b in pairwise(edge_cuts)]]
        opened = open_chunked(folder.save())
        edges = opened.edges["n", "to", "n"]
        found = []
        for piece in edges.ends.pieces(max_rows):
            assert 0 < piece.num_edges <= max_rows and piece.first == len(found)
            # Another process opens the folder again and knows of the piece by its JSON alone.
            ends = open_chunked(folder.root).edges["n", "to", "n"].ends
            for first, src_keys, dst_keys in ends.read(EdgeRange.from_json(piece.to_json())):
                assert first == len(found)
                found += zip(src_keys.tolist(), dst_keys.tolist(), strict=True)
        assert found == [tuple(pair) for pair in PAIRS.tolist()]
        feat = opened.nodes["n"].features["f"].read(*rows)
        np.testing.assert_array_equal(feat, FEAT[rows[0] : rows[1]])
        np.testing.assert_array_equal(opened.load().edges["n", "to", "n"].features["w"], WEIGHT)
