"""A schema with every kind of feature, and a comparison of two batches of graph tensors."""

from __future__ import annotations

import numpy as np

from hopstream.arrays import RaggedArray


def _feature(name, dtype, *sizes):
    dims = "".join(f"dim {{ size: {size} }}" for size in sizes)
    return f'features {{ key: "{name}" value {{ dtype: {dtype} shape {{ {dims} }} }} }}'


_DTYPES = (
    "DT_FLOAT", "DT_HALF", "DT_BFLOAT16", "DT_INT8", "DT_INT16", "DT_INT32", "DT_INT64", "DT_UINT8", "DT_UINT16",
    "DT_UINT32", "DT_UINT64", "DT_BOOL", "DT_STRING",
)  # fmt: skip
_EVERY_DTYPE = "\n".join(_feature(dtype, dtype) for dtype in _DTYPES)
_EVERY_SHAPE = "\n".join(
    (
        _feature("dense", "DT_FLOAT", 4),
        _feature("matrix", "DT_INT64", 2, 3),
        _feature("ragged", "DT_INT64", -1),
        _feature("rows", "DT_FLOAT", -1, 2),
        _feature("deep", "DT_INT32", 2, -1, 3, -1),
        _feature("names", "DT_STRING", 2),
        _feature("tags", "DT_STRING", -1),
        _feature("no_values", "DT_FLOAT", 0),
    )
)
EVERYTHING = f"""
context {{ {_feature("label", "DT_INT64")} {_feature("words", "DT_STRING", -1)} }}
node_sets {{ key: "paper" value {{ {_EVERY_DTYPE} }} }}
node_sets {{ key: "author" value {{ {_EVERY_SHAPE} }} }}
node_sets {{ key: "latent" value {{ }} }}
node_sets {{ key: "_readout" value {{ {_feature("y", "DT_INT64")} }} }}
node_sets {{ key: "_shadow/writes" value {{ }} }}
edge_sets {{ key: "writes" value {{ source: "author" target: "paper" {_EVERY_SHAPE} }} }}
edge_sets {{ key: "cites" value {{ source: "paper" target: "paper" }} }}
edge_sets {{ key: "_readout/seed" value {{ source: "paper" target: "_readout" }} }}
edge_sets {{ key: "_readout/other/1" value {{ source: "author" target: "_readout" }} }}
edge_sets {{ key: "_readout/other/2" value {{ source: "_shadow/writes" target: "_readout" }} }}
"""


def same_values(got, wanted):
    assert got.num_items == wanted.num_items
    assert len(got.dims) == len(wanted.dims)
    for mine, its in zip(got.dims, wanted.dims, strict=True):
        assert np.array_equal(mine, its) and isinstance(mine, int) == isinstance(its, int)
    assert isinstance(got.flat, RaggedArray) == isinstance(wanted.flat, RaggedArray)
    if isinstance(got.flat, RaggedArray):
        assert np.array_equal(got.flat.values, wanted.flat.values)
        assert np.array_equal(got.flat.offsets, wanted.flat.offsets)
    else:
        assert got.flat.dtype == wanted.flat.dtype
        assert np.array_equal(got.flat, wanted.flat, equal_nan=got.flat.dtype.kind == "f")


def same_graphs(got, wanted):
    """Fail unless two batches of graph tensors are equal in every array."""
    assert np.array_equal(got.component_offsets, wanted.component_offsets)
    pairs = [(got.context, wanted.context)]
    for mine, its in ((got.node_sets, wanted.node_sets), (got.edge_sets, wanted.edge_sets)):
        assert list(mine) == list(its)
        for name, pieces in mine.items():
            assert np.array_equal(pieces.sizes, its[name].sizes)
            pairs.append((pieces.features, its[name].features))
    for name, edges in got.edge_sets.items():
        other = wanted.edge_sets[name]
        assert (edges.source_set, edges.target_set) == (other.source_set, other.target_set)
        assert np.array_equal(edges.source, other.source) and np.array_equal(edges.target, other.target)
    for mine, its in pairs:
        assert list(mine) == list(its)
        for name, values in mine.items():
            same_values(values, its[name])


def not_utf_8():
    """A message of two features: one whose name is no text, and one in a way that only protobuf reads."""

    def entry(name, feature):
        body = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(feature)]) + feature
        return b"\x0a" + bytes([len(body)]) + body

    entries = entry(b"\xff", b"") + entry(b"a", b"\x1a\x02\x08\x01")
    return b"\x0a" + bytes([len(entries)]) + entries
