"""Connection to a peer. It splits received bytes into frames, calls handlers, matches responses to
its own requests, and writes its output once per turn of the event loop."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from tieredstore.broker.auth.access import ANYBODY
from tieredstore.broker.hosts import HOST, name_host
from tieredstore.broker.peer_warnings import PEERS
from tieredstore.broker.remoting.codes import HeaderType, RequestCode, ResponseCode
from tieredstore.broker.remoting.command import (
    MAX_FRAME_BYTES,
    ONE_WAY_FLAG,
    RESPONSE_FLAG,
    BadFrame,
    Body,
    FrameReader,
    RemotingCommand,
    decode_header,
    encode_header,
    encode_start,
)
from tieredstore.broker.remoting.handler_table import HandlerTable, respond_to_error
from tieredstore.errors import Invalid, Unavailable
from tieredstore.message.buffers import Buffer
from tieredstore.message.hosts import encode_host, format_host
from tieredstore.message.record import StoredMessage


@dataclass(frozen=True, slots=True)
class RemotingLimits:
    """Limits of remoting. `idle_timeout_ms`: time without a complete frame after which a connection
    is closed. Clients send a heartbeat every 30 s. `high_water_bytes`: number of unsent bytes above
    which a connection is not read. `max_pending`: maximum number of unanswered requests per
    connection, including waiting polls. Further requests get SYSTEM_BUSY. `max_buffered_bytes`:
    maximum size of incomplete frames, waiting requests and unsent responses of all connections.
    Above it, the largest connection of the host with the most bytes is closed."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    idle_timeout_ms: int = 120_000
    high_water_bytes: int = 1 << 20
    max_pending: int = 16_384
    max_buffered_bytes: int = 512 << 20


