"""SQL92 filters: grammar, types, unknown values, limits."""

from __future__ import annotations

import pytest

from tests.kit.local_stores import make_message
from tieredstore.broker.pull.filters import SqlFilter
from tieredstore.errors import Invalid
from tieredstore.message.record import decode_record, encode_record
