"""Names of ``gigl.src.common.types``."""
