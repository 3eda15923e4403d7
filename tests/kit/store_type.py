"""Which consume queues the local stores of the suites have, unless a test says so itself."""

from __future__ import annotations

import os
from typing import Final

STORE_TYPE: Final = os.environ.get("TIEREDSTORE_TEST_STORE_TYPE", "default")
"""`storeType`: `default` (files) or `defaultRocksDB`."""
