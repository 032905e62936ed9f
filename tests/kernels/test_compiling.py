"""Is compiling told where it happens, and only there?"""

from __future__ import annotations

import numba
import pytest

from hopstream.kernels.compiling import compiling_told


def test_compiling_is_told_once_and_only_where_it_happens(caplog: pytest.LogCaptureFixture):
    @numba.njit
    def twice(number):
        return number + number

    twice(1)
    with compiling_told():
        twice(2)
        assert caplog.messages == []
        twice(2.0)
        twice(2j)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(
        "compiling kernels: first start on this machine; takes a minute or two, cached"
    )
    twice(True)  # nobody listens any more
    assert len(caplog.messages) == 1
