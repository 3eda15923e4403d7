"""How the database is opened: by rocksdict, with what Java's broker can read.

rocksdict is an extra (`tieredstore[rocksdb]`); it is imported when a store needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tieredstore.errors import make_missing_error
from tieredstore.local.queues.rocksdb.layout import DEFAULT_FAMILY, OFFSET_FAMILY

if TYPE_CHECKING:
    from rocksdict import Options

FORMAT_VERSION: Final = 5
"""Of the tables: what the RocksDB 8.4 of RocketMQ 5.5.0 writes. Newer ones it cannot read."""
CACHE_BYTES: Final = 64 << 20
_BLOCK_BYTES: Final = 32 << 10
_BLOOM_BITS: Final = 16
_UNITS_BUFFER_BYTES: Final = 64 << 20
_OFFSETS_BUFFER_BYTES: Final = 32 << 20
_MAX_OPEN_FILES: Final = 512
_LOG_BYTES: Final = 16 << 20


def import_rocksdict() -> Any:
    """Import the library. Raises Invalid, which names the extra, where it is not installed."""
    try:
        import rocksdict
    except ImportError as error:
        raise make_missing_error("storeType=defaultRocksDB", error, "rocksdb") from error
    return rocksdict


def family_options(*, may_create: bool, max_open_files: int = _MAX_OPEN_FILES) -> dict[str, Any]:
    """Make the options of both column families; those of `default` are the database's too."""
    library = import_rocksdict()
    cache = library.Cache(CACHE_BYTES)
    units, offsets = (_common_options(library, cache, may_create=may_create) for _ in range(2))
    units.set_max_open_files(max_open_files)
    # Memtables of both families go to disk together, as Java demands it of a database without a
    # write-ahead log; we keep the log, so that a sync does not write a table each time.
    units.set_atomic_flush(True)
    units.set_max_background_jobs(2)
    units.set_keep_log_file_num(5)
    units.set_max_log_file_size(_LOG_BYTES)
    units.set_stats_dump_period_sec(0)
    units.set_write_buffer_size(_UNITS_BUFFER_BYTES)
    units.set_compression_type(library.DBCompressionType.lz4())
    units.set_bottommost_compression_type(library.DBCompressionType.zstd())
    units.set_compaction_style(library.DBCompactionStyle.universal())
    units.set_optimize_filters_for_hits(True)
    universal = library.UniversalCompactOptions()
    universal.size_ratio = 100
    universal.max_size_amplification_percent = 25
    units.set_universal_compaction_options(universal)
    offsets.set_write_buffer_size(_OFFSETS_BUFFER_BYTES)
    offsets.set_compression_type(library.DBCompressionType.none())
    return {DEFAULT_FAMILY: units, OFFSET_FAMILY: offsets}


def _common_options(library: Any, cache: Any, *, may_create: bool) -> Options:
    options: Options = library.Options(raw_mode=True)
    options.create_if_missing(may_create)
    options.create_missing_column_families(may_create)
    table = library.BlockBasedOptions()
    table.set_format_version(FORMAT_VERSION)
    table.set_checksum_type(library.ChecksumType.crc32c())
    table.set_block_size(_BLOCK_BYTES)
    table.set_bloom_filter(_BLOOM_BITS, False)
    # The index and the filters of our tables lie in pieces, which the cache takes as it takes data:
    # within its bound, whatever the number of units. Those of Java's tables are whole, larger than
    # the cache takes, and stay in memory, as in Java.
    table.set_block_cache(cache)
    table.set_index_type(library.BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    options.set_block_based_table_factory(table)
    return options
