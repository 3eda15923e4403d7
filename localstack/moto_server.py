"""moto's server with conditional writes in one step.

moto 5.2 looks whether a key is there, and writes it, in two steps of a request's thread: on a busy
machine two of several racing conditional creates may both win. Here one waits for the other, as on
S3.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main


def put_in_one_step() -> None:
    """Let the moto of this process take one put at a time."""
    lock = threading.Lock()
    put_object = S3Response.put_object

    def put_alone(response: S3Response) -> Any:
        with lock:
            return put_object(response)

    S3Response.put_object = put_alone  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    put_in_one_step()
    main(sys.argv[1:])
