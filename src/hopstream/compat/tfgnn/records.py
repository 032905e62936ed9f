"""How are files of records named here, where TensorFlow takes strings?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hopstream.tfgnn import tfrecord
from hopstream.uris import local_path


class RecordWriter(tfrecord.RecordWriter):
    """Writes records to one file, as ``tf.io.TFRecordWriter`` does. Use it as a context, or ``close`` it."""

    def __init__(self, path: str | Path, *, is_compressed: bool = False) -> None:
        """Make the file, or empty the one that is there.

        Raises:
            OSError: The file cannot be written.
        """
        super().__init__(local_path(path), is_compressed=is_compressed)


def read_records(name: str | Path) -> Iterator[bytes]:
    """The records of one file, of the shards of ``name@15``, or of what a pattern such as ``name-*`` finds, in order.

    Raises:
        FormatError: A file is missing, cut off, or no TFRecord file.
        ChecksumError: A record is not what was written.
        OSError: A file cannot be read.
    """
    for path in tfrecord.files_of(name):
        yield from tfrecord.read_records(path)
