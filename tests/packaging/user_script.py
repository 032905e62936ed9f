# ruff: noqa: T201
"""Script of a user, with types: mypy and pyright must accept it with strict settings. Nothing runs it."""

import numpy as np
import numpy.typing as npt

import hopstream
from hopstream.dataset import HaloSettings
from hopstream.errors import StoreTimeout
from hopstream.load import MiniBatch
from hopstream.serve import LocalStore, StoreServer


def rows_of(batch: MiniBatch) -> int:
    """Count the nodes of a batch."""
    return sum(len(node_keys) for node_keys in batch.node_keys.values())


edges: npt.NDArray[np.int64] = np.array([[0, 1, 2], [1, 2, 0]])
graph: hopstream.Graph = hopstream.graph_from_arrays(edges, num_nodes=3, splits={"train": np.arange(3)})
manifest = hopstream.write_parts(graph, "parts/tiny", num_parts=1, method="hash", halo=HaloSettings(hops=1))
print(manifest.book.num_parts, graph.nodes["node"].num_nodes)

security = hopstream.ClientSecurity(token="secret")
settings = hopstream.StoreSettings(timeout_s=5.0, security=security)
with hopstream.open_store("parts/tiny") as store, StoreServer(store) as server:
    try:
        loader = hopstream.NeighborLoader(server.location, [2, 2], seeds="train", store_settings=settings)
        for batch in loader:
            print(batch)
    except StoreTimeout as error:
        print(str(error))
with LocalStore(hopstream.open_dataset("parts/tiny")) as local:
    print(local.traffic())
