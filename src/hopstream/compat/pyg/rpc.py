"""Entry and exit of a rank, under the names of PyG's set-up of torch RPC.

``init_rpc`` does not use torch RPC; it is a rendezvous of all ranks at ``master_addr:master_port``. Loaders call it
themselves. Scripts that override ``DistLoader.worker_init_fn`` need the names.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from multiprocessing.util import Finalize

from hopstream.checks import read_integer
from hopstream.compat.pyg.rank_group import Group, Membership, resolved
from hopstream.errors import SettingsError, StateError, StoreError, StoreUnavailable
from hopstream.store.settings import StoreSettings
from hopstream.transport.location import Location
from hopstream.transport.security import ServerSecurity

LOG = logging.getLogger(__name__)


class DistRole(Enum):
    """Role of a process; there is one role."""

    WORKER = 1


@dataclass
class DistContext:
    """Position of this process among the processes that load together.

    Attributes:
        rank: Rank of this process, in ``[0, world_size)``.
        global_rank: Rank over all groups; ignored.
        world_size: Number of processes that load together.
        global_world_size: Number of processes over all groups; ignored.
        group_name: Name of the group; the same in all of its processes.
        role: The only role.
    """

    rank: int
    global_rank: int
    world_size: int
    global_world_size: int
    group_name: str
    role: DistRole = DistRole.WORKER

    @property
    def worker_name(self) -> str:
        """Name of the process in messages."""
        return f"{self.group_name}-{self.rank}"


def check_context(context: object) -> DistContext:
    """Check and return the context of this process, Hopstream's or PyG's.

    Raises:
        SettingsError: ``context`` is no context, or its rank is not below its world size.
    """
    names = ("rank", "world_size", "group_name")
    if not all(hasattr(context, name) for name in names):
        raise SettingsError(
            f"current_ctx is a {type(context).__name__}; give a DistContext(rank, …, world_size, …, group_name)"
        )
    rank, world_size = getattr(context, "rank"), getattr(context, "world_size")  # noqa: B009  PyG's has no types
    if not isinstance(world_size, int) or world_size < 1 or not isinstance(rank, int) or not 0 <= rank < world_size:
        raise SettingsError(f"current_ctx has rank {rank!r} of world_size {world_size!r}; ranks are 0..world_size-1")
    return context  # type: ignore[return-value]


@dataclass(slots=True, eq=False)
class RpcMember:
    """Membership of one rank in one rendezvous.

    Attributes:
        name: Name of the process in its context.
        group: The rendezvous; None with one rank.
        location: Address of this rank's servers; the operating system chooses the port.
        security: Certificate and requirements of this rank's servers.
        settings: Deadline of requests, and this rank's credentials for other servers.
        before: The exception in progress when the rank joined; it does not count as a failure when the rank leaves.
        closers: Functions that close this rank's resources; the argument says whether to wait for the other ranks.
    """

    name: str
    group: Group | None
    location: Location
    security: ServerSecurity | None
    settings: StoreSettings | None
    before: BaseException | None
    closers: list[Callable[[bool], None]] = field(default_factory=list)

    def will_wait(self, waits: bool | None) -> bool:
        """Return whether to wait for the other ranks when leaving; if an error prevents it, report the error.

        Args:
            waits: The caller's choice; None waits unless an exception is in progress.
        """
        error = sys.exc_info()[1]
        error = None if error is self.before else _cause_of(error)
        if waits is None:
            waits = error is None
        if error is not None and not waits:
            self.tell(error)
        return waits

    def tell(self, error: BaseException) -> None:
        """Report an error of this rank to the other ranks, which may be waiting."""
        if self.group is not None:
            self.group.fail(f"{type(error).__name__}: {error}")

    def close(self, waits: bool | None = None) -> None:
        """Leave; see ``will_wait``."""
        self.end(self.will_wait(waits))

    def end(self, waits: bool) -> None:
        """Close all resources in reverse order, and leave."""
        _forget(self)
        with ExitStack() as stack:  # reverse order; calls the rest even if one fails
            if self.group is not None:
                stack.callback(self.group.close)
            while self.closers:
                stack.callback(self.closers.pop(0), waits)


def _cause_of(error: BaseException | None) -> BaseException | None:
    """Return the error that ends a block or a process; None if it ends without an error.

    A failed process of multiprocessing calls ``sys.exit(1)`` in the handler of its error.
    """
    if isinstance(error, SystemExit):
        return None if error.code in (None, 0) else error.__context__ or error
    return None if isinstance(error, GeneratorExit) else error


_MEMBERS: list[RpcMember] = []
_LOCK = threading.Lock()
_CURRENT = threading.local()


def init_rpc(  # noqa: PLR0913  PyG's arguments, in PyG's order
    current_ctx: DistContext,
    master_addr: str,
    master_port: int | str,
    num_rpc_threads: int = 16,
    rpc_timeout: float = 240.0,
    rpc_worker_names: None = None,
    *,
    security: ServerSecurity | None = None,
    store_settings: StoreSettings | None = None,
) -> RpcMember:
    """Meet the other ranks; return when all are present.

    Args:
        current_ctx: The context of this process.
        master_addr: A host name or IP address of the machine of rank 0.
        master_port: A free port there. Several loaders may share one.
        num_rpc_threads: Without effect: the transport has its own threads.
        rpc_timeout: Deadline in seconds for the other ranks.
        rpc_worker_names: Without effect.
        security: TLS and token of this rank's server; required unless ``master_addr`` is loopback.
        store_settings: Deadline, token and roots for this rank's requests.

    Returns:
        The membership; ``register_sampler_rpc``, ``global_barrier`` and ``shutdown_rpc`` find it by themselves.

    Raises:
        SettingsError: The rank, world size, address or port is wrong.
        StoreTimeout: Some ranks did not come in time.
        StoreUnavailable: Rank 0 cannot be reached, or cannot listen.
        AccessDenied: Other machines could reach this rank, and TLS or a token is missing.
    """
    context = check_context(current_ctx)
    port = _read_port(master_port)
    membership = Membership(
        group=str(context.group_name), rank=context.rank, world_size=context.world_size, master_addr=master_addr,
        master_port=port, timeout_s=rpc_timeout,
    )  # fmt: skip
    group, location = None, Location("127.0.0.1", 0)
    if context.world_size > 1:
        location = _own_location(membership, security or ServerSecurity())
        group = Group(membership)
        try:
            group.gather(None, f"for all ranks to meet as {context.group_name!r}")
        except BaseException:
            group.close()
            raise
    before = sys.exc_info()[1]
    member = RpcMember(f"{context.group_name}-{context.rank}", group, location, security, store_settings, before)
    with _LOCK:
        if not _MEMBERS:
            Finalize(None, _close_all, exitpriority=100)  # atexit does not run in processes of multiprocessing
        _MEMBERS.append(member)
    _CURRENT.member = member
    leave_at_exit()
    return member


def leave_at_exit() -> None:
    """Register the exit handler again, so that it runs before handlers registered earlier.

    The transport ends its servers at exit too, and atexit runs the last registered handler first. Call this function
    after a server has started.
    """
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def current_member() -> RpcMember:
    """Return the membership from this thread's last ``init_rpc``.

    Raises:
        StateError: This thread has no membership.
    """
    member = member_of_thread()
    if member is None:
        raise StateError("init_rpc was not called in this thread, or was shut down; call init_rpc first")
    return member


def member_of_thread() -> RpcMember | None:
    """Return the membership from this thread's last ``init_rpc``, or None."""
    return getattr(_CURRENT, "member", None)


