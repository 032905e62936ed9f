"""The names of ``gigl.env``."""
