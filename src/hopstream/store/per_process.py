"""Sources that worker processes open for themselves.

Maps of files may be shared with processes that are forked, connections may not, and neither can be sent. So a source is
kept by name, and opened by each process that uses it.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from hopstream.errors import SettingsError
from hopstream.store import Source, open_store
from hopstream.store.contract import Store
from hopstream.store.local import LocalStore
from hopstream.store.sources import check_source

if TYPE_CHECKING:
    from hopstream.store.settings import StoreSettings


class ProcessStore:
    """A source that can be sent to other processes, and is opened once in each; safe to use from many threads."""

    def __init__(self, source: Source, settings: StoreSettings | None = None) -> None:
        """Open the source.

        Args:
            source: See ``open_store``. A store that is given open is not closed here, and cannot be sent.
            settings: Deadline and security, where servers are asked.

        Raises:
            FormatError: The folder is not a dataset, or the file is not a cluster file.
            SettingsError: The source is nothing that can be opened.
            StoreError: A server cannot be reached, or refused to answer.
        """
        if not isinstance(source, Store):
            check_source(source)
            source = source if isinstance(source, str) else os.fspath(source)
        self._begin(source, settings)
        self.store()

    def _begin(self, source: str | Store, settings: StoreSettings | None) -> None:
        self._source = source
        self._settings = settings
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._process_id = 0
        self._is_closed = False

    def store(self) -> Store:
        """The store of this process.

        Raises:
            SettingsError: It was closed, or this process was forked from one that has connections to servers.
            FormatError: As for ``__init__``, where this process opens it.
            StoreError: As for ``__init__``, where this process opens it.
        """
        with self._lock:
            if self._is_closed:
                raise SettingsError("the source was closed; open another")
            if self._store is None:
                self._open()
            elif self._process_id != os.getpid() and not isinstance(self._store, LocalStore):
                raise SettingsError(
                    "this process was forked from one that has connections to servers, which it cannot use; start "
                    "worker processes anew: multiprocessing_context='spawn', or use num_workers=0"
                )
            return self._store  # type: ignore[return-value]  # opened just now

    def _open(self) -> None:
        self._process_id = os.getpid()
        self._store = open_store(self._source, self._settings)
        if self._store is not self._source:
            # Also when nobody holds this any more or the program ends: a connection must not outlive the interpreter.
            weakref.finalize(self, _close, self._store, self._process_id)

    def close(self) -> None:
        """Close what was opened here; a second call does nothing."""
        with self._lock:
            self._is_closed = True
            if self._store is not None and self._store is not self._source:
                _close(self._store, self._process_id)

    def __getstate__(self) -> dict[str, object]:
        """What another process opens; an open store refuses to be sent."""
        return {"source": self._source, "settings": self._settings}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Become a source that is opened when it is first used."""
        self._begin(**state)  # type: ignore[arg-type]  # what __getstate__ gives


def _close(store: Store, process_id: int) -> None:
    """Close a store in the process that opened it; one that was forked from there leaves it alone."""
    if os.getpid() == process_id:
        store.close()
