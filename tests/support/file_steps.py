"""A program that stops before each step that changes some folders, and goes on or is killed there.

Linux asks this process (seccomp's user notification) before a system call that makes, renames or
removes a file. The program and all that it starts are as they are shipped: nothing of them knows.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Of x86-64: name, number, position of the path, position of the folder that it is relative to.
_CALLS = {
    "open": (2, 0, None),
    "rename": (82, 1, None),
    "mkdir": (83, 0, None),
    "rmdir": (84, 0, None),
    "creat": (85, 0, None),
    "link": (86, 1, None),
    "unlink": (87, 0, None),
    "openat": (257, 1, 0),
    "mkdirat": (258, 1, 0),
    "unlinkat": (263, 1, 0),
    "renameat": (264, 3, 2),
    "linkat": (265, 3, 2),
    "renameat2": (316, 3, 2),
}
_BY_NUMBER = {number: (name, path, at) for name, (number, path, at) in _CALLS.items()}
_FLAGS_AT = {"open": 1, "openat": 2}
_SECCOMP, _SET_FILTER, _NEW_LISTENER = 317, 1, 8
_NO_NEW_PRIVILEGES = 38
_ASK, _ALLOW = 0x7FC00000, 0x7FFF0000
_LOAD, _EQUAL, _SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_CALL = struct.Struct("QIIiIQ6Q")
_ANSWER = struct.Struct("QqiI")
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_GO_ON = 1
_PATH_BYTES_MAX = 4096
_CREATES = os.O_CREAT

Step = Callable[[str, Path], bool]
"""Gets the system call and the path that it changes; false leaves the call waiting."""


class Watched:
    """A process whose changes of some folders are steps; a context manager that kills what is left.

    Args:
        folders: Below which a change is a step.
        step: Called before each, one at a time; the process waits meanwhile. It may kill.
        env: Set beside the environment of this process.
    """

    def __init__(
        self,
        command: Iterable[str],
        folders: Iterable[Path],
        step: Step,
        *,
        env: Mapping[str, str],
        log: Path,
    ) -> None:
        if platform.system() != "Linux" or platform.machine() != "x86_64":
            raise RuntimeError("steps are counted on Linux on x86-64 only")
        self._folders = tuple(folders)
        self._step = step
        ours, theirs = socket.socketpair()
        with ours, theirs, log.open("wb") as out:
            path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.file_steps", str(theirs.fileno()), *command],
                env={**os.environ, "PYTHONPATH": path, **env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=[theirs.fileno()],
            )
            theirs.close()
            listeners = socket.recv_fds(ours, 1, 1)[1]
        if not listeners:
            raise RuntimeError(f"the program did not start:\n{log.read_text()}")
        self._listener = listeners[0]
        self._thread = threading.Thread(target=self._serve, name="file-steps", daemon=True)
        self._thread.start()

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        try:
            while not any(event & select.POLLHUP for _, event in poll.poll()):
                with contextlib.suppress(FileNotFoundError):  # it was killed meanwhile
                    self._serve_one()
        finally:
            os.close(self._listener)

    def _serve_one(self) -> None:
        asked = bytearray(_CALL.size)
        fcntl.ioctl(self._listener, _RECEIVE, asked)
        id_, pid, _, number, _, _, *arguments = _CALL.unpack(asked)
        name, path_at, folder_at = _BY_NUMBER[number]
        folder = None if folder_at is None else arguments[folder_at]
        path = _path(pid, arguments[path_at], folder)
        inside = path is not None and any(path.is_relative_to(one) for one in self._folders)
        if path is not None and inside and not self._step(name, path):
            return
        fcntl.ioctl(self._listener, _SEND, bytearray(_ANSWER.pack(id_, 0, 0, _GO_ON)))


def _path(pid: int, address: int, folder: int | None) -> Path | None:
    """None if the process is gone."""
    try:
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            text = memory.read(_PATH_BYTES_MAX).split(b"\0", 1)[0]
        path = Path(os.fsdecode(text))
        if path.is_absolute():
            return path
        here = folder is None or ctypes.c_int32(folder & 0xFFFFFFFF).value == -100  # AT_FDCWD
        return Path(f"/proc/{pid}/{'cwd' if here else f'fd/{folder}'}").readlink() / path
    except OSError:
        return None


def _instructions() -> list[tuple[int, int, int, int]]:
    """A filter that asks for the calls; of those that open only where they create."""
    found = [(_LOAD, 0, 0, 0)]
    for name, (number, _, _) in _CALLS.items():
        if (flags := _FLAGS_AT.get(name)) is None:
            found += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ASK)]
        else:
            found += [
                (_EQUAL, 0, 4, number),
                (_LOAD, 0, 0, 16 + 8 * flags),
                (_SET, 0, 1, _CREATES),
                (_RETURN, 0, 0, _ASK),
                (_RETURN, 0, 0, _ALLOW),
            ]
    return [*found, (_RETURN, 0, 0, _ALLOW)]


def _ask_from_now_on() -> int:
    """The file descriptor by which whoever has it is asked."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = b"".join(struct.pack("HBBI", *one) for one in _instructions())
    held = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(
        struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(held)), 16
    )
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    listener: int = libc.syscall(_SECCOMP, _SET_FILTER, _NEW_LISTENER, program)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return listener


def main(channel: str, *command: str) -> None:
    with socket.socket(fileno=int(channel)) as there:
        socket.send_fds(there, [b"x"], [_ask_from_now_on()])
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
