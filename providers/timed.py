"""Base of providers that record store times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tieredstore.contracts.time_records import TimesName, TimesPlace


class TimedProvider:
    """Base of providers with a `TimesPlace`. The subclass sets it in `_times`."""

    _times: TimesPlace

    def list_times(self, path: str) -> Sequence[TimesName]:
        return self._times.list_times(path)

    def read_times(self, path: str, name: TimesName) -> bytes | None:
        return self._times.read_times(path, name)

    def write_times(self, path: str, name: TimesName, data: bytes) -> None:
        self._times.write_times(path, name, data)

    def delete_times(self, path: str, names: Iterable[TimesName]) -> None:
        self._times.delete_times(path, names)

    def list_timed_paths(self, broker_name: str) -> Sequence[str]:
        return self._times.list_timed_paths(broker_name)
