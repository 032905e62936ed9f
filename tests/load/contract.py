"""Promises of every loader about epochs, failures, saved states and endings."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import threading

import pytest
from torch.utils.data import DataLoader

from hopstream.errors import StateError
from hopstream.load.batch import MiniBatch
from hopstream.load.examples import GraphBatch
from hopstream.load.load_settings import OrderSettings
from tests.load.graphs import flat

DEADLINE_S = 20.0
"""Seconds that a test waits for an event that must come soon."""


class BatchesContract:
    """Tests that depend on how a loader makes its batches.

    Inherit it and give a fixture ``new_loader(**settings)`` that makes loaders of numpy batches, shuffled.
    """

    def epochs(self, loader, count):
        return [[flat(batch) for batch in loader] for _ in range(count)]

    def test_an_epoch_has_its_batches_and_another_loader_repeats_them(self, new_loader):
        with new_loader() as one, new_loader() as other, new_loader(rng_seed=1) as reseeded:
            epochs = self.epochs(one, 3)
            assert one.epoch == 3
            for epoch in epochs:
                assert [batch["index"] for batch in epoch] == list(range(len(one)))
            assert len(one) > 3
            assert epochs[0] != epochs[1] != epochs[2]
            assert epochs == self.epochs(other, 3)
            assert epochs[:1] != self.epochs(reseeded, 1)

    def test_a_restored_loader_resumes_exactly_at_the_saved_place(self, new_loader):
        with new_loader() as one, new_loader() as other:
            epochs = self.epochs(one, 3)
            one.set_epoch(1)
            for num_before in (0, 2):
                iterator = iter(one)
                for _ in range(num_before):
                    next(iterator)
                state = json.loads(json.dumps(one.state_dict()))
                iterator.close()
                other.load_state_dict(state)
                assert other.epoch == 1
                assert self.epochs(other, 2) == [epochs[1][num_before:], epochs[2]]
                one.set_epoch(1)

    def test_a_state_with_any_differing_fact_is_refused(self, new_loader):
        options = {"batch_size": 3, "rng_seed": 3, "world_size": 2}
        with new_loader(**options, rank=0) as loader:
            state = loader.state_dict()
            facts = state["loader"]
            assert {*OrderSettings.field_names()} - {"rank"} <= facts.keys()
            assert facts.items() >= options.items()
            for name in facts:
                with pytest.raises(StateError, match=f"state is of a (loader (over|with {name} )|other)"):
                    loader.load_state_dict({**state, "loader": {**facts, name: "other"}})
            loader.load_state_dict(state)


class LoaderContract(BatchesContract):
    """All promises; per family of loaders one kind checks those that do not depend on the way of sampling."""

    def test_set_epoch_names_an_epoch(self, new_loader):
        with new_loader() as one, new_loader() as other:
            epochs = self.epochs(one, 3)
            other.set_epoch(2)
            assert self.epochs(other, 1)[0] == epochs[2]
            other.set_epoch(0)
            assert self.epochs(other, 2) == epochs[:2]

    def test_a_state_saved_at_the_last_batch_leaves_nothing_of_its_epoch(self, new_loader):
        with new_loader() as one, new_loader() as other, new_loader() as third:
            epochs = self.epochs(one, 2)
            one.set_epoch(0)
            for _ in one:
                state = one.state_dict()
            after = one.state_dict()
            assert (state["epoch"], state["next_batch"]) == (0, len(one))
            assert (after["epoch"], after["next_batch"]) == (1, 0)
            other.load_state_dict(state)
            other.set_epoch(0)
            assert self.epochs(other, 2) == [[], epochs[1]]
            third.load_state_dict(after)
            assert self.epochs(third, 1) == [epochs[1]]

    def test_a_state_counts_delivered_batches_not_sampled_ones(self, new_loader):
        with new_loader() as loader:
            for number, _ in enumerate(loader, start=1):
                assert loader.state_dict()["next_batch"] == number

    def test_an_iteration_after_one_left_early_is_the_next_epoch(self, new_loader):
        with new_loader() as one, new_loader() as other:
            epochs = self.epochs(one, 2)
            for _ in other:
                break
            assert self.epochs(other, 1)[0] == epochs[1]

    @pytest.mark.parametrize("leave", ["break", "raise", "close", "lose"])
    def test_leaving_early_leaves_no_thread(self, new_loader, leave):
        before = set(threading.enumerate())
        loader = new_loader()
        if leave == "break":
            for _ in loader:
                break
        elif leave == "raise":
            with pytest.raises(KeyError):
                raise_in_loop(loader)
            gc.collect()  # the traceback of the error holds the loop
        elif leave == "close":
            iterator = iter(loader)
            next(iterator)
            loader.close()
        else:
            iterator = iter(loader)
            next(iterator)
            del iterator
        assert set(threading.enumerate()) == before
        loader.close()

    def test_pickling_and_copying_are_refused_with_a_remedy(self, new_loader):
        with new_loader() as loader:
            told = f"{type(loader).__name__} can be neither pickled nor copied: make one in each process"
            for send in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match=told):
                    send(loader)
                with pytest.raises(TypeError, match="EpochIterator can be neither pickled nor copied: load the loader"):
                    send(iter(loader))

    def test_indexing_is_refused_with_a_remedy(self, new_loader):
        with new_loader() as loader:
            name = type(loader).__name__
            told = f"{name} cannot be indexed, only iterated: make one in each process, .* of a DataLoader"
            with pytest.raises(TypeError, match=told):
                next(iter(DataLoader(loader, batch_size=None)))

    def test_a_second_iteration_closes_the_first(self, new_loader):
        with new_loader() as loader:
            first = iter(loader)
            next(first)
            second = iter(loader)
            next(second)
            with pytest.raises(StateError, match="this iteration was ended because the loader was iterated again"):
                next(first)
            assert len(list(second)) == len(loader) - 1

    def test_closing_ends_the_iteration(self, new_loader):
        loader = new_loader()
        iterator = iter(loader)
        next(iterator)
        loader.close()
        loader.close()
        with pytest.raises(StateError, match="ended because the loader was closed"):
            next(iterator)
        with pytest.raises(StateError, match="the loader is closed"):
            iter(loader)

    def test_an_ended_iteration_stays_ended(self, new_loader):
        with new_loader() as loader:
            iterator = iter(loader)
            assert all(isinstance(batch, MiniBatch | GraphBatch) for batch in iterator)
            for _ in range(2):
                with pytest.raises(StopIteration):
                    next(iterator)
            assert loader.epoch == 1

    def test_a_failing_transform_ends_the_iteration(self, new_loader):
        with new_loader(transform=fail) as loader:
            iterator = iter(loader)
            with pytest.raises(ArithmeticError, match="no luck") as raised:
                next(iterator)
            assert any("in the transform" in note for note in raised.value.__notes__)
            with pytest.raises(StateError, match="it raised an error; iterate the loader again"):
                next(iterator)

    @pytest.mark.parametrize(("index", "num_failures"), [(0, 3), (3, 1)])
    def test_iteration_after_a_failure_resumes_at_the_undelivered_batch(self, new_loader, index, num_failures):
        with new_loader() as one:
            epochs = self.epochs(one, 3)
        failures = [ArithmeticError("no luck")] * num_failures

        def transform(batch):
            if (batch.epoch, batch.index) == (1, index) and failures:
                raise failures.pop()
            return batch

        with new_loader(transform=transform) as loader:
            assert self.epochs(loader, 1) == epochs[:1]
            seen = []
            for number in range(num_failures):
                if number == 1:
                    loader.set_epoch(1)  # a script that counts epochs itself sets it again
                take_until_failure(loader, seen)
                assert (loader.epoch, loader.state_dict()["next_batch"], len(seen)) == (1, index, index)
            rest, following = self.epochs(loader, 2)
            assert seen + rest == epochs[1]
            assert following == epochs[2]

    @pytest.mark.parametrize("num_threads", [0, 1, 4])
    def test_batches_before_a_failure_are_delivered_and_a_retry_repeats_it(self, new_loader, num_threads):
        """The retry fails too; then the loader, and another one with its state, complete the epochs."""
        with new_loader() as one:
            epochs = self.epochs(one, 2)
        failures, has_failed = [ArithmeticError("no luck")] * 2, threading.Event()

        def transform(batch):
            if batch.index == 2 and failures:
                has_failed.set()
                raise failures.pop()
            return batch

        before = set(threading.enumerate())
        with new_loader(transform=transform, num_threads=num_threads) as loader, new_loader() as other:
            seen = []
            for wanted in (epochs[0][:2], []):
                iterator = iter(loader)
                assert not num_threads or has_failed.wait(DEADLINE_S)
                given = []
                take_until_failure(iterator, given)
                assert given == wanted
                seen += given
                state = json.loads(json.dumps(loader.state_dict()))
                assert (state["epoch"], state["next_batch"]) == (0, 2)
            other.load_state_dict(state)
            assert self.epochs(other, 1) == [epochs[0][2:]]
            rest, following = self.epochs(loader, 2)
            assert seen + rest == epochs[0]
            assert following == epochs[1]
        gc.collect()  # tracebacks hold iterators
        assert set(threading.enumerate()) <= before

    def test_leaving_early_after_a_failure_is_leaving_early(self, new_loader):
        failures = [ArithmeticError("no luck")]

        def transform(batch):
            if batch.index == 2 and failures:
                raise failures.pop()
            return batch

        with new_loader() as one, new_loader(transform=transform) as loader:
            epochs = self.epochs(one, 2)
            take_until_failure(loader, [])
            for _ in loader:
                break
            assert self.epochs(loader, 1) == epochs[1:]

    def test_an_interrupt_is_leaving_early(self, new_loader):
        interrupts = [KeyboardInterrupt()]

        def transform(batch):
            if batch.index == 2 and interrupts:
                raise interrupts.pop()
            return batch

        with new_loader() as one, new_loader(transform=transform) as loader:
            epochs = self.epochs(one, 2)
            with pytest.raises(KeyboardInterrupt):
                list(loader)
            assert loader.state_dict()["next_batch"] == 2
            assert self.epochs(loader, 1)[0] == epochs[1]


def raise_in_loop(loader):
    for _ in loader:
        raise KeyError("the consumer failed")


def take_until_failure(loader, seen):
    with pytest.raises(ArithmeticError, match="no luck"):
        for batch in loader:
            seen.append(flat(batch))


def fail(batch):
    raise ArithmeticError("no luck")
