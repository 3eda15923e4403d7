"""A Spark Connect client whose server lacks this package. `python -m tests.kit.spark.connect_child
TIER FOLDER` prints the results of reads and jobs as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.kit.spark.cluster import executor_python, settings_in
from tieredstore.errors import Invalid
from tieredstore.spark import enable, read


def main(url: str, folder: str) -> None:
    # Settings of the server, which this process starts. Its tasks have the installed and the sent
    # code.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = str(executor_python(Path(folder)))
    os.environ.pop("PYTHONPATH", None)
    from pyspark.sql import SparkSession

    from tieredstore.spark.runner import SparkRunner

    builder = SparkSession.builder.remote("local[2]")
    for key, value in settings_in(Path(folder)).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    enable(spark)
    enable(spark)  # a second time is no error
    orders = spark.read.format("rocketmq_tiered").option("subscribe", "orders")
    pushed = orders.option("pushDownFilters", "true").load(url).where("queue_id = 1")
    direct = read(spark, url, subscribe="orders", columns=["body"])
    found = [type(spark).__module__, orders.load(url).count(), pushed.count(), direct.count()]
    try:
        SparkRunner(spark)
    except Invalid as error:
        found.append(str(error))
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
