"""Options of the jobs: the arguments of `tieredstore.jobs.export(…)`, `verify(…)`, … with their
defaults. The command line has the same options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tieredstore.errors import Invalid
from tieredstore.jobs.run import FailureCallback, ProgressCallback
from tieredstore.jobs.runner import Runner
from tieredstore.jobs.stopping import StopSignal
from tieredstore.scan.time_search.modes import SearchTimes
from tieredstore.scan.times import Time
from tieredstore.tier_url import show_url

if TYPE_CHECKING:
    from tieredstore.jobs.offloading.watch import OffloadWatch
    from tieredstore.scan.findings import OnFinding

LEAST_FILE_BYTES, MOST_FILE_BYTES = 1 << 20, 4 << 30
DEFAULT_FILE_BYTES = 128 << 20
LEAST_FILES = 2
DEFAULT_ZSTD_LEVEL = 3
DEFAULT_DEDUP_WINDOW = "10m"
DEFAULT_INTERVAL = "60s"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of a run.

    `workers`: number of processes on this machine. With 1 the work is done in this process. With
    more, a script needs `if __name__ == "__main__":`. `runner`: runs the tasks elsewhere, such as
    `tieredstore.spark.runner.SparkRunner`. `progress`: called with each `JobProgress`. `work`:
    folder of the journal, by default the user's state directory. A killed job continues when it is
    called again with the same arguments. `stop`: set it from another thread or a signal handler to
    end the run after the current tasks. The call then raises `tieredstore.jobs.stopping.Stopped`,
    and the next call continues.
    """

    workers: int = 1
    runner: Runner | None = None
    progress: ProgressCallback | None = None
    work: str | Path | None = None
    stop: StopSignal | None = None


@dataclass(frozen=True, kw_only=True)
class ExportOptions(RunOptions):
    """Options of an export.

    `to`: folder of the target as a URL or a path. For Iceberg, location of a new table (default:
    the catalog's).
    `format`: parquet (a folder `to`), delta (a table in `to`) or iceberg (`table`, as
    `namespace.name`, of a pyiceberg `catalog`). With `{topic}` in `to` or `table`, each topic has
    its own target.
    `topics`: names, or shell patterns such as `order_*`. Empty for all.
    `from_offset`, `since`: start of the export, for queues that the target does not have yet.
    `until_offset`, `until`: end of this run.
    `search_times`: `exact` or `sampled`, as in `Tier.scan`.
    `columns`: columns to export, by default all except properties. Topic, store time, and the
    bucket column are always included.
    `target_file_bytes`: approximate size of a data file.
    `accept`: conditions to accept, which otherwise end the job. `gap`: messages expired before they
    were exported. `remade`: a topic was recreated. `moved`: the target belongs to a tier at another
    URL. `topics`: the target has another choice of topics, brokers or queues.
    `partition_by`: any of topic, day, hour, bucket(N), bucket(N, column), or `none`.
    `body_schema`: members of JSON bodies that become columns, such as `id BIGINT, at TIMESTAMP, …`,
    or the Path of a file with such a text. Each column is named `body_prefix` and the member.
    `on_unfit`: handling of a body that does not fit: set its columns to null (`null`), or end the
    job (`fail`).
    `dedup`: export only the first message with a UNIQ_KEY in a topic. Later messages are dropped if
    they were stored within `dedup_window` (default `10m`).
    `target_options`: options of the target's file system, or properties of the catalog
    (`docs/jobs.md`).
    `follow`: continue until `stop` is set, for example by a signal handler.
    `every`: interval between exports (`30s`, `10m`, `2h`, default one minute). It implies `follow`.
    """

    to: str | Path | None = field(default=None, kw_only=False, repr=False)
    format: str = "parquet"
    catalog: str | None = None
    table: str | None = None
    topics: str | Sequence[str] = ()
    queues: Sequence[int] = ()
    from_offset: int | None = None
    until_offset: int | None = None
    since: Time | None = None
    until: Time | None = None
    search_times: str = SearchTimes.EXACT
    columns: Sequence[str] | None = None
    properties: bool = False
    target_file_bytes: int = DEFAULT_FILE_BYTES
    zstd_level: int = DEFAULT_ZSTD_LEVEL
    on_damage: str = "fail"
    accept: Iterable[str] = ()
    partition_by: str | Sequence[str] = ("topic", "day")
    body_schema: str | Path | None = None
    body_prefix: str = ""
    on_unfit: str = "null"
    dedup: bool = False
    dedup_window: str | timedelta | None = None
    target_options: Mapping[str, str] | None = field(default=None, repr=False)
    follow: bool = False
    every: str | timedelta | None = None


