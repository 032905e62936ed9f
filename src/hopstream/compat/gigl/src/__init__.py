"""Names of ``gigl.src``."""