def global_barrier(timeout: float | None = None) -> None:
    """Wait until all ranks reach the barrier.

    Args:
        timeout: Deadline in seconds; None means ``rpc_timeout`` of ``init_rpc``.

    Raises:
        StateError: ``init_rpc`` was not called.
        StoreTimeout: Some ranks did not come in time.
        StoreUnavailable: Rank 0 has left, or a rank gave up.
    """
    group = current_member().group
    if group is not None:
        group.gather(None, "at the barrier", timeout)


def shutdown_rpc(id: str | None = None, graceful: bool = True, timeout: float = 240.0) -> None:
    """Stop serving this rank's parts, and leave.

    Args:
        id: The name of the worker that leaves; None for all workers of this process.
        graceful: Wait until all ranks leave, because they may need this rank's part. While an exception is in progress,
            do not wait, but report it to the other ranks.
        timeout: Without effect: ``rpc_timeout`` of ``init_rpc`` is the deadline.

    Raises:
        StoreTimeout: Some ranks did not leave in time. This rank has left.
    """
    with _LOCK:
        leaving = [member for member in _MEMBERS if id is None or member.name == id]
    _leave(leaving, lambda member: member.close(None if graceful else False))


def _leave(members: Sequence[RpcMember], leave: Callable[[RpcMember], None]) -> None:
    """Call ``leave`` for all members, the last first, even if one fails."""
    with ExitStack() as stack:
        for member in members:
            stack.callback(leave, member)


def _own_location(membership: Membership, security: ServerSecurity) -> Location:
    """Return the address for this rank's servers; check that security allows it."""
    master = Location(resolved(membership.master_addr), membership.master_port, security.certificate is not None)
    if not security.is_insecure:  # a server of an insecure rank logs its own warning
        security.check_bind(master)
    try:
        return master.towards()
    except OSError as error:
        raise StoreUnavailable(f"no network leads to rank 0 at {master.host}: {error}") from error


def _read_port(port: object) -> int:
    if isinstance(port, str) and port.isdecimal():  # from an environment variable
        return int(port)
    return read_integer("master_port", port)


def _forget(member: RpcMember) -> None:
    with _LOCK:
        if member in _MEMBERS:
            _MEMBERS.remove(member)
    if getattr(_CURRENT, "member", None) is member:
        del _CURRENT.member


def _close_all() -> None:
    """Leave at the end of the process; a failed process reports its error without waiting.

    ``sys.exit`` in a script looks like an end without errors. All members share one deadline.
    """
    error = _cause_of(sys.exc_info()[1] or getattr(sys, "last_value", None))
    with _LOCK:
        leaving = list(_MEMBERS)
    groups = [member.group for member in leaving if member.group is not None]
    ends = time.monotonic() + max((group.membership.timeout_s for group in groups), default=0.0)
    for group in groups:
        group.leave_by(ends)
    if error is not None:
        for member in leaving:  # before the first one leaves, which may take a while
            member.tell(error)
    try:
        _leave(leaving, lambda member: member.end(waits=error is None))
    except StoreError as failure:
        LOG.warning("left without the others: %s", failure)
