"""Refuse options of GraphBolt's files: they are pickled, and are neither written nor read here."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from hopstream.errors import SettingsError
from hopstream.uris import local_path

OPTIONS = ("use_graphbolt", "store_eids", "store_inner_node", "store_inner_edge")


def refuse_graphbolt(verb: str, **given: object) -> None:
    """Refuse options that are not left at False.

    Args:
        verb: What would be done with the files: ``written`` or ``read``.
        **given: The options by name.

    Raises:
        SettingsError: One of them is given.
    """
    for name, value in given.items():
        if value:
            raise SettingsError(f"{name} is given; GraphBolt's files are not {verb}: leave it out")


def dgl_partition_to_graphbolt(
    part_config: str | Path, *, store_eids: bool = False, store_inner_node: bool = False, store_inner_edge: bool = False
) -> NoReturn:  # fmt: skip
    """Only tells what to use instead.

    Raises:
        SettingsError: Always.
    """
    del store_eids, store_inner_node, store_inner_edge
    raise SettingsError(
        f"dgl_partition_to_graphbolt is called for {local_path(part_config)}; GraphBolt's files are not written: "
        "load_partition reads DGL's own, and read_partitions makes a graph of them, which write_parts writes"
    )
