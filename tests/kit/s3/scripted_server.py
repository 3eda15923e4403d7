"""A server that sends scripted replies and records its requests."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tieredstore.properties import PluginProperties, read_settings
from tieredstore.providers.s3.client import S3Client
from tieredstore.providers.s3.settings import S3Settings

ACCESS_KEY = "AKIDEXAMPLE0"
SECRET_KEY = "hush-hush/secret+key"
DATE = "Sat, 21 Nov 2026 12:00:00 GMT"
DATE_MS = 1_795_262_400_000


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # lower case
    body: bytes

    @property
    def operation(self) -> str:
        """Return the method and the subresource in the query, such as `POST ?uploads`."""
        first = next(iter(self.query), "")
        return f"{self.method} ?{first}" if first else self.method


@dataclass(frozen=True)
class Reply:
    """A reply. `cut`: number of body bytes after which the connection is closed. `drop`: close the
    connection without a reply."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    drop: bool = False


def refusal(
    status: int, code: str, extra: str = "", headers: Mapping[str, str] | None = None
) -> Reply:
    body = f"<Error><Code>{code}</Code><Message>the server's own words</Message>{extra}</Error>"
    return Reply(status, body.encode(), headers or {})


def ranged(body: bytes, first: int, total: int | str, *, status: int = 206, **kwargs: Any) -> Reply:
    told = f"bytes {first}-{first + len(body) - 1}/{total}"
    return Reply(status, body, {"Content-Range": told, "ETag": '"e"'}, **kwargs)


class ScriptedServer:
    """Server that sends the replies of `script`, and then the results of `otherwise`.
    `certificate`, with its key, enables TLS."""

    def __init__(self, certificate: tuple[Path, Path] | None = None) -> None:
        self.requests: list[Request] = []
        self.script: list[Reply] = []
        self.otherwise: Callable[[Request], Reply] = lambda _: Reply()
        self._lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                owner.answer(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_CONNECT = _serve

            def date_time_string(self, timestamp: float | None = None) -> str:
                return DATE

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """Ignore the error, because a client that does not trust the server closes the
                connection."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self.url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{self.port}"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)  # of a proxy's request it is a whole URL
        size = int(handler.headers.get("Content-Length") or 0)
        request = Request(
            handler.command,
            parts.netloc + unquote(parts.path),
            dict(parse_qsl(parts.query, keep_blank_values=True)),
            {name.lower(): value for name, value in handler.headers.items()},
            handler.rfile.read(size),
        )
        with self._lock:
            self.requests.append(request)
            scripted = self.script.pop(0) if self.script else None
        reply = scripted if scripted is not None else self.otherwise(request)
        if reply.drop:
            handler.close_connection = True
            return
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        if "Content-Length" not in reply.headers:
            handler.send_header("Content-Length", str(len(reply.body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(reply.body if reply.cut is None else reply.body[: reply.cut])
        if reply.cut is not None:
            handler.close_connection = True

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def s3_settings(endpoint: str, **properties: object) -> S3Settings:
    """Return the settings of an endpoint, loaded from a configuration. `properties` have Java
    names."""
    values = {
        "objectStoreEndpoint": endpoint,
        "objectStoreBucket": "tier",
        "objectStoreAccessKey": ACCESS_KEY,
        "objectStoreSecretKey": SECRET_KEY,
        "tieredStoreS3Region": "eu-central-1",
        "tieredStoreS3MaxAttempts": 2,
        "tieredStoreS3FastReads": False,
        **properties,
    }
    texts = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in values.items()
    }
    return read_settings(S3Settings, PluginProperties(texts, "broker.conf"))


@contextmanager
def s3_client(endpoint: str, **properties: object) -> Iterator[S3Client]:
    client = S3Client(s3_settings(endpoint, **properties))
    try:
        yield client
    finally:
        client.close()


def listing(keys: Iterable[str], *, token: str = "", count: int | None = None) -> Reply:
    """Return a page of ListObjectsV2. `token` is the continuation token for the next page."""
    names = list(keys)
    contents = "".join(
        f"<Contents><Key>{name}</Key><LastModified>2026-11-21T12:00:00.000Z</LastModified>"
        f"<ETag>&quot;e&quot;</ETag><Size>1</Size></Contents>"
        for name in names
    )
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    told = len(names) if count is None else count
    truncated = "true" if token or count == -1 else "false"
    return Reply(
        body=(
            f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>"
            f"<KeyCount>{told}</KeyCount>{contents}{more}</ListBucketResult>"
        ).encode()
    )
