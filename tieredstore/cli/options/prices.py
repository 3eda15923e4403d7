"""Options for the prices of a backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from tieredstore.cli.options.collecting import Command

TIER_PRICES: Final = ("write", "list", "read", "delete", "transfer", "storage")
BROKER_PRICES: Final = (*TIER_PRICES, "disk")
_MOST_BYTES: Final = 1 << 20
_MEANINGS: Final = {
    "transfer": "a GiB read (transfer)",
    "storage": "a GiB-month (storage)",
    "disk": "a GiB-month of a broker's disk (disk)",
}


def price_option(names: Sequence[str]) -> Callable[[Command], Command]:
    """Add --price, passed to the command as a dictionary `prices`."""
    requests = ", ".join(name for name in names if name not in _MEANINGS)
    others = ", ".join(_MEANINGS[name] for name in names if name in _MEANINGS)

    def parse(context: click.Context, parameter: click.Parameter, given: Any) -> dict[str, float]:
        del context, parameter
        return dict(_parse_price(text, names) for text in given)

    return click.option(
        "--price",
        "prices",
        metavar="NAME=USD",
        multiple=True,
        callback=parse,
        help=f"US dollars a million requests ({requests}), {others}. Repeatable.",
    )


def read_prices(path: Path, names: Sequence[str]) -> dict[str, float]:
    """Read a TOML file with lines such as `write = 5.0`. Raises a usage error for other content."""
    import tomllib

    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)[:_MOST_BYTES].decode()
        found = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"--prices {path}: cannot be read: {error}") from None
    return dict(_check_price(f"--prices {path}", *item, names) for item in found.items())


def _parse_price(given: str, names: Sequence[str]) -> tuple[str, float]:
    name, equals, value = given.partition("=")
    try:
        price = float(value)
    except ValueError:
        price = -1.0
    return _check_price(f"--price {given!r}", name if equals else "", price, names)


def _check_price(origin: str, name: str, price: object, names: Sequence[str]) -> tuple[str, float]:
    is_number = isinstance(price, int | float) and not isinstance(price, bool)
    if name not in names or not is_number or not 0 <= price < float("inf"):  # type: ignore[operator]
        raise click.UsageError(
            f"{origin}: expected NAME=USD with a number of at least 0 for one of "
            f"{', '.join(names)}, found {name}={price}"
        )
    return name, float(price)  # type: ignore[arg-type]
