"""Defines who makes a loader's batches where the loader itself does not.

A service is a source like a folder or a cluster. A loader that is given one checks its options as ever, and then has
its batches made elsewhere from a recipe: what the user asked for, and nothing of how this process consumes it.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from hopstream.load.batch import BatchFinisher, Buffers, Convert, Fetch, MiniBatch, SampledBatch, SubgraphReader
from hopstream.store.contract import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """What decides over a loader's batches, as the user said it.

    Attributes:
        loader: Name of the loader's class.
        options: Its arguments by name; those that were left out are not here.
    """

    loader: str
    options: Mapping[str, Any]


class BatchSession(ABC):
    """The batches of one loader, made elsewhere. Safe to use from many threads."""

    store: Store
    """The graph, for whatever a loader asks beside its batches; closed with the session. Where it keeps rows, batches
    come without their columns, which are fetched from it."""

    @abstractmethod
    def prepare(self, recipe: Recipe) -> None:
        """Take over what decides over the batches; called once, before all else.

        Raises:
            SettingsError: The recipe holds something that cannot be sent.
            StoreError: Nobody can take another loader.
        """

    @abstractmethod
    def begin(self, num_ahead: int, epoch: int, step: int) -> None:
        """An iteration begins.

        Args:
            num_ahead: Batches that may be unfinished or waiting at once.
            epoch: The epoch.
            step: The first batch of the epoch that will be asked for.
        """

    @abstractmethod
    def batch(self, epoch: int, step: int, buffers: Buffers) -> MiniBatch | SampledBatch:
        """Wait for one batch of the epoch that began last, in arrays of ``buffers``; it may be asked for again.

        It is a ``SampledBatch`` where the store keeps rows.

        Raises:
            StoreTimeout: It did not come in time.
            StoreUnavailable: Nobody can make it.
            HopstreamError: Whatever its making raised.
        """

    @abstractmethod
    def ready_batch(self, epoch: int, step: int, buffers: Buffers) -> MiniBatch | SampledBatch | None:
        """Return the batch, or None if it is not ready soon or its server does not answer; see ``batch``."""

    @abstractmethod
    def repeat(self, epoch: int, step: int, fetch: Callable[[], T]) -> T:
        """Do something for a batch that asks servers; again while one of them is gone, until the batch's deadline.

        Raises:
            StoreUnavailable: A server was gone until then.
            HopstreamError: Whatever else ``fetch`` raises.
        """

    @abstractmethod
    def end(self) -> None:
        """The iteration has ended: whoever waits for one of its batches hears so soon."""

    @abstractmethod
    def beside(self) -> BatchSession:
        """Another session for the same batches, with iterations of its own; closed by whoever asked for it."""

    @abstractmethod
    def close(self) -> None:
        """Give up batches under way and let go of what makes them; a second call does nothing."""


class BatchService(ABC):
    """A source whose batches are made elsewhere."""

    @abstractmethod
    def open(self, rank: int) -> BatchSession:
        """Open what one loader needs; ``rank`` is the loader's.

        Raises:
            StoreError: A server cannot be reached, or refused to answer.
        """


class SessionMaker(BatchFinisher):
    """Hands out batches that a session gets, and fetches the columns of those that lack them. One thread uses one."""

    def __init__(self, session: BatchSession, reader: SubgraphReader, convert: Convert) -> None:
        """Get batches from ``session``, and bring them into the form that the user wants."""
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
        """Another batch than the one in turn is not waited for: so no batch keeps those before it waiting."""
        (one,) = steps
        get = self._session.batch if one == step else self._session.ready_batch
        try:
            batch = get(epoch, one, self._reader.buffers)
            return [] if batch is None else [self._reader.announce(cast(SampledBatch, batch))]
        except Exception as error:
            return [error]


class LoneMaker(SessionMaker):
    """Hands out any batch of any epoch, from a session that is closed with it."""

    def __init__(self, session: BatchSession, reader: SubgraphReader, convert: Convert) -> None:
        """Get batches from ``session``, which nobody else uses."""
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
    """The loader's class, or that from which the user's own is made."""
    package = f"{__name__.partition('.')[0]}."
    return next(one.__name__ for one in type(loader).__mro__ if one.__module__.startswith(package))
