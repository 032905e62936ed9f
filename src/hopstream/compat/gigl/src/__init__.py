"""The names of ``gigl.src``."""
