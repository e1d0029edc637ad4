"""Writes asa_pb2.py from asa.proto: `python -m dsec.sml.generate`. Never imported at run time.

protoc's own Python output refuses every runtime but those of its own and the next major version.
So protoc only compiles the file to a descriptor, and what is written here hands that to the runtime
by its public interface, which all versions since 4 have. Needs grpcio-tools, which brings protoc.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "asa.proto"
TARGET = HERE / "asa_pb2.py"
_WIDTH = 24  # bytes to a line

_HEAD = '''"""The messages of asa.proto, for codec.py alone (`python -m dsec.sml.generate`)."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

DESCRIPTOR = bytes.fromhex(
    """
{hex}
    """
)

_file = descriptor_pb2.FileDescriptorProto.FromString(DESCRIPTOR)
_pool = descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(DESCRIPTOR)
_classes: dict[str, Any] = message_factory.GetMessageClassesForFiles([_file.name], _pool)

{names}
'''


def compiled(source: Path = SOURCE) -> bytes:
    """The serialised FileDescriptorProto of a .proto file, by protoc.

    Raises:
        subprocess.CalledProcessError: protoc refuses it, or there is none.
    """
    from google.protobuf import descriptor_pb2

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "set")
        argv = [f"-I{source.parent}", f"--descriptor_set_out={out}", str(source)]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *argv], check=True)
        (file,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    descriptor: bytes = file.SerializeToString(deterministic=True)
    return descriptor


def rendered(descriptor: bytes) -> str:
    """The text of asa_pb2.py for a descriptor."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto.FromString(descriptor)
    starts = range(0, len(descriptor), _WIDTH)
    lines = "\n".join(f"    {descriptor[i : i + _WIDTH].hex(' ')}" for i in starts)
    names = "\n".join(
        f'{each.name}: Any = _classes["{file.package}.{each.name}"]' for each in file.message_type
    )
    return _HEAD.format(hex=lines, names=names)


if __name__ == "__main__":
    TARGET.write_text(rendered(compiled()))
