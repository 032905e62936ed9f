"""The names of ``gigl.distributed.graph_store``."""
