"""A Posix tier whose system calls may fail or end early. A `broker.conf` selects it with
`tieredBackendServiceProvider=tests.kit.random_worlds.posix_tier:RandomPosix`."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from typing import Any, ClassVar

from tieredstore.config import StoreConfig
from tieredstore.providers.posix.calls import PosixCalls
from tieredstore.providers.posix.provider import PosixProvider

_ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS)
_FAILING = ("stat", "read", "truncate", "sync", "sync_directory", "make_directory", "scan", "open")


class RandomCalls(PosixCalls):
    """System calls that fail with the probability `rate`."""

    rate: ClassVar[float] = 0.0
    rng: ClassVar[random.Random] = random.Random(0)

    @classmethod
    def goes_wrong(cls) -> bool:
        return bool(cls.rate) and cls.rng.random() < cls.rate

    def write(self, fd: int, buffers: Sequence[Any], position: int) -> int:
        if not self.goes_wrong():
            return super().write(fd, buffers, position)
        data = b"".join(buffers)
        written = self.rng.randrange(len(data) + 1)
        if written:
            super().write(fd, [data[:written]], position)
        if self.rng.random() < 0.5:
            raise OSError(errno.ENOSPC, "injected")
        return written


def _make_failing(name: str) -> Any:
    real = getattr(PosixCalls, name)

    def call(self: RandomCalls, *arguments: Any) -> Any:
        if self.goes_wrong():
            raise OSError(self.rng.choice(_ERRORS), f"injected: {name}")
        return real(self, *arguments)

    return call


for _name in (*_FAILING, "unlink"):
    setattr(RandomCalls, _name, _make_failing(_name))


class RandomPosix(PosixProvider):
    @classmethod
    def from_config(cls, config: StoreConfig) -> PosixProvider:
        return cls(
            config.tier_file_path,
            config.broker_cluster_name,
            fsync=True,
            calls=RandomCalls(),
            max_open_files=5,
        )
