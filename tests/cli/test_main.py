"""Checks that the command starts quickly, and fails with the right status and message."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hopstream
import hopstream.cli
from hopstream.cli import main
from hopstream.errors import (
    AccessDenied,
    NoDiskRoomError,
    NoRoomError,
    RemoteError,
    SchemaError,
    SettingsError,
    StoreTimeout,
    StoreUnavailable,
)
from hopstream.graph.graph import Graph
from hopstream.preparation.write import write_parts
from tests.dataset.graphs import tree_of

VERBS = ("ingest", "partition", "prepare", "inspect", "serve", "up", "top", "warm")


def system_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_help_names_every_verb(run_command):
    result = run_command("--help")
    assert result.status == 0 and all(f"  {verb} " in result.out for verb in VERBS)


def test_help_has_verbs_and_options_under_headings(run_command):
    sections = run_command("--help").out.split("\n\n")
    (serving,) = (s for s in sections if s.startswith("Serve a dataset:\n"))
    names = [line.split()[0] for line in serving.splitlines() if line[2:3].strip()]
    assert names == ["Serve", "serve", "up", "top", "warm"]
    assert "..." not in "".join(sections[1:]), "no sentence is cut"
    sections = run_command("partition", "--help").out.split("\n\n")
    headings = {s.partition(":")[0]: s for s in sections}
    assert "--method" in headings["Cutting"] and "--on-dangling" in headings["Reading the source"]
    assert "--out" in headings["Options"] and "--help" in headings["Options"] and "source" in headings["Arguments"]
    assert sum(s.count("  --out ") for s in sections) == 1


def test_every_verb_has_help_and_json(run_command):
    for verb in VERBS:
        result = run_command(verb, "--help")
        assert result.status == 0 and "--json" in result.out and result.err == "", verb


def test_version_is_printed(run_command):
    assert run_command("--version").out == f"hopstream {hopstream.__version__}\n"


def test_the_package_runs_as_the_command():
    words = [sys.executable, "-m", "hopstream", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"hopstream {hopstream.__version__}\n", "")
    words = [sys.executable, "-m", "hopstream.cli", "frobnicate"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "see hopstream --help" in done.stderr


def test_help_brings_in_no_heavy_library():
    heavy = (
        "torch", "numba", "pyarrow", "kaminpar", "pymetis", "rich.table", "rich.progress", "hopstream.store.server",
    )  # fmt: skip
    code = (
        f"import sys; from hopstream.cli import main; main(['--help']); print([m for m in {heavy} if m in sys.modules])"
    )
    assert run_python(code).splitlines()[-1] == "[]"


def test_help_is_quick():
    code = (
        "import time, sys; t = time.process_time(); from hopstream.cli import main\n"
        "main(['--help']); print(time.process_time() - t)"
    )
    assert min(float(run_python(code).splitlines()[-1]) for _ in range(3)) < 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "error: Missing command; see hopstream --help\n"),
        (("frobnicate",), "error: No such command 'frobnicate'; see hopstream --help\n"),
        (("partitions",), "error: No such command 'partitions'. Did you mean 'partition'? see hopstream --help\n"),
        (("ingest",), "error: Missing "),
        (("partition", "x", "--out", "y", "--partz", "3"), "error: No such option: --partz"),
        (("partition", "x", "--out", "y", "--parts", "three"), "error: Invalid value for '--parts'"),
        (("partition", "x", "--out", "y", "--parts", "0"), "error: --parts is 0; it must be an integer from 1"),
        (
            ("partition", "x", "--out", "y", "--method", "magic"),
            "error: --method is 'magic'; it must be one of kaminpar",
        ),
        (("up", "x", "--replicas", "0"), "error: --replicas is 0"),
        (("serve", "x", "--grace-s", "-1"), "error: --grace-s is -1"),
    ],
)
def test_bad_options_are_the_users_fault(run_command, arguments: tuple[str, ...], message: str):
    result = run_command(*arguments)
    assert result.status == 2 and result.out == ""
    assert result.err.startswith(message) and result.err.count("\n") == 1, result.err


@pytest.mark.parametrize("verb", ["inspect", "serve", "up"])
def test_a_folder_without_a_dataset_is_a_usage_error(run_command, tmp_path: Path, verb: str):
    for path in (tmp_path, tmp_path / "missing"):
        result = run_command(verb, path)
        assert result.status == 2 and f"{path} is not a dataset" in result.err, result.err


@pytest.mark.parametrize(
    ("verb", "instead"), [("inspect", "the path of a dataset"), ("top", "the addresses of servers")]
)
def test_a_missing_cluster_file_is_not_taken_for_a_dataset(run_command, tmp_path: Path, verb: str, instead: str):
    result = run_command(verb, tmp_path / "c.json")
    assert result.status == 2
    assert result.err == f"error: {tmp_path}/c.json is missing; start the servers, or give {instead}\n"


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (SchemaError("what, got, wanted"), 2, "error: what, got, wanted\n"),
        (FileNotFoundError(2, "gone", "f"), 2, "error: [Errno 2] gone: 'f'\n"),
        (StoreUnavailable("no replica"), 1, "error: no replica\n"),
        (StoreTimeout("part 2 gave no answer"), 1, "error: part 2 gave no answer\n"),
        (RemoteError("part 2 failed", "Traceback: there"), 1, "error: part 2 failed\n--- server traceback ---\n"),
        (OSError(errno.EIO, "broken", "f"), 1, "error: [Errno 5] broken: 'f'\n"),
        (system_error(errno.EROFS, "f"), 2, "error: f cannot be written: its file system is read-only; give another f"),
        (system_error(errno.EACCES, "f"), 2, "error: f cannot be read or written: permission denied; give another"),
        (
            OSError(errno.ENOSPC, "too full for {x}; make room", "f"),
            1,
            "error: [Errno 28] too full for {x}; make room: 'f'\n",
        ),
        (
            OSError(errno.ENOSPC, f"Error writing. Detail: [errno 28] {os.strerror(errno.ENOSPC)}"),
            1,
            "error: no space left for what is written; make room, or write elsewhere\n",
        ),
        (NoRoomError("--memory is 10MB"), 2, "error: --memory is 10MB\n"),
        (NoDiskRoomError("d needs more"), 1, "error: d needs more\n"),
        (MemoryError("unable to allocate"), 1, "error: out of memory: unable to allocate\n"),
        (
            system_error(errno.ENOSPC, "/a/.d.12.partial/.f.12.partial"),
            1,
            "error: no space left for /a/d/f; make room, or write elsewhere\n",
        ),
        (SettingsError("holds; give overwrite=True"), 2, "error: holds; give --overwrite\n"),
        (AccessDenied("allow it with insecure"), 1, "error: allow it with --insecure\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_exit_status_separates_usage_errors_from_failures(
    run_command, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, message: str
):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("hopstream.dataset.layout.open_dataset", fail)
    result = run_command("inspect", ".")
    assert result.status == status and result.err.startswith(message)


def test_internal_errors_show_a_traceback(run_command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hopstream.dataset.layout.open_dataset", lambda _: 1 / 0)
    result = run_command("inspect", ".")
    assert result.status == 1
    assert "Traceback" in result.err and result.err.endswith("error: ZeroDivisionError: division by zero\n")


def test_a_closed_output_pipe_is_ignored(parts: Path):
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "hopstream.cli", "inspect", str(parts)]
    with os.fdopen(writer, "wb") as out:
        done = subprocess.run(words, stdout=out, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


STOPPED = """
import sys, time
from hopstream.cli import main
import hopstream.preparation.part_columns as part_columns
def stop(*_):
    print("here", flush=True)
    while True:  # a signal that comes before a call that waits for one would be waited for in vain
        time.sleep(0.05)
part_columns.split_nodes = stop
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("number", "status", "said", "is_new"),
    [(signal.SIGTERM, 143, "terminated\n", True), (signal.SIGINT, 130, "interrupted\n", False)],
)
def test_a_verb_cleans_up_on_sigterm_and_sigint(
    typed_graph: Graph, tmp_path: Path, number: int, status: int, said: str, is_new: bool
):
    write_parts(typed_graph, tmp_path / "raw")
    if not is_new:
        write_parts(typed_graph, tmp_path / "out")
    before = tree_of(tmp_path)
    words = [sys.executable, "-c", STOPPED, "partition", tmp_path / "raw", "--out", tmp_path / "out", "--overwrite"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while "here" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (status, said)
    assert tree_of(tmp_path) == before and not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_ctrl_c_while_modules_load(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "hopstream.cli.command":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "hopstream.cli.command", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert main(["--version"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_the_entry_point_loads_few_modules():
    code = "import sys; import hopstream.cli; print([m for m in ('typer', 'numpy', 'rich') if m in sys.modules])"
    assert run_python(code) == "[]"


def test_main_takes_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["hopstream", "--version"])
    assert main() == 0
    assert capsys.readouterr().out.startswith("hopstream ")
