"""What does the command line call the things that the library's messages call by the names of arguments?"""

from __future__ import annotations

_WORDS = (
    ("overwrite=True", "--overwrite"),
    ('on_dangling="drop"', "--on-dangling drop"),
    ("ignore=[names] or ignore='all'", "--ignore NAME,NAME or --ignore all"),
    ("ignore names", "--ignore names"),
    ("use grpc+tls://, or allow it with insecure", "serve and name it as grpc+tls://"),
    ("allow it with insecure", "allow it with --insecure"),
    ("keep_raw_ids=False", "--no-keep-raw-ids"),
    ('on_duplicate="drop"', "--on-duplicate drop"),
    ("leave_out names", "--leave-out names"),
    (" to leave_out", " to --leave-out"),
    ("raise num_parts", "raise --parts"),
    ("neither num_parts nor", "neither --parts nor"),
    ("; give partitions_dir", "; give --partitions-dir"),
    ("leave owners out or use method='file'", "leave --owners out or use --method file"),
)


def command_words(message: str) -> str:
    """A message of the library, with flags in place of arguments."""
    for argument, flag in _WORDS:
        message = message.replace(argument, flag)
    return message
