"""The names of ``gigl.distributed``."""
