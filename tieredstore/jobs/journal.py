"""Journal of the finished steps of a job, so that a run after a kill does not repeat them. It is a
file of JSON lines: the identity of the job, then a line for each finished step. Each line is
synced. An incomplete last line is ignored."""

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
from tieredstore.disk.file_operations import cut_zeros
from tieredstore.disk.locks import is_file_at, lock_file, unlock_file
from tieredstore.disk.sync import sync_file
from tieredstore.errors import Busy, Invalid


class Journal:
    """Finished steps by name, with outcomes as JSON. A context manager. Raises Busy if another
    process has the same journal open. Without a path, the steps are not saved."""

    def __init__(self, path: Path | None, identity: dict[str, object]) -> None:
        """`path`: a file. It is created with its folder if missing. `identity`: the job and its
        arguments. Raises Invalid for another job's journal."""
        self._steps: dict[str, object] = {}
        self._identity = _encode(identity)
        self._file: int | None = None
        self._made_folder = False
        self.kept_ms: int | None = None
        """End of the last step of an earlier run, epoch ms. None without an earlier run."""
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
        """Number of finished steps."""
        return len(self._steps)

    def __contains__(self, step: str) -> bool:
        return step in self._steps

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._steps))

    def outcome(self, step: str, kind: type[Any]) -> Any:
        """Return the outcome of a step, converted to `kind`. Raises Invalid for another type."""
        try:
            return msgspec.convert(self._steps[step], kind, strict=False)
        except msgspec.ValidationError as error:
            raise Invalid(
                f"journal {self.path}: step {step!r}: {error}. Another version of this program "
                "wrote it: remove it to start from the beginning",
                path=str(self.path),
            ) from error

    def record(self, step: str, outcome: object) -> None:
        """Record that a step is done. The record is durable on return."""
        encoded = msgspec.json.encode([step, outcome])
        self._steps[step] = orjson.loads(encoded)[1]
        self._append(encoded)

    def begin_anew(self) -> None:
        """Discard all steps, because their results are useless. The run repeats them."""
        self._steps.clear()
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.lseek(self._file, 0, os.SEEK_SET)
            self._append(self._identity)

    def finish(self) -> None:
        """Delete the journal of a finished job."""
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
        """Delete the files of a run that was rejected before its first step."""
        path, file = self.path, self._file
        if path is None or file is None or not is_file_at(path, file):
            return
        path.unlink()
        if self._made_folder:
            with suppress(OSError):  # Another program has put something into it.
                path.parent.rmdir()

    def _load(self, identity: dict[str, object]) -> None:
        assert self._file is not None
        with open(self._file, "rb", closefd=False) as file:
            data = cut_zeros(file.read())
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
                f"journal {self.path}: not a journal of a job ({error}). Remove it to start from "
                "the beginning",
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
            while data:  # A full disk may have stored a part.
                data = data[os.write(self._file, data) :]
            sync_file(self._file)


def _lock(path: Path) -> int:
    """Lock a journal. Retry once after 50 ms, because a listing of journals locks each for a
    moment. Raises Busy."""
    for pause_seconds in (0.05, None):
        try:
            return lock_file(path, 0o600)
        except BlockingIOError:
            if pause_seconds is not None:
                time.sleep(pause_seconds)
    raise Busy(f"journal {path}: the same job is running in another process", path=str(path))


def journal_path(folder: Path, identity: dict[str, object]) -> Path:
    """Return the path of a job's journal in `folder`. Equal arguments give the same path."""
    digest = hashlib.sha256(_encode(identity, orjson.OPT_SORT_KEYS)).hexdigest()
    return folder / f"{identity['job']}-{digest[:16]}.jsonl"


def _encode(identity: dict[str, object], option: int | None = None) -> bytes:
    """Encode the arguments of a job as JSON. Raises Invalid for names that UTF-8 cannot encode."""
    try:
        return orjson.dumps(identity, option=option)
    except TypeError:
        for key, value in identity.items():
            if isinstance(value, str) and any("\udc80" <= one <= "\udcff" for one in value):
                raise Invalid(
                    f"{identity.get('job')}: {key} {value!r}: expected a name in UTF-8"
                ) from None
        raise
