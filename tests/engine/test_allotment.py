"""Checks the resources of jobs on machines of any size, and the least memory in errors."""

from __future__ import annotations

import re

import pytest

from hopstream.engine.machine import Machine
from hopstream.engine.settings import MEMORY_SHARE, Choice, Needs, WorkerSettings, allot, least_bytes, memory_bytes
from hopstream.errors import SettingsError

GB = 10**9
NEEDS = (Needs(alone_bytes=400 * 10**6, parent_bytes=200 * 10**6, worker_bytes=400 * 10**6),)
MACHINE = Machine(num_processors=64, free_bytes=16 * GB)


def test_defaults_follow_the_machine():
    got = allot(None, WorkerSettings(), NEEDS, MACHINE)
    assert (got.memory_bytes, got.num_workers) == (9_600_000_000, 23)
    assert (got.memory_text, got.workers_text) == ("9.6 GB (60 % of 16.0 GB free)", "23 of 64 workers fit")


@pytest.mark.parametrize(
    ("memory", "num_workers", "got", "text"),
    [
        ("1.2GB", None, 2, "1.2GB"),
        ("1GB", None, 2, "1GB"),
        ("500MB", None, 0, "500MB"),
        ("100GB", None, 64, "100GB"),
        ("3GB", 7, 7, "3GB"),
        (None, 2, 2, "9.6 GB (60 % of 16.0 GB free)"),
        (None, 30, 30, "12.2 GB (the minimum; 16.0 GB free)"),
    ],
)
def test_defaults_fit_the_given_options(memory, num_workers, got, text):
    found = allot(memory, WorkerSettings(num_workers=num_workers), NEEDS, MACHINE)
    assert (found.num_workers, found.memory_text) == (got, text)
    assert bool(found.workers_text) == (num_workers is None and got < 64)


@pytest.mark.parametrize(
    ("memory", "num_workers", "message"),
    [
        ("399MB", None, "memory is 399MB; one process needs at least 400.0 MB: give more memory"),
        ("1.2GB", 4, "memory is 1.2GB; 5 processes need at least 1.8 GB: give more memory or fewer workers (2 fit)"),
        ("500MB", 4, "5 processes need at least 1.8 GB: give more memory or no workers (0)"),
        ("300MB", 4, "5 processes need at least 1.8 GB: give more memory"),
        (None, 64, "16.0 GB of memory are free; 65 processes need at least 25.8 GB: give more memory or fewer"),
    ],
)  # fmt: skip
def test_requests_that_do_not_fit_are_refused(memory, num_workers, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        allot(memory, WorkerSettings(num_workers=num_workers), NEEDS, MACHINE)


def test_the_step_that_needs_most_is_named():
    halo = Needs(alone_bytes=2 * GB, parent_bytes=2 * GB, worker_bytes=GB, what="halos need")
    with pytest.raises(SettingsError, match=r"halos need at least 5\.0 GB beside 3 workers: give more memory$"):
        allot("1GB", WorkerSettings(num_workers=3), (*NEEDS, halo), MACHINE)
    assert allot("4GB", WorkerSettings(), (*NEEDS, halo), MACHINE).num_workers == 2


def test_clusters_have_at_least_one_worker():
    found = allot("700MB", WorkerSettings(engine="ray"), NEEDS, Machine(num_processors=1, free_bytes=GB))
    assert (found.num_workers, found.engine) == (1, "ray")
    with pytest.raises(SettingsError, match=r"2 processes need at least 600\.0 MB: give more memory$"):
        allot("500MB", WorkerSettings(engine="ray"), NEEDS, MACHINE)


@pytest.mark.parametrize(
    ("free_mb", "num_processors", "num_bytes", "num_workers", "got"),
    [
        (700, 64, 900, 1, (420, 0)),  # less memory than that is free by now
        (1000, 64, 900, 1, (900, 1)),
        (1000, 64, 399, 0, (600, 1)),  # it is not enough
        (64_000, 2, 9_600, 23, (9_600, 2)),
        (64_000, 64, 9_600, 2, (9_600, 2)),
        (64_000, 64, 600, 9, (600, 1)),
    ],
)
def test_a_resumed_job_keeps_its_memory_and_workers(free_mb, num_processors, num_bytes, num_workers, got):
    machine = Machine(num_processors=num_processors, free_bytes=free_mb * 10**6)
    before = Choice(memory_bytes=num_bytes * 10**6, num_workers=num_workers)
    found = allot(None, WorkerSettings(), NEEDS, machine, before)
    assert (found.memory_bytes // 10**6, found.num_workers) == got


@pytest.mark.parametrize(
    "num_bytes",
    [
        3_000,
        999_000,
        399_999_999,
        999_999_999,
        10**9,
        1_449_999_999,
        34_512_345_678,
        999_949_999_999,
        999_950_000_001,
        1_234_567_890_123,
    ],
)
@pytest.mark.parametrize("num_workers", [0, 1, 5])
def test_the_minimum_named_by_an_error_is_exact(num_bytes, num_workers):
    needs = (Needs(alone_bytes=num_bytes, parent_bytes=num_bytes // 3, worker_bytes=num_bytes // 2),)
    workers = WorkerSettings(num_workers=num_workers)
    with pytest.raises(SettingsError) as caught:
        allot("0", workers, needs, MACHINE)
    (said,) = re.findall(r"at least (\S+ \w+)", str(caught.value))
    assert allot(said, workers, needs, MACHINE).memory_bytes == least_bytes(needs, num_workers) >= num_bytes // 3
    with pytest.raises(SettingsError):
        allot(str(memory_bytes(said) - 1), workers, needs, MACHINE)


def test_all_free_memory_is_used_if_the_share_is_too_small():
    small = Machine(num_processors=2, free_bytes=500 * 10**6)
    assert int(MEMORY_SHARE * small.free_bytes) < 400 * 10**6
    found = allot(None, WorkerSettings(), NEEDS, small)
    assert (found.memory_bytes, found.num_workers) == (400 * 10**6, 0)
    with pytest.raises(SettingsError, match=r"399\.0 MB of memory are free; one process needs at least 400\.0 MB"):
        allot(None, WorkerSettings(), NEEDS, Machine(num_processors=2, free_bytes=399 * 10**6))
