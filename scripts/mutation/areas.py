"""Areas of the package, and the tests of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Area:
    """Folders or modules of the package, and the folders or files of their tests, fastest first."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]

    def tests_of(self, module: Path, root: Path) -> list[str]:
        """Return the area's test files. Tests that mirror the module come first."""
        parts = module.with_suffix("").parts
        inner = parts[1:] if parts[0] == "tieredstore" else parts
        mirror = Path("tests/unit", *inner[:-1], f"test_{inner[-1]}.py")
        nearest = [mirror.as_posix()] if (root / mirror).exists() else []
        return [*nearest, *self.tests]


AREAS = (
    Area("message", ("tieredstore/message",), ("tests/unit/message", "tests/property/message")),
    Area(
        "local",
        ("tieredstore/local",),
        ("tests/unit/local", "tests/crash/local", "tests/property/local"),
    ),
    Area(
        "flat",
        ("tieredstore/tier/flat",),
        ("tests/unit/tier/flat", "tests/unit/tier/upload", "tests/unit/tier/test_defects.py"),
    ),
    Area(
        "upload",
        ("tieredstore/tier/upload", "tieredstore/tier/expiry.py"),
        (
            "tests/unit/tier/upload",
            "tests/unit/tier/test_expiry.py",
            "tests/unit/tier/test_store.py",
        ),
    ),
    Area(
        "policy",
        ("tieredstore/tier/policy",),
        (
            "tests/unit/tier/policy",
            "tests/unit/config/test_policies.py",
            "tests/unit/tier/upload/test_dispatcher.py",
        ),
    ),
    Area(
        "fetch", ("tieredstore/tier/fetch",), ("tests/unit/tier/fetch", "tests/property/tier/fetch")
    ),
    Area(
        "index",
        ("tieredstore/tier/index",),
        ("tests/unit/tier/index", "tests/crash/tier/index", "tests/property/tier/index"),
    ),
    Area(
        "metadata",
        ("metadata", "tieredstore/disk"),
        (
            "tests/unit/metadata",
            "tests/unit/disk",
            "tests/contract/test_metadata_stores.py",
            "tests/crash/metadata",
        ),
    ),
    Area(
        "posix",
        ("providers/posix",),
        ("tests/unit/providers/posix", "tests/contract/test_providers.py"),
    ),
    Area(
        "chunks",
        ("providers/chunks",),
        ("tests/unit/providers/chunks", "tests/crash/providers/chunks"),
    ),
    Area("s3", ("providers/s3",), ("tests/unit/providers/s3",)),
    Area("scan", ("tieredstore/scan",), ("tests/unit/scan", "tests/property/scan")),
    Area(
        "jobs",
        ("tieredstore/jobs/index", "tieredstore/jobs/metadata"),
        ("tests/unit/jobs/index", "tests/unit/jobs/metadata"),
    ),
    Area(
        "spark",
        (
            "tieredstore/spark/stream",
            "tieredstore/spark/partitions.py",
            "tieredstore/spark/offsets.py",
        ),
        ("tests/unit/spark",),
    ),
)
