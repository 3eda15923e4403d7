"""Run the main jobs end to end: offload a store, read the tier back, verify it, query it in SQL.
Then run a broker with a producer and a consumer, and replay the messages from the tier alone.

Each step on the tier is shown as a command that users can repeat.
"""

from __future__ import annotations

import contextlib
import sys
import time

from scripts.demonstration.arguments import ROOT, Options, parse
from scripts.demonstration.commands import shorten_path
from scripts.demonstration.folder import prepare
from scripts.demonstration.spark import Counting


def main(options: Options) -> int:
    begin = time.monotonic()
    stays = prepare(options)
    folder = options.folder
    with contextlib.ExitStack() as stack:
        counting = None
        if options.spark:
            counting = stack.enter_context(Counting(folder / "spark.log"))
        # Imported while Spark starts.
        from scripts.demonstration.steps import show

        code = show(options, counting)
    print(f"Took       {time.monotonic() - begin:.1f} s")
    if stays:
        print(f"Left alone in {shorten_path(folder)}: {', '.join(stays)}")
    print(
        f"The tier is {shorten_path(folder / 'tier')}. Try "
        f"{shorten_path(ROOT / 'scripts' / 'tieredstore')} --help on it."
    )
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(parse()))
    except KeyboardInterrupt:
        sys.exit(130)
