"""Count the messages of a tier by topic with Spark SQL.

python examples/count_by_topic.py demo/tier
"""

import sys
from pathlib import Path

from tieredstore.spark import enable, session

tier = Path(sys.argv[1]).absolute().as_uri()
spark = session(app_name="count_by_topic", conf={"spark.sql.shuffle.partitions": "2"})
spark.sparkContext.setLogLevel("ERROR")
enable(spark)
spark.sql(
    "CREATE TEMPORARY VIEW messages USING rocketmq_tiered OPTIONS "
    f"(path '{tier}', subscribePattern '.*', columns 'topic,queue_id,body')"
)
spark.sql(
    "SELECT topic, count(*) AS messages, max(queue_id) + 1 AS queues, sum(length(body)) AS bytes "
    "FROM messages GROUP BY topic ORDER BY topic"
).show(10_000, truncate=False)
spark.stop()
