"""Fair sharing of a broker's limits among hosts, so that no host can take all slots."""

from __future__ import annotations

import ipaddress
from collections import Counter
from contextvars import ContextVar
from typing import Final

HOST: ContextVar[str] = ContextVar("host", default="")
"""Host of the running request, or "" for work of the broker itself."""
SHARE: Final = 3
"""Number of slots that a host may hold per free slot. A single host can therefore take three
quarters of all slots."""


def name_host(address: str) -> str:
    """Return the host of an address, with or without a port (`ip:port`, `[ip]:port`). An IPv6 host
    is represented by its /64 network, because it may use any address in it."""
    host = address.rpartition(":")[0] if address.count(":") == 1 or "]" in address else address
    host = host.strip("[]").partition("%")[0]
    if ":" not in host:
        return host
    try:
        parsed = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))


class HostShares:
    """Slots of a limit (such as connections) held by each host. `limit`: total number of slots, or
    None if the caller passes the number of free slots."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._held = Counter[str]()
        self.total = 0

    def has_room(self, host: str, count: int = 1, free: int | None = None) -> bool:
        """Return whether a host may take `count` more slots. `free`: number of free slots."""
        if free is None:
            free = (self._limit or 0) - self.total
        if count > free:
            return False
        # The last of the places is compared with those that are free before it is taken.
        return not host or self._held[host] + count - 1 < SHARE * (free - count + 1)

    def take(self, host: str, count: int = 1, free: int | None = None) -> bool:
        """Take slots. Returns False if the host may not have them."""
        if not self.has_room(host, count, free):
            return False
        self.add(host, count)
        return True

    def add(self, host: str, count: int = 1) -> None:
        """Take slots even if none are free."""
        self._held[host] += count
        self.total += count

    def give_back(self, host: str, count: int = 1) -> None:
        """Release slots held by this host."""
        self.total -= count
        self._held[host] -= count
        if not self._held[host]:
            del self._held[host]
