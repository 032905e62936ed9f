"""The names of ``graphlearn_torch.distributed``."""

from __future__ import annotations

from hopstream.compat.glt.distributed.options import AllDistSamplingWorkerOptions as AllDistSamplingWorkerOptions
from hopstream.compat.glt.distributed.options import (
    CollocatedDistSamplingWorkerOptions as CollocatedDistSamplingWorkerOptions,
)
from hopstream.compat.glt.distributed.options import MpDistSamplingWorkerOptions as MpDistSamplingWorkerOptions
from hopstream.compat.glt.distributed.options import RemoteDistSamplingWorkerOptions as RemoteDistSamplingWorkerOptions
