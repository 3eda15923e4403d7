"""The names in docs/names.md, docs/glossary.md and the changelog exist in the code."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.kit.paths import ROOT

PAGE = (ROOT / "docs" / "names.md").read_text()
ROWS = re.findall(r"^\| (?!Java \||-)(.*?) \| (.*) \|$", PAGE, re.MULTILINE)
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
CHANGES = re.findall(r"^\| .* \| (.*) \|$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
NAMES = sorted(set(re.findall(r"`(tieredstore(?:\.\w+)+)`", "\n".join([PAGE, GLOSSARY, *CHANGES]))))
WORDS = re.findall(r"^\| (?!word \||-)(.*?) \| .* \| `(.*)` \|$", GLOSSARY, re.MULTILINE)

CLASSES_OF_JAVA = [
    "DefaultMessageStore",
    "CommitLog",
    "MappedFile",
    "MappedFileQueue",
    "ConsumeQueue",
    "ConsumeQueueStore",
    "IndexService",
    "IndexFile",
    "ReputMessageService",
    "StoreCheckpoint",
    "AllocateMappedFileService",
    "FlushRealTimeService",
    "GroupCommitService",
    "CleanCommitLogService",
    "RunningFlags",
    "TieredMessageStore",
    "MessageStoreConfig",
    "MessageStoreExecutor",
    "MessageStoreDispatcher",
    "MessageStoreDispatcherImpl",
    "MessageStoreFetcher",
    "MessageStoreFetcherImpl",
    "MessageStoreTopicFilter",
    "FlatFileStore",
    "FlatMessageFile",
    "FlatAppendFile",
    "FlatCommitLogFile",
    "FlatConsumeQueueFile",
    "FlatFileFactory",
    "FileSegment",
    "FileSegmentFactory",
    "PosixFileSegment",
    "MemoryFileSegment",
    "CommitLogInputStream",
    "IndexStoreService",
    "IndexStoreFile",
    "IndexItem",
    "MetadataStore",
    "DefaultMetadataStore",
    "TopicMetadata",
    "QueueMetadata",
    "FileSegmentMetadata",
    "TieredStoreMetricsManager",
    "AbstractPluginMessageStore",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_pages_can_be_imported(name: str) -> None:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return
    pytest.fail(f"no module of {name}")


def test_every_row_leads_somewhere_or_says_why_not() -> None:
    assert len(ROWS) > 100
    for java, here in ROWS:
        assert re.search(r"`tieredstore\.", here) or here.startswith(("Not yet", "None")), java


def test_the_classes_that_one_looks_for_first_have_a_row() -> None:
    looked_for = {word for java, _ in ROWS for word in re.findall(r"\w+", java)}
    assert set(CLASSES_OF_JAVA) - looked_for == set()


def test_each_word_of_the_glossary_is_there_once() -> None:
    words = [word for word, _ in WORDS]
    assert len(words) == len(set(words)) == GLOSSARY.count("\n| ") - GLOSSARY.count("\n| word |")
    assert "segment" in words
