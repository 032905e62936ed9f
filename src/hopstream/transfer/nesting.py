"""Do places that parts are copied to lie in each other, or in a dataset?

A root in another one would be taken for a part of it, and go when that is replaced.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from hopstream.dataset.paths import MANIFEST
from hopstream.errors import SettingsError
from hopstream.transfer.places import Place
from hopstream.transfer.targets import ids_of


def check_apart(source: Place, targets: Sequence[Place]) -> None:
    """Refuse places that are the same or lie in each other, and those that lie in any dataset.

    Args:
        source: The dataset.
        targets: Where its parts go; one may be the source itself.

    Raises:
        SettingsError: As said.
    """
    for target in targets:
        if _is_in(target, source) or _is_in(source, target):
            raise SettingsError(
                f"{target.shown} and the dataset {source.shown} lie in each other; give a folder beside it"
            )
    for first, second in itertools.permutations(targets, 2):
        if _where(first) == _where(second):
            raise SettingsError(f"{first.shown} and {second.shown} are one folder; name a root once, with its parts")
        if _is_in(second, first):
            raise SettingsError(f"{second.shown} lies in {first.shown}, another root; give folders beside each other")
    for target in targets:
        _refuse_dataset_above(target)


def _refuse_dataset_above(place: Place) -> None:
    if place.local is None:
        return
    for folder in Path(os.path.realpath(place.local)).parents:
        if (folder / MANIFEST).is_file() and ids_of(Place(str(folder)))[0]:
            raise SettingsError(f"{place.shown} lies in the dataset {folder}; give a folder outside of it")


def _is_in(inner: Place, outer: Place) -> bool:
    return _where(inner).startswith(f"{_where(outer)}/")


def _where(place: Place) -> str:
    return place.shown if place.local is None else os.path.realpath(place.local)
