"""The Spark driver of the demo: orders in, flagged orders out, as one streaming query.

Contract     `python -m penstock.cli.demo_driver LOCATION CHECKPOINT` works until it is killed, or
             until everything that is there is through, and then ends.
"""

from __future__ import annotations

import sys

from penstock.spark import register, session

ORDERS, FLAGGED = "orders", "flagged"
#: Entries of one batch: small, so that there are many moments to be killed in.
BATCH = 2_000
LARGE = 900


def main(location: str, checkpoint: str) -> None:
    spark = session("penstock demo", cores=2)
    register(spark)
    orders = (
        spark.readStream.format("penstock")
        .option("location", location)
        .option("stream", ORDERS)
        .option("startingOffsets", "earliest")
        .option("maxMessagesPerTrigger", BATCH)
        .option("minPartitions", 2)
        .load()
    )
    flagged = orders.selectExpr(
        "concat(cast(data AS string), if(get_json_object(cast(data AS string), '$.amount') "
        f">= {LARGE}, ' large', ' small')) AS data",
        "tag",
    )
    query = (
        flagged.writeStream.format("penstock")
        .option("location", location)
        .option("stream", FLAGGED)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
