"""Checks that text from clients does no harm in logs."""

from __future__ import annotations

import json
import logging

import pytest

from hopstream.cli.server_flags import LogSettings, logs_on_stderr

LOG = logging.getLogger("hopstream.tests")
BAD = "rank 0\x1b[2J\nERROR: forged"


def logged(settings: LogSettings, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Log lines of a warning with a client's text, and then of an exception with it."""
    with logs_on_stderr(settings):
        LOG.warning("channel of %s was left", BAD)
        try:
            raise ValueError(BAD)
        except ValueError:
            LOG.exception("a request failed")
    return capsys.readouterr().err.splitlines()


def test_client_text_is_shown_without_control_characters(capsys: pytest.CaptureFixture[str]):
    lines = logged(LogSettings(), capsys)
    assert lines[:2] == ["WARNING: channel of rank 0?[2J", "  ERROR: forged was left"]
    assert lines[2] == "ERROR: a request failed" and lines[3] == "  Traceback (most recent call last):"
    assert [line for line in lines if not line.startswith("  ")] == [lines[0], lines[2]]
    assert "\x1b" not in "".join(lines)


def test_json_logs_escape_client_text(capsys: pytest.CaptureFixture[str]):
    first, second = logged(LogSettings(log_json=True), capsys)
    assert "\x1b" not in first + second
    assert json.loads(first)["message"] == f"channel of {BAD} was left"
    assert BAD in json.loads(second)["exception"]
