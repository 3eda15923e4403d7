"""Run a broker with its tier in this clone: `tieredstore broker` with a generated broker.conf.

Prints the addresses for clients and, on a terminal, one line per second with rates and totals.
Ctrl-C stops the broker cleanly.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import orjson
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parent.parent
MARK = ".made-by-scripts-run"
STOP_SECONDS = 60
COUNTERS = {
    "puts": "rocketmq_messages_in_total",
    "gets": "rocketmq_messages_out_total",
    "uploads": "rocketmq_tiered_store_messages_dispatch_total",
    "cold reads": "rocketmq_tiered_store_messages_out_total",
}
"""Columns of an output line, and the counters from which each column's messages per second are
computed."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/run",
        description="Run a broker with its tier under this clone, until Ctrl-C. Started again, it "
        "continues with its messages.",
    )
    parser.add_argument(
        "--s3",
        action="store_true",
        help="the tier is in an S3 server that is started on this machine. Store and tier are new "
        "with each start",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="where store, tier and broker.conf are (default: run/posix in this clone, with --s3 "
        "run/s3)",
    )
    parser.add_argument("--free-ports", action="store_true", help="not the usual ports")
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="of broker.log: for people (the default), or a line of JSON for each record",
    )
    return parser.parse_args()


def make_folder(folder: Path, *, anew: bool) -> None:
    """Create the folder of the broker. Exits if it has other files."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK).exists():
            sys.exit(f"run: {folder} is not empty and was not made by this script. Use --folder")
        if anew:
            shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Start an S3 server with an empty bucket `tier`. Yields its endpoint."""
    servers = [sys.executable, str(ROOT / "localstack" / "servers.py")]
    place = ["--run-dir", str(folder / "servers")]
    up = subprocess.run([*servers, "up", *place, "moto"], stdout=subprocess.PIPE, check=False)
    if up.returncode:
        sys.exit("run: the S3 server did not start. See above")
    try:
        yield up.stdout.decode().split()[1]
    finally:
        subprocess.run([*servers, "down", *place, "moto"], check=False, stdout=subprocess.DEVNULL)


def tier_keys(folder: Path, endpoint: str | None) -> dict[str, str]:
    if endpoint is None:
        (folder / "tier").mkdir(exist_ok=True)
        return {
            "tieredBackendServiceProvider": "posix",
            "tieredStoreFilePath": str(folder / "tier"),
        }
    return {
        "tieredBackendServiceProvider": "s3",
        "objectStoreEndpoint": endpoint,
        "objectStoreBucket": "tier",
        "objectStoreAccessKey": "testing",
        "objectStoreSecretKey": "testing123",
        "tieredStoreS3Region": "us-east-1",
        "tieredStoreS3PathStyle": "true",
        # Frequent, small uploads can be watched. A real bill would prefer rare, large ones.
        "tieredStoreAdaptiveCommitMaxInterval": "30000",
    }


def write_conf(folder: Path, endpoint: str | None, *, free_ports: bool) -> Path:
    """Write the broker.conf. An existing file is kept, so that users can change it, except with an
    S3 server or free ports."""
    path = folder / "broker.conf"
    if path.exists() and endpoint is None and not free_ports:
        return path
    keys = {
        "brokerName": "broker-a",
        "brokerClusterName": "DefaultCluster",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "storePathRootDir": str(folder / "store"),
        "mappedFileSizeCommitLog": str(256 << 20),
        "maxHashSlotNum": "500000",
        "maxIndexNum": "2000000",
        "enablePropertyFilter": "true",
        "autoCreateMixedTopics": "true",
        "namesrvListenPort": "9876",
        "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
        "tieredStoreFileReservedTime": "720",
        "tieredStoreIndexFileMaxHashSlotNum": "500000",
        "tieredStoreIndexFileMaxIndexNum": "2000000",
        **tier_keys(folder, endpoint),
    }
    if free_ports:
        names = ("listenPort", "namesrvListenPort", "grpcServerPort", "metricsPromExporterPort")
        keys |= dict.fromkeys(names, "0")
    lines = (f"{key}={value}".replace("\\", "\\\\") for key, value in keys.items())
    path.write_text("\n".join(lines) + "\n", encoding="latin-1")
    return path


def read_totals(address: str) -> dict[str, float]:
    """Return the sums of the counters over all topics."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    totals = dict.fromkeys(COUNTERS, 0.0)
    names = {name: label for label, name in COUNTERS.items()}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in names:
                totals[names[sample.name]] += sample.value
    return totals


def watch(address: str, ended: threading.Event) -> None:
    """Print one line per second: messages per second of each kind, and totals."""
    before: dict[str, float] = {}
    begin = time.monotonic()
    while not ended.wait(1):
        with contextlib.suppress(OSError, ValueError):
            now = read_totals(address)
            rates = {label: now[label] - before.get(label, now[label]) for label in COUNTERS}
            parts = (f"{label} {rates[label]:>7,.0f}/s {now[label]:>11,.0f}" for label in COUNTERS)
            print(f"{time.monotonic() - begin:>6.0f} s  " + "   ".join(parts), flush=True)
            before = now


def show(addresses: Mapping[str, str], folder: Path, tier: str) -> None:
    print(
        f"""
Clients connect to
  name server   {addresses["namesrv"]}   (remoting clients, mqadmin -n)
  gRPC          {addresses["grpc"]}   (TLS or plain)
  metrics       http://{addresses["metrics"]}/metrics, /health
Try, in another terminal:
  scripts/tieredstore send orders hello world --at {addresses["remoting"]}
  scripts/tieredstore tail orders --from-start --at {addresses["remoting"]}
  scripts/tieredstore topic list --at {addresses["remoting"]}
Configuration   {folder / "broker.conf"}
Tier            {tier}
Log             {folder / "broker.log"}
Ctrl-C stops it.
""",
        flush=True,
    )


def serve(folder: Path, conf: Path, tier: str, log_format: str) -> int:
    """Run the broker until it ends or a signal stops it."""
    with (folder / "broker.log").open("ab") as log:
        # In its own session, so that Ctrl-C reaches it once, from here.
        broker = subprocess.Popen(
            [sys.executable, "-m", "tieredstore", "broker", "-c", conf, "--log-format", log_format],
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: broker.terminate())
    assert broker.stdout is not None
    line = broker.stdout.readline()
    ended = threading.Event()
    watcher: threading.Thread | None = None
    if line:
        addresses = orjson.loads(line)
        show(addresses, folder, tier)
        if sys.stdout.isatty():
            watcher = threading.Thread(target=watch, args=(addresses["metrics"], ended))
            watcher.start()
    code = broker.wait()
    ended.set()
    if watcher is not None:
        watcher.join()
    if code:
        sys.stderr.write(last_lines(folder / "broker.log"))
    print("stopped" if not code else f"the broker ended with exit code {code}", flush=True)
    return code


def last_lines(path: Path, count: int = 5) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(path.read_text(errors="replace").splitlines()[-count:]) + "\n"
    return ""


def main() -> int:
    options = arguments()
    default = ROOT / "run" / "s3" if options.s3 else ROOT / "run" / "posix"
    folder = (options.folder or default).resolve()
    make_folder(folder, anew=options.s3)
    if not options.s3:
        conf = write_conf(folder, None, free_ports=options.free_ports)
        return serve(folder, conf, f"file://{folder / 'tier'}", options.log_format)
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    with s3_server(folder) as endpoint:
        conf = write_conf(folder, endpoint, free_ports=options.free_ports)
        return serve(folder, conf, f"s3://tier at {endpoint}", options.log_format)


if __name__ == "__main__":
    sys.exit(main())
