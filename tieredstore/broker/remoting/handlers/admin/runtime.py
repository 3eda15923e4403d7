"""Runtime statistics of the broker, under the names that Java's tools expect (code 28)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

from tieredstore.broker.remoting.codes import VERSION
from tieredstore.broker.remoting.connection import RemotingLimits
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state.statistics import (
    BROKER_GETS,
    CLIENT_GETS,
    CLIENT_PUTS,
    READS_FOUND,
    READS_MISSED,
    STORE_PUT_BYTES,
    STORE_PUTS,
)
from tieredstore.contracts.message_store import PUT_TIMES_MS
from tieredstore.disk.file_operations import measure_used_ratio
from tieredstore.message.names import SCHEDULE_TOPIC, TIMER_TOPIC

_VERSION_NAME: Final = "V5_5_0"
_POOLS: Final = ("send", "pull", "litePull", "query", "ack")
"""Request queues of Java's thread pools. This broker has none, so it reports a length of 0. As
their capacity it reports the maximum number of unanswered requests per connection."""
_CAPACITY: Final = RemotingLimits().max_pending
_TIMES: Final = (
    "[<=0ms] [0~10ms] [10~50ms] [50~100ms] [100~200ms] [200~500ms] [500ms~1s] [1~2s] [2~3s] [3~4s] "
    "[4~5s] [5~10s] [10s~]"
)
"""Java's names for the ranges of put durations. The bounds of the ranges are PUT_TIMES_MS."""
_NO_POOL: Final = (1 << 31) - 1
"""Number of free buffers that Java reports without transientStorePoolEnable."""


async def describe_runtime(broker: BrokerServices) -> dict[str, str]:
    """Return the runtime statistics of a broker as text, by name. Raises the errors of the
    store."""
    root = Path(broker.store_config.store_path_root_dir)
    used = await asyncio.to_thread(measure_used_ratio, root)
    disk = await asyncio.to_thread(shutil.disk_usage, root)
    total, free = format_bytes(disk.total), format_bytes(disk.free)
    earliest_ms = await broker.look_ups.run(broker.store.get_earliest_message_time)
    statistics, timers = broker.statistics, broker.timers
    figures, times = statistics.measure_store(), statistics.list_put_times()
    puts, size_bytes = statistics.total(STORE_PUTS), statistics.total(STORE_PUT_BYTES)
    names = zip(_TIMES.split(), times, strict=True)
    table: dict[str, object] = {
        "brokerVersion": VERSION,
        "brokerVersionDesc": _VERSION_NAME,
        "brokerActive": "true",
        "bootTimestamp": statistics.started_ms,
        "startAcceptSendRequestTimeStamp": statistics.started_ms,
        "runtime": _format_duration(broker.clock.now_ms() - statistics.started_ms),
        "putMessageTimesTotal": puts,
        "putMessageSizeTotal": size_bytes,
        "putMessageAverageSize": size_bytes / max(puts, 1),
        "putMessageFailedTimes": figures.refused_puts,
        "putMessageEntireTimeMax": figures.put_max_ms,
        "putMessageDistributeTime": " ".join(f"{name}:{count}" for name, count in names),
        "putLatency99": f"{estimate_percentile(times, 0.99):.2f}",
        "putLatency999": f"{estimate_percentile(times, 0.999):.2f}",
        "getMessageEntireTimeMax": broker.traffic.longest_read_ns // 1_000_000,
        "getMessageTransferredMsgCount": statistics.total(BROKER_GETS),
        "earliestMessageTimeStamp": earliest_ms,
        "commitLogMinOffset": figures.min_offset,
        "commitLogMaxOffset": figures.max_offset,
        "commitLogDirCapacity": f"Total : {total}, Free : {free}.",
        "commitLogDiskRatio": used,
        "consumeQueueDiskRatio": used,
        "remainHowManyDataToFlush": format_bytes(figures.flush_behind_bytes),
        "remainTransientStoreBufferNumbs": _NO_POOL,
        "dispatchBehindBytes": figures.dispatch_behind_bytes,
        "dispatchMaxBuffer": 0,  # Java has this name, and never sets it
        "pageCacheLockTimeMills": 0,
        "timerReadBehind": timers.late_ms // 1000,
        "timerOffsetBehind": timers.unread,
        "timerCongestNum": len(timers.progress.slots),
        "timerEnqueueTps": statistics.topic_put_tps(TIMER_TOPIC),
        "timerDequeueTps": statistics.list_tps("timerDequeue")[0],
        "EndTransactionQueueSize": 0,
        "EndTransactionThreadPoolQueueCapacity": _CAPACITY,
    }
    for name, counts in (
        ("putTps", (STORE_PUTS,)),
        ("getFoundTps", (READS_FOUND,)),
        ("getMissTps", (READS_MISSED,)),
        ("getTotalTps", (READS_FOUND, READS_MISSED)),
        ("getTransferredTps", (BROKER_GETS,)),
        ("getTransferedTps", (BROKER_GETS,)),  # the name before 5.0
    ):
        table[name] = " ".join(f"{rate:.4f}" for rate in statistics.list_tps(*counts))
    for count, prefix in ((CLIENT_PUTS, "msgPutTotal"), (CLIENT_GETS, "msgGetTotal")):
        yesterday, today = statistics.mornings[count]
        table[f"{prefix}YesterdayMorning"], table[f"{prefix}TodayMorning"] = yesterday, today
        table[f"{prefix}TodayNow"] = statistics.total(count)
    for pool in _POOLS:
        table[f"{pool}ThreadPoolQueueSize"] = 0
        table[f"{pool}ThreadPoolQueueCapacity"] = _CAPACITY
        table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = 0
    for level, offset in broker.schedule.offsets.list_offsets():
        end = broker.store.get_max_offset_in_queue(SCHEDULE_TOPIC, level - 1)
        table[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
    return {name: str(value) for name, value in table.items()}


def format_bytes(size_bytes: int) -> str:
    """Format a size like Java, for example `1.5 KiB`."""
    unit = min(max(size_bytes.bit_length() - 1, 0) // 10, 6)
    return f"{size_bytes / 1024**unit:.1f} {' KMGTPE'[unit]}iB" if unit else f"{size_bytes} B"


def estimate_percentile(times: Sequence[int], part: float) -> float:
    """Estimate a percentile of the put latency (ms). `part`: the percentile, from 0 to 1. `times`:
    number of puts in each range between the bounds PUT_TIMES_MS. As in Java, puts are assumed to be
    evenly distributed within a range."""
    wanted = int(sum(times) * part)
    lows, highs = (0, *PUT_TIMES_MS), (*PUT_TIMES_MS, PUT_TIMES_MS[-1])
    for count, passed, low, high in zip(times, accumulate(times), lows, highs, strict=True):
        if count and wanted <= passed:
            return low + (high - low) * (wanted - passed + count) / count
    return 0.0


def _format_duration(duration_ms: int) -> str:
    days, rest = divmod(duration_ms // 1000, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