@dataclass(frozen=True, kw_only=True)
class CompactExportOptions(RunOptions):
    """Options of a compaction.

    `target_file_bytes`: smaller files are merged, up to about this size.
    `min_files`: minimum number of consecutive files to merge.
    `target_options`: as in an export.
    """

    to: str | Path = field(kw_only=False, repr=False)
    target_file_bytes: int = DEFAULT_FILE_BYTES
    min_files: int = LEAST_FILES
    zstd_level: int = DEFAULT_ZSTD_LEVEL
    target_options: Mapping[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_files(self.target_file_bytes, self.zstd_level)
        if self.min_files < LEAST_FILES:
            raise Invalid(f"min_files: expected at least {LEAST_FILES}, found {self.min_files}")

    @property
    def target(self) -> str:
        """Name of the target in messages and reports."""
        return show_url(str(self.to))


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(RunOptions):
    """Options of a verification.

    `topic`, `queue`: check only this topic or queue, without the index.
    `index`: whether the index is checked.
    `seal`: add checksums and recorded times to undamaged segments without them, as the only writer.
    `on_finding`: called with each finding, in the order of the report.
    """

    topic: str | None = None
    queue: int | None = None
    index: bool = True
    seal: bool = False
    on_finding: OnFinding | None = None


@dataclass(frozen=True, kw_only=True)
class ReportOptions(RunOptions):
    """Options of a report.

    `keys_percent`: percentage of the blocks of 2,048 messages whose records are read, for
    statistics of keys and tags. With 0 only consume queues are read. `prices`: USD by field of
    `Prices`. They override the configured prices of a tier that charges for requests, or the
    default prices. Without prices, the report of a tier that does not charge has no costs. `as_of`:
    time at which ages are computed. Default: the time of the first run.
    """

    keys_percent: int = 100
    prices: Mapping[str, float] | None = None
    as_of: Time | None = None


@dataclass(frozen=True, kw_only=True)
class RebuildMetadataOptions(RunOptions):
    """Options of a rebuild of metadata.

    `exact_times`: read every message for the times of segments, instead of only the first and the
    last of each. `force`: replace existing metadata. `take_over`: take epoch ownership from another
    writer if the backend can. `dry_run`: write nothing and take no ownership.
    """

    exact_times: bool = False
    force: bool = False
    take_over: bool = False
    dry_run: bool = False


@dataclass(frozen=True, kw_only=True)
class CompactIndexOptions(RunOptions):
    """Options of a job on index files.

    `take_over`: take epoch ownership from another writer if the backend can.
    `staging`: a URL that all workers can access. Default: a local folder next to the journal.
    """

    take_over: bool = False
    staging: str | None = None


@dataclass(frozen=True, kw_only=True)
class RebuildIndexOptions(CompactIndexOptions):
    """Options of a rebuild of index files.

    `since`, `until`: index only messages stored in this range, and keep the existing files.
    `force`: replace the existing files.
    `take_over`: take epoch ownership from another writer if the backend can.
    `staging`: a URL that all workers can access. Default: a local folder next to the journal.
    """

    since: Time | None = None
    until: Time | None = None
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class BackfillOptions(RunOptions):
    """Options of a backfill.

    `topic`: topic of the messages if the table has no topics.
    `queues`: number of queues over which messages without queue ids are spread.
    `segment_bytes`: maximum size of a commit log segment, default 256 MiB. One task writes each
    segment. `tieredStoreCommitLogMaxSize` is a limit as well.
    `take_over`: take epoch ownership from another writer if the backend can.
    """

    topic: str | None = None
    queues: int = 4
    segment_bytes: int | None = None
    take_over: bool = False


@dataclass(frozen=True, kw_only=True)
class NamedTierOptions:
    """Options of a tier that may be new.

    `state`: state directory of the tier's writer. It may also be new. `cluster`, `broker`: names in
    the tier, unless `config` (a broker.conf) or `properties` (its settings) contain them.
    """

    state: str | Path
    cluster: str | None = None
    broker: str | None = None
    config: str | Path | None = None
    properties: Mapping[str, str] | None = field(default=None, repr=False)

    @property
    def state_path(self) -> Path:
        return Path(self.state)

    @property
    def config_path(self) -> Path | None:
        return None if self.config is None else Path(self.config)


@dataclass(frozen=True, kw_only=True)
class BackfillTierOptions(NamedTierOptions, BackfillOptions):
    """Options of a backfill into a tier."""


@dataclass(frozen=True, kw_only=True)
class OffloadOptions(NamedTierOptions):
    """Options of an offload.

    `store`: a broker's storePathRootDir.
    `topics`: shell patterns of the topics to copy, such as `order_*`. Empty for all.
    `workers`: number of threads that upload. Default: the configured number.
    `take_over`: take epoch ownership from another writer if the backend can.
    `dry_run`: write nothing and take no ownership.
    `follow`: continue as the store grows, until it is stopped.
    `recovered`: for a store without an owner that was not stopped cleanly, copy the messages that a
    recovery would keep.
    `standby`: with `follow`, wait for the take-over order. Used for the store of a replica.
    `upload_index`: upload the current, incomplete index file too.
    `progress`: called with each `JobProgress`.
    `stop`: set it, for example in a signal handler, to end the run in an orderly way.
    `on_failure`: called with each error that prevented a part of the work. The report has the text
    of the error.
    `watch`: receives the state of a run with `follow`.
    """

    tier: str = field(kw_only=False)
    store: str | Path = field(kw_only=False)
    topics: str | Sequence[str] = ()
    workers: int | None = None
    take_over: bool = False
    dry_run: bool = False
    follow: bool = False
    recovered: bool = False
    standby: bool = False
    upload_index: bool = False
    progress: ProgressCallback | None = None
    stop: StopSignal | None = None
    on_failure: FailureCallback | None = None
    watch: OffloadWatch | None = None

    @property
    def store_path(self) -> Path:
        return Path(self.store)


@dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """Options of a copy.

    `topics`: shell patterns of the topics to copy. Empty for all. `workers`: number of threads.
    Each copies one queue at a time. `replace`: delete queues (and an index) of the target that do
    not match the origin, and copy them again. `take_over`: take epoch ownership from another writer
    if the backend can.
    """

    topics: str | Sequence[str] = ()
    workers: int = 4
    replace: bool = False
    take_over: bool = False


@dataclass(frozen=True, kw_only=True)
class CopyTierOptions(CopyOptions):
    """Options of a copy to a tier. The target has the same names of cluster and broker.

    `to`: URL of the target.
    `to_state`: state directory of the target.
    `to_config`: a broker.conf.
    `topics`, `workers`, `replace`, `take_over`: see `CopyOptions`.
    `dry_run`: write nothing and take no ownership.
    `progress`, `stop`, `on_failure`: as in an offload.
    """

    to: str = field(kw_only=False)
    to_state: str | Path
    to_config: str | Path | None = None
    dry_run: bool = False
    progress: ProgressCallback | None = None
    stop: StopSignal | None = None
    on_failure: FailureCallback | None = None


@dataclass(frozen=True, kw_only=True)
class RestoreOptions:
    """Options of a restore.

    `config`: the broker's broker.conf. Default: the settings that the backup records.
    `take_over`: take epoch ownership from another writer if the backend can.
    `progress`, `stop`: as in an offload.
    """

    config: str | Path | None = None
    take_over: bool = False
    progress: ProgressCallback | None = None
    stop: StopSignal | None = None


def list_names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return the given names as a tuple. `given`: a list of names, or a single name."""
    return (given,) if isinstance(given, str) else tuple(given)


def check_files(target_file_bytes: int, zstd_level: int) -> None:
    """Raise Invalid for file sizes and compression levels that no target supports."""
    if not LEAST_FILE_BYTES <= target_file_bytes <= MOST_FILE_BYTES:
        raise Invalid(
            f"target_file_bytes: expected {LEAST_FILE_BYTES} to {MOST_FILE_BYTES}, found "
            f"{target_file_bytes}"
        )
    if not 1 <= zstd_level <= 22:
        raise Invalid(f"zstd_level: expected 1 to 22, found {zstd_level}")
