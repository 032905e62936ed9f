"""The names of ``gigl.utils``."""
