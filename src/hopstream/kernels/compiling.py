"""Who is told that kernels are being compiled, which takes minutes where the cache is cold?"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from numba.core import config, event

LOG = logging.getLogger(__name__)


@contextmanager
def compiling_told() -> Iterator[None]:
    """Warn, once, where kernels are really compiled inside, and not loaded from the cache."""

    class Teller(event.Listener):  # type: ignore[misc]
        """Is called for compiled functions only; the first may be one that was forgotten, the next follow at once."""

        has_told = False

        def on_start(self, _: object) -> None:
            if not self.has_told:
                self.has_told = True
                where = config.CACHE_DIR or "__pycache__ beside the library's kernels, or the user's cache folder"
                LOG.warning(
                    "compiling kernels: first start on this machine; takes a minute or two, cached in %s", where
                )

        def on_end(self, _: object) -> None:
            """Nothing to do."""

    with event.install_listener("numba:compile", Teller()):
        yield
