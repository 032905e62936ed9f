"""Public names of Hopstream, imported on first use.

Because of that, ``import hopstream`` loads neither torch nor numba.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopstream.dataset.key_book import load_partition_book
    from hopstream.dataset.layout import open_dataset
    from hopstream.dataset.read_back import read_dataset
    from hopstream.export.run import export_subgraphs
    from hopstream.export.unigraph import write_unigraph
    from hopstream.graph.graph import Graph
    from hopstream.graph.splits import hold_out_links, split_links, split_nodes
    from hopstream.ingest import graph_from_arrays, graph_from_data
    from hopstream.ingest.chunking.run import chunk_tables
    from hopstream.ingest.edge_lists import graph_from_edge_list
    from hopstream.ingest.objects.networkx_graphs import graph_from_networkx, graph_to_networkx
    from hopstream.ingest.objects.sparse_matrices import graph_from_scipy
    from hopstream.ingest.ogb_folder import graph_from_ogb
    from hopstream.ingest.synthetic import rmat_graph
    from hopstream.load.ablp import ABLPLoader
    from hopstream.load.embeddings import open_embeddings
    from hopstream.load.examples import ExampleDataset, ExampleLoader
    from hopstream.load.files import graph_from_ogb_folder, read_graph, read_ogb_links
    from hopstream.load.layerwise import infer_layerwise
    from hopstream.load.links import LinkNeighborLoader
    from hopstream.load.loader import NeighborLoader, RandomNodeLoader
    from hopstream.load.partitions import load_partition, load_partition_feats
    from hopstream.load.ppr import PPRLoader
    from hopstream.load.rank_splits import rank_links, rank_nodes
    from hopstream.preparation.append.run import append
    from hopstream.preparation.audit.run import verify_dataset
    from hopstream.preparation.compact import compact
    from hopstream.preparation.dispatch.dispatch_job import dispatch
    from hopstream.preparation.halo.run import add_halo
    from hopstream.preparation.halo.settings import HaloSettings
    from hopstream.preparation.prepare import prepare
    from hopstream.preparation.reshard.reshard_job import reshard
    from hopstream.preparation.write import write_parts
    from hopstream.sample.negatives import NegativeSampling
    from hopstream.sample.ppr_settings import PPRSettings
    from hopstream.sample.walks import random_walks, walk_batches
    from hopstream.store import open_store
    from hopstream.store.settings import StoreSettings
    from hopstream.stream.client import RemoteGraph
    from hopstream.transfer.place import place
    from hopstream.transfer.pull import pull
    from hopstream.transport.security import ClientSecurity

__version__ = "0.1.0"

__all__ = [
    "ABLPLoader",
    "ClientSecurity",
    "ExampleDataset",
    "ExampleLoader",
    "Graph",
    "HaloSettings",
    "LinkNeighborLoader",
    "NegativeSampling",
    "NeighborLoader",
    "PPRLoader",
    "PPRSettings",
    "RandomNodeLoader",
    "RemoteGraph",
    "StoreSettings",
    "add_halo",
    "append",
    "chunk_tables",
    "compact",
    "dispatch",
    "export_subgraphs",
    "graph_from_arrays",
    "graph_from_data",
    "graph_from_edge_list",
    "graph_from_networkx",
    "graph_from_ogb",
    "graph_from_ogb_folder",
    "graph_from_scipy",
    "graph_to_networkx",
    "hold_out_links",
    "infer_layerwise",
    "load_partition",
    "load_partition_book",
    "load_partition_feats",
    "open_dataset",
    "open_embeddings",
    "open_store",
    "place",
    "prepare",
    "pull",
    "random_walks",
    "rank_links",
    "rank_nodes",
    "read_dataset",
    "read_graph",
    "read_ogb_links",
    "reshard",
    "rmat_graph",
    "split_links",
    "split_nodes",
    "verify_dataset",
    "walk_batches",
    "write_parts",
    "write_unigraph",
]

_MODULE_OF = {
    "ABLPLoader": "hopstream.load.ablp",
    "ClientSecurity": "hopstream.transport.security",
    "ExampleDataset": "hopstream.load.examples",
    "ExampleLoader": "hopstream.load.examples",
    "Graph": "hopstream.graph.graph",
    "HaloSettings": "hopstream.preparation.halo.settings",
    "LinkNeighborLoader": "hopstream.load.links",
    "NegativeSampling": "hopstream.sample.negatives",
    "NeighborLoader": "hopstream.load.loader",
    "PPRLoader": "hopstream.load.ppr",
    "PPRSettings": "hopstream.sample.ppr_settings",
    "RandomNodeLoader": "hopstream.load.loader",
    "RemoteGraph": "hopstream.stream.client",
    "StoreSettings": "hopstream.store.settings",
    "add_halo": "hopstream.preparation.halo.run",
    "append": "hopstream.preparation.append.run",
    "chunk_tables": "hopstream.ingest.chunking.run",
    "compact": "hopstream.preparation.compact",
    "dispatch": "hopstream.preparation.dispatch.dispatch_job",
    "export_subgraphs": "hopstream.export.run",
    "graph_from_arrays": "hopstream.ingest",
    "graph_from_data": "hopstream.ingest",
    "graph_from_edge_list": "hopstream.ingest.edge_lists",
    "graph_from_networkx": "hopstream.ingest.objects.networkx_graphs",
    "graph_from_ogb": "hopstream.ingest.ogb_folder",
    "graph_from_ogb_folder": "hopstream.load.files",
    "graph_from_scipy": "hopstream.ingest.objects.sparse_matrices",
    "graph_to_networkx": "hopstream.ingest.objects.networkx_graphs",
    "hold_out_links": "hopstream.graph.splits",
    "infer_layerwise": "hopstream.load.layerwise",
    "load_partition": "hopstream.load.partitions",
    "load_partition_book": "hopstream.dataset.key_book",
    "load_partition_feats": "hopstream.load.partitions",
    "open_dataset": "hopstream.dataset.layout",
    "open_embeddings": "hopstream.load.embeddings",
    "open_store": "hopstream.store",
    "place": "hopstream.transfer.place",
    "prepare": "hopstream.preparation.prepare",
    "pull": "hopstream.transfer.pull",
    "random_walks": "hopstream.sample.walks",
    "rank_links": "hopstream.load.rank_splits",
    "rank_nodes": "hopstream.load.rank_splits",
    "read_dataset": "hopstream.dataset.read_back",
    "read_graph": "hopstream.load.files",
    "read_ogb_links": "hopstream.load.files",
    "reshard": "hopstream.preparation.reshard.reshard_job",
    "rmat_graph": "hopstream.ingest.synthetic",
    "split_links": "hopstream.graph.splits",
    "split_nodes": "hopstream.graph.splits",
    "verify_dataset": "hopstream.preparation.audit.run",
    "walk_batches": "hopstream.sample.walks",
    "write_parts": "hopstream.preparation.write",
    "write_unigraph": "hopstream.export.unigraph",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module on first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'hopstream' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return [*__all__, "__version__"]
