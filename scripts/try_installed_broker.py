"""Run the installed `tieredstore dev`, send it a message, read it back, and stop it.

Run this with the interpreter of an environment with only the wheel and its extra `broker`, to prove
that a developer needs nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SECONDS = 60
PROGRAM = Path(sys.executable).with_name("tieredstore")


def run(*words: str) -> str:
    return subprocess.run(
        [PROGRAM, *words], check=True, stdout=subprocess.PIPE, text=True, timeout=SECONDS
    ).stdout


def main() -> None:
    broker = subprocess.Popen([PROGRAM, "dev", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        addresses = json.loads(broker.stdout.readline())
        at = ["--at", addresses["remoting"]]
        run("send", "orders", "one coffee", *at)
        shown = run("tail", "orders", "--from-start", "--no-follow", "--output", "ndjson", *at)
        if json.loads(shown)["body"] != "one coffee":
            raise SystemExit(f"sent `one coffee`, got {shown}")
        broker.terminate()
        if code := broker.wait(SECONDS):
            raise SystemExit(f"the broker ended with exit code {code}")
    finally:
        broker.kill()
    print(f"a broker of the wheel served {', '.join(addresses)}")


if __name__ == "__main__":
    main()
