"""Name of ``gigl.distributed.dist_dataset``."""

from hopstream.compat.glt.distributed.dist_dataset import DistDataset as DistDataset
