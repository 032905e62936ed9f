"""Demo of the whole system: from a raw graph, through servers, to a trained model.

    python examples/demo.py

It ingests Cora, partitions it into four parts, starts one server per part, and trains GraphSAGE with DDP on two ranks,
which fetch batches from the servers. It prints one line per stage. The exit status is 0 only if the model reaches its
accuracy and no process is left running. Arguments are passed on to ``cora_ddp.py``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from types import FrameType
from typing import IO, Any, NoReturn

EXAMPLES = Path(__file__).parent
HOPSTREAM = [sys.executable, "-m", "hopstream.cli"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
NUM_PARTS, NUM_RANKS = 4, 2
COMMAND_S, START_S, TRAIN_S, STOP_S, EXIT_S = 120.0, 300.0, 300.0, 30.0, 5.0
MARK = "HOPSTREAM_DEMO"
"""Environment variable that all processes of one demo inherit; its value is the demo's folder."""


class DemoError(Exception):
    """A stage failed; the message names the stage and the reason."""


class Demo:
    """One run of the demo, which writes only to an existing folder."""

    def __init__(self, folder: Path, train_arguments: list[str]) -> None:
        """Run in ``folder``; pass ``train_arguments`` to ``cora_ddp.py``."""
        self.folder = folder
        self.train_arguments = train_arguments

    def run(self) -> None:
        """Run all stages.

        Raises:
            DemoError: A stage failed or took too long.
        """
        raw, parts, cluster = self.folder / "raw", self.folder / "parts", self.folder / "cluster.json"
        with stage("ingest") as told:
            facts = self.hopstream("ingest", EXAMPLES / "data" / "cora.npz", "--out", raw)
            told.append(f"cora.npz: {facts['read']['nodes']:,} nodes, {facts['read']['edges']:,} edges")
        with stage("partition") as told:
            facts = self.hopstream("partition", raw, "--out", parts, "--parts", NUM_PARTS, "--method", "kaminpar")
            told.append(f"{NUM_PARTS} parts by kaminpar, {facts['measure']['cut']:.1%} of edges cut")
        with self.servers(parts, cluster):
            self.train(cluster)

    def hopstream(self, *words: object) -> dict[str, dict[str, Any]]:
        """Run one command to its end; return the facts that it reported, by stage."""
        with TemporaryFile("w+") as output, self.started([*HOPSTREAM, *map(str, words), "--json"], output) as process:
            wait_for(lambda: process.poll() is not None, COMMAND_S, f"hopstream {words[0]}")
            check_status(process)
            return facts_by_stage(output)

    @contextmanager
    def servers(self, parts: Path, cluster: Path) -> Iterator[None]:
        """Serve every part inside the context."""
        words = [*HOPSTREAM, "up", str(parts), "--cluster-file", str(cluster), "--json"]
        with TemporaryFile("w+") as output, self.started(words, output) as process:
            with stage("up") as told:
                wait_for(lambda: cluster.exists() or process.poll() is not None, START_S, "hopstream up")
                check_status(process, is_running=True)
                ports = [server["location"].rpartition(":")[2] for server in json.loads(cluster.read_text())["servers"]]
                told.append(f"{len(ports)} servers on loopback ports {', '.join(ports)}")
            yield
            with stage("down") as told:
                process.terminate()
                wait_for(lambda: process.poll() is not None, STOP_S, "hopstream up, told to stop,")
                check_status(process)
                facts = facts_by_stage(output)["stop"]
                answered = f"{facts['requests']:,} requests with {facts['bytes'] / 1e9:.1f} GB"
                told.append(f"{facts['servers']} servers answered {answered}")

    def train(self, cluster: Path) -> None:
        """Train and evaluate on all ranks; rank 0 prints the result."""
        words = [*TORCHRUN, "--nproc-per-node", str(NUM_RANKS), str(EXAMPLES / "cora_ddp.py"), str(cluster)]
        with self.started([*words, *self.train_arguments], None) as process:
            wait_for(lambda: process.poll() is not None, TRAIN_S, "training")
            check_status(process)

    @contextmanager
    def started(self, words: list[str], output: IO[str] | None) -> Iterator[subprocess.Popen[bytes]]:
        """Start a process that ends with the context; print its stderr if something fails."""
        # Ranks on one machine need only loopback, and with one thread each they leave cores to the servers.
        environment = {**os.environ, MARK: str(self.folder), "TMPDIR": str(self.folder), "GLOO_SOCKET_IFNAME": "lo"}
        environment["OMP_NUM_THREADS"] = "1"
        with TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environment, start_new_session=True
            )
            try:
                yield process
            except DemoError as error:
                end(process)
                errors.seek(0)
                said = errors.read().strip()
                raise DemoError(f"{error}\n{said}" if said else str(error)) from error
            finally:
                end(process)


@contextmanager
def stage(name: str) -> Iterator[list[str]]:
    """Time the context, then print one line: the stage, its facts and its seconds."""
    started = time.perf_counter()
    told: list[str] = []
    yield told
    print(f"{name:<9}  {' '.join(told):<60} {time.perf_counter() - started:6.1f} s", flush=True)


def wait_for(is_done: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait until a condition holds.

    Raises:
        DemoError: The condition did not hold in time.
    """
    ends = time.monotonic() + timeout_s
    while not is_done():
        if time.monotonic() > ends:
            raise DemoError(f"{what} took more than {timeout_s:g} s")
        time.sleep(0.02)


def check_status(process: subprocess.Popen[bytes], *, is_running: bool = False) -> None:
    """Raise ``DemoError`` unless a process has ended with status 0 or, with ``is_running``, still runs."""
    status = process.poll()
    if status != (None if is_running else 0):
        words = process.args if isinstance(process.args, list) else [process.args]
        raise DemoError(f"exit status {status} of: {' '.join(map(str, words))}")


def facts_by_stage(output: IO[str]) -> dict[str, dict[str, Any]]:
    """Facts that a command reported with ``--json``, by stage."""
    output.seek(0)
    records = map(json.loads, output)
    return {record["stage"]: record for record in records if "stage" in record}


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process, and kill it if it does not end; does nothing if it has ended."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(EXIT_S)


def processes_of(folder: Path) -> list[int]:
    """Ids of all running processes of the demo in ``folder``, with all descendants."""
    wanted = f"{MARK}={folder}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
        except OSError:  # it has ended meanwhile, or belongs to another user
            continue
    return found


def check_nothing_left(folder: Path) -> None:
    """End processes that the demo has left running.

    Raises:
        DemoError: There were such processes.
    """
    try:
        wait_for(lambda: not processes_of(folder), EXIT_S, "the end of all processes")
    except DemoError as error:
        left = processes_of(folder)
        for process in left:
            os.kill(process, signal.SIGKILL)
        raise DemoError(f"{error}; processes {left} were left running") from error


def on_signal(number: int, _: FrameType | None) -> NoReturn:
    """Exit through every context, so that all started processes end."""
    raise SystemExit(128 + number)


def main() -> int:
    """Run the demo; return 0 on success."""
    signal.signal(signal.SIGTERM, on_signal)
    try:
        with stage("done") as told, TemporaryDirectory(prefix="hopstream-demo-") as name:
            folder = Path(name)
            try:
                Demo(folder, sys.argv[1:]).run()
            finally:
                check_nothing_left(folder)
            told.append("nothing is left running")
    except DemoError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
