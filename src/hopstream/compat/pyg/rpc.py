"""Begins and ends a rank's place among all ranks, under the names of PyG's set-up of torch RPC.

Nothing here is torch RPC: ``init_rpc`` is a meeting of all ranks at ``master_addr:master_port``. Loaders call it by
themselves; the names are for scripts that override ``DistLoader.worker_init_fn``.
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
    """What a process does; there is one role."""

    WORKER = 1


@dataclass
class DistContext:
    """One process among those that load together.

    Attributes:
        rank: This process, in ``[0, world_size)``.
        global_rank: The same over all groups; not looked at.
        world_size: How many processes load together.
        global_world_size: The same over all groups; not looked at.
        group_name: Name of the group; the same in all of its processes.
        role: There is one role.
    """

    rank: int
    global_rank: int
    world_size: int
    global_world_size: int
    group_name: str
    role: DistRole = DistRole.WORKER

    @property
    def worker_name(self) -> str:
        """The process as messages name it."""
        return f"{self.group_name}-{self.rank}"


def check_context(context: object) -> DistContext:
    """The context of this process, ours or PyG's, after checking its numbers.

    Raises:
        SettingsError: It is something else, or its rank is not below its world size.
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
    """One rank's place in one meeting.

    Attributes:
        name: The process as its context names it.
        group: The meeting; None where there is one rank.
        location: Where this rank's servers listen, with a port that the system chooses.
        security: What this rank's servers show and ask for.
        settings: Deadline of requests, and what this rank shows to others.
        before: The exception that was being handled when the rank came, which says nothing of how it leaves.
        closers: What to end with it; each is told whether to wait for the others.
    """

    name: str
    group: Group | None
    location: Location
    security: ServerSecurity | None
    settings: StoreSettings | None
    before: BaseException | None
    closers: list[Callable[[bool], None]] = field(default_factory=list)

    def will_wait(self, waits: bool | None) -> bool:
        """Whether to wait for the others when leaving; where not because of an error, they hear of it at once.

        Args:
            waits: What the caller wants; None: to wait, unless an exception is being handled.
        """
        error = sys.exc_info()[1]
        error = None if error is self.before else _cause_of(error)
        if waits is None:
            waits = error is None
        if error is not None and not waits:
            self.tell(error)
        return waits

    def tell(self, error: BaseException) -> None:
        """Tell the others, who may be waiting, of an error here."""
        if self.group is not None:
            self.group.fail(f"{type(error).__name__}: {error}")

    def close(self, waits: bool | None = None) -> None:
        """Leave; see ``will_wait``."""
        self.end(self.will_wait(waits))

    def end(self, waits: bool) -> None:
        """End what was begun, in reverse, and leave."""
        _forget(self)
        with ExitStack() as stack:  # in reverse, and all of them also where one fails
            if self.group is not None:
                stack.callback(self.group.close)
            while self.closers:
                stack.callback(self.closers.pop(0), waits)


def _cause_of(error: BaseException | None) -> BaseException | None:
    """The error that ends a block or a process by an exception; None where it ends well.

    Processes of multiprocessing that fail end by ``sys.exit(1)`` in the handler of their error.
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
    """Meet the other ranks; returns when all are there.

    Args:
        current_ctx: This process.
        master_addr: A host name or IP address of the machine of rank 0.
        master_port: A free port there. Several loaders may share one.
        num_rpc_threads: Without effect: the transport has threads of its own.
        rpc_timeout: Seconds to wait for the other ranks.
        rpc_worker_names: Without effect.
        security: TLS and token of what this rank serves; needed where ``master_addr`` is not loopback.
        store_settings: Deadline of requests, token and roots of what this rank asks.

    Returns:
        The rank's place, which ``register_sampler_rpc``, ``global_barrier`` and ``shutdown_rpc`` find by themselves.

    Raises:
        SettingsError: Wrong rank, world size, address or port.
        StoreTimeout: Some ranks did not come in time.
        StoreUnavailable: Rank 0 cannot be reached, or cannot listen.
        AccessDenied: Others could reach this rank, and TLS or a token is missing.
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
            Finalize(None, _close_all, exitpriority=100)  # in processes that multiprocessing started
        _MEMBERS.append(member)
    _CURRENT.member = member
    leave_at_exit()
    return member


