"""Names of ``gigl.src.common``."""
