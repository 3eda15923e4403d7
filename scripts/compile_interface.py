"""Compile the gRPC interface definition into the descriptors that the broker loads.

    python scripts/compile_interface.py [--check]

--check: write nothing, end with 1 when the descriptors in the tree are not those. Needs
grpcio-tools.
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
SOURCES = ("definition.proto", "service.proto")


def compile_interface() -> bytes:
    """Return the definition, with what it imports, as a FileDescriptorSet. Raises SystemExit when
    the compiler refuses it."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / TARGET.name
        status = protoc.main(
            [
                "protoc",
                f"-I{FOLDER}",
                f"-I{Path(grpc_tools.__file__).parent / '_proto'}",
                "--include_imports",
                f"--descriptor_set_out={target}",
                *(f"apache/rocketmq/v2/{name}" for name in SOURCES),
            ]
        )
        if status != 0:
            raise SystemExit(f"{FOLDER}: the compiler ended with {status}")
        return target.read_bytes()


def main(arguments: list[str]) -> int:
    """Write the descriptors, or compare them."""
    compiled = compile_interface()
    if "--check" not in arguments:
        TARGET.write_bytes(compiled)
        return 0
    read = descriptor_pb2.FileDescriptorSet.FromString
    if read(compiled) == read(TARGET.read_bytes()):
        return 0
    print(f"{TARGET}: not what the definition compiles to; run {Path(__file__).name}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
