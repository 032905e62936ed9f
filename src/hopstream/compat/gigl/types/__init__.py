"""Names of ``gigl.types``."""
