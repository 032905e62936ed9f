"""Reads and writes GLT's ``META`` and ``.pkl`` files without running what they say.

They are Python's pickles. What is read here knows numbers, text, bytes, lists, tuples and dictionaries, and, where they
are wanted, the two names by which a pickle holds a tensor; any other name is refused, and nothing is called by name.
"""

from __future__ import annotations

import io
import mmap
import pickletools
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from hopstream.errors import FormatError
from hopstream.load.torch_files import check_stored, read_torch_file

CHUNK_BYTES = 1 << 26
"""How much of a tensor is one pickle of a file: what is held in memory beside the tensor."""
_STORED = "torch.storage _load_from_bytes"
_MARK = object()


class _Name(str):
    """A module and a name in it, of which a pickle says that it be called."""

    __slots__ = ()


def read_value(path: Path) -> Any:
    """What a pickle of numbers, text, lists, tuples and dictionaries holds.

    Raises:
        FormatError: The file is missing or damaged, or holds anything else.
    """
    return next(_read(path, {}))


def read_tensor(path: Path) -> Tensor:
    """The rows of all tensors that a file has one pickle after the other of.

    Raises:
        FormatError: The file is missing or damaged, or holds anything else, or tensors that do not fit each other.
    """

    def stored(data: bytes) -> Any:
        return read_torch_file(path, tensors_only=True, data=data)

    def rebuilt(storage: Any, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
        if not isinstance(storage, torch.storage.TypedStorage):
            raise TypeError("a tensor without its values")
        whole = torch.empty(0, dtype=storage.dtype).set_(storage._untyped_storage)
        tensor = whole.as_strided(size, stride, offset)
        check_stored(path, tensor)
        return tensor

    calls: dict[str, Callable[..., Any]] = {
        _STORED: stored, "torch._utils _rebuild_tensor_v2": rebuilt, "collections OrderedDict": dict,
    }  # fmt: skip
    tensors = list(_read(path, calls))
    if not all(isinstance(tensor, Tensor) and tensor.dim() for tensor in tensors):
        raise FormatError(f"{path} holds things other than tensors of rows")
    first = tensors[0]
    for tensor in tensors[1:]:
        if (tensor.dtype, tensor.shape[1:]) != (first.dtype, first.shape[1:]):
            raise FormatError(
                f"{path} holds rows {tensor.dtype}{list(tensor.shape[1:])} after rows "
                f"{first.dtype}{list(first.shape[1:])}"
            )
    return first if len(tensors) == 1 else torch.cat(tensors)


def write_value(path: Path, value: Any) -> None:
    """Write a dictionary, list, tuple, text, integer, bool or None as a pickle."""
    path.write_bytes(b"\x80\x02" + b"".join(_opcodes(value)) + b".")


def write_tensor(path: Path, tensor: Tensor) -> None:
    """Write a tensor as GLT reads it: pickles of some of its rows one after the other, at least one."""
    num_rows = max(1, CHUNK_BYTES // max(1, tensor[:1].numel() * tensor.element_size()))
    with path.open("wb") as file:
        for start in range(0, max(1, len(tensor)), num_rows):
            stored = io.BytesIO()
            torch.save(tensor[start : start + num_rows].clone(), stored)
            file.write(b"\x80\x04c" + _STORED.replace(" ", "\n").encode() + b"\n")
            file.write(b"\x8e" + struct.pack("<Q", stored.getbuffer().nbytes))
            file.write(stored.getbuffer())
            file.write(b"\x85R.")  # a tuple of the bytes, which torch makes a tensor of


def _opcodes(value: Any) -> Iterator[bytes]:
    """What makes a value, in protocol 2."""
    if value is None or isinstance(value, bool):
        yield {None: b"N", True: b"\x88", False: b"\x89"}[value]
    elif isinstance(value, int):
        yield b"J" + struct.pack("<i", value)
    elif isinstance(value, str):
        yield b"X" + struct.pack("<I", len(value.encode())) + value.encode()
    else:
        start, end = {"dict": (b"}(", b"u"), "list": (b"](", b"e"), "tuple": (b"(", b"t")}[type(value).__name__]
        yield start
        for one in (part for item in value.items() for part in item) if isinstance(value, dict) else value:
            yield from _opcodes(one)
        yield end


def _read(path: Path, calls: Mapping[str, Callable[..., Any]]) -> Iterator[Any]:
    """The values of a file with one pickle after the other, at least one."""
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise FormatError(f"{path} is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                while mapped.tell() < len(mapped):
                    yield _Machine(calls).run(mapped)  # type: ignore[arg-type]  # it reads like a file
    except FormatError:
        raise
    except OSError as error:
        raise FormatError(f"{path} cannot be read ({error.strerror}); wanted a file of GLT's partitions") from error
    except Exception as error:  # a damaged file asks for anything: more values than there are, sizes below 0
        raise FormatError(f"{path} cannot be read as GLT's pickled values ({type(error).__name__}: {error})") from error


class _Machine:
    """Makes the value of one pickle, from the opcodes that values of the kinds named above are written with."""

    def __init__(self, calls: Mapping[str, Callable[..., Any]]) -> None:
        self.calls = calls
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, file: BinaryIO) -> Any:
        """Read up to the end of the pickle."""
        for opcode, arg, _ in pickletools.genops(file):
            self._do(opcode.name, arg)
        return self.stack.pop()

    def _do(self, opcode: str, arg: Any) -> None:
        stack = self.stack
        if opcode in _IGNORED:
            return
        if opcode in _VALUES:
            stack.append(arg)
        elif opcode in _CONSTANTS:
            stack.append(_CONSTANTS[opcode]())
        elif opcode in _TUPLES:
            num = _TUPLES[opcode]
            stack[-num:] = [tuple(stack[-num:])]
        elif opcode == "TUPLE":
            stack.append(tuple(self._marked()))
        elif opcode in ("APPEND", "APPENDS"):
            values = [stack.pop()] if opcode == "APPEND" else self._marked()
            _of_kind(stack[-1], list).extend(values)
        elif opcode in ("SETITEM", "SETITEMS"):
            pairs = [stack.pop(), stack.pop()][::-1] if opcode == "SETITEM" else self._marked()
            _of_kind(stack[-1], dict).update(zip(pairs[::2], pairs[1::2], strict=True))
        elif opcode in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            self.memo[len(self.memo) if arg is None else arg] = stack[-1]
        elif opcode in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[arg])
        else:
            self._call(opcode, arg)

    def _call(self, opcode: str, arg: Any) -> None:
        """Find what a name stands for here, or make what it makes."""
        stack = self.stack
        if opcode == "GLOBAL":
            stack.append(self._known(arg))
        elif opcode == "STACK_GLOBAL":
            name, module = _of_kind(stack.pop(), str), _of_kind(stack.pop(), str)
            stack.append(self._known(f"{module} {name}"))
        elif opcode == "REDUCE":
            args, name = _of_kind(stack.pop(), tuple), _of_kind(stack.pop(), _Name)
            stack.append(self.calls[name](*args))
        else:
            raise ValueError(f"it holds more than values: {opcode}")

    def _known(self, name: str) -> _Name:
        if name not in self.calls:
            raise ValueError(f"it names {name[:200]!r}, which is not read")
        return _Name(name)

    def _marked(self) -> list[Any]:
        """What was pushed since the last mark."""
        stack = self.stack
        start = next(place for place in range(len(stack) - 1, -1, -1) if stack[place] is _MARK)
        values = stack[start + 1 :]
        del stack[start:]
        return values


def _of_kind(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"a {type(value).__name__} where a {kind.__name__} is wanted")
    return value


_IGNORED = frozenset({"PROTO", "FRAME", "STOP"})
_VALUES = frozenset({
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
})  # fmt: skip
_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "MARK": lambda: _MARK,
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple,
}  # fmt: skip
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
