"""Are compiled kernels thrown away when a file changes that they inline from?"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hopstream import kernels
from hopstream.kernels import SHARED_FILES, renew_stamps

FOLDER = Path(kernels.__file__).parent


def test_files_take_over_the_stamp_of_a_newer_shared_file(tmp_path: Path) -> None:
    for number, name in enumerate([*SHARED_FILES, "gather.py", "newer.py"]):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, ns=(number, number))
    os.utime(tmp_path / "memory.py", ns=(50, 50))
    os.utime(tmp_path / "newer.py", ns=(70, 70))
    renew_stamps(tmp_path)
    stamps = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert stamps == {**dict.fromkeys([*SHARED_FILES, "gather.py"], 50), "newer.py": 70}


def test_every_file_that_others_import_from_is_shared() -> None:
    imported = set()
    for path in FOLDER.glob("*.py"):
        imported |= {
            f"{name}.py" for name in re.findall(r"^from hopstream\.kernels\.(\w+) import", path.read_text(), re.M)
        }
    assert imported <= set(SHARED_FILES)
