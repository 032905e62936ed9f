"""Exported subgraphs as a data set of torch, whose ``DataLoader`` reads them in worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from hopstream.checks import read_integer
from hopstream.load.examples import ExampleArguments, OpenExamples, open_examples
from hopstream.load.loader_arguments import takes

MAX_PLACE = (1 << 63) - 1


class ExampleDataset(IterableDataset[Any]):
    """The batches of ``ExampleLoader`` for ``DataLoader(dataset, batch_size=None, num_workers=…)``.

    Worker ``w`` of ``n`` makes batches ``w``, ``w + n``, …, which the ``DataLoader`` hands out in turn, so every batch
    comes once and in the order of ``ExampleLoader``. Ranks are options, as there.

    Unlike there, the next iteration is not the next epoch by itself: workers do not know of each other's iterations.
    Call ``set_epoch`` before each one, or every iteration is the same epoch, in the same order.
    """

    @takes(ExampleArguments)
    def __init__(self, arguments: ExampleArguments) -> None:
        """Open the files and check every setting against them; workers get what was found, and do not look again.

        ``ExampleLoader`` says what is raised. Threads are not used.
        """
        self._opened: OpenExamples = open_examples(arguments)
        # In shared memory, so that workers that are there already see what ``set_epoch`` says.
        self._place = torch.zeros(2, dtype=torch.int64)
        self._place.share_memory_()  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int, next_batch: int = 0) -> None:
        """Say which epoch the next iterations are, and with which of its batches they begin; not during an iteration.

        Workers that are kept (``persistent_workers=True``) are told as well.

        Raises:
            SettingsError: One is no integer, 0 or above.
        """
        place = [read_integer("epoch", epoch, 0, MAX_PLACE), read_integer("next_batch", next_batch, 0, MAX_PLACE)]
        self._place.copy_(torch.tensor(place))

    def __len__(self) -> int:
        """Batches that the next iteration hands out, in all workers together."""
        return max(0, self._opened.order.num_steps - int(self._place[1]))

    def __iter__(self) -> Iterator[Any]:
        """This worker's batches of the epoch."""
        worker = get_worker_info()
        number, num_workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        epoch, first = self._place.tolist()
        return self._batches(epoch, range(first + number, self._opened.order.num_steps, num_workers))

    def _batches(self, epoch: int, steps: range) -> Iterator[Any]:
        maker, transform = self._opened.maker(), self._opened.settings.transform
        for step in steps:
            batch = maker.make(epoch, step)
            yield batch if transform is None else transform(batch)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Share the place again, where a copy was made by other means than torch's."""
        self.__dict__.update(state)
        self._place.share_memory_()  # type: ignore[no-untyped-call]
