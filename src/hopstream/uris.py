"""Tells local paths from URIs, and removes passwords from URIs for messages and files."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hopstream.errors import SettingsError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SECRET = re.compile(r"secret|password|token|key|sig|credential", re.IGNORECASE)
_WITH_USER = ("abfs", "abfss", "hdfs", "viewfs")
"""Schemes whose user part, before the ``@``, is part of the location, for example a container."""
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
_SERVERS = ("tcp", "tls", "unix", "grpc", "grpc+tcp", "grpc+tls")
_USERINFO = re.compile(r"(?<=://)[^\s/?#'\"]*@")


def is_uri(text: str) -> bool:
    """Return whether a text is a URI; if not, it is a local path."""
    return _SCHEME.match(text) is not None


def is_address(text: str) -> bool:
    """Return whether a text is the address of a server, or a comma-separated list of such addresses."""
    found = _SCHEME.match(text.lstrip())
    return found is not None and found[1].lower() in _SERVERS


def is_broken_uri(text: str) -> bool:
    """Return whether a text was a URI that ``Path`` collapsed to one slash."""
    return _ONE_SLASH.match(text) is not None


def local_path(given: str | os.PathLike[str]) -> Path:
    """Return a given local path as a ``Path``, and refuse URIs.

    All functions that read or write local files use this check.

    Raises:
        SettingsError: The value is a URI, or a ``Path`` made from one.
    """
    text = os.fsdecode(given).lstrip()
    is_collapsed = is_broken_uri(text)
    if not is_collapsed and not is_uri(text):
        return Path(given)
    slashes = ":///" if text.lower().startswith(("file:", "unix:")) else "://"  # URIs of these two schemes have no host
    uri = text.replace(":/", slashes, 1) if is_collapsed else text
    scheme, _, rest = uri.partition("://")
    shown = shown_uri(uri)
    if scheme.lower() == "file":
        raise SettingsError(f"{shown} is a URI, which is not read; write the path: /{rest.lstrip('/')}")
    if scheme.lower() in _SERVERS:
        remedy = "give it as a str, not as a Path" if is_collapsed else "give the path of a local file or folder"
        raise SettingsError(f"{shown} is the address of a server; {remedy}")
    raise SettingsError(
        f"{shown} is not on this machine; give the path of a local file or folder: a mounted bucket, or a copy (pull "
        "copies a dataset from s3://, gs:// or hdfs://, and place copies its parts there)"
    )


def stored_uri(text: str) -> str:
    """Return a location for storing in files: an absolute path, or a URI without secrets.

    The user stays if it is part of the location. The query stays, without secrets, because it may hold the endpoint of
    an object store.
    """
    if not is_uri(text):
        return str(Path(text).absolute())
    base, _, query = _without_user(text).partition("?")
    kept = [item for item in query.split("&") if item and not _SECRET.search(item.partition("=")[0])]
    return base + ("?" + "&".join(kept) if kept else "")


def shown_uri(text: str) -> str:
    """Return a location for messages: a path unchanged, a URI without user, password and query."""
    return _without_user(text).partition("?")[0].rstrip("/") if is_uri(text) else text


def scrubbed(message: str, uri: str) -> str:
    """Remove the secrets of a URI from a library's message."""
    for secret in (uri, uri.partition("?")[0], uri.partition("?")[2]):
        if secret and secret != shown_uri(uri):
            message = message.replace(secret, shown_uri(uri))
    return _USERINFO.sub("", message)


def _without_user(uri: str) -> str:
    scheme, _, rest = uri.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        user, _, host = authority.rpartition("@")
        kept = user.partition(":")[0] + "@" if scheme.lower() in _WITH_USER else ""
        return f"{scheme}://{kept}{host}{rest[len(authority) :]}"
    port = authority.rpartition(":")[2] if ":" in authority and not authority.endswith("]") else "0"
    if not port.isdecimal():  # a password that contains an unescaped slash
        return f"{scheme}://{rest.rpartition('@')[2] if '@' in rest else '...'}"
    return uri
