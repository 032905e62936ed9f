"""Checks that local and remote stores draw in every way, and answer for pairs and links."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from hopstream.store.contract import Store
from hopstream.store.settings import ServerLimits
from tests.store.cases import Case
from tests.store.test_remote import serve
from tests.store.test_routed import route
from tests.store.ways_contract import LIMITS, WaysContract


class TestLocalStoreInEveryWay(WaysContract):
    limits = LIMITS

    @pytest.fixture(params=[1, 3], ids=lambda num_parts: f"timed-{num_parts}")
    def case(self, request: pytest.FixtureRequest, find_case: Callable[[str, int], Case]) -> Case:
        return find_case("timed", request.param)

    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        return case.local()


class TestRemoteStoreInEveryWay(WaysContract):
    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        return serve(case)


class TestRemoteStoreInManyPiecesInEveryWay(WaysContract):
    """Frames of a few rows or of a run of one row, and calls of a few ids."""

    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        return serve(case, ServerLimits(frame_bytes=3000, max_ids=40))


class TestRoutedStoreInEveryWay(WaysContract):
    """The even parts here, the odd ones on one server, in small pieces."""

    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        odd = list(range(1, case.num_parts, 2))
        limits = ServerLimits(frame_bytes=3000, max_ids=50)
        return route(case, here=[list(range(0, case.num_parts, 2))], there=[odd] if odd else [], limits=limits)


class TestRoutedStoreOfServersInEveryWay(WaysContract):
    """A server for each part."""

    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        return route(case, here=[], there=[[part] for part in range(case.num_parts)])
