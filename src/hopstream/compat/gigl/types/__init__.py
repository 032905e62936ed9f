"""The names of ``gigl.types``."""
