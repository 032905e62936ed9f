"""Shares of the servers' rows that compute ranks take as input, by the same rule as servers."""

from __future__ import annotations

from hopstream.stream.sharding import ServerSlice as ServerSlice
from hopstream.stream.sharding import compute_server_assignments as compute_server_assignments
