"""moto's server with atomic conditional writes.

moto 5.2 checks for a key and writes it in two steps, without a lock. On a busy machine two racing
conditional creates may both win. Here the second request waits for the first one, as on S3.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main


def put_in_one_step() -> None:
    """Serialise the puts of moto in this process."""
    lock = threading.Lock()
    put_object = S3Response.put_object

    def put_alone(response: S3Response) -> Any:
        with lock:
            return put_object(response)

    S3Response.put_object = put_alone  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    put_in_one_step()
    main(sys.argv[1:])
