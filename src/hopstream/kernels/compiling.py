"""The warning that kernels are being compiled, which takes minutes where the cache is cold.

numba calls a listener for each function that it really compiles, and not for those that it loads from its cache. The
listener is installed with the first kernel that a process loads, so every way to run kernels has it, and a call of a
compiled kernel costs nothing more.
"""

from __future__ import annotations

import logging

from numba.core import config, event

LOG = logging.getLogger(__name__)


class _Teller(event.Listener):  # type: ignore[misc]
    """Logs one warning per process; numba calls it under its compiler's lock."""

    has_told = False

    def on_start(self, compiled: event.Event) -> None:
        """A function is about to be compiled; the user's own are none of our business."""
        kernel = compiled.data["dispatcher"].py_func
        if not self.has_told and (kernel.__module__ or "").startswith(__package__):
            self.has_told = True
            where = config.CACHE_DIR or "__pycache__ beside the library's kernels, or the user's cache folder"
            LOG.warning("compiling kernels: first start on this machine; takes a minute or two, cached in %s", where)

    def on_end(self, _: event.Event) -> None:
        """Nothing to do."""


event.register("numba:compile", _Teller())
