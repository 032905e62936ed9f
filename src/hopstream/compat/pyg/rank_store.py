"""Store over the parts of all ranks: serves this rank's part and connects to the other servers.

Ranks compare their parts. Each writes its part to a temporary folder as an ordinary part of one dataset, and serves it
like any part. It removes the folder as soon as its files are mapped, so that a killed rank leaves none. No rank stops
its server while others sample.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hopstream.compat.pyg.own_part import OwnPart
from hopstream.compat.pyg.part_writing import PartFacts, PartWriter, agree, records_of
from hopstream.compat.pyg.rpc import RpcMember
from hopstream.dataset.layout import open_dataset
from hopstream.errors import HopstreamError, StoreTimeout, StoreUnavailable, VersionMismatch
from hopstream.store.cluster import Cluster, ServerEntry, open_cluster
from hopstream.store.contract import Store
from hopstream.store.local import LocalStore
from hopstream.store.remote import parts_label
from hopstream.store.server import StoreServer
from hopstream.store.settings import StoreSettings
from hopstream.transport.location import Location

LOG = logging.getLogger(__name__)
GRACE_S = 5.0
_ORDER = "a rank takes part when it makes its loader or sampler: all ranks make the same ones, in one order"


class RankStore:
    """Store over the parts of all ranks, and server of this rank's part."""

    def __init__(self, own: OwnPart, member: RpcMember) -> None:
        """Compare parts with the other ranks, serve this rank's part, and connect to the others'.

        Args:
            own: The part of this rank.
            member: The rank's membership; this object leaves or closes its group.

        Raises:
            VersionMismatch: Ranks hold parts of different graphs or cuts, or no rank holds a part; all ranks raise it.
            SchemaError: This rank's part contradicts itself.
            StoreTimeout: Some ranks did not come in time.
            StoreUnavailable: Rank 0 or a server cannot be reached, or a rank gave up.
        """
        self._group = member.group
        self._server: StoreServer | None = None
        self._served: LocalStore | None = None
        self._store: Store | None = None
        self._locations: list[str] = []
        self._holders: list[int] = []
        self._is_closed = False
        try:
            with tempfile.TemporaryDirectory(prefix="hopstream-rank-", ignore_cleanup_errors=True) as folder:
                self._store = self._open(own, Path(folder), member)
        except BaseException as error:
            member.tell(error)
            self._release()
            if self._group is not None:
                self._group.close()
            raise

    @property
    def store(self) -> Store:
        """Store over all parts."""
        if self._store is None:
            raise StoreUnavailable("the store of all ranks was not opened")
        return self._store

    def _open(self, own: OwnPart, root: Path, member: RpcMember) -> Store:
        told = [PartFacts.from_json(one) for one in self._gather(PartFacts.of(own).to_json(), "for the parts of all")]
        self._holders = [one.part for one in told]
        writer = PartWriter(own, agree(told), root)
        written = {name: record.content_to_json() for name, record in writer.write().items()}
        files = self._gather(written, "for the files of all")
        for rank, part in enumerate(self._holders):
            first = self._holders.index(part)
            if files[first] != files[rank]:
                raise VersionMismatch(f"ranks {first} and {rank} both hold part {part}, and the two differ")
        writer.write_manifest(records_of(files))
        self._served = LocalStore(open_dataset(root), [own.part])
        if self._group is None:
            return self._served
        self._server = StoreServer(self._served, str(member.location), security=member.security)
        self._locations = self._gather(self._server.location, "for the servers of all")
        check_reach(self._locations)
        entries = [
            ServerEntry(location=where, parts=(part,), path=root if where == self._server.location else None)
            for where, part in zip(self._locations, self._holders, strict=True)
        ]
        mine = entries[self._group.membership.rank]
        cluster = Cluster(dataset_id=self._served.dataset_id, servers=tuple(entries))
        try:
            return open_cluster(cluster, member.settings or StoreSettings(), own=mine, explain=self._explain)
        except StoreUnavailable as error:  # the server may belong to a rank that has given up
            if why := self._group.failure():
                raise StoreUnavailable(f"rank {self._group.membership.rank} cannot continue: {why}") from error
            raise

    def _gather(self, value: Any, what: str) -> list[Any]:
        if self._group is None:
            return [value]
        try:
            return self._group.gather(value, f"{what} ranks")
        except StoreTimeout as error:
            error.add_note(_ORDER)
            raise

    def _explain(self, error: HopstreamError, parts: Sequence[int]) -> HopstreamError:
        """Explain why other ranks' parts are unavailable: a rank gave up, with its reason, or ranks are gone."""
        if self._group is None or self._is_closed or isinstance(error, StoreTimeout):  # a failed rank has no server
            return error
        why = self._group.failure()
        if not why:
            ranks = ", ".join(str(rank) for rank, part in enumerate(self._holders) if part in parts)
            why = (
                f"rank {ranks}, which held {parts_label(parts)}, is gone, or cannot be reached any more; see how it "
                "ended, and start all ranks again"
            )
        told = StoreUnavailable(f"rank {self._group.membership.rank} cannot continue: {why}")
        told.__cause__ = error
        return told

    def close(self, *, waits: bool = True) -> None:
        """Leave the group and stop the server; a second call does nothing.

        Args:
            waits: Serve until all ranks leave. False after a failure of this rank reports it to the others at once.

        Raises:
            StoreTimeout: Some live ranks did not leave in time. This rank has left.
            StoreUnavailable: A rank gave up while this one waited. This rank has left.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._group is not None and waits:
                gone = self._group.leave(self._locations)
                if gone:
                    LOG.warning("rank %s ended without leaving", ", ".join(map(str, gone)))
        finally:
            self._release()  # ranks that lose this server ask the group for the reason
            if self._group is not None:
                self._group.close()

    def _release(self) -> None:
        if self._store is not None:
            self._store.close()
        if self._server is not None and not self._server.close(GRACE_S):
            LOG.warning("requests to this rank were still under way %g s after it left", GRACE_S)
        if self._served is not None:
            self._served.close()


def check_reach(locations: Sequence[str]) -> None:
    """Refuse ranks that serve at a loopback address while others do not; all ranks raise the same error.

    This happens if the machine of rank 0 resolves its own name to a loopback address, as on Debian.
    """
    lonely = [rank for rank, where in enumerate(locations) if Location.parse(where).is_loopback]
    if lonely and len(lonely) < len(locations):
        raise StoreUnavailable(
            f"rank {lonely[0]} serves at {locations[lonely[0]]}, a loopback address, which other machines do not "
            "reach (see its /etc/hosts): give all ranks the IP address of the machine of rank 0 as master_addr"
        )
