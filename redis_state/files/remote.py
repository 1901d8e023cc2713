"""File systems other than the local one, through fsspec."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, cast

from redis_state.errors import ConfigError, RedisStateError, UnavailableError
from redis_state.files.folder import Item
from redis_state.files.urls import FolderAddress, options_of

_PIECE_BYTES = 8 << 20
_READS_AT_ONCE = 1024
"""The largest value of the option `readParallel`."""
_CONNECT_S, _ANSWER_S = 20.0, 120.0
"""Longest waits for a connection to a node of HDFS, and for the next bytes of its answer.

A piece of a file has to be sent in the second one, too.
"""
_TEXT_MAX = 200
_NO_BUCKET = re.compile("(bucket|container) does not exist", re.IGNORECASE)
_BEHIND_END = re.compile("InvalidRange|range is not satisfiable", re.IGNORECASE)
_BEHIND_STATUS = 416
_REFUSED_STATUS = (401, 403)
_NO_CREDENTIALS = {
    "ClientAuthenticationError",
    "CredentialRetrievalError",
    "DefaultCredentialsError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "RefreshError",
    "TokenRetrievalError",
}
_NO_ANSWER = {
    "ClientConnectorError",
    "ConnectTimeoutError",
    "ConnectionClosedError",
    "ConnectionError",
    "EndpointConnectionError",
    "ReadTimeoutError",
    "ServerDisconnectedError",
    "ServiceRequestError",
    "ServiceResponseError",
    "Timeout",
}


class RemoteFiles:
    """A file system of fsspec.

    Args:
        options: The user's options, which win over those of the address.

    Attributes:
        root: Path of the folder in this file system.

    Raises:
        ConfigError: A package is missing, or an option is wrong.
    """

    def __init__(self, place: FolderAddress, options: Mapping[str, Any]) -> None:
        self._place = place
        self._fs: Any
        self.root: str
        self.renames = place.renames
        what = f"opening the file system of {place.roots[0]}"
        try:
            import fsspec
        except ModuleNotFoundError as error:
            raise ConfigError(
                what,
                found="the package fsspec is missing",
                advice=f"Run `pip install 'redis-state[checkpoints]' {place.package}`.",
            ) from error
        try:
            given = options_of(place, options, fsspec.config.conf.get(place.protocol))
            if place.address:
                self._fs, self.root = fsspec.core.url_to_fs(place.address, **given)
            else:
                self._fs, self.root = fsspec.filesystem(place.protocol, **given), place.path
        except ImportError as error:
            package = place.package
            raise ConfigError(
                what,
                found=f"the package {package} is missing"
                if package
                else f"its driver is missing: {_text(error)}",
                advice=f"Run `pip install {package}`." if package else "Install that package.",
            ) from error
        except ValueError as error:
            raise ConfigError(
                what,
                # The text of an error about an option could quote a secret.
                found=_text(error) if place.address else "an option is wrong or unknown",
                advice="Give an address whose scheme fsspec knows, and options that its file "
                "system takes.",
            ) from error
        except Exception as error:
            raise self.error(what, error) from error
        if place.protocol == "webhdfs":
            _widen(self._fs.session)

    def items(self, path: str) -> list[Item]:
        """Implements `Files.items`."""
        found = []
        for info in self._fs.ls(path, detail=True):
            name = str(info["name"]).rstrip("/")
            # Some stores keep an empty object for a folder, or list a file as its own folder.
            if name.strip("/") == path.strip("/"):
                if info["type"] != "directory" and not path.endswith("/") and info.get("size"):
                    raise NotADirectoryError(path)
                continue
            is_folder = info["type"] == "directory"
            size = 0 if is_folder else int(info.get("size") or 0)
            found.append(Item(name.rsplit("/", 1)[-1], is_folder, size))
        return found

    def size(self, path: str) -> int:
        """Implements `Files.size`."""
        info = self._fs.info(path)
        if info["type"] == "directory":
            raise IsADirectoryError(path)
        return int(info["size"])

    def open(self, path: str) -> BinaryIO:
        """Implements `Files.open`."""
        file = self._fs.open(path, "rb", block_size=_PIECE_BYTES, cache_type="readahead")
        return cast("BinaryIO", file)

    def read(self, path: str) -> bytes:
        """Implements `Files.read`."""
        return bytes(self._fs.cat_file(path))

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Implements `Files.read_ranges`; drivers that can send the requests at once do so."""
        ends = [offset + length for offset, length in spans]
        starts = [offset for offset, _ in spans]
        if len(spans) > 1 and self._place.protocol == "webhdfs":
            return self._read_at_once(path, starts, ends)
        # With "raise" fsspec raises a library's own error of a group of requests in some drivers.
        found = self._fs.cat_ranges([path] * len(spans), starts, ends, on_error="return")
        return [_range_of(one) for one in found]

    def _read_at_once(self, path: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        """Reads ranges by a driver that sends one request after the other."""

        def read(begin: int, end: int) -> Any:
            try:
                return self._fs.cat_file(path, begin, end)
            except Exception as error:  # noqa: BLE001  # as `on_error="return"` of fsspec
                return error

        with ThreadPoolExecutor(min(len(starts), _READS_AT_ONCE)) as threads:
            return [_range_of(one) for one in threads.map(read, starts, ends)]

    def create(self, path: str, raw: bytes) -> None:
        """Implements `Files.create`, in one conditional request if the driver supports that."""
        if self._is_there(path):
            raise FileExistsError(path)
        self._make_folder_of(path)
        self._fs.pipe_file(path, raw, mode="create")

    def create_open(self, path: str) -> BinaryIO:
        """Implements `Files.create_open`."""
        self._make_folder_of(path)
        return cast("BinaryIO", self._fs.open(path, "wb", block_size=_PIECE_BYTES))

    def replace(self, source: str, target: str) -> None:
        """Implements `Files.replace`. HDFS cannot rename onto a file, so that is deleted first."""
        if self._is_there(target):
            self._fs.rm_file(target)
        self.rename(source, target)

    def remove_folder(self, path: str) -> None:
        """Implements `Files.remove_folder`."""
        self._fs.rm(path, recursive=True)

    def _make_folder_of(self, path: str) -> None:
        if not self._place.bucket:
            # Object stores have no folders, and a driver would create a bucket that it cannot
            # see.
            self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        """Implements `Files.rename`; checks the result, because fsspec ignores HDFS's refusal."""
        self._fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
        self._fs.mv(source, target)
        if self._is_there(source) or not self._is_there(target):
            raise PermissionError(f"{source} was not renamed")

    def _is_there(self, path: str) -> bool:
        """Returns whether a file exists. `exists` of fsspec would return False for every error."""
        try:
            self._fs.info(path)
        except FileNotFoundError:
            return False
        return True

    def remove(self, path: str) -> None:
        """Implements `Files.remove`."""
        self._fs.rm_file(path)

    def make_folder(self, path: str) -> None:
        """Implements `Files.make_folder`."""
        if not self._place.bucket:
            self._fs.makedirs(path, exist_ok=True)

    def missing(self, path: str) -> str:
        """Implements `Files.missing`; distinguishes a missing bucket from a missing folder."""
        bucket = self._place.bucket
        try:
            if self._fs.isfile(path):
                return "it is not a folder"
            self._fs.ls(path)
        except FileNotFoundError as error:
            # For a missing bucket every object store says so; for a folder the text is only its
            # path.
            if bucket and _NO_BUCKET.search(str(error)):
                return f"there is no bucket or container {bucket}"
        return "there is no such folder"

    def spellings(self, shown: str) -> set[str]:
        """Implements `Files.spellings`."""
        return {f"{root}/{self._inside(shown)}" for root in self._place.roots}

    def spelling(self, shown: str) -> str:
        """Implements `Files.spelling`."""
        scheme = shown.partition(":")[0].lower()
        roots = self._place.roots
        root = next((one for one in roots if one.startswith(f"{scheme}:")), roots[0])
        return f"{root}/{self._inside(shown)}"

    def _inside(self, shown: str) -> str:
        """Returns the path behind the authority, without doubled slashes."""
        rest = shown.partition(":")[2].lstrip("/")
        if self._place.has_authority:
            rest = rest.partition("/")[2]
        return "/".join(name for name in rest.split("/") if name)

    def error(self, attempted: str, error: Exception) -> RedisStateError:
        """Implements `Files.error`.

        Omits most texts of libraries, because they contain addresses that may contain tokens.
        """
        names = {kind.__name__ for kind in type(error).__mro__}
        status = _status(error)
        if names & {"PermissionError", *_NO_CREDENTIALS} or status in _REFUSED_STATUS:
            said = _text(error) if isinstance(error, PermissionError) else type(error).__name__
            return ConfigError(
                attempted,
                found=f"the file system refuses access: {said}",
                advice=(
                    "Give this process the credentials of the query, through the settings of "
                    f"{self._place.package or 'its driver'} (environment, files, "
                    "--storage-options), and the rights that operations.md lists."
                ),
            )
        if names & _NO_ANSWER or isinstance(error, (ConnectionError, TimeoutError)):
            return UnavailableError(
                attempted,
                found=f"the file system does not answer: {type(error).__name__}",
                advice="Check its address, port and region, and that it can be reached from here; "
                "then run the command again.",
            )
        if type(error) is RuntimeError and self._place.protocol == "webhdfs":
            found = f"the name node answered: {_text(error)}"
        else:
            found = type(error).__name__ + (f", status {status}" if status else "")
        return ConfigError(
            attempted,
            found=found,
            advice="Check the address, its rights and --storage-options, then run the command "
            "again.",
        )


def _widen(session: Any) -> None:
    """Bounds the waits of a session of requests, and raises the connections that it keeps.

    It keeps ten otherwise, and logs a warning for each further one that it discards. Without a
    bound a server that takes a request and never answers holds the thread for ever.
    """
    from requests.adapters import HTTPAdapter

    class Bounded(HTTPAdapter):
        def send(
            self,
            request: Any,
            stream: bool = False,
            timeout: Any = None,
            verify: Any = True,
            cert: Any = None,
            proxies: Any = None,
        ) -> Any:
            # A body has the time of a connection, for all of its bytes together.
            waits = timeout or (_ANSWER_S if request.body else _CONNECT_S, _ANSWER_S)
            return super().send(request, stream, waits, verify, cert, proxies)

    for scheme in ("http://", "https://"):
        if getattr(session.get_adapter(scheme), "_pool_maxsize", 0) < _READS_AT_ONCE:
            session.mount(scheme, Bounded(pool_maxsize=_READS_AT_ONCE))


def _range_of(found: Any) -> bytes:
    """Returns a range as it was read, or raises what was returned in its place.

    A range behind the end of the file is empty.
    """
    if not isinstance(found, BaseException):
        return bytes(found)
    is_behind = isinstance(found, Exception) and (
        _status(found) == _BEHIND_STATUS or _BEHIND_END.search(str(found)) is not None
    )
    if not is_behind:
        raise found
    return b""


def _status(error: Exception) -> int | None:
    """Returns the HTTP status of the server, if the library keeps it."""
    found = getattr(getattr(error, "response", None), "status_code", None)
    found = getattr(error, "status", found)
    return found if isinstance(found, int) else None


def _text(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:_TEXT_MAX].rstrip(".") if lines else type(error).__name__
