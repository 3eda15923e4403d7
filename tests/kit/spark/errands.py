"""Tasks of a Spark job that leave a trace, and their outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tieredstore.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Errand:
    """What a task is to do. Attempts leave files `NUMBER-ATTEMPT` in the folder."""

    number: int
    folder: str = ""
    fails: int = 0


def outcomes(
    spark: SparkSession, work: object, tasks: Sequence[object], stop_at: int | None = None
) -> list[tuple[int, object]]:
    """What `on_done` was called with, in order."""
    from tieredstore.spark.runner import SparkRunner

    done: list[tuple[int, object]] = []

    def on_done(index: int, result: object) -> None:
        done.append((index, result))
        if index == stop_at:
            raise Invalid(f"told to stop, {done}")

    SparkRunner(spark).run(work, tasks, on_done)  # type: ignore[arg-type]
    return done
