"""What the model of uploads predicts for the loads of `benchmarks.cost.simulation`."""

from __future__ import annotations

from collections import Counter

from benchmarks.cost.simulation import Load, Scheme
from tieredstore.config import StoreConfig
from tieredstore.contracts.request_model import RequestModel, Requests
from tieredstore.jobs.advising.arrivals import Arrivals
from tieredstore.jobs.advising.sharing import Counted, count_shared
from tieredstore.jobs.advising.uploads import QueueUploads, model_uploads
from tieredstore.providers.chunks.modelling.model import ChunkRequestModel

BEGIN_MS = 1_700_000_000_000


def predict_uploads(
    scheme: Scheme, load: Load, model: RequestModel | None = None
) -> tuple[Requests, list[QueueUploads]]:
    """Predict the requests of all queues of a load together, and each queue's own."""
    model = model if model is not None else ChunkRequestModel()
    config = StoreConfig(**scheme.keys)  # type: ignore[arg-type]
    scans = range(BEGIN_MS, BEGIN_MS + load.duration_ms, scheme.scan_ms)
    queues = []
    for number in range(load.queues):
        begin_ms = BEGIN_MS + int(load.interval_ms * number / load.queues)
        arrivals = Arrivals.steady(
            begin_ms, load.interval_ms, load.record_bytes, BEGIN_MS + load.duration_ms
        )
        stored = model.make_queue(1 / load.stands_for)
        queues.append(model_uploads(arrivals, config, model.capabilities, stored, scans))
    requests: Requests = Counter()
    for queue in queues:
        requests.update(queue.requests)
    requests.update(count_shared([Counted(queue) for queue in queues], model, len(scans)))
    return requests, queues
