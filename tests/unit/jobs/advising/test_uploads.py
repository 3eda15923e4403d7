"""The upload model makes the same requests as the real store on a simulated clock."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.advise import count_after_start, predict_uploads, steady_arrivals
from benchmarks.cost.simulation import HOUR_MS, Load, Scheme, simulate
from tieredstore.config import StoreConfig
from tieredstore.contracts.request_model import Requests
from tieredstore.jobs.advising.queue_uploads import model_uploads
from tieredstore.jobs.advising.upload_costs import Counted, count_shared
from tieredstore.providers.chunks.modelling.queue import ChunkRequestModel
from tieredstore.providers.chunks.settings import ChunkSettings


def _load(queues: int, interval_ms: float, hours: float) -> Load:
    return Load(queues, queues, 1024, interval_ms, int(hours * HOUR_MS))


def _of_segments(requests: Requests) -> Requests:
    """Return the requests that write messages, units or recorded times, with the reads that these
    writes need."""
    made = ("Put", "Upload", "Create", "Complete", "Get")
    return Counter(
        {
            (operation, kind): count
            for (operation, kind), count in requests.items()
            if operation.startswith(made) and kind in {"COMMIT_LOG", "CONSUME_QUEUE", "TIMES"}
        }
    )


@pytest.mark.parametrize(
    ("load", "keys"),
    [
        pytest.param(_load(3, 5_000, 8), {}, id="slow queues"),
        pytest.param(_load(3, 5_000, 3), {"adaptive_commit_max_interval_ms": 0}, id="every 30 s"),
        pytest.param(_load(1, 1, 0.1), {}, id="a fast queue"),
        pytest.param(
            _load(2, 1_000, 6),
            {
                "commit_log_rolling_interval_hours": 1,
                "commit_log_rolling_minimum_size_bytes": 1_000_000,
            },
            id="rolled by age",
        ),
        pytest.param(
            _load(2, 20, 0.5), {"commit_log_max_size_bytes": 20_000_000}, id="rolled by size"
        ),
        pytest.param(_load(1, 5, 0.3), {"group_commit_size_bytes": 1 << 20}, id="small batches"),
    ],
)
def test_the_model_counts_what_the_store_asks_for(
    load: Load, keys: dict[str, object], tmp_path: Path
) -> None:
    scheme = Scheme("kept", keys=keys)
    real = simulate(scheme, load, tmp_path)
    predicted, queues = predict_uploads(scheme, load)
    made = _of_segments(predicted)
    assert made.keys() == _of_segments(real.requests).keys()
    for kind, count in _of_segments(real.requests).items():
        # The simulation merges once a minute, the model when there is something to be merged.
        assert made[kind] == pytest.approx(count, rel=0.02, abs=1), kind
    assert sum(queue.log_bytes for queue in queues) == real.uploaded_bytes
    # With looks and deletions.
    assert sum(predicted.values()) == pytest.approx(count_after_start(real), rel=0.1)


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(_load(12, 5_000, 3), id="slow queues"),
        pytest.param(_load(2, 600, 6), id="moved out of groups by size"),
        pytest.param(_load(1, 5_000, 26), id="moved out of groups by age"),
        pytest.param(_load(1, 1, 0.1), id="too fast for groups"),
    ],
)
def test_the_model_counts_group_objects(load: Load, tmp_path: Path) -> None:
    scheme = Scheme("groups", group_bytes=16 << 20)
    real = simulate(scheme, load, tmp_path)
    predicted, queues = predict_uploads(scheme, load)
    for kind in (("PutObject", "GROUP"), ("PutObject", "COMMIT_LOG"), ("ListObjectsV2", "GROUP")):
        assert predicted[kind] == pytest.approx(real.requests[kind], rel=0.03, abs=2), kind
    assert sum(queue.log_bytes for queue in queues) == real.uploaded_bytes
    assert sum(predicted.values()) == pytest.approx(count_after_start(real), rel=0.1, abs=4)


def test_in_groups_messages_wait_for_less_than_a_minute() -> None:
    grouped = Scheme("groups", group_bytes=16 << 20)
    _, [queue] = predict_uploads(grouped, _load(1, 5_000, 2))
    assert 40_000 < queue.loss_ms <= 60_000


def test_queues_that_stand_for_many_fill_groups_together() -> None:
    """A simulated queue may represent many real queues that share group objects. The number of
    group objects depends on the bytes, each of which is written twice."""
    load = Load(10, 1_000, 1024, 1_000, 2 * HOUR_MS)
    model = ChunkRequestModel(ChunkSettings(group_bytes=16 << 20))
    scans = range(0, load.duration_ms, 20_000)
    made = [
        model_uploads(
            steady_arrivals(number * 100, load.interval_ms, load.record_bytes, load.duration_ms),
            StoreConfig(),
            model.capabilities,
            model.make_queue(1 / 1_000),
            scans,
        )
        for number in range(load.queues)
    ]
    found = count_shared([Counted(queue, 100) for queue in made], model, scans)
    uploaded = sum(queue.log_bytes for queue in made) * 100
    # The last messages are not sorted yet.
    assert 1 < found["PutObject", "GROUP"] / (uploaded / (16 << 20)) < 1.5
    assert found["HeadObject", "EPOCH"] < found["PutObject", "GROUP"] + 10


def test_what_waits_is_lost_with_the_disk_and_no_longer_than_the_interval_and_a_scan() -> None:
    slow = _load(1, 5_000, 4)
    for seconds in (60, 300, 600):
        scheme = Scheme("kept", keys={"adaptive_commit_max_interval_ms": seconds * 1000})
        _, [queue] = predict_uploads(scheme, slow)
        assert seconds * 1000 < queue.loss_ms <= seconds * 1000 + scheme.scan_ms


def test_longer_intervals_never_take_more_requests() -> None:
    slow = _load(2, 3_000, 10)
    counts = []
    for seconds in (30, 60, 120, 300, 600, 1200):
        scheme = Scheme("kept", keys={"adaptive_commit_max_interval_ms": seconds * 1000})
        counts.append(sum(predict_uploads(scheme, slow)[0].values()))
    assert counts == sorted(counts, reverse=True)
