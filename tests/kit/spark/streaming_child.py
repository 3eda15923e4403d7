"""A streaming query that a test kills: `python -m tests.kit.spark.streaming_child TIER FOLDER
LIMIT`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.kit.spark.cluster import settings_in
from tieredstore.spark import enable, session


def main(url: str, folder: str, limit: str) -> None:
    conf = {"spark.master": "local[2]", **settings_in(Path(folder))}
    spark = session(app_name="stream", conf=conf)
    enable(spark)
    options = {"subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": limit}
    messages = spark.readStream.format("rocketmq_tiered").options(**options).load(url)
    writer = messages.select("queue_id", "queue_offset", "body").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start(f"{folder}/out").awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
