"""Compiles kernels once per machine, and caches them in a folder that all processes of a user share.

[Algorithm] The cache key of a compiled kernel is a digest of its source: its own file and all kernel files that it
    imports from, whose functions may be inlined. So stale code is never loaded, and checkouts and environments with the
    same source share the cache. A process that lacks a kernel takes the kernel's lock, checks the cache again, compiles
    and saves it. Processes that start together thus share the work.
[Cost] Reading and hashing the sources takes some milliseconds per process; calls of compiled kernels have no overhead.
[Not chosen] numba's own cache alone: its key covers a function's own file only, and processes that start together all
    compile the same kernels. One lock for all kernels: servers that start together could not share the work.

The environment variable ``NUMBA_CACHE_DIR`` moves the folder.
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
"""Longest wait for another process that compiles a kernel; then this process compiles it too."""
LOCK_STEP_S = 0.02
UNUSED_S = 90 * 24 * 3600.0
"""Age of the last change after which folders of other source versions are removed."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function on its first call, to run without the GIL, and cache it for later processes."""
    dispatcher = numba.njit(nogil=True)(function)
    dispatcher._cache = _SharedCache(function)
    return dispatcher


class _Inlined(CPUDispatcher):  # type: ignore[misc]
    def __call__(self, *_: Any) -> Any:
        """Raise ``TypeError``: the function has no wrapper that Python could call."""
        raise TypeError(f"{self.py_func.__name__} can only be called by compiled kernels")


def inlined(function: Callable[..., Any]) -> Any:
    """Inline a function into every kernel that calls it; Python cannot call it.

    LLVM inlines it. With numba's ``inline="always"`` the first start would compile 1.5 times as long, because numba
    infers the types of every copy.
    """
    dispatcher = numba.njit(forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    if isinstance(dispatcher, CPUDispatcher):  # with NUMBA_DISABLE_JIT it is the plain function
        dispatcher.__class__ = _Inlined
    return dispatcher


def cache_folder() -> Path:
    """Return the folder of compiled kernels."""
    return Path(config.CACHE_DIR or AppDirs(appname="hopstream", appauthor=False).user_cache_dir) / "kernels"


@cache
def source_digest(path: Path) -> str:
    """Return a digest of a kernel file, all kernel files that it imports from, and the compiler versions."""
    source = path.read_bytes()
    names = re.findall(r"^from hopstream\.kernels\.(\w+) import", source.decode(), re.MULTILINE)
    others = [source_digest(path.with_name(f"{name}.py")) for name in names]
    made_by = f"{numba.__version__} {config.BOUNDSCHECK} {' '.join(others)}"
    return hashlib.blake2b(source + made_by.encode(), digest_size=12).hexdigest()


class _Locator(caching._CacheLocator):  # type: ignore[misc]
    """Locator of the cache folder of a kernel file; each version of the source has its own."""

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
        return ""  # the folder's name has the digest

    def get_disambiguator(self) -> str:
        return self._name

    def ensure_cache_path(self) -> None:
        """Make the folder; if it is new, remove unused folders of other versions of the source."""
        if self._folder.is_dir():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        for other in self._folder.parent.glob(f"{Path(self._py_file).stem}-*"):
            if other != self._folder and time.time() - other.stat().st_mtime > UNUSED_S:
                shutil.rmtree(other, ignore_errors=True)


class _CompiledCode(caching.CompileResultCacheImpl):  # type: ignore[misc]
    """Numba's reader and writer of compiled code, in the folder of ``_Locator``."""

    _locator_classes = (_Locator,)


class _SharedCache(caching.FunctionCache):  # type: ignore[misc]
    """Cache of one kernel's compiled versions; numba calls it under its compiler lock."""

    _impl_class = _CompiledCode
    _lock: int | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load a version, or return None; the lock is then held until ``save_overload`` or ``give_up``."""
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
        """Save a version; if the folder is not writable, each process compiles for itself."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _LISTENER.warn_unsaved(error)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Release the lock, so that other processes can compile."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _is_locked(self) -> bool:
        """Take the lock; return False if the folder is not writable or the lock was not free in time."""
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
    """Listener that logs one warning per process on compilations; called under numba's compiler lock.

    numba calls it for each function that it compiles, not for functions loaded from the cache.
    """

    has_warned = False
    has_warned_unsaved = False

    def on_start(self, compiled: event.Event) -> None:
        """Warn before the first kernel is compiled; functions of the user are ignored."""
        if not self.has_warned and isinstance(compiled.data["dispatcher"]._cache, _SharedCache):
            self.has_warned = True
            LOG.warning(
                "compiling kernels that are used on this machine for the first time; takes some seconds, cached in %s",
                cache_folder(),
            )

    def on_end(self, compiled: event.Event) -> None:
        """Release the lock if compiling failed."""
        dispatcher = compiled.data["dispatcher"]
        if tuple(compiled.data["args"]) not in dispatcher.overloads and isinstance(dispatcher._cache, _SharedCache):
            dispatcher._cache.give_up()

    def warn_unsaved(self, error: OSError) -> None:
        """Log once that compiled kernels cannot be saved."""
        if not self.has_warned_unsaved:
            self.has_warned_unsaved = True
            LOG.warning("compiled kernels are not kept, so that every start compiles them: %s", error)


_LISTENER = _Listener()
event.register("numba:compile", _LISTENER)
