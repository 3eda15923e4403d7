"""Compile the gRPC interface definition into descriptors for the broker and stubs for the type
checker.

    python scripts/compile_interface.py [--check]

--check: write nothing, and exit with 1 if the files in the tree differ. Needs grpcio-tools.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import grpc_tools
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

FOLDER = Path(__file__).parent.parent / "tieredstore" / "broker" / "grpc" / "interface"
TARGET = FOLDER / "descriptors.binpb"
SOURCES = ("definition", "service")
_PACKAGE = "apache/rocketmq/v2"
_STUBS = "tieredstore.broker.grpc.interface"


def compile_interface() -> dict[Path, bytes]:
    """Return the content of each file: the definition and its imports as a FileDescriptorSet, and a
    stub for each source. Raises SystemExit if the compiler rejects the definition."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / TARGET.name
        status = protoc.main(
            [
                "protoc",
                f"-I{FOLDER}",
                f"-I{Path(grpc_tools.__file__).parent / '_proto'}",
                "--include_imports",
                f"--descriptor_set_out={target}",
                f"--pyi_out={folder}",
                *(f"{_PACKAGE}/{name}.proto" for name in SOURCES),
            ]
        )
        if status != 0:
            raise SystemExit(f"{FOLDER}: the compiler ended with {status}")
        found = {TARGET: target.read_bytes()}
        for name in SOURCES:
            stub = (Path(folder) / _PACKAGE / f"{name}_pb2.pyi").read_text()
            stub = stub.replace("_Mapping]", "_Mapping[str, object]]")
            stub = stub.replace(
                f"from {_PACKAGE.replace('/', '.')} import", f"from {_STUBS} import"
            )
            found[FOLDER / f"{name}_pb2.pyi"] = stub.encode()
        return found


def main(arguments: list[str]) -> int:
    """Write the files, or compare them with the files in the tree."""
    compiled = compile_interface()
    if "--check" not in arguments:
        for path, content in compiled.items():
            path.write_bytes(content)
        return 0
    for path, content in compiled.items():
        there = path.read_bytes()
        if path == TARGET:
            read = descriptor_pb2.FileDescriptorSet.FromString
            is_same = read(content) == read(there)
        else:
            is_same = content == there
        if not is_same:
            print(f"{path}: not what the definition compiles to. Run {Path(__file__).name}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
