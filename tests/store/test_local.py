"""Checks that a store of mapped files fulfils the contract."""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np
import pytest

from hopstream.errors import FormatError, IdRangeError, UnknownNameError
from hopstream.store.contract import KEY, FetchRequest, Store
from tests.store.cases import Case, keys_of
from tests.store.contract import EveryCaseContract


class TestLocalStore(EveryCaseContract):
    def open_store(self, case: Case) -> AbstractContextManager[Store]:
        return case.local()


def test_ids_of_other_parts_are_refused(typed_case: Case) -> None:
    first_of_part_1 = int(typed_case.dataset.manifest.book.offsets("paper")[1])
    with typed_case.local([0, 2]) as store:
        assert store.parts == (0, 2)
        with pytest.raises(IdRangeError, match="part 1"):
            store.fetch([FetchRequest(entity="paper", names=(KEY,), ids=np.array([0, first_of_part_1]))])


def test_find_own_ignores_keys_of_other_parts(typed_case: Case) -> None:
    first_of_part_1 = int(typed_case.dataset.manifest.book.offsets("paper")[1])
    keys = np.array(keys_of(typed_case.shared(), "paper", np.array([first_of_part_1, 0])))
    with typed_case.local([0, 2]) as store:
        assert store.find_own("paper", keys).tolist() == [-1, 0]


@pytest.mark.parametrize("parts", [[3], [-1], []])
def test_unknown_parts_are_refused(typed_case: Case, parts: list[int]) -> None:
    with pytest.raises(UnknownNameError):
        typed_case.local(parts)


def test_message_errors_are_not_reported_as_damage(typed_case: Case) -> None:
    error = FormatError("header field 'worker_key' is ''; it must be printable characters")
    with typed_case.local() as store:
        assert store.explain_damage(error) is error
        explained = store.explain_damage(IdRangeError("id 9 is outside 0..8"))
    assert str(explained).startswith("id 9 is outside 0..8; the dataset is damaged: run hopstream verify ")
