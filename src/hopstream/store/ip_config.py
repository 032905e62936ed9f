"""IP config: reads DGL's files of machines, and assigns parts to their servers.

A line has the form ``ip [port] [num_servers]``. The servers of one machine listen at consecutive ports and serve the
same parts, as replicas.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hopstream.dataset.chunks import read_listing
from hopstream.dataset.manifest import Manifest
from hopstream.dataset.paths import Root
from hopstream.errors import FormatError, SettingsError
from hopstream.store.cluster import Cluster, ServerEntry
from hopstream.transport.location import Location

DEFAULT_PORT = 30050
LINE = "ip [port] [num_servers]"
MAX_SERVERS = 1024
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class MachineLine:
    """Line of an IP configuration file.

    Attributes:
        host: Name or IP address, without brackets.
        port: Port of the first server.
        num_servers: Number of servers, at consecutive ports.
    """

    host: str
    port: int = DEFAULT_PORT
    num_servers: int = 1

    @property
    def ports(self) -> range:
        """Ports of the machine's servers."""
        return range(self.port, self.port + self.num_servers)


def read_ip_config(path: Path) -> tuple[MachineLine, ...]:
    """Read a file of machines; blank lines and comments (from a ``#`` at the start of a word) are ignored.

    Raises:
        FormatError: The file is missing, names no machine, or has a malformed line; the message has the line number.
    """
    machines: list[MachineLine] = []
    first_line: dict[tuple[str, int], str] = {}
    for where, words in read_listing(path, "machine", LINE):
        machine = _machine(where, words)
        for port in machine.ports:
            before = first_line.setdefault((machine.host, port), where)
            if before != where:
                raise FormatError(
                    f"{where} repeats the server at {machine.host} port {port} of line {before.rpartition(':')[2]}; "
                    "use one line per machine and port"
                )
        machines.append(machine)
    return tuple(machines)


def cluster_of_machines(
    machines: Sequence[MachineLine], roots: Sequence[Root], manifest: Manifest, *, has_tls: bool = False
) -> Cluster:
    """Assign the parts of a dataset to servers on machines.

    Args:
        machines: The machines.
        roots: One root per machine, in the machines' order, or one root with all parts that all machines can read.
        manifest: Manifest of the dataset.
        has_tls: Servers have ``tls`` addresses instead of ``tcp`` ones.

    Raises:
        SettingsError: The number of roots is wrong, or a machine would serve no part.
    """
    num_parts, num_machines = manifest.book.num_parts, len(machines)
    if len(roots) == num_machines:
        served = [root.parts for root in roots]
    elif len(roots) == 1:
        roots = [roots[0]] * num_machines
        served = [tuple(range(k, num_parts, num_machines)) for k in range(num_machines)]
    else:
        raise SettingsError(
            f"there are {len(roots)} roots for {num_machines} machines; give one root per machine, or one for all"
        )
    entries = []
    for machine, root, parts in zip(machines, roots, served, strict=True):
        if not parts:
            raise SettingsError(
                f"{machine.host} port {machine.port} would get no part: {num_parts} parts for "
                f"{num_machines} machines; name fewer machines, or cut the graph into more parts"
            )
        path = None if "://" in root.uri else Path(root.uri)
        for port in machine.ports:
            location = str(Location(machine.host, port, has_tls))
            entries.append(ServerEntry(location=location, parts=parts, path=path))
    return Cluster(dataset_id=manifest.dataset_id, servers=tuple(entries))


def _is_host(word: str) -> bool:
    """Return whether a word is a name, an IPv4 address, or an IPv6 address with or without brackets."""
    if ":" not in word:
        return _NAME.fullmatch(word) is not None
    try:
        return ipaddress.IPv6Address(word.strip("[]")) is not None
    except ValueError:
        return False


def _machine(where: str, words: Sequence[str]) -> MachineLine:
    wanted = f"a line is '{LINE}'"
    if not _is_host(words[0]):
        raise FormatError(
            f"{where} has the address {words[0][:80]!r}, which is neither a host name nor an IP address; {wanted}"
        )
    numbers = []
    limits = (("port", 65535), ("number of servers", MAX_SERVERS))
    for word, (what, limit) in zip(words[1:], limits, strict=False):
        if not re.fullmatch(r"\d{1,9}", word, re.ASCII) or not 1 <= int(word) <= limit:
            raise FormatError(f"{where} has the {what} {word[:80]!r}; it must be a number from 1 to {limit}; {wanted}")
        numbers.append(int(word))
    machine = MachineLine(words[0].strip("[]"), *numbers)
    if machine.ports.stop > 65536:
        raise FormatError(f"{where} has servers at ports up to {machine.ports.stop - 1}; the last port is 65535")
    return machine
