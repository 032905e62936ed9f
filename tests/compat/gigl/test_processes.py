"""Tests of storage machines and compute ranks in processes: epochs, sessions, teardown, kills."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.compat.gigl.ring import SPLITS, write_ring
from tests.compat.gigl.world import World, running

LEFT = "loaders that were not shut down left channels"
DEADLINE_S = 20.0
"""Seconds within which a rank with a timeout of four seconds finds a lost server on a busy machine."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ring(tmp_path_factory.mktemp("ring") / "ring", 3)


def check_training(world: World, num_ranks: int) -> None:
    """Check that each rank trains as in the page's example, and that each seed comes once per epoch."""
    told = [[world.hear(rank) for _ in range(4)] for rank in range(num_ranks)]
    for epoch in range(2):
        for split in ("train", "val"):
            seeds = [seed for of_rank in told for seed in of_rank[epoch][split]]
            assert sorted(seeds) == list(SPLITS[split])
    assert sorted(seed for of_rank in told for seed in of_rank[2]["test"]) == list(SPLITS["test"])
    assert all(of_rank[3]["has_ended"] for of_rank in told)


@pytest.mark.parametrize(
    ("kind", "num_compute", "processes"),
    [
        pytest.param("homogeneous", 3, 1, marks=pytest.mark.slow),
        pytest.param("typed", 1, 2, marks=pytest.mark.slow),
        pytest.param("labeled", 3, 1, marks=pytest.mark.slow),
        *(pytest.param(kind, 1, 1, marks=pytest.mark.soak) for kind in ("homogeneous", "typed", "labeled")),
        *(pytest.param(kind, 1, 2, marks=pytest.mark.soak) for kind in ("homogeneous", "labeled")),
        pytest.param("typed", 3, 1, marks=pytest.mark.soak),
    ],
)
def test_every_seed_is_delivered_once_and_all_processes_exit_cleanly(
    tmp_path: Path, kind: str, num_compute: int, processes: int
) -> None:
    folder = write_ring(tmp_path / "ring", 3, kind=kind)
    with running(folder, num_compute=num_compute, processes=processes) as world:
        check_training(world, num_compute * processes)
        world.check_all_well()


@pytest.mark.slow
def test_two_sessions_of_a_cluster_that_the_environment_describes(folder: Path) -> None:
    with running(folder, num_compute=2, sessions=2, of_environment=True) as world:
        for _ in range(2):
            check_training(world, 2)
        world.check_all_well()


@contextmanager
def consuming(folder: Path, timeout: int = 60) -> Iterator[World]:
    """Two ranks in the middle of an epoch, with channels on both servers."""
    with running(folder, num_compute=2, work="consume", timeout=timeout) as world:
        for rank in range(2):
            world.servers = world.hear(rank)["servers"]
        yield world


@pytest.mark.parametrize("killed", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.soak)])
def test_a_killed_client_blocks_no_other_process(folder: Path, killed: int) -> None:
    with consuming(folder) as world:
        other = 1 - killed
        world.ranks[killed].kill()
        world.go_on(other)
        seeds = world.hear(other)["seeds"]
        assert len(seeds) == len(set(seeds)) > 0
        assert world.hear(other)["has_ended"]
        assert world.ends(world.ranks[other]) == 0, world.errors(world.ranks[other])
        for process in world.storage:
            assert world.ends(process) != 0
            assert LEFT in world.errors(process)


@pytest.mark.slow
def test_only_channels_of_killed_clients_are_destroyed(folder: Path) -> None:
    with running(folder, num_compute=2, work="keep") as world:
        for rank in range(2):
            assert world.hear(rank) == {"has_begun": True}
        world.ranks[0].kill()
        for process in world.storage:
            assert process.stderr is not None
            while "(kept by 0) is dropped" not in (line := process.stderr.readline()):
                assert line and "kept by 1" not in line, line
        world.go_on(1)
        assert world.hear(1) == {"has_all": True}
        assert world.hear(1)["has_ended"]
        for process in (world.ranks[1], *world.storage):
            assert world.ends(process) == 0, world.errors(process)


@pytest.mark.parametrize("killed", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.soak)])
def test_error_names_a_killed_server_and_the_other_server_ends(folder: Path, killed: int) -> None:
    with consuming(folder, timeout=4) as world:
        world.kill_server(killed)
        assert world.ends(world.storage[killed]) != 0
        assert "ended with -9" in world.errors(world.storage[killed])
        for rank in range(2):
            world.go_on(rank, "endlessly, then end in order")
        ends = []
        for rank in range(2):
            told = world.hear(rank)
            assert world.servers[killed] in told["message"] and told["seconds"] < DEADLINE_S, told
            ends.append(world.hear(rank))
            assert world.ends(world.ranks[rank]) == 1, world.errors(world.ranks[rank])
        # All clients leave by server 0; only the one that ends the servers finds server 1 gone.
        named = [end for end in ends if world.servers[killed] in end.get("message", "")]
        assert len(named) == 2 - killed, ends
        assert (world.ends(world.storage[1 - killed]) == 0) == bool(killed)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["client", "server"])
@pytest.mark.parametrize("turn", range(20))
def test_kills_at_any_moment(folder: Path, rng: np.random.Generator, turn: int, kind: str) -> None:
    """Processes that were not killed end in time, with the documented status and error."""
    killed, ends_in_order = turn % 2, turn // 2 % 2 == 1
    with consuming(folder, timeout=60 if kind == "client" else 4) as world:
        processes = world.all_processes()
        assert len(processes) >= 6  # two ranks, two storage machines, and the session of each
        for rank in range(2):
            is_endless = kind == "server" or rank == killed
            words = ["endlessly" if is_endless else "to the end", "in order" if ends_in_order else "at once"]
            world.go_on(rank, ", ".join(words))
        threading.Event().wait(rng.random())
        started = time.monotonic()
        if kind == "client":
            world.ranks[killed].kill()
        else:
            world.kill_server(killed)
        for process in world.ranks:
            world.ends(process)
        ranks_s = time.monotonic() - started
        for process in world.storage:
            world.ends(process)
        all_s = time.monotonic() - started
        errors = [world.errors(process) for process in (*world.ranks, *world.storage)]
        statuses = [process.returncode for process in (*world.ranks, *world.storage)]
        told = f"after {ranks_s:.1f} and {all_s:.1f} s with statuses {statuses}:\n" + "\n".join(errors)
        print(f"{kind} {killed} killed: {told.partition(chr(10))[0]}")  # noqa: T201
        assert all_s < 3 * DEADLINE_S, told  # 39 s were seen on two cores with a load of eleven
        _, alive = psutil.wait_procs(processes, DEADLINE_S)
        assert not alive, told
        if kind == "client":
            assert statuses[killed] == -9 and statuses[1 - killed] == 0, told
            assert "seeds" in world.hear(1 - killed) and world.hear(1 - killed)["has_ended"], told
            assert statuses[2:] == [1, 1] and all(LEFT in error for error in errors[2:]), told
            return
        assert statuses[:2] == [1, 1], told
        for rank in range(2):
            heard = world.hear(rank)
            assert heard["error"] in ("StoreUnavailable", "StoreTimeout"), heard
            assert world.servers[killed] in heard["message"] and heard["seconds"] < DEADLINE_S, heard
        assert statuses[2 + killed] == 1 and "ended with -9" in errors[2 + killed], told
        other = statuses[3 - killed], errors[3 - killed]
        if killed == 1 and ends_in_order:
            assert other == (0, other[1]), told
        else:
            why = "127.0.0.1" if killed == 0 else "all compute processes are gone"
            assert other[0] == 1 and why in other[1], told
