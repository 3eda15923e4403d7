"""Java side of a comparison: a warm JVM that runs one pass of a row on request."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

JAVA = Path(__file__).resolve().parent.parent / "tests" / "interop" / "java"
START = '. ./env.sh && exec java $JFLAGS -Xmx4g -Duser.home="$1/home" -cp "$CP" Peer "$1"'


class JavaPeer:
    """RocketMQ's own classes, controlled by one JSON line per request
    (`tests/interop/java/src/Peer.java`). Java may use every core."""

    def __init__(self, work: Path) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self._log = (work / "log.txt").open("w")
        self._process = subprocess.Popen(
            ["bash", "-c", START, "peer", str(work)],
            cwd=JAVA,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    @staticmethod
    def missing() -> str:
        """Return the reason why the Java side is missing, or an empty string."""
        tools = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
        return f"not installed: {', '.join(tools)}" if tools else ""

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one pass. Raises RuntimeError with Java's message."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # It ended, so the response is empty.
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the Java side ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"Java, {request['row']}: {answer['error']}; {self._last_words()}")
        return answer

    def _last_words(self) -> str:
        """Return the last lines of Java's log, because the log is deleted with the work folder."""
        return Path(self._log.name).read_text(errors="replace")[-2000:]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
