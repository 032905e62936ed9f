"""Names of ``torch_geometric.distributed.event_loop``."""

from hopstream.compat.pyg.channels import to_asyncio_future

__all__ = ["to_asyncio_future"]
