"""The names of ``gigl.distributed.graph_store``."""

from __future__ import annotations

from hopstream.compat.gigl.distributed.utils.networking import get_graph_store_info as get_graph_store_info
from hopstream.compat.gigl.env.distributed import GraphStoreInfo as GraphStoreInfo
