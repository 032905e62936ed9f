"""Does a store on a server honour the contract, and are its failures told in time and in words?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from hopstream.store.contract import Store
from hopstream.store.remote import RemoteStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import ServerLimits
from tests.store.cases import Case
from tests.store.contract import StoreContract


@contextmanager
def serve(case: Case, limits: ServerLimits | None = None) -> Iterator[RemoteStore]:
    with StoreServer(case.shared(), limits=limits) as server, RemoteStore(server.location) as store:
        yield store


class TestRemoteStore(StoreContract):
    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        return serve(case)


class TestRemoteStoreInManyPieces(StoreContract):
    """Frames of a few rows, and calls of a few ids."""

    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        return serve(case, ServerLimits(frame_bytes=400, max_ids=29))
