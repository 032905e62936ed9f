"""Reads the fitted transforms of a dataset; apart from the manifest, because transforms load Arrow."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from hopstream.dataset.copying.local_copy import folder_of
from hopstream.dataset.manifest import read_manifest
from hopstream.ingest.transforms.saved import Transforms


def read_transforms(root: str | Path, *, tokenizers: Collection[str] = ()) -> Transforms:
    """Read the fitted transforms of a dataset, which make features of new rows.

    ``read_transforms("parts")["user"].apply({"age": [31], "city": ["Oslo"]})`` returns the features of one user.

    Args:
        root: The folder of the dataset.
        tokenizers: Functions that transforms may import, as ``module:function``.

    Returns:
        The transforms by type; without types if the dataset was not made of tables with transforms.

    Raises:
        FormatError: The folder is no dataset, or its transforms cannot be read.
        ChecksumError: The content of the manifest does not match its fingerprint or digest.
        SettingsError: A transform names a function that is not among ``tokenizers``.
    """
    return Transforms(read_manifest(folder_of(root)).transforms, tokenizers)
