"""How do ranks, each of which holds a part in memory, come to a store over all parts?

Ranks tell each other what they hold, agree on one dataset, build and serve their parts, and tell each other where. From
there on it is a routed store like any other. Leaving is the same in reverse: nobody stops to serve while others sample.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from hopstream.dataset.in_memory import OwnPart, build_part, facts_of
from hopstream.dataset.part_facts import PartFacts, agree
from hopstream.errors import HopstreamError, StoreError, StoreTimeout, StoreUnavailable, VersionMismatch
from hopstream.store.contract import Store
from hopstream.store.local import LocalStore
from hopstream.store.remote import RemoteStore, parts_label
from hopstream.store.rendezvous import Group
from hopstream.store.routed import RoutedStore
from hopstream.store.security import ServerSecurity
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings

LOG = logging.getLogger(__name__)
MAX_CONNECTING = 16
GRACE_S = 5.0
LINGER_S = 5.0
"""How long a rank that found a mismatch stays, so that all hear of it from the same facts."""


class SharedParts:
    """A store over the parts of all ranks, and the server of this rank's part, until it is closed."""

    def __init__(
        self,
        own: OwnPart,
        group: Group | None,
        *,
        security: ServerSecurity | None = None,
        settings: StoreSettings | None = None,
    ) -> None:
        """Agree with the other ranks, serve the own part, and connect to the others'.

        Args:
            own: What this rank holds.
            group: The ranks; it is left, or closed, with this object. None where there is one rank.
            security: What this rank's server shows and asks for.
            settings: Deadline of requests, and what this rank shows to other ranks' servers.

        Raises:
            VersionMismatch: Ranks hold parts of different graphs or cuts, or a part is held by no rank; all raise.
            SchemaError: What this rank holds contradicts itself.
            IdRangeError: A key or a part number is out of range.
            StoreTimeout: Some ranks did not come in time.
            StoreUnavailable: Rank 0 cannot be reached, or a rank gave up.
        """
        self._group = group
        self._server: StoreServer | None = None
        self._local: LocalStore | None = None
        self._others: list[RemoteStore] = []
        self._locations: list[str] = []
        self._holders: list[int] = []
        self._is_closed = False
        try:
            self.store = self._open(own, security, settings or StoreSettings())
        except BaseException as error:
            self._give_up(error)
            raise

    def _open(self, own: OwnPart, security: ServerSecurity | None, settings: StoreSettings) -> Store:
        facts = facts_of(own)
        group = self._group
        told = [facts] if group is None else _exchange(group, facts)
        self._local = LocalStore(build_part(own, agree(told)), [own.part])
        if group is None:
            return self._local
        self._server = StoreServer(self._local, group.own_location, security=security)
        self._locations = [str(where) for where in group.gather(self._server.location, "for the servers of all ranks")]
        wanted = [where for where, one in zip(self._locations, told, strict=True) if one.part != own.part]
        if not wanted:
            return self._local
        self._connect(wanted, settings)
        self._holders = [one.part for one in told]
        return RoutedStore([self._local, *self._others], settings, self._explain)

    def _connect(self, locations: Sequence[str], settings: StoreSettings) -> None:
        """Connect to the servers of other ranks; those that were reached are kept to be closed where one was not."""
        with ThreadPoolExecutor(min(len(locations), MAX_CONNECTING)) as pool:
            futures = [pool.submit(RemoteStore, where, settings) for where in locations]
        self._others = [future.result() for future in futures if future.exception() is None]
        for future in futures:
            future.result()

    def _explain(self, error: HopstreamError, parts: Sequence[int]) -> HopstreamError:
        """Why parts of others cannot be had: which rank gave up, with its words, or which ranks are gone."""
        if self._group is None or self._is_closed or isinstance(error, StoreTimeout):  # who gives up ends its server
            return error
        why = self._group.failure()
        if not why:
            ranks = ", ".join(str(rank) for rank, part in enumerate(self._holders) if part in parts)
            why = (
                f"rank {ranks}, which held {parts_label(parts)}, is gone, or cannot be reached any more; see how it "
                "ended, and start all ranks again"
            )
        told = StoreUnavailable(f"rank {self._group.membership.rank} cannot go on: {why}")
        told.__cause__ = error
        return told

    def close(self, *, waits: bool = True, timeout_s: float | None = None) -> None:
        """Leave the group and stop to serve; a second call does nothing.

        Args:
            waits: Serve until all ranks leave; False where this rank failed, so that the others hear of it at once.
            timeout_s: How long to wait for the others; the group's time if it is not given.

        Raises:
            StoreTimeout: Some ranks are there and did not leave in time. This one has left all the same.
            StoreUnavailable: A rank gave up while this one waited. This one has left all the same.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._group is not None and waits:
                gone = self._group.leave(self._locations, timeout_s)
                if gone:
                    LOG.warning("rank %s ended without leaving", ", ".join(map(str, gone)))
        finally:
            self._release()  # who misses this rank asks the group why
            if self._group is not None:
                self._group.close()

    def _give_up(self, error: BaseException) -> None:
        """Leave after an error. All ranks come to a mismatch by themselves; of other errors those who wait are told."""
        if self._group is None:
            self._release()
            return
        if isinstance(error, VersionMismatch):
            with suppress(StoreError):
                self._group.leave([], LINGER_S)
        else:
            self._group.fail(f"{type(error).__name__}: {error}")
        self._release()
        self._group.close()

    def _release(self) -> None:
        for store in self._others:
            store.close()
        if self._server is not None and not self._server.close(GRACE_S):
            LOG.warning("requests to this rank were still under way %g s after it left", GRACE_S)
        if self._local is not None:
            self._local.close()


def _exchange(group: Group, facts: PartFacts) -> list[PartFacts]:
    try:
        return [PartFacts.from_json(one) for one in group.gather(facts.to_json(), "for the parts of all ranks")]
    except StoreTimeout as error:
        error.add_note(
            "a rank takes part when it makes its loader or sampler: all ranks make the same ones, in one order"
        )
        raise
