"""Fixtures with stores for the tests of offloads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tieredstore.config import load_broker_conf
from tieredstore.local.message_store import DefaultMessageStore


@pytest.fixture
def small(golden: Path, tmp_path: Path) -> Path:
    """A store of 19 messages in topics that are tiered."""
    shutil.copytree(golden / "local-plain", tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def growing(tmp_path: Path) -> DefaultMessageStore:
    """The store of a running broker of this project."""
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"brokerName=b\nbrokerClusterName=c\nstorePathRootDir={tmp_path / 'store'}\n"
        "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2000\n"
        "maxHashSlotNum=100\nmaxIndexNum=400\n"
    )
    store = DefaultMessageStore(load_broker_conf(conf).config)
    store.load()
    store.start()
    return store
