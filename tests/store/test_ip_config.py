"""Checks that DGL's file of machines is read as DGL reads it, and each machine gets its parts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from hopstream.dataset.paths import Root
from hopstream.errors import FormatError, SettingsError
from hopstream.store.ip_config import DEFAULT_PORT, MachineLine, cluster_of_machines, read_ip_config


def manifest_of(num_parts: int):
    return SimpleNamespace(book=SimpleNamespace(num_parts=num_parts), dataset_id="d")


def test_a_file_of_machines(tmp_path: Path):
    path = tmp_path / "ip_config.txt"
    path.write_text(
        "# the cluster\n10.0.0.1\n\n10.0.0.2 7001  # a port\n  store-3.local 7001 2\n::1 7001\n[fe80::2] 7001\n"
    )
    assert read_ip_config(path) == (
        MachineLine("10.0.0.1", DEFAULT_PORT, 1),
        MachineLine("10.0.0.2", 7001, 1),
        MachineLine("store-3.local", 7001, 2),
        MachineLine("::1", 7001, 1),
        MachineLine("fe80::2", 7001, 1),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no machine"),
        ("10.0.0.1 7001 1 1\n", r"hosts:1 has 4 words; a line is"),
        ("\nuser@host\n", r"hosts:2 has the address 'user@host'"),
        ("tcp://10.0.0.1\n", r"hosts:1 has the address"),
        ("10.0.0.1:7001\n", r"hosts:1 has the address"),
        ("10.0.0.1 port\n", r"hosts:1 has the port 'port'"),
        ("10.0.0.1 0\n", r"hosts:1 has the port '0'; it must be a number from 1 to 65535"),
        ("10.0.0.1 65536\n", "has the port '65536'"),
        ("10.0.0.1 7001 0\n", "has the number of servers '0'"),
        ("10.0.0.1 65535 2\n", "ports up to 65536"),
        (
            "10.0.0.1 7001 2\n10.0.0.2 7001\n10.0.0.1 7002\n",
            r"hosts:3 repeats the server at 10\.0\.0\.1 port 7002 of line 1",
        ),
        (b"\xff\xff", "cannot be read"),
    ],
)
def test_invalid_machines_are_refused(tmp_path: Path, text: str | bytes, message: str):
    path = tmp_path / "hosts"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FormatError, match=message):
        read_ip_config(path)


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(FormatError, match="is missing; write a line"):
        read_ip_config(tmp_path / "none")


def test_one_root_per_machine():
    roots = [Root("/nfs/m0", (0, 3)), Root("s3://bucket/m1", (1, 2))]
    cluster = cluster_of_machines([MachineLine("a", 7001, 2), MachineLine("::1", 7001)], roots, manifest_of(4))
    assert [(e.location, e.parts, e.path) for e in cluster.servers] == [
        ("tcp://a:7001", (0, 3), Path("/nfs/m0")),
        ("tcp://a:7002", (0, 3), Path("/nfs/m0")),
        ("tcp://[::1]:7001", (1, 2), None),
    ]


@pytest.mark.parametrize(
    ("num_parts", "num_machines", "parts"),
    [
        (4, 4, [(0,), (1,), (2,), (3,)]),
        (5, 2, [(0, 2, 4), (1, 3)]),
        (3, 1, [(0, 1, 2)]),
        (9, 3, [(0, 3, 6), (1, 4, 7), (2, 5, 8)]),
    ],
)
def test_one_root_shared_by_all_machines(num_parts: int, num_machines: int, parts: list[tuple[int, ...]]):
    machines = [MachineLine(f"host{k}", 7001) for k in range(num_machines)]
    root = Root("/nfs/mag", tuple(range(num_parts)))
    cluster = cluster_of_machines(machines, [root], manifest_of(num_parts), has_tls=True)
    assert [entry.parts for entry in cluster.servers] == parts
    assert cluster.servers[0].location == "tls://host0:7001"


def test_other_numbers_are_refused():
    machines = [MachineLine(f"host{k}") for k in range(3)]
    with pytest.raises(SettingsError, match="there are 2 roots for 3 machines"):
        cluster_of_machines(machines, [Root("/a", (0,)), Root("/b", (1,))], manifest_of(2))
    with pytest.raises(SettingsError, match="host2 port 30050 would get no part: 2 parts for 3 machines"):
        cluster_of_machines(machines, [Root("/a", (0, 1))], manifest_of(2))
