"""Every command of docs/beside-java.md runs beside a running Java broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.kit.java import JavaTools, free_ports
from tests.kit.paths import ROOT

PAGE = (ROOT / "docs" / "beside-java.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def run(folder: Path, *blocks: str) -> str:
    """Run code blocks of the page as one script. Return its output."""
    variables, port = BLOCKS[0], str(free_ports())
    for name in re.findall(r"^([A-Z]+)=", variables, re.MULTILINE):
        place = folder / ("broker.conf" if name == "CONFIG" else name.lower())
        variables = re.sub(rf"^{name}=\S+", f"{name}={place}", variables, flags=re.MULTILINE)
    script = "".join((variables, *blocks)).replace("9464", port)
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_its_commands_do_what_it_says(java: JavaTools, tmp_path: Path) -> None:
    _, look, copy, follow, stop, at_the_end = BLOCKS
    (tmp_path / "broker.conf").write_text("brokerName=b\nbrokerClusterName=c\n")
    with java.hold(tmp_path / "store") as broker:
        broker.put("live", 0, 40)
        said = run(tmp_path, look)
        assert "live" in said
        assert not (tmp_path / "tier").exists()
        assert not (tmp_path / "state").exists()
        said = run(tmp_path, copy)
        assert re.search(r"^damage +0$", said, re.MULTILINE), said
        broker.put("live", 1, 60)
        said = run(tmp_path, follow, stop)
        assert '"status"' in said
        assert "x_offload_behind_messages" in said
        log = (tmp_path / "offload.log").read_text()
        assert re.search(r"^2\S+Z offload: \d+ messages, .* so far", log, re.MULTILINE), log
        assert not (tmp_path / "state.health.json").exists()
        broker.stop()
        said = run(tmp_path, at_the_end)
    assert re.search(r"^damage +0$", said, re.MULTILINE), said
    assert re.findall(r"^messages +(\d+)$", said, re.MULTILINE)[-1] == "100"