class BufferedBytes:
    """Counts the bytes buffered for all connections. Above the limit, the host with the most bytes
    loses its largest connection, so that a greedy peer does not harm the others."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: dict[Connection, int] = {}
        self.total_bytes = 0

    def hold(self, connection: Connection, count_bytes: int) -> None:
        """Record how many bytes are buffered for a connection."""
        self.total_bytes += count_bytes - self._held.pop(connection, 0)
        if count_bytes:
            self._held[connection] = count_bytes
        while self.total_bytes > self._limit_bytes:
            hosts = Counter[str]()
            for one, held_bytes in self._held.items():
                hosts[one.host] += held_bytes
            greediest = max(self._held, key=lambda one: (hosts[one.host], self._held[one]))
            self.total_bytes -= self._held.pop(greediest)
            greediest.abort(
                f"the connections hold more than {self._limit_bytes} bytes, this one the most"
            )


CloseListener = Callable[["Connection"], object]


_JOINED_BYTES: Final = 64 << 10
"""Maximum size of output chunks that are joined into a single write, in bytes. Larger chunks are
written separately."""
_BUFFERS: Final = (bytes, bytearray, memoryview)
_MAX_OPAQUE: Final = 0x7FFFFFFF
_log = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """Remoting connection of a server or a client. It is also the `ClientSession` of its peer: the
    handler of heartbeats sets `client_id`, `language`, `version` and `caller`. Use only on the
    event loop."""

    def __init__(
        self,
        table: HandlerTable,
        limits: RemotingLimits,
        buffered: BufferedBytes,
        close_listeners: list[CloseListener],
        open_listener: Callable[[Connection], object] | None = None,
    ) -> None:
        self.client_id = ""
        self.language = "OTHER"
        self.version = 0
        self.address = ""
        self.host = ""
        self.caller = ANYBODY
        self.last_frame_s = 0.0
        self._table = table
        self._limits = limits
        self._shared_bytes = buffered
        self._close_listeners = close_listeners
        self._open_listener = open_listener
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(limits.max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._next_opaque = 0
        self._next_task = 0
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._is_flush_due = False
        self._is_receiving = False
        self._is_paused = False
        self._held_bytes = 0
        self._pending_bytes = 0

    # --- calls of the transport -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(self._limits.high_water_bytes)
        peer = transport.get_extra_info("peername")
        self.address = _write_address(*peer[:2]) if peer else ""
        self.host = name_host(self.address)
        self.last_frame_s = self._loop.time()
        if self._open_listener is not None:
            self._open_listener(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._out.clear()
        self._count_held()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.done():
                call.set_exception(Unavailable(f"{self.address}: the connection has ended"))
        for task in list(self._tasks.values()):
            task.cancel()
        for listener in list(self._close_listeners):
            try:
                listener(self)
            except Exception:
                _log.exception("%s: a listener of its end failed", self.address)

    def data_received(self, data: bytes) -> None:
        self._reader.add(data)
        self._handle_frames()

    def eof_received(self) -> None:
        return None  # the transport closes itself

    def pause_writing(self) -> None:
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._count_held()
        if self._transport is not None:
            self._transport.resume_reading()
            self._loop.call_soon(self._handle_frames)

    # --- input ----------------------------------------------------------------------------------

    def _handle_frames(self) -> None:
        """Handle complete frames as long as there is room for their responses."""
        if self._is_receiving or not self.is_open:
            return
        self._is_receiving = True
        HOST.set(self.host)
        has_frame = False
        reader = self._reader
        room_bytes = self._find_room_bytes()
        try:
            while not self._is_paused and (frame := reader.take()) is not None:
                header_type, header, body = frame
                command = decode_header(header_type, header)
                command.body = body
                has_frame = True
                if command.flag & RESPONSE_FLAG:
                    self._take_response(command)
                else:
                    self._handle_request(command, len(header) + len(body))
                if self._out_bytes > room_bytes:
                    self._flush()
                    room_bytes = self._find_room_bytes()
        except BadFrame as error:
            self._flush()
            self.abort(str(error))
        finally:
            self._is_receiving = False
        if has_frame:
            self.last_frame_s = self._loop.time()
        self._flush()
        self._count_held()

    def _find_room_bytes(self) -> int:
        """Return how many more bytes may be written before the connection has too many unsent
        bytes."""
        unsent_bytes = self._transport.get_write_buffer_size() if self._transport else 0
        return self._limits.high_water_bytes - unsent_bytes

    def _take_response(self, response: RemotingCommand) -> None:
        call = self._calls.pop(response.opaque, None)
        if call is not None and not call.done():
            call.set_result(response)

    def _handle_request(self, request: RemotingCommand, size: int) -> None:
        try:
            outcome = self._table.find(request.code)(self, request)
        except Exception as error:
            self.respond(request, respond_to_error(error, request))
            return
        if outcome is None:
            return
        if isinstance(outcome, RemotingCommand):
            self.respond(request, outcome)
        elif len(self._tasks) >= self._limits.max_pending:
            if asyncio.iscoroutine(outcome):
                outcome.close()
            self.respond(request, self._busy())
        else:
            self._next_task += 1
            number = self._next_task
            self._pending_bytes += size
            self._tasks[number] = self._loop.create_task(self._run(number, outcome, request, size))

    def _busy(self) -> RemotingCommand:
        return RemotingCommand(
            ResponseCode.SYSTEM_BUSY,
            remark=f"expected at most {self._limits.max_pending} unanswered requests "
            f"of one connection, found {len(self._tasks) + 1}",
        )

    async def _run(
        self,
        number: int,
        outcome: Awaitable[RemotingCommand | None],
        request: RemotingCommand,
        size: int,
    ) -> None:
        try:
            response = await outcome
            if response is not None:
                self.respond(request, response)
        except Exception as error:
            self.respond(request, respond_to_error(error, request))
        finally:
            del self._tasks[number]
            self._pending_bytes -= size
            if self._held_bytes:
                self._count_held()

    # --- output ---------------------------------------------------------------------------------

    def respond(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """Send the response to a request, with the same header type. No-op for a one-way
        request."""
        if request.flag & ONE_WAY_FLAG:
            return
        response.opaque = request.opaque
        response.flag |= RESPONSE_FLAG
        response.header_type = request.header_type
        self.send(response)

    def send(self, command: RemotingCommand) -> None:
        """Send a command at the end of this turn of the event loop. No-op if the connection is
        closed."""
        if self._transport is None:
            return
        body = command.body
        out = self._out
        header = encode_header(command)
        if isinstance(body, _BUFFERS):
            size = len(body)
            out.append(encode_start(command.header_type, header, size))
            if size:
                out.append(body)
        else:
            size = sum(map(len, body))
            out.append(encode_start(command.header_type, header, size))
            out += body
        self._out_bytes += size + len(header)
        if self._is_receiving:
            return
        if self._out_bytes > self._limits.high_water_bytes:  # many reads waited for one message
            self._flush()
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        out = self._out
        if not out:
            return
        size = self._out_bytes
        self._out = []
        self._out_bytes = 0
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if len(out) == 1:
            transport.write(out[0])
        elif size <= _JOINED_BYTES:
            transport.write(b"".join(out))
        else:
            transport.writelines(out)
        if self._is_paused:
            self._count_held()

    def _count_held(self) -> None:
        """Report the number of buffered bytes if it has changed. Small numbers are reported as
        0."""
        held_bytes = 0
        if self._transport is not None:
            held_bytes = self._reader.held_bytes + self._pending_bytes
            if self._is_paused:
                held_bytes += self._transport.get_write_buffer_size()
        if held_bytes < _JOINED_BYTES:
            held_bytes = 0
        if held_bytes != self._held_bytes:
            self._held_bytes = held_bytes
            self._shared_bytes.hold(self, held_bytes)

    # --- requests to the peer -------------------------------------------------------------------

    async def request(
        self,
        code: int,
        ext_fields: Mapping[str, str] | None = None,
        body: Body = b"",
        timeout_ms: int = 3_000,
        header_type: HeaderType = HeaderType.JSON,
    ) -> RemotingCommand:
        """Send a request and wait for its response. Raises Unavailable on timeout or if the
        connection is lost."""
        if not self.is_open:
            raise Unavailable(f"{self.address}: the connection has ended")
        opaque = self._take_opaque()
        call: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self._calls[opaque] = call
        try:
            self.send(self._command(code, ext_fields, body, opaque, 0, header_type))
            async with asyncio.timeout(timeout_ms / 1000):
                return await call
        except TimeoutError as error:
            raise Unavailable(
                f"{self.address}: no response to request {code} in {timeout_ms} ms"
            ) from error
        finally:
            self._calls.pop(opaque, None)

    def send_one_way(
        self,
        code: int,
        ext_fields: Mapping[str, str] | None = None,
        body: Body = b"",
        header_type: HeaderType = HeaderType.JSON,
    ) -> None:
        """Send a request that gets no response."""
        opaque = self._take_opaque()
        self.send(self._command(code, ext_fields, body, opaque, ONE_WAY_FLAG, header_type))

    def _take_opaque(self) -> int:
        self._next_opaque = (self._next_opaque + 1) & _MAX_OPAQUE
        return self._next_opaque

    @staticmethod
    def _command(
        code: int,
        ext_fields: Mapping[str, str] | None,
        body: Body,
        opaque: int,
        flag: int,
        header_type: HeaderType,
    ) -> RemotingCommand:
        return RemotingCommand(
            int(code),
            dict(ext_fields or {}),
            body,
            opaque=opaque,
            flag=flag,
            header_type=header_type,
        )

    # --- as a ClientSession ---------------------------------------------------------------------

    def notify_consumers_changed(self, group: str) -> None:
        """Notify the client that the members of a group changed (request code 40, one-way)."""
        self.send_one_way(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})

    def check_transaction(self, message: StoredMessage, transaction_id: str, group: str) -> None:  # noqa: ARG002
        """Ask the client for the outcome of a transaction (request code 39, one-way). `message`:
        the half message as stored. The client repeats its queue offset and commit log offset in
        END_TRANSACTION to identify the transaction."""
        self.send_one_way(
            RequestCode.CHECK_TRANSACTION_STATE,
            {
                "tranStateTableOffset": str(message.queue_offset),
                "commitLogOffset": str(message.physical_offset),
                "msgId": transaction_id,
                "transactionId": transaction_id,
                "offsetMsgId": message.offset_message_id,
            },
            message.raw,
        )

    # --- the end --------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def has_ended(self) -> bool:
        """True if the connection was closed after sending its output, aborted or lost."""
        return self._transport is None

    @property
    def pending_count(self) -> int:
        """Number of unanswered requests, including waiting polls."""
        return len(self._tasks)

    def close(self) -> None:
        """Close the connection once all written bytes are sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close the connection immediately."""
        if self._transport is not None:
            PEERS.note(
                "remoting connections closed", f"{self.address}: the connection is closed: {reason}"
            )
            self._transport.abort()


def _write_address(host: str, port: int) -> str:
    """Format the address of a peer as in records, without the zone of a link-local address."""
    return format_host(encode_host(host.partition("%")[0], port))


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` into host and port. Raises Invalid."""
    host, separator, port = address.strip().rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit():
        raise Invalid(f"address: expected host:port, found {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def connect(
    address: str,
    table: HandlerTable | None = None,
    *,
    limits: RemotingLimits | None = None,
    close_listeners: Sequence[CloseListener] = (),
    timeout_ms: int = 3_000,
    tls: ssl.SSLContext | None = None,
) -> Connection:
    """Connect to `host:port`. `table`: handlers for requests from the server. Raises Unavailable or
    Invalid."""
    host, port = split_address(address)
    limits = limits or RemotingLimits()
    buffered = BufferedBytes(limits.max_buffered_bytes)
    table = table or HandlerTable()
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, connection = await loop.create_connection(
                lambda: Connection(table, limits, buffered, list(close_listeners)),
                host,
                port,
                ssl=tls,
            )
    except (OSError, TimeoutError) as error:
        raise Unavailable(f"{address}: no connection in {timeout_ms} ms: {error!r}") from error
    return connection
