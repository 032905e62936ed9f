"""Settings of stores and of store servers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from hopstream.checks import Settings, check_choice, check_int, check_seconds
from hopstream.dataset.spot_check import Verify
from hopstream.engine.settings import read_bytes
from hopstream.errors import SettingsError
from hopstream.transport.limits import TransportLimits
from hopstream.transport.security import ClientSecurity


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings(Settings):
    """Settings of opening a store and of requests to servers; the constructor checks every field.

    Raises:
        SettingsError: A field is out of range.
    """

    timeout_s: float = field(
        default=30.0, metadata={"help": "seconds within which a request is answered, failing over to replicas included"}
    )
    prefer_local: bool = field(
        default=True, metadata={"help": "map parts whose folder is on this machine instead of asking their server"}
    )
    first_replica: int = field(
        default=0,
        metadata={"help": "which replica of a part is asked first (modulo their number); give each trainer its rank"},
    )
    verify: Verify = field(
        default="none",
        metadata={"help": "how much of the files mapped on this machine is checked: none, sample or full"},
    )
    cache_bytes: int | str | None = field(
        default=None,
        metadata={
            "help": "memory for rows of other servers that are kept for later batches, shared by all stores of a "
            "dataset in a process; 0 keeps none; default: an eighth of the free memory"
        },
    )
    security: ClientSecurity = field(
        default=ClientSecurity(), metadata={"help": "token, certificates and roots; see ClientSecurity"}
    )

    def __post_init__(self) -> None:
        """Check every field."""
        check_seconds("timeout_s", self.timeout_s)
        check_int("first_replica", self.first_replica, 0, 1 << 31)
        if self.cache_bytes is not None:
            self._keep("cache_bytes", read_bytes("cache_bytes", self.cache_bytes))
        check_choice("verify", self.verify, get_args(Verify))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits(TransportLimits):
    """Limits of a server on its clients' requests; the constructor checks every field.

    Raises:
        SettingsError: A field is out of range.
    """

    max_ids: int = field(
        default=1 << 20, metadata={"help": "most ids in one request; clients cut larger requests by themselves"}
    )
    max_reply_bytes: int = field(default=16 << 30, metadata={"help": "most bytes in the answer to one request"})
    max_row_bytes: int = field(
        default=32 << 20,
        metadata={
            "help": "most bytes in one row of an answer, which is kept whole in memory; not for all edges of a node"
        },
    )
    frame_bytes: int = field(
        default=1 << 20,
        metadata={
            "help": "about how many bytes are gathered, then sent, at a time; of features four times as many, if less "
            "than an eighth of max_bytes is taken"
        },
    )

    def __post_init__(self) -> None:
        """Check every field."""
        TransportLimits.__post_init__(self)
        check_int("max_ids", self.max_ids, 1, 1 << 32)
        check_int("max_reply_bytes", self.max_reply_bytes, 1, 1 << 62)
        check_int("max_row_bytes", self.max_row_bytes, 1, 1 << 30)
        check_int("frame_bytes", self.frame_bytes, 1, 1 << 26)


def check_store_settings(settings: object) -> StoreSettings:
    """Return the settings, or defaults for None.

    Raises:
        SettingsError: ``settings`` is of another type, such as a dict.
    """
    if settings is None:
        return StoreSettings()
    if not isinstance(settings, StoreSettings):
        shown = ", ".join(f"{name}=…" for name in settings) if isinstance(settings, dict) else "…"
        raise SettingsError(
            f"settings is a {type(settings).__name__}; it must be a StoreSettings: hopstream.StoreSettings({shown})"
        )
    return settings
