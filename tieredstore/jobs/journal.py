"""What a job has done, kept on disk so that a run after a kill does not do it again.

One file of JSON lines: first what the job is, then a line for each step that ended. A line is
synced before the step counts as done; a torn last line was never counted.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import orjson

from tieredstore.disk.errors import NO_FOLDER, wrap_os_errors
from tieredstore.disk.locks import is_file_at, lock_file, unlock_file
from tieredstore.disk.sync import sync_file
from tieredstore.errors import Busy, Invalid


class Journal:
    """Steps by name, each with its outcome as JSON. A context manager.

    Another process that has the same journal open is an error (Busy). Without a path, nothing is
    kept.
    """

    def __init__(self, path: Path | None, identity: dict[str, object]) -> None:
        """path: a file, made with its folder where it is missing. identity: the job and its
        arguments; a journal of another job is an error (Invalid)."""
        self._steps: dict[str, Any] = {}
        self._identity = _encode(identity)
        self._file: int | None = None
        self._made_folder = False
        self.kept_ms: int | None = None
        """When the last step of an earlier run ended, epoch ms; None without one."""
        self.path = path
        if path is None:
            return
        self._made_folder = not path.parent.exists()
        with wrap_os_errors("create", path.parent, invalid=NO_FOLDER):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _lock(path)
        kept_ms = os.fstat(self._file).st_mtime_ns // 1_000_000
        try:
            self._load(orjson.loads(self._identity))
            self.kept_ms = kept_ms if self._steps else None
        except BaseException:
            self.close()
            raise

    @property
    def steps(self) -> int:
        """How many steps are done."""
        return len(self._steps)

    def __contains__(self, step: str) -> bool:
        return step in self._steps

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the steps that are done."""
        return iter(tuple(self._steps))

    def outcome(self, step: str, kind: type[Any]) -> Any:
        """Return what a step came to, as `kind`. Raises Invalid where the journal has something
        else."""
        try:
            return msgspec.convert(self._steps[step], kind, strict=False)
        except msgspec.ValidationError as error:
            raise Invalid(
                f"journal {self.path}: step {step!r}: {error}; another version of this program "
                "wrote it: remove it to begin anew",
                path=str(self.path),
            ) from error

    def record(self, step: str, outcome: object) -> None:
        """Record that a step is done. Durable when this returns."""
        encoded = msgspec.json.encode([step, outcome])
        self._steps[step] = orjson.loads(encoded)[1]
        self._append(encoded)

    def begin_anew(self) -> None:
        """Forget all steps: what they left is of no more use, and the same run does them again."""
        self._steps.clear()
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.lseek(self._file, 0, os.SEEK_SET)
            self._append(self._identity)

    def finish(self) -> None:
        """End the journal of a job that is done: the next one with the same arguments begins
        anew."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        self._steps.clear()

    def close(self) -> None:
        if self._file is not None:
            unlock_file(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not self._steps:
            self._leave_nothing()
        self.close()

    def _leave_nothing(self) -> None:
        """Remove what a run made that was refused before its first step."""
        path, file = self.path, self._file
        if path is None or file is None or not is_file_at(path, file):
            return
        path.unlink()
        if self._made_folder:
            with suppress(OSError):  # somebody else has put something in it
                path.parent.rmdir()

    def _load(self, identity: dict[str, Any]) -> None:
        assert self._file is not None
        with open(self._file, "rb", closefd=False) as file:
            data = file.read()
        end = data.rfind(b"\n") + 1
        os.ftruncate(self._file, end)
        os.lseek(self._file, end, os.SEEK_SET)
        if end == 0:
            self._append(self._identity)
            return
        try:
            first, *lines = data[:end].splitlines()
            found = orjson.loads(first)
            self._steps = dict(map(orjson.loads, lines))
        except (ValueError, TypeError) as error:
            raise Invalid(
                f"journal {self.path}: not a journal of a job ({error}); remove it to begin anew",
                path=str(self.path),
            ) from error
        if found != identity:
            raise Invalid(
                f"journal {self.path}: belongs to another job: expected {identity}, found {found}",
                path=str(self.path),
            )

    def _append(self, line: bytes) -> None:
        if self._file is None:
            return
        data = memoryview(line + b"\n")
        with wrap_os_errors("write", self.path or ""):
            while data:  # a full disk may take a part
                data = data[os.write(self._file, data) :]
            sync_file(self._file)


def _lock(path: Path) -> int:
    """Take the lock of a journal. Who lists journals holds each for a moment. Raises Busy."""
    for pause_seconds in (0.05, None):
        try:
            return lock_file(path, 0o600)
        except BlockingIOError:
            if pause_seconds is not None:
                time.sleep(pause_seconds)
    raise Busy(f"journal {path}: the same job is running in another process", path=str(path))


def journal_path(folder: Path, identity: dict[str, object]) -> Path:
    """Return the journal of a job in `folder`: the same job with the same arguments finds it
    again."""
    digest = hashlib.sha256(_encode(identity, orjson.OPT_SORT_KEYS)).hexdigest()
    return folder / f"{identity['job']}-{digest[:16]}.jsonl"


def _encode(identity: dict[str, object], option: int | None = None) -> bytes:
    """A job's arguments as JSON. Raises Invalid for a name that JSON cannot have."""
    try:
        return orjson.dumps(identity, option=option)
    except TypeError:
        for key, value in identity.items():
            if isinstance(value, str) and _is_foreign(value):
                raise Invalid(
                    f"{identity.get('job')}: {key} {value!r}: expected a name in UTF-8"
                ) from None
        raise


def _is_foreign(text: str) -> bool:
    return any("\udc80" <= character <= "\udcff" for character in text)
