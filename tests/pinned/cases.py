"""Cases with pinned results: loaders, walks, exports and sampling servers over stored datasets."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyarrow import parquet

import hopstream
from hopstream.load.setup import SubgraphLoader
from tests.equality import test_ablp, test_links, test_node_modes, test_ppr, test_walks
from tests.export.worlds import some_seeds
from tests.stream.serving import remote_graph, serve_here

HERE = Path(__file__).parent
DATASETS, DIGESTS, STATES = HERE / "datasets.tar.xz", HERE / "digests.json", HERE / "states.json"
COMMON = {"shuffle": True, "rng_seed": 3, "num_threads": 0}
Source = Any


def unpack(folder: Path) -> None:
    """Write the pinned datasets into a folder."""
    with tarfile.open(DATASETS) as archive:
        archive.extractall(folder, filter="data")


def digest(value: Any) -> str:
    """SHA-256 of a batch, an array, or a list, tuple or dict of these, with names, dtypes and shapes."""
    sha = hashlib.sha256()
    _update(sha, value)
    return sha.hexdigest()


def _update(sha: Any, value: Any) -> None:
    value = _plain(value)
    if isinstance(value, np.ndarray):
        sha.update(f"{value.dtype.str} {value.shape} ".encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        for name in sorted(value, key=str):
            sha.update(f"{{{name}:".encode())
            _update(sha, value[name])
    elif isinstance(value, list | tuple):
        sha.update(f"[{len(value)} ".encode())
        for one in value:
            _update(sha, one)
    elif value is None or isinstance(value, bytes | str | int | float):
        sha.update(value if isinstance(value, bytes) else repr(value).encode())
    else:
        raise TypeError(f"no digest of {type(value)}")


def _plain(value: Any) -> Any:
    """A batch of PyG, a ragged column, a tensor or a number as numpy and Python have it."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "offsets"):
        return [value.values, value.offsets]
    if isinstance(value, np.generic):
        return value.item()
    return value.numpy() if isinstance(value, torch.Tensor) else value


def _nodes(name: str, mode: str, source: Source) -> SubgraphLoader:
    options = {**COMMON, "batch_size": 14, **test_node_modes.OPTIONS[name], **test_node_modes.MODES[name][mode]}
    if "weight_attr" in options:
        options["weight_attr"] = test_node_modes.WEIGHT[name]
    return hopstream.NeighborLoader(source, **options)


def _links(name: str, mode: str, source: Source) -> SubgraphLoader:
    options = {**COMMON, "num_neighbors": [3, 2], "batch_size": 36, **test_links.MODES[name][mode]}
    return hopstream.LinkNeighborLoader(source, **options)


def _anchors(mode: str, source: Source) -> SubgraphLoader:
    return hopstream.ABLPLoader(
        source, **{**COMMON, "num_neighbors": [3, 2], "batch_size": 22, **test_ablp.MODES[mode]}
    )


def _random_nodes(mode: str, source: Source) -> SubgraphLoader:
    options = {"rng_seed": 3, "num_threads": 0, "batch_size": 22, **test_ablp.RANDOM_MODES[mode]}
    return hopstream.load.RandomNodeLoader(source, [3, 2], "item", **options)


def _ppr(name: str, mode: str, source: Source) -> SubgraphLoader:
    return hopstream.PPRLoader(
        source, test_ppr.SEEDS[name], test_ppr.SETTINGS[name][mode], **{**COMMON, "batch_size": 17}
    )


LOADERS: dict[str, tuple[str, Callable[[Source], SubgraphLoader]]] = {
    **{
        f"nodes, {name}, {mode}": (f"nodes-{name}", partial(_nodes, name, mode)) for name, mode in test_node_modes.CASES
    },
    **{f"links, {name}, {mode}": (f"links-{name}", partial(_links, name, mode)) for name, mode in test_links.CASES},
    **{f"anchors, {mode}": ("anchors", partial(_anchors, mode)) for mode in test_ablp.MODES},
    **{mode: ("anchors", partial(_random_nodes, mode)) for mode in test_ablp.RANDOM_MODES},
    **{f"ppr, {name}, {mode}": (f"ppr-{name}", partial(_ppr, name, mode)) for name, mode in test_ppr.CASES},
    **{
        f"nodes, {kind}, {mode}": (kind, partial(_nodes, "typed", mode))
        for kind in ("grown", "halo")
        for mode in ("disjoint", "weighted in time", "labor", "induced")
    },
}
"""Name to the dataset and to what makes a loader over it."""
RESUMED = (
    "nodes, typed, temporal", "nodes, grown, labor", "links, ratings, split, binary, left out", "anchors, uniform",
    "random nodes", "ppr, typed, channels",
)  # fmt: skip
"""Loaders whose states are pinned: saved after the first batch of epoch 1."""
SERVED = (
    "nodes, typed, weighted in time", "links, ratings, latest at given times", "anchors, labor", "ppr, typed, per type",
    "nodes, halo, disjoint", "nodes, halo, induced",
)  # fmt: skip
"""Loaders over two servers. Each server has one part; the parts of one dataset have halos."""


def batches_of(loader: SubgraphLoader) -> list[Any]:
    """An epoch of a loader, which is then closed."""
    with loader:
        return list(loader)


def state_of(loader: SubgraphLoader) -> dict[str, Any]:
    """The state after the first batch of epoch 1."""
    with loader:
        loader.set_epoch(1)
        iterator = iter(loader)
        next(iterator)
        return loader.state_dict()


def rest_of(loader: SubgraphLoader, state: Mapping[str, Any]) -> list[Any]:
    """The batches after a state."""
    loader.load_state_dict(state)
    return batches_of(loader)


def served_batches(case: str, folder: Path) -> list[Any]:
    """The batches of a loader over two servers, of a part each."""
    name, new_loader = LOADERS[case]
    with serve_here(folder / name) as served, remote_graph(served.locations) as graph:
        return batches_of(new_loader(graph))


def walks_of(mode: str, folder: Path) -> Any:
    """Three walks from every node."""
    name, options = test_walks.MODES[mode]
    return hopstream.random_walks(folder / f"walks-{name}", None, **options, walks_per_node=3, rng_seed=6)


def exported_files(folder: Path, out: Path) -> dict[str, Any]:
    """Files of two exports (records, Parquet) and a unigraph by path: bytes, or columns of Parquet."""
    world = folder / "export"
    for form in ("tfrecord", "parquet"):
        hopstream.export_subgraphs(
            world / "parts", world / "spec.pbtxt", out / form / f"train.{form}@2", seeds=np.array(some_seeds(40)),
            file_format=form, rng_seed=4, num_workers=1,
        )  # fmt: skip
    hopstream.export.write_unigraph(folder / "links-ratings", out / "unigraph")
    return {str(path.relative_to(out)): _contents(path) for path in out.rglob("*") if path.is_file()}


def _contents(path: Path) -> Any:
    is_parquet = ".parquet-" in path.name  # its bytes depend on the version of pyarrow
    return parquet.read_table(path).to_pydict() if is_parquet else path.read_bytes()


def results(folder: Path, out: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every case by name, with the function of its result; ``folder`` has the datasets."""
    for case, (name, new_loader) in LOADERS.items():
        yield case, lambda name=name, new_loader=new_loader: batches_of(new_loader(folder / name))
    for mode in test_walks.MODES:
        yield f"walks, {mode}", partial(walks_of, mode, folder)
    yield "exports", partial(exported_files, folder, out)
