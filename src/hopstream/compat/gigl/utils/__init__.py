"""Names of ``gigl.utils``."""
