"""Interface of services that make a loader's batches in other processes.

A service is a source like a folder or a cluster. The loader checks its options as usual, and sends a recipe of its
batches to the service. A recipe holds the options that determine the batches, not how this process consumes them.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from hopstream.buffers import Buffers
from hopstream.load.batch import BatchFinisher, Convert, Fetch, MiniBatch, SampledBatch, SubgraphReader
from hopstream.store.contract import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """Arguments of a loader that determine its batches.

    Attributes:
        loader: Name of the loader's class.
        options: The given arguments by name, without defaults.
    """

    loader: str
    options: Mapping[str, Any]


class BatchSession(ABC):
    """Batches of one loader, made in other processes. Thread-safe."""

    store: Store
    """The graph's store, for the loader's other requests; closed with the session. If it has a cache of rows, batches
    come without columns, and the loader fetches the columns from it."""

    @abstractmethod
    def prepare(self, recipe: Recipe) -> None:
        """Register the loader's recipe; called once, before all other methods.

        Raises:
            SettingsError: The recipe holds something that cannot be sent.
            StoreError: No server can take another loader.
        """

    @abstractmethod
    def begin(self, num_ahead: int, epoch: int, step: int) -> None:
        """Begin an iteration.

        Args:
            num_ahead: Most batches that are unfinished or waiting at once.
            epoch: The epoch.
            step: The first batch of the epoch that will be requested.
        """

    @abstractmethod
    def batch(self, epoch: int, step: int, buffers: Buffers) -> MiniBatch | SampledBatch:
        """Wait for one batch of the epoch that began last, in arrays of ``buffers``.

        The same batch may be requested again. The result is a ``SampledBatch`` if the store has a cache of rows.

        Raises:
            StoreTimeout: The batch did not come in time.
            StoreUnavailable: No server can make the batch.
            HopstreamError: Making the batch failed with this error.
        """

    @abstractmethod
    def ready_batch(self, epoch: int, step: int, buffers: Buffers) -> MiniBatch | SampledBatch | None:
        """Return a batch, or None if it is not ready soon or its server does not answer; see ``batch``."""

    @abstractmethod
    def repeat(self, epoch: int, step: int, fetch: Callable[[], T]) -> T:
        """Call ``fetch``, and retry it until the batch's deadline while a server is gone.

        Raises:
            StoreUnavailable: A server was gone until the deadline.
            HopstreamError: ``fetch`` raised another error.
        """

    @abstractmethod
    def end(self) -> None:
        """End the iteration; threads that wait for one of its batches stop soon."""

    @abstractmethod
    def beside(self) -> BatchSession:
        """Open another session for the same batches, with iterations of its own; the caller must close it."""

    @abstractmethod
    def close(self) -> None:
        """Cancel pending batches and close the session; a second call does nothing."""


class BatchService(ABC):
    """Source whose batches are made in other processes."""

    @abstractmethod
    def open(self, rank: int) -> BatchSession:
        """Open a session for one loader of the given rank.

        Raises:
            StoreError: A server cannot be reached, or refused to answer.
        """


class SessionMaker(BatchFinisher):
    """Maker that takes batches from a session and fetches missing columns. Not thread-safe."""

    def __init__(self, session: BatchSession, reader: SubgraphReader, convert: Convert) -> None:
        """Take batches from ``session``; the rest is as for ``BatchFinisher``."""
        super().__init__(reader, convert)
        self._session = session

    def make(self, epoch: int, step: int) -> Any:
        """Get one batch; equal arguments give equal batches."""
        self.stage = "waiting for a server"
        return self._session.repeat(epoch, step, partial(self._finish, self._take(epoch, step)))

    def _sample_now(self, epoch: int, step: int) -> Fetch | MiniBatch:
        batch = self._session.batch(epoch, step, self._reader.buffers)
        return batch if isinstance(batch, MiniBatch) else self._reader.fetch_of(batch)

    def _sample_ahead(self, epoch: int, step: int, steps: range) -> list[Fetch | BaseException]:
        """Wait only for the batch that the caller needs, so that a late batch does not delay earlier ones."""
        (one,) = steps
        get = self._session.batch if one == step else self._session.ready_batch
        try:
            batch = get(epoch, one, self._reader.buffers)
            return [] if batch is None else [self._reader.announce(cast(SampledBatch, batch))]
        except Exception as error:
            return [error]


class LoneMaker(SessionMaker):
    """Maker of any batch of any epoch, with a session of its own that is closed with it."""

    def __init__(self, session: BatchSession, reader: SubgraphReader, convert: Convert) -> None:
        """Take batches from ``session``, which must have no other users."""
        super().__init__(session, reader, convert)
        self._epoch = -1
        self._closer = weakref.finalize(self, session.close)

    def make(self, epoch: int, step: int) -> Any:
        """Get one batch; equal arguments give equal batches."""
        if epoch != self._epoch:
            self._session.begin(1, epoch, step)
            self._epoch = epoch
        return super().make(epoch, step)


def class_name(loader: object) -> str:
    """Return the name of the loader's class, or of the base class of a user's subclass."""
    package = f"{__name__.partition('.')[0]}."
    return next(one.__name__ for one in type(loader).__mro__ if one.__module__.startswith(package))
