"""Consume queue type of all local stores in tests that set no other type."""

from __future__ import annotations

import os
from typing import Final

STORE_TYPE: Final = os.environ.get("TIEREDSTORE_TEST_STORE_TYPE", "default")
"""Value of the key `storeType`: `default` (files) or `defaultRocksDB`."""
