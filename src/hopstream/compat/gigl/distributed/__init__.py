"""The names of ``gigl.distributed``."""

from __future__ import annotations

from hopstream.compat.gigl.env.distributed import DistributedContext as DistributedContext
