"""Which rows of which server are the input of which compute rank; the rule that servers themselves use."""

from __future__ import annotations

from hopstream.stream.sharding import ServerSlice as ServerSlice
from hopstream.stream.sharding import compute_server_assignments as compute_server_assignments
