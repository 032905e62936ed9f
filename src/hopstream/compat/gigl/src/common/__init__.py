"""The names of ``gigl.src.common``."""
