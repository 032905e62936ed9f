"""How many bytes does a size such as ``4GiB`` name?"""

from __future__ import annotations

import re

from hopstream.errors import SettingsError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]i?)?B?")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def memory_bytes(text: object) -> int:
    """A size such as ``4GiB``, ``500 MB`` or ``2000000000``, in bytes.

    Raises:
        SettingsError: It is none.
    """
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise SettingsError(f"memory is {text!r}; it must be a size such as 500MB or 4GiB")
    unit = (match[2] or "").replace("K", "k")
    return int(float(match[1]) * _UNITS[unit])