def leave_at_exit() -> None:
    """See that the process leaves before it ends, also where it was said before.

    The transport ends its servers at exit too, and what was said last is done first: to be called when a server began.
    """
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def current_member() -> RpcMember:
    """The place that this thread's last ``init_rpc`` gave.

    Raises:
        StateError: There is none.
    """
    member = member_of_thread()
    if member is None:
        raise StateError("init_rpc was not called in this thread, or was shut down; call init_rpc first")
    return member


def member_of_thread() -> RpcMember | None:
    """The place that this thread's last ``init_rpc`` gave, or None."""
    return getattr(_CURRENT, "member", None)


def global_barrier(timeout: float | None = None) -> None:
    """Wait until all ranks are here.

    Args:
        timeout: Seconds to wait; None means ``rpc_timeout`` of ``init_rpc``.

    Raises:
        StateError: ``init_rpc`` was not called.
        StoreTimeout: Some ranks did not come in time.
        StoreUnavailable: Rank 0 has gone, or a rank gave up.
    """
    group = current_member().group
    if group is not None:
        group.gather(None, "at the barrier", timeout)


def shutdown_rpc(id: str | None = None, graceful: bool = True, timeout: float = 240.0) -> None:
    """Stop to serve this rank's parts, and leave.

    Args:
        id: The name of the worker that leaves; None for all of this process.
        graceful: Wait until all ranks leave, so that nobody misses this rank's part. Where an exception is being
            handled, nobody is waited for, and the others are told of it.
        timeout: Without effect: ``rpc_timeout`` of ``init_rpc`` says how long to wait.

    Raises:
        StoreTimeout: Some ranks did not leave in time; this one has left all the same.
    """
    with _LOCK:
        leaving = [member for member in _MEMBERS if id is None or member.name == id]
    _leave(leaving, lambda member: member.close(None if graceful else False))


def _leave(members: Sequence[RpcMember], leave: Callable[[RpcMember], None]) -> None:
    """Let members leave, the last first, also where one fails."""
    with ExitStack() as stack:
        for member in members:
            stack.callback(leave, member)


def _own_location(membership: Membership, security: ServerSecurity) -> Location:
    """Where this rank's servers listen, after checking that they may."""
    master = Location(resolved(membership.master_addr), membership.master_port, security.certificate is not None)
    if not security.is_insecure:  # a server of an insecure rank writes a warning of its own
        security.check_bind(master)
    try:
        return master.towards()
    except OSError as error:
        raise StoreUnavailable(f"no network leads to rank 0 at {master.host}: {error}") from error


def _read_port(port: object) -> int:
    if isinstance(port, str) and port.isdecimal():  # as environments hold it
        return int(port)
    return read_integer("master_port", port)


def _forget(member: RpcMember) -> None:
    with _LOCK:
        if member in _MEMBERS:
            _MEMBERS.remove(member)
    if getattr(_CURRENT, "member", None) is member:
        del _CURRENT.member


def _close_all() -> None:
    """Leave when the process ends; one that fails does not wait for the others, but tells them why.

    ``sys.exit`` in a script cannot be told from an end without errors. The others are waited for once, not once per
    member.
    """
    error = _cause_of(sys.exc_info()[1] or getattr(sys, "last_value", None))
    with _LOCK:
        leaving = list(_MEMBERS)
    groups = [member.group for member in leaving if member.group is not None]
    ends = time.monotonic() + max((group.membership.timeout_s for group in groups), default=0.0)
    for group in groups:
        group.leave_by(ends)
    if error is not None:
        for member in leaving:  # before any is left, which may take a while
            member.tell(error)
    try:
        _leave(leaving, lambda member: member.end(waits=error is None))
    except StoreError as failure:
        LOG.warning("left without the others: %s", failure)
