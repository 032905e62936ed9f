"""Tests of ranks in separate processes: meeting, sampling, leaving, early ends and kills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from hopstream.compat.pyg import DistNeighborLoader
from hopstream.errors import StoreUnavailable
from hopstream.store.settings import StoreSettings
from tests.compat.pyg.ranks import context, owners_of, partition
from tests.compat.pyg.test_dist_loaders import plain_graph
from tests.ports import free_port

LOADER = """
import sys
sys.modules["pytorch_lightning"] = sys.modules["lightning"] = None  # torch_geometric imports them, for 1.5 s
from tests.compat.pyg.test_dist_processes import make_loader

rank, port = int(sys.argv[1]), int(sys.argv[2])
loader = make_loader(rank, port, *map(float, sys.argv[3:]))
"""
FIRST_AND_SECOND = [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.soak)]
ONE_EPOCH = f"""{LOADER}
import json
print(json.dumps([batch.e_id.tolist() for batch in loader]))
loader.close()
"""
TO_THE_END = f"""{LOADER}
print(sum(1 for _ in range(1 + 40 * rank) for _ in loader))
"""
TOLD_TO_GO_ON = f"""{LOADER}
import time
batches = iter(loader)
print(next(batches).batch_size, flush=True)
if sys.stdin.readline() == "fail\\n":  # a rank that is killed or stopped waits here
    raise KeyError("no such column")
start = time.monotonic()
try:
    list(batches)
finally:
    print(time.monotonic() - start, time.time(), flush=True)
"""
CHILD = """
import sys
sys.modules["pytorch_lightning"] = sys.modules["lightning"] = None
import torch.multiprocessing
from tests.compat.pyg.test_dist_processes import train


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, args=(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
"""
TOGETHER_S = 120.0
ENDED_S = 20.0
"""Seconds to leave a rank that answers nothing: both servers' timeouts, and the rest of the exit."""
NOTICED_S = 5.0
"""Seconds to find that a process of this machine, which refuses connections, has ended."""


def make_loader(rank: int, port: int, timeout_s: float = 30.0) -> DistNeighborLoader:
    """Ten batches of all neighbours, each made on request; requests to other ranks have a timeout."""
    graph = plain_graph(np.random.default_rng(1))
    return DistNeighborLoader(
        partition(graph, owners_of(graph, 2), rank, 2), [-1], "127.0.0.1", port, context(rank, 2),
        input_nodes=torch.arange(40), rpc_timeout=60, batch_size=4, async_sampling=False,
        store_settings=StoreSettings(timeout_s=timeout_s),
    )  # fmt: skip


def train(_: int, rank: int, port: int, ending: str) -> None:
    """Main function of a process of torch's multiprocessing; it never closes its loader."""
    loader = make_loader(rank, port)
    batches = iter(loader)
    sys.stdout.write(f"{next(batches).batch_size}\n")
    sys.stdout.flush()
    if ending == "error":
        raise KeyError("no such column")
    sys.exit(int(ending))


@contextmanager
def running(script: str, ranks: Sequence[int], port: int, *args: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a process per rank, and end them with the block."""
    begun = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank), str(port), *args], cwd=Path(__file__).parents[3], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in ranks
    ]  # fmt: skip
    try:
        yield begun
    finally:
        for process in begun:
            process.kill()
            process.communicate()


def test_two_processes_join_sample_and_leave() -> None:
    """This process is rank 0, as starting another one takes most of the time."""
    port = free_port()
    with running(ONE_EPOCH, [1], port) as (other,):
        loader = make_loader(0, port)
        own = [batch.e_id.tolist() for batch in loader]
        loader.close()
        told, errors = other.communicate(timeout=TOGETHER_S)
    assert other.returncode == 0, errors
    assert len(own) == 10
    assert sorted(key for keys in own for key in keys) == list(range(200))
    assert json.loads(told) == own


@pytest.mark.slow
def test_ranks_that_finish_early_serve_until_all_finish() -> None:
    with running(TO_THE_END, [0, 1], free_port()) as ranks:
        told = [process.communicate(timeout=TOGETHER_S) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], told
    assert [int(out) for out, _ in told] == [10, 410]


@pytest.mark.parametrize("killed", FIRST_AND_SECOND)
def test_a_rank_that_is_killed_in_an_epoch_is_an_error_of_the_other(killed: int) -> None:
    with running(TOLD_TO_GO_ON, [0, 1], free_port()) as ranks:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "4\n"
        ranks[killed].send_signal(signal.SIGKILL)
        ranks[killed].wait()
        survivor = ranks[1 - killed]
        told, errors = survivor.communicate("go on\n", timeout=TOGETHER_S)
    assert survivor.returncode == 1
    assert float(told.split()[0]) < NOTICED_S
    told = f"StoreUnavailable: rank {1 - killed} cannot continue: rank {killed}, which held part {killed}, is gone"
    assert told in errors, errors


@pytest.mark.parametrize("stopped", FIRST_AND_SECOND)
def test_a_stopped_rank_does_not_delay_the_end_of_the_other(stopped: int) -> None:
    """The transport alone would wait 30 s for the stopped rank, at server close and at process exit."""
    with running(TOLD_TO_GO_ON, [0, 1], free_port(), "2") as ranks:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "4\n"
        ranks[stopped].send_signal(signal.SIGSTOP)
        survivor = ranks[1 - stopped]
        failed, errors = survivor.communicate("go on\n", timeout=TOGETHER_S)
        ended = time.time()
    assert survivor.returncode == 1
    assert f"StoreTimeout: part {stopped} at " in errors, errors
    assert "gave no answer in 2 s" in errors
    assert ended - float(failed.split()[1]) < ENDED_S, errors


@pytest.mark.parametrize("wrong", FIRST_AND_SECOND)
def test_a_process_that_fails_reports_to_the_other(wrong: int) -> None:
    """The process leaves the group at its exit."""
    with running(TOLD_TO_GO_ON, [0, 1], free_port()) as ranks:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "4\n"
        ranks[wrong].stdin.write("fail\n")
        ranks[wrong].stdin.flush()
        time.sleep(1)
        told, errors = ranks[1 - wrong].communicate("go on\n", timeout=TOGETHER_S)
    assert ranks[1 - wrong].returncode == 1, told
    assert f"rank {1 - wrong} cannot continue: rank {wrong} gave up: KeyError: 'no such column'" in errors, errors


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        pytest.param("error", "KeyError: 'no such column'", marks=pytest.mark.slow),
        pytest.param("3", "SystemExit: 3", marks=pytest.mark.soak),
        pytest.param("0", None, marks=pytest.mark.soak),
    ],
)
def test_a_failing_multiprocessing_child_reports_to_the_other(ending: str, words: str | None) -> None:
    """A process that ends without an error serves until the other one leaves too."""
    port = free_port()
    with running(CHILD, [1], port, ending) as (other,):
        loader = make_loader(0, port)
        batches = iter(loader)
        time.sleep(3)
        try:
            if words is None:
                assert len(list(batches)) == 10
            else:
                with pytest.raises(StoreUnavailable) as told:
                    list(batches)
                assert f"rank 0 cannot continue: rank 1 gave up: {words}" in str(told.value)
        finally:
            loader.close(waits=words is None)
        out, errors = other.communicate(timeout=TOGETHER_S)
    assert out == "4\n", errors
    assert (other.returncode == 0) == (words is None), errors
