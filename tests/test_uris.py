"""Checks that places are named without their passwords in messages and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopstream.uris import is_uri, scrubbed, shown_uri, stored_uri


@pytest.mark.parametrize(
    ("uri", "shown", "stored"),
    [
        ("s3://bucket/mag", "s3://bucket/mag", "s3://bucket/mag"),
        ("s3://AKIA:hidden@bucket/mag/", "s3://bucket/mag", "s3://bucket/mag/"),
        ("s3://AKIA:hid/den@bucket/mag", "s3://bucket/mag", "s3://bucket/mag"),
        ("s3://AKIA:hid@den@bucket/mag", "s3://bucket/mag", "s3://bucket/mag"),
        ("s3://AKIA:hid/den", "s3://...", "s3://..."),
        ("s3://bucket/a@b", "s3://bucket/a@b", "s3://bucket/a@b"),
        ("hdfs://name:8020/mag@1", "hdfs://name:8020/mag@1", "hdfs://name:8020/mag@1"),
        ("s3://bucket/mag?region=eu&secret_key=hidden", "s3://bucket/mag", "s3://bucket/mag?region=eu"),
        ("abfs://box:hidden@account.dfs/mag?account_key=hidden", "abfs://box@account.dfs/mag", None),
        ("hdfs://me@name:8020/mag", "hdfs://me@name:8020/mag", None),
        ("gs://bucket/x?access_token=hidden", "gs://bucket/x", "gs://bucket/x"),
    ],
)
def test_secrets_are_left_out(uri: str, shown: str, stored: str | None):
    assert is_uri(uri)
    assert shown_uri(uri) == shown
    assert stored_uri(uri) == (stored or shown)


def test_a_folder_is_stored_as_an_absolute_path(monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    assert not is_uri("parts/mag")
    assert (shown_uri("parts/mag"), stored_uri("parts/mag")) == ("parts/mag", str(tmp_path / "parts/mag"))


@pytest.mark.parametrize("uri", ["s3://AKIA:hidden@bucket/mag?x=1", "s3://AKIA:hid/den@bucket/mag"])
def test_messages_are_scrubbed(uri: str):
    for message in (f"cannot parse '{uri}' (position 3)", f"no route to {uri.partition('?')[0]}"):
        assert "hid" not in scrubbed(message, uri)
        assert "AKIA" not in scrubbed(message, uri)
    assert scrubbed("s3://who:what@else/x is gone", uri) == "s3://else/x is gone"
