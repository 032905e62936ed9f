"""Receiving end of channels on storage servers: prefetches messages from several servers at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

import torch

from hopstream.compat.gigl.distributed.graph_store.compute import session
from hopstream.compat.gigl.distributed.graph_store.shared_dist_sampling_producer import SAMPLING_ERROR, SampleMessage
from hopstream.errors import SettingsError, StoreTimeout

RECV_S = 660.0
"""Deadline in seconds for a message: longer than a server waits for a batch."""


class RemoteReceivingChannel:
    """Messages of one epoch from channels on servers, in order of arrival."""

    def __init__(
        self,
        server_rank: int | Sequence[int],
        channel_id: int | Sequence[int],
        prefetch_size: int = 2,
        active_mask: Sequence[bool] | None = None,
        pin_memory: bool = False,
    ) -> None:
        """Prepare without a request; ``recv`` sends the first.

        Args:
            server_rank: One server, or several.
            channel_id: The channel on each of them.
            prefetch_size: Concurrent fetches per server.
            active_mask: Whether each server has messages; None for all.
            pin_memory: Copy tensors to page-locked memory.

        Raises:
            ValueError: The lists differ in length, or ``pin_memory`` is set without a GPU.
        """
        self._servers = [server_rank] if isinstance(server_rank, int) else list(server_rank)
        self._ids = [channel_id] if isinstance(channel_id, int) else list(channel_id)
        mask = [True] * len(self._servers) if active_mask is None else list(active_mask)
        if not len(self._servers) == len(self._ids) == len(mask):
            raise SettingsError(
                f"there are {len(self._servers)} servers, {len(self._ids)} channels and {len(mask)} marks; give as many"
            )
        if pin_memory and not torch.cuda.is_available():
            raise SettingsError("pin_memory needs a GPU, and torch finds none; leave it out")
        self._mask, self._prefetch, self._is_pinned = mask, prefetch_size, pin_memory
        self._asked: dict[Future[tuple[SampleMessage | None, bool]], int] = {}
        """Running fetches to the index of their server."""
        self.reset()

    def reset(self) -> None:
        """Prepare for the next epoch; call it before that epoch starts.

        Messages of the last epoch that have not arrived are dropped. The call waits for running fetches, because they
        could take messages of the next epoch.

        Raises:
            StoreTimeout: A fetch did not end within ``RECV_S``.
        """
        under_way = [asked for asked in self._asked if not asked.cancel()]
        _, late = wait(under_way, RECV_S)
        if late:
            raise StoreTimeout(f"{len(late)} fetches of the last epoch did not end in {RECV_S:g} s; see servers' logs")
        self._asked.clear()
        self._has_ended = [not is_active for is_active in self._mask]
        self._has_begun = False
        self._failure: Exception | None = None

    def send(self, message: SampleMessage) -> None:
        """Refuse to send, because a channel on a server only receives here.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError("RemoteReceivingChannel only receives; servers send")

    def recv(self) -> SampleMessage:
        """Return the next message.

        Raises:
            StopIteration: All channels have ended their epochs.
            RuntimeError: A batch could not be made; the next call returns the following one.
            StoreTimeout: No server answered within ``RECV_S``.
            Exception: A fetch failed; every later call raises the same error until ``reset``.
        """
        if self._failure is not None:
            raise self._failure
        if not self._has_begun:
            self._has_begun = True
            for place, has_ended in enumerate(self._has_ended):
                for _ in range(0 if has_ended else self._prefetch):
                    self._ask(place)
        ends = time.monotonic() + RECV_S
        while self._asked:
            if not wait(self._asked, max(0.0, ends - time.monotonic()), FIRST_COMPLETED).done:
                waiting = sorted({self._servers[place] for place in self._asked.values()})
                raise StoreTimeout(
                    f"no message came in {RECV_S:g} s from servers {', '.join(map(str, waiting))}; see their logs"
                )
            asked = next(one for one in self._asked if one.done())
            place = self._asked.pop(asked)
            try:
                message, is_done = asked.result()
            except Exception as error:
                self._failure = error
                raise
            if message is not None:
                self._ask(place)
                if SAMPLING_ERROR in message:
                    lines = bytes(message[SAMPLING_ERROR].numpy()).decode(errors="replace")
                    raise RuntimeError(f"A sampling worker failed while producing this batch:\n{lines}")
                return {name: value.pin_memory() for name, value in message.items()} if self._is_pinned else message
            self._has_ended[place] = self._has_ended[place] or is_done
            self._ask(place)  # after the end of a fetch without a batch, fetch again
        raise StopIteration

    def _ask(self, place: int) -> None:
        if not self._has_ended[place]:
            asked = session().submit(self._servers[place], "fetch_one_sampled_message", self._ids[place])
            self._asked[asked] = place
