"""Does a store over many stores honour the contract, and does a replica step in where one is gone?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from hopstream.store.contract import Store
from hopstream.store.remote import RemoteStore
from hopstream.store.routed import RoutedStore
from hopstream.store.server import StoreServer
from hopstream.store.settings import ServerLimits
from tests.store.cases import Case
from tests.store.contract import StoreContract


@contextmanager
def route(
    case: Case, here: Sequence[Sequence[int]], there: Sequence[Sequence[int]], limits: ServerLimits | None = None
) -> Iterator[RoutedStore]:
    """A routed store over local stores of some parts and servers of some parts."""
    with ExitStack() as stack:
        stores: list[Store] = [case.local(parts) for parts in here]
        for parts in there:
            server = stack.enter_context(StoreServer(case.shared(parts), limits=limits))
            stores.append(RemoteStore(server.location))
        yield stack.enter_context(RoutedStore(stores))


class TestRoutedStoreOfLocalStores(StoreContract):
    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        return route(case, here=[[part] for part in range(case.num_parts)], there=[])


class TestRoutedStoreOfServers(StoreContract):
    """One server per part, and a server of all parts as second replica."""

    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        return route(case, here=[], there=[*([part] for part in range(case.num_parts)), range(case.num_parts)])


class TestRoutedStoreOfBoth(StoreContract):
    """The even parts here, the odd ones on one server, in small pieces."""

    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        odd = list(range(1, case.num_parts, 2))
        limits = ServerLimits(frame_bytes=300, max_ids=50)
        return route(case, here=[list(range(0, case.num_parts, 2))], there=[odd] if odd else [], limits=limits)
