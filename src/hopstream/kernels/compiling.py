"""Compiles kernels once per machine, and keeps them in a folder that all processes of a user share.

[Algorithm] A compiled kernel is kept under the digest of all source that it is made of: its own file and the kernel
    files that this imports from, whose functions may be inlined. So code that is out of date is never loaded, and
    checkouts and environments with the same source share it. A process that finds a kernel missing takes the lock of
    that kernel, looks again, compiles and saves it; processes that start together so share the work and wait for
    each other.
[Cost] Reading and hashing the sources takes some milliseconds per process; a call of a compiled kernel costs nothing.
[Not chosen] numba's own cache alone: it looks at a function's own file only, and processes that start together compile
    the same side by side. One lock for all kernels: servers that start together could not share the work.

numba reads ``NUMBA_CACHE_DIR``, which puts the folder elsewhere.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import caching, config, event
from numba.core.registry import CPUDispatcher
from numba.misc.appdirs import AppDirs

LOG = logging.getLogger(__name__)
LOCK_WAIT_S = 120.0
"""How long another process may take to compile one kernel before this one does it too."""
LOCK_STEP_S = 0.02
UNUSED_S = 90 * 24 * 3600.0
"""Compiled kernels of other source are removed when nothing was added to them for so long."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, without the interpreter's lock, and keep it for later processes."""
    dispatcher = numba.njit(nogil=True)(function)
    dispatcher._cache = _SharedCache(function)
    return dispatcher


class _Inlined(CPUDispatcher):  # type: ignore[misc]
    def __call__(self, *_: Any) -> Any:
        """Refuse: numba would call code that is not there."""
        raise TypeError(f"{self.py_func.__name__} can only be called by compiled kernels")


def inlined(function: Callable[..., Any]) -> Any:
    """Make a function part of every kernel that calls it; Python cannot call it.

    LLVM inlines it. Where numba does (``inline="always"``) a first start compiles half as long again, because numba
    infers the types of every copy.
    """
    dispatcher = numba.njit(forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    if isinstance(dispatcher, CPUDispatcher):  # with NUMBA_DISABLE_JIT it is the function
        dispatcher.__class__ = _Inlined
    return dispatcher


def cache_folder() -> Path:
    """The folder of compiled kernels."""
    return Path(config.CACHE_DIR or AppDirs(appname="hopstream", appauthor=False).user_cache_dir) / "kernels"


@cache
def source_digest(path: Path) -> str:
    """Digest of a kernel file, of those that it imports from, this file included, and of what else changes the code."""
    source = path.read_bytes()
    names = re.findall(r"^from hopstream\.kernels\.(\w+) import", source.decode(), re.MULTILINE)
    others = [source_digest(path.with_name(f"{name}.py")) for name in names]
    made_by = f"{numba.__version__} {config.BOUNDSCHECK} {' '.join(others)}"
    return hashlib.blake2b(source + made_by.encode(), digest_size=12).hexdigest()


class _Locator(caching._CacheLocator):  # type: ignore[misc]
    """Finds the folder of a kernel file, which is another one for other source."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        self._py_file = py_file
        self._name = py_func.__name__
        self._folder = cache_folder() / f"{Path(py_file).stem}-{source_digest(Path(py_file))}"

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Locator:
        return cls(py_func, py_file)

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return ""  # the folder's name says it

    def get_disambiguator(self) -> str:
        return self._name

    def ensure_cache_path(self) -> None:
        """Make the folder; where it is new, remove those of the same file's earlier source that nobody uses."""
        if self._folder.is_dir():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        for other in self._folder.parent.glob(f"{Path(self._py_file).stem}-*"):
            if other != self._folder and time.time() - other.stat().st_mtime > UNUSED_S:
                shutil.rmtree(other, ignore_errors=True)


class _CompiledCode(caching.CompileResultCacheImpl):  # type: ignore[misc]
    """Compiled code as numba writes it, where ``_Locator`` says."""

    _locator_classes = (_Locator,)


class _SharedCache(caching.FunctionCache):  # type: ignore[misc]
    """The compiled versions of one kernel; numba calls it under its compiler's lock, one thread at a time."""

    _impl_class = _CompiledCode
    _lock: int | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The kept version; None where there is none, and then the lock is held until it is saved or given up."""
        found = self._load(sig, target_context)
        if found is None and self._is_locked():
            found = self._load(sig, target_context)  # another process may have compiled it meanwhile
            if found is not None:
                self.give_up()
        return found

    def _load(self, sig: Any, target_context: Any) -> Any:
        with suppress(OSError):
            return super().load_overload(sig, target_context)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a version; where it cannot be written, each process compiles it anew."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _LISTENER.warn_unsaved(error)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Let others compile."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _is_locked(self) -> bool:
        """Take the lock; False where the folder cannot be written, or another process has not compiled in time."""
        if self._lock is not None:
            return False
        with suppress(OSError):
            self._impl.locator.ensure_cache_path()
            path = Path(self.cache_path) / f"{self._impl.filename_base}.lock"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            ends = time.monotonic() + LOCK_WAIT_S
            while time.monotonic() < ends:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(LOCK_STEP_S)
                    continue
                except OSError:  # a file system without locks
                    break
                self._lock = descriptor
                return True
            os.close(descriptor)
        return False


class _Listener(event.Listener):  # type: ignore[misc]
    """Logs one warning per process that kernels are compiled; numba calls it under its compiler's lock.

    numba calls it for each function that it really compiles, and not for those that it loads from its cache.
    """

    has_warned = False
    has_warned_unsaved = False

    def on_start(self, compiled: event.Event) -> None:
        """A function is about to be compiled; the user's own are none of our business."""
        if not self.has_warned and isinstance(compiled.data["dispatcher"]._cache, _SharedCache):
            self.has_warned = True
            LOG.warning(
                "compiling kernels that are used on this machine for the first time; takes some seconds, cached in %s",
                cache_folder(),
            )

    def on_end(self, compiled: event.Event) -> None:
        """A function was compiled, or could not be."""
        dispatcher = compiled.data["dispatcher"]
        if tuple(compiled.data["args"]) not in dispatcher.overloads and isinstance(dispatcher._cache, _SharedCache):
            dispatcher._cache.give_up()

    def warn_unsaved(self, error: OSError) -> None:
        """Log once that compiled kernels cannot be kept."""
        if not self.has_warned_unsaved:
            self.has_warned_unsaved = True
            LOG.warning("compiled kernels are not kept, so that every start compiles them: %s", error)


_LISTENER = _Listener()
event.register("numba:compile", _LISTENER)
