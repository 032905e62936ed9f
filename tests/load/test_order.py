"""Checks that each seed comes once per epoch, ranks keep step, and batches do not depend on ranks."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopstream.errors import SettingsError
from hopstream.load.load_settings import OrderSettings
from hopstream.load.order import BatchSpan, ExampleOrder, OneBatch, SeedOrder

REMAINDERS = ["spread", "pad", "drop", "uneven"]
SMALL = [(n, b, w) for n, b, w in product(range(1, 41), range(1, 7), range(1, 6))]


def order_of(num_seeds, batch_size, **settings):
    return SeedOrder(num_seeds=num_seeds, settings=OrderSettings(batch_size=batch_size, **settings))


def epoch_of(num_seeds, batch_size, world_size, epoch=0, **settings):
    """Per rank, the spans and the positions of each batch; None where the settings cannot be met."""
    ranks = []
    for rank in range(world_size):
        order = order_of(num_seeds, batch_size, world_size=world_size, rank=rank, shuffle=True, **settings)
        spans = [order.span(step) for step in range(order.num_steps)]
        ranks.append([(span, order.positions(epoch, span)) for span in spans])
    return ranks


def possible(num_seeds, batch_size, world_size, **settings):
    try:
        return epoch_of(num_seeds, batch_size, world_size, **settings)
    except SettingsError:
        return None


def test_spread_takes_every_seed_once_in_even_steps_and_balanced_batches():
    num_refused = 0
    for num_seeds, batch_size, world_size in SMALL:
        ranks = possible(num_seeds, batch_size, world_size)
        where = f"{num_seeds=} {batch_size=} {world_size=}"
        if ranks is None:
            is_impossible = num_seeds < world_size or (batch_size == 1 and num_seeds % world_size)
            assert is_impossible, where
            num_refused += 1
            continue
        taken = np.concatenate([positions for batches in ranks for _, positions in batches])
        assert np.array_equal(np.sort(taken), np.arange(num_seeds)), where
        assert len({len(batches) for batches in ranks}) == 1, where
        sizes = np.array([[len(positions) for _, positions in batches] for batches in ranks])
        assert sizes.min() >= 1, where
        assert sizes.max() <= batch_size, where
        tail = sizes[:, ~np.all(sizes == batch_size, axis=0)]
        assert tail.shape[1] <= 2, where
        assert tail.size == 0 or tail.max() - tail.min() <= 1, where
        assert sorted(span.index for batches in ranks for span, _ in batches) == list(range(sizes.size)), where
    assert num_refused


def test_pad_takes_every_seed_and_repeats_whole_batches():
    for num_seeds, batch_size, world_size in SMALL:
        ranks = epoch_of(num_seeds, batch_size, world_size, remainder="pad")
        assert len({len(batches) for batches in ranks}) == 1
        batches = {span.index: positions.tolist() for rank in ranks for span, positions in rank}
        assert sorted(p for positions in batches.values() for p in positions) == list(range(num_seeds))
        for span, positions in (batch for rank in ranks for batch in rank):
            assert batches[span.index] == positions.tolist()


def test_drop_keeps_ranks_even_and_drops_less_than_a_round():
    for num_seeds, batch_size, world_size in SMALL:
        ranks = possible(num_seeds, batch_size, world_size, remainder="drop")
        if ranks is None:
            assert -(-num_seeds // batch_size) < world_size
            continue
        assert len({len(batches) for batches in ranks}) == 1
        taken = np.concatenate([positions for batches in ranks for _, positions in batches])
        assert len(np.unique(taken)) == len(taken)
        assert num_seeds - len(taken) < batch_size * world_size


def test_uneven_takes_every_seed_once_and_ranks_differ_by_one_step():
    for num_seeds, batch_size, world_size in SMALL:
        ranks = epoch_of(num_seeds, batch_size, world_size, remainder="uneven")
        steps = [len(batches) for batches in ranks]
        assert max(steps) - min(steps) <= 1
        taken = np.concatenate([positions for batches in ranks for _, positions in batches])
        assert np.array_equal(np.sort(taken), np.arange(num_seeds))


@pytest.mark.parametrize("remainder", REMAINDERS)
def test_drop_last_gives_full_batches_only(remainder):
    for num_seeds, batch_size, world_size in SMALL:
        ranks = possible(num_seeds, batch_size, world_size, remainder=remainder, drop_last=True)
        if ranks is None:
            wanted = batch_size if remainder in ("pad", "uneven") else batch_size * world_size
            assert num_seeds < wanted
            continue
        sizes = {len(positions) for batches in ranks for _, positions in batches}
        assert sizes == {batch_size}
        if remainder != "uneven":
            assert len({len(batches) for batches in ranks}) == 1


@settings(deadline=None)
@given(
    st.integers(1, 3000), st.integers(1, 40), st.integers(1, 8), st.sampled_from(["spread", "pad", "drop", "uneven"])
)
def test_full_batches_do_not_depend_on_the_world_size(num_seeds, batch_size, world_size, remainder):
    alone = {span.index: positions.tolist() for span, positions in epoch_of(num_seeds, batch_size, 1)[0]}
    ranks = possible(num_seeds, batch_size, world_size, remainder=remainder)
    batches = {span.index: p.tolist() for rank in ranks or [] for span, p in rank}
    num_same = sum(alone[index] == positions for index, positions in batches.items() if index in alone)
    num_balanced = 2 * world_size if remainder == "spread" else 0
    assert num_same >= len(batches) - num_balanced


def test_orders_differ_between_epochs_and_seeds_and_repeat_within_them():
    def flat(epoch, rng_seed):
        return np.concatenate([p for _, p in epoch_of(100, 8, 1, epoch=epoch, rng_seed=rng_seed)[0]]).tolist()

    assert flat(0, 0) == flat(0, 0)
    assert len({tuple(flat(epoch, rng_seed)) for epoch, rng_seed in product(range(3), range(3))}) == 9


def test_batch_seeds_are_all_different():
    orders = [order_of(64, 4, rng_seed=rng_seed, world_size=2, rank=r) for rng_seed in (0, 1)
              for r in (0, 1)]  # fmt: skip
    seeds = [o.batch_seed(e, o.span(step)) for o in orders for e in range(3) for step in range(o.num_steps)]
    assert len(set(seeds)) == len(seeds) == 2 * 3 * 16


def test_unshuffled_seeds_keep_their_order():
    order = order_of(10, 4)
    assert [order.positions(5, order.span(step)).tolist() for step in range(3)] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"num_seeds": 3, "rank": 0, "world_size": 4},
            "3 seeds in batches of 4 are too few for one batch per rank .4 ranks.*fewer ranks",
        ),
        ({"num_seeds": 3, "drop_last": True}, "smaller batch_size or drop_last=False"),
        ({"batch_size": 1, "rank": 0, "world_size": 4}, "batch_size 1 cannot spread 10 seeds evenly over 4 ranks"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        order_of(**{"num_seeds": 10, "batch_size": 4, **settings})


def test_one_batch_has_the_draws_of_its_number():
    settings = OrderSettings(batch_size=5, rng_seed=3)
    order, whole = OneBatch(num_seeds=5, settings=settings), SeedOrder(num_seeds=40, settings=settings)
    for epoch, step in ((0, 0), (0, 7), (2, 4)):
        span = order.span(step)
        assert order.positions(epoch, span).tolist() == [0, 1, 2, 3, 4]
        assert order.batch_seed(epoch, span) == whole.batch_seed(epoch, whole.span(step))


def example_order(sizes, window, **options):
    settings = OrderSettings(shuffle=True, **options)
    return ExampleOrder(num_seeds=sum(sizes), settings=settings, file_sizes=tuple(sizes), window=window)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(sum), st.integers(1, 40), st.integers(0, 3), st.data()
)
def test_any_stretch_is_a_part_of_the_whole(sizes, window, epoch, data):
    order = example_order(sizes, window)
    whole = order.positions(epoch, BatchSpan(start=0, stop=sum(sizes), index=0))
    assert sorted(whole.tolist()) == list(range(sum(sizes)))
    start = data.draw(st.integers(0, sum(sizes)))
    stop = data.draw(st.integers(start, sum(sizes)))
    assert np.array_equal(order.positions(epoch, BatchSpan(start=start, stop=stop, index=0)), whole[start:stop])


def test_a_window_reads_as_many_files_as_it_is_long():
    sizes, window = [100] * 8, 50
    whole = example_order(sizes, window).positions(3, BatchSpan(start=0, stop=800, index=0))
    for piece in np.split(whole, 16):
        assert len(set((piece // 100).tolist())) == 1  # windows that divide the files stay in one
        assert np.ptp(piece) == 49 and not np.array_equal(np.sort(piece), piece)
    files = [int(piece[0] // 100) for piece in np.split(whole, 8)]
    assert sorted(files) == list(range(8)) and files != list(range(8))


@pytest.mark.parametrize("window", [1, 6])
def test_all_orders_of_files_are_as_likely(window):
    counts = np.zeros((3, 3))
    for epoch in range(3000):
        whole = example_order([2, 2, 2], window).positions(epoch, BatchSpan(start=0, stop=6, index=0))
        for place, number in enumerate(whole.tolist()):
            counts[number // 2, place // 2] += 1
    assert np.all(np.abs(counts - 2000) < 5 * np.sqrt(6000 * (1 / 3) * (2 / 3) * 2))
