"""How does torch's own ``DataLoader`` read exported subgraphs in its worker processes?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Unpack

from torch.utils.data import IterableDataset, get_worker_info

from hopstream.load.example_reader import Files
from hopstream.load.examples import ExampleOptions, OpenExamples, open_examples
from hopstream.load.options import read_integer


class ExampleDataset(IterableDataset[Any]):
    """The batches of ``ExampleLoader`` for ``DataLoader(dataset, batch_size=None, num_workers=…)``.

    Worker ``w`` of ``n`` makes batches ``w``, ``w + n``, …, which the ``DataLoader`` hands out in turn, so every batch
    comes once and in the order of ``ExampleLoader``. Ranks are options, as there.
    """

    def __init__(self, files: Files, batch_size: int = 1, **options: Unpack[ExampleOptions]) -> None:
        """Keep what ``ExampleLoader`` takes; it says what options mean. Files are opened where they are read.

        Args:
            files: The files.
            batch_size: Subgraphs per batch and rank.
            **options: Its other settings; threads are not used.
        """
        self._files, self._batch_size, self._options = files, batch_size, options
        self._epoch, self._next_batch = 0, 0
        self._opened: OpenExamples | None = None

    def set_epoch(self, epoch: int, next_batch: int = 0) -> None:
        """Say which epoch the next iteration is, and with which of its batches it begins.

        Raises:
            SettingsError: One is no integer, 0 or above.
        """
        self._epoch = read_integer("epoch", epoch, 0)
        self._next_batch = read_integer("next_batch", next_batch, 0)

    def __len__(self) -> int:
        """Batches that the next iteration hands out, in all workers together."""
        return max(0, self._open().order.num_steps - self._next_batch)

    def __iter__(self) -> Iterator[Any]:
        """This worker's batches of the epoch."""
        opened, worker = self._open(), get_worker_info()
        number, num_workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        maker = opened.maker()
        for step in range(self._next_batch + number, opened.order.num_steps, num_workers):
            batch = maker.make(self._epoch, step)
            yield batch if opened.transform is None else opened.transform(batch)

    def __getstate__(self) -> dict[str, Any]:
        """Without the open files, for workers that are started anew."""
        return {**self.__dict__, "_opened": None}

    def _open(self) -> OpenExamples:
        if self._opened is None:
            self._opened = open_examples(self._files, self._batch_size, self._options)
        return self._opened
