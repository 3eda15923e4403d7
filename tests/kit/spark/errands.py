"""Tasks of a Spark job that write files, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tieredstore.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Errand:
    """Work of a task. Each attempt writes a file `NUMBER-ATTEMPT` into the folder."""

    number: int
    folder: str = ""
    fails: int = 0


def outcomes(
    spark: SparkSession, work: object, tasks: Sequence[object], stop_at: int | None = None
) -> list[tuple[int, object]]:
    """Return the arguments of all calls of `on_done` in order."""
    from tieredstore.spark.runner import SparkRunner

    done: list[tuple[int, object]] = []

    def on_done(index: int, result: object) -> None:
        done.append((index, result))
        if index == stop_at:
            raise Invalid(f"told to stop, {done}")

    SparkRunner(spark).run(work, tasks, on_done)  # type: ignore[arg-type]
    return done
