"""`cat` can read messages while a broker expires them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import one_line, tieredstore
from tests.kit.growing_tier import GrowingTier
from tieredstore.scan import plan as planning

PLAN = planning.plan


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:10])


@pytest.mark.parametrize("more", [(), ("--reverse",)])
@pytest.mark.parametrize(("spoil", "code"), [(Path.unlink, 4), (cut, 1)])
def test_what_expires_while_it_is_read_is_no_damage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path], None],
    code: int,
    more: tuple[str, ...],
) -> None:
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 5)
    tier.roll("orders", 0)
    tier.append("orders", 0, 2)

    def plan(*arguments: Any) -> Any:
        ranges = PLAN(*arguments)
        for path in sorted(tmp_path.rglob("COMMIT_LOG/[!.]*"))[:1]:
            spoil(path)
        return ranges

    monkeypatch.setattr(planning, "plan", plan)
    ran = tieredstore("cat", "--tier", tier.url, "--topic", "orders", *more)
    assert ran.code == code
    assert ("expired while they were read" in one_line(ran)) is (code == 4)
