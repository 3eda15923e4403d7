"""A master and two workers run as docs/spark/submit.md starts them. Each worker has its own
address."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.paths import ROOT
from tests.kit.spark.cluster import Cluster, cluster_of_two, executor_python
from tests.kit.spark.errands import Errand, outcomes
from tests.kit.spark.offsets import OFFSETS, offsets_once_enabled
from tests.kit.tier_builder import small_tier
from tieredstore.spark import build_zip
from tieredstore.spark.sessions.java import java_home

pytestmark = pytest.mark.slow


def first_attempt_is_stuck(errand: Errand) -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    attempt = context.attemptNumber()
    (Path(errand.folder) / f"{errand.number}-{attempt}").touch()
    if errand.number == 3 and attempt == 0:
        time.sleep(600)  # it is killed once the other one has ended
    return attempt


def answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, 1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def daemon(name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    program = Path(sys.executable).with_name("spark-class")
    command = [str(program), f"org.apache.spark.deploy.{name}", "--webui-port", "0", *arguments]
    # The script finds Spark by this Python. By default it uses that of the PATH, which may have
    # none.
    env = {**os.environ, "PYSPARK_DRIVER_PYTHON": sys.executable, "JAVA_HOME": str(java_home())}
    process = subprocess.Popen(
        command, env=env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def master(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("workers")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        where = ["--host", "127.0.0.1", "--port", str(port)]
        process = stack.enter_context(daemon("master.Master", *where))
        while not answers(("127.0.0.1", port)):
            assert process.poll() is None, "the master has ended"
            time.sleep(0.2)
        for host in "127.0.0.2", "127.0.0.3":
            where = ["--host", host, "--cores", "1", "--memory", "1g"]
            work = str(folder / host)
            stack.enter_context(daemon("worker.Worker", *where, "--work-dir", work, master))
        yield master


@pytest.fixture(scope="module")
def two_hosts(master: str) -> Iterator[Cluster]:
    conf = {
        "spark.master": master,
        "spark.executor.memory": "1g",
        "spark.speculation": "true",
        "spark.speculation.minTaskRuntime": "1s",
        "spark.speculation.quantile": "0.5",
    }
    with cluster_of_two(conf) as cluster:
        yield cluster


def test_the_script_of_the_page_is_submitted_with_the_zip(master: str, tmp_path: Path) -> None:
    """The script in the documentation page is submitted together with a zip file of the package.
    This test runs first, because the session of the later tests uses all cores."""
    page = (ROOT / "docs/spark/submit.md").read_text()
    script = tmp_path / "job.py"
    script.write_text(page.split("```python\n")[1].split("```")[0])
    zipped = tmp_path / "tieredstore.zip"
    build_zip(zipped)
    submit = Path(sys.executable).with_name("spark-submit")
    sent = ["--master", master, "--conf", "spark.executor.memory=1g", "--py-files", str(zipped)]
    done = subprocess.run(
        [submit, *sent, script, small_tier(tmp_path / "tier").url, "orders"],
        cwd=tmp_path,
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_HOME": str(java_home()),
            "PYSPARK_PYTHON": str(executor_python(tmp_path)),
        },
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [
        "queue 0: 12 messages",
        "queue 1: 4 messages",
        "16 in all",
    ]


def test_of_two_attempts_at_once_one_counts(two_hosts: Cluster, tmp_path: Path) -> None:
    tasks = [Errand(number, str(tmp_path)) for number in range(4)]
    done = two_hosts.call(outcomes, first_attempt_is_stuck, tasks)
    assert sorted(done) == [(0, 0), (1, 0), (2, 0), (3, 1)]
    assert (tmp_path / "3-0").exists()


def test_a_tier_is_read_with_what_was_sent(two_hosts: Cluster, tmp_path: Path) -> None:
    assert two_hosts.call(offsets_once_enabled, small_tier(tmp_path).url) == OFFSETS
