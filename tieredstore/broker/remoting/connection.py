"""Connection: one peer. It cuts what comes into frames, hands requests to handlers, matches
responses with its own calls, and writes what goes out once a turn of the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, cast

from tieredstore.broker.remoting.codes import HeaderType, RequestCode, ResponseCode
from tieredstore.broker.remoting.command import ONE_WAY_FLAG, RESPONSE_FLAG, Body, RemotingCommand
from tieredstore.broker.remoting.errors import respond_to_error
from tieredstore.broker.remoting.frame import BadFrame, FrameReader, encode_start
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.remoting.headers import decode_header, encode_header
from tieredstore.broker.remoting.limits import BufferedBytes, CloseListener, RemotingLimits
from tieredstore.errors import Unavailable
from tieredstore.message.buffers import Buffer
from tieredstore.message.hosts import encode_host, format_host

if TYPE_CHECKING:
    from tieredstore.message.record import StoredMessage

_JOINED_BYTES: Final = 64 << 10
"""Up to this size, pieces are joined and written in one; above, handed over as they are."""
_BUFFERS: Final = (bytes, bytearray, memoryview)
_MAX_OPAQUE: Final = 0x7FFFFFFF
_log = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """One remoting connection of either side; a `ClientSession` once a heartbeat has named it.

    client_id, language, version: set by the handler of heartbeats. Everything is called on the
    loop.
    """

    __slots__ = (
        "_calls",
        "_close_listeners",
        "_held_bytes",
        "_is_flush_due",
        "_is_paused",
        "_is_receiving",
        "_limits",
        "_loop",
        "_next_opaque",
        "_next_task",
        "_open_listener",
        "_out",
        "_out_bytes",
        "_pending_bytes",
        "_reader",
        "_shared_bytes",
        "_table",
        "_tasks",
        "_transport",
        "address",
        "client_id",
        "language",
        "last_frame_s",
        "version",
    )

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

    # --- the transport's calls ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(self._limits.high_water_bytes)
        peer = transport.get_extra_info("peername")
        self.address = _write_address(*peer[:2]) if peer else ""
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

    # --- what comes in --------------------------------------------------------------------------

    def _handle_frames(self) -> None:
        """Handle the frames that are whole, while what they cause can be sent."""
        if self._is_receiving or not self.is_open:
            return
        self._is_receiving = True
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
        """How much may be written before too much waits for the peer."""
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

    # --- what goes out --------------------------------------------------------------------------

    def respond(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """Send the response to a request, in the request's header type; nothing to a one-way
        request."""
        if request.flag & ONE_WAY_FLAG:
            return
        response.opaque = request.opaque
        response.flag |= RESPONSE_FLAG
        response.header_type = request.header_type
        self.send(response)

    def send(self, command: RemotingCommand) -> None:
        """Write a command as it is, at the end of this turn of the loop. Does nothing once the
        connection has ended."""
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
        if self._out_bytes > self._limits.high_water_bytes:  # many that waited for one message
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
        """Count what this connection holds among what all hold, where it is worth it."""
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

    # --- own calls to the peer ------------------------------------------------------------------

    async def request(
        self,
        code: int,
        ext_fields: Mapping[str, str] | None = None,
        body: Body = b"",
        timeout_ms: int = 3_000,
        header_type: HeaderType = HeaderType.JSON,
    ) -> RemotingCommand:
        """Ask the peer and wait for its response. Raises Unavailable when it does not come in time
        or the connection ends."""
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
        """Send a request that the peer does not answer."""
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
        """Tell the client that the members of a group have changed (40, one-way)."""
        self.send_one_way(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})

    def check_transaction(self, message: StoredMessage, transaction_id: str, group: str) -> None:  # noqa: ARG002
        """Ask the client what became of a transaction (39, one-way).

        message: the half message as stored; its queue offset and its place in the commit log name
        the transaction in the client's END_TRANSACTION.
        """
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
        """Whether nothing of it is left: everything was sent, or it was aborted or lost."""
        return self._transport is None

    @property
    def pending_count(self) -> int:
        """Requests that are not answered yet, parked polls among them."""
        return len(self._tasks)

    def close(self) -> None:
        """End the connection once what is written has been sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """End the connection now."""
        if self._transport is not None:
            _log.warning("%s: the connection is closed: %s", self.address, reason)
            self._transport.abort()


def _write_address(host: str, port: int) -> str:
    """Write the address of a peer as records hold it: the zone of a link-local one is left out."""
    return format_host(encode_host(host.partition("%")[0], port))
