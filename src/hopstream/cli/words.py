"""What does the command line call the things that the library's messages call by the names of arguments?"""

from __future__ import annotations

import re

from hopstream.cli.options import flag_name

_WORDS = (
    ("overwrite=True", "--overwrite"),
    ('on_dangling="drop"', "--on-dangling drop"),
    ("ignore=[names] or ignore='all'", "--ignore NAME,NAME or --ignore all"),
    ("ignore names", "--ignore names"),
    ("use grpc+tls://, or allow it with insecure", "serve and name it as grpc+tls://"),
    ("allow it with insecure", "allow it with --insecure"),
    ("keep_raw_ids=False", "--no-keep-raw-ids"),
    ("write the parts with direction 'out' or 'both'", "write the parts with --direction out or --direction both"),
    ("write the parts with direction 'in' or 'both'", "write the parts with --direction in or --direction both"),
    (
        "and file_format is 'tfrecord'; give file_format='parquet'",
        "and --file-format is tfrecord; give --file-format parquet",
    ),
    ("weight_attr='…'", "--weight-attr NAME"),
    ("time_attr='…'", "--time-attr NAME"),
    ('on_duplicate="drop"', "--on-duplicate drop"),
    ("inverse_edges=True", "--inverse-edges yes"),
    ("inverse_edges=False", "--inverse-edges no"),
    ("give ids='raw'", "give --raw-ids"),
    ("has_header=True or False", "--header yes or no"),
    ("has_header=True", "--header yes"),
    ("name for each with columns", "name for each with --columns"),
    ("or num_nodes where", "or --nodes where"),
    ("; give data_path", "; give --data-path"),
    ("leave_out names", "--leave-out names"),
    (" to leave_out", " to --leave-out"),
    ("raise num_parts", "raise --parts"),
    ("neither num_parts nor", "neither --parts nor"),
    ("; give partitions_dir", "; give --partitions-dir"),
    ("leave owners out or use method='file'", "leave --owners out or use --method file"),
)


# What a message begins with that is about one argument; whatever else is called so stands further inside.
_ARGUMENT = re.compile(
    r"(memory|data_path|num_parts|num_workers|engine|method|out|out_dir|in_dir|partitions_dir|owners|metadata_filename"
    r"|time_attr|weight_attr|links|passes|recursive|imbalance|balance_ntypes|balance_edges|balance_splits|part_weights|root|ids"
    r"|num_shards|id_feature|seed_column|split|seeds)"
    r"(?= (?:is|are|name|names) )"
)


_SPLIT = re.compile(r"\bsplit=(?:'([^']*)')?")


def command_words(message: str) -> str:
    """A message of the library, with flags in place of arguments."""
    message = (
        _ARGUMENT.sub(lambda found: flag_name(found[1]), message, count=1) if _ARGUMENT.match(message) else message
    )
    message = _SPLIT.sub(lambda found: f"--split {found[1]}" if found[1] else "--split", message)
    for argument, flag in _WORDS:
        message = message.replace(argument, flag)
    return message
