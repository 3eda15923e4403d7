"""The broker's own figures and settings (codes 25, 26, 28, 315, 318, 319)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import VERSION, RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.remoting.handlers.fields import read_text
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.settings import list_settings, update_settings
from tieredstore.broker.state.config_manager import DataVersion
from tieredstore.broker.state.statistics import (
    BROKER_GETS,
    BROKER_PUTS,
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    Rate,
)
from tieredstore.config import FIELDS_BY_KEY, StoreConfig
from tieredstore.errors import Invalid

_VERSION_NAME = "V5_5_0"
_NONE_WAITS = ("send", "pull", "query", "ack")
"""Java's thread pools whose queues its tools show: there are none here, and nothing waits."""


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve them."""
    handlers = BrokerHandlers(broker)
    table.register(RequestCode.UPDATE_BROKER_CONFIG, handlers.update_config)
    table.register(RequestCode.GET_BROKER_CONFIG, handlers.get_config)
    table.register(RequestCode.GET_BROKER_RUNTIME_INFO, handlers.get_runtime_info)
    table.register(RequestCode.VIEW_BROKER_STATS_DATA, handlers.get_rate)
    register_namesrv_handlers(table, broker)


def register_namesrv_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve those of a name server, which has a port of its own or not."""
    handlers = BrokerHandlers(broker)
    table.register(RequestCode.UPDATE_NAMESRV_CONFIG, handlers.update_namesrv_config)
    table.register(RequestCode.GET_NAMESRV_CONFIG, handlers.get_namesrv_config)


class BrokerHandlers:
    """Answers what concerns the broker as a whole."""

    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker
        self._version = DataVersion(timestamp=broker.clock.now_ms())

    def update_config(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Change settings, until the broker ends: its file stays as it is."""
        changes = _parse_properties(request.body_bytes)
        try:
            changed = update_settings(
                self._broker.settings, self._broker.store_config, changes, "updateBrokerConfig"
            )
        except Invalid as error:
            raise Refused(RefusalReason.INVALID_PARAMETER, str(error)) from None
        if changed:
            self._version.counter += 1
            self._version.timestamp = self._broker.clock.now_ms()
        return RemotingCommand(ResponseCode.SUCCESS)

    def get_config(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return all settings, those of plugins left out: they may be secrets."""
        settings = {**_list_store_settings(self._broker.store_config)}
        settings |= list_settings(self._broker.settings)
        return RemotingCommand(
            ResponseCode.SUCCESS,
            {"version": msgspec.json.encode(self._version).decode()},
            _format_properties(settings),
        )

    async def get_runtime_info(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Return figures as text, by Java's names."""
        broker, statistics = self._broker, self._broker.statistics
        now_ms = broker.clock.now_ms()
        used = await asyncio.to_thread(_measure_disk, Path(broker.store_config.store_path_root_dir))
        earliest_ms = await broker.look_ups.run(broker.store.get_earliest_message_time)
        put_tps, get_tps = statistics.broker_tps(BROKER_PUTS), statistics.broker_tps(BROKER_GETS)
        table: dict[str, object] = {
            "brokerVersion": VERSION,
            "brokerVersionDesc": _VERSION_NAME,
            "brokerActive": "true",
            "bootTimestamp": statistics.started_ms,
            "startAcceptSendRequestTimeStamp": statistics.started_ms,
            "runtime": _format_duration(now_ms - statistics.started_ms),
            "putMessageTimesTotal": statistics.total(BROKER_PUTS),
            "getMessageTransferredMsgCount": statistics.total(BROKER_GETS),
            "putTps": _format_tps(put_tps),
            "getTransferredTps": _format_tps(get_tps),
            "getTransferedTps": _format_tps(get_tps),
            "earliestMessageTimeStamp": earliest_ms,
            "commitLogDiskRatio": used,
            "consumeQueueDiskRatio": used,
            "pageCacheLockTimeMills": 0,
            "timerReadBehind": 0,
            "timerOffsetBehind": 0,
            "timerCongestNum": 0,
            "timerEnqueueTps": 0.0,
            "timerDequeueTps": 0.0,
        }
        for name, prefix in ((BROKER_PUTS, "msgPutTotal"), (BROKER_GETS, "msgGetTotal")):
            yesterday, today = statistics.mornings(name)
            table[f"{prefix}YesterdayMorning"] = yesterday
            table[f"{prefix}TodayMorning"] = today
            table[f"{prefix}TodayNow"] = statistics.total(name)
        for pool in _NONE_WAITS:
            table[f"{pool}ThreadPoolQueueSize"] = 0
            table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = 0
        text = {key: str(value) for key, value in table.items()}
        return RemotingCommand(ResponseCode.SUCCESS, body=msgspec.json.encode({"table": text}))

    def get_rate(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return one rate by its name and key, over a minute, an hour and a day."""
        name, key = read_text(request, "statsName"), read_text(request, "statsKey")
        rates = {
            member: self._broker.statistics.find_rate(name, key, window_ms)
            for member, window_ms in (
                ("statsMinute", MINUTE_MS),
                ("statsHour", HOUR_MS),
                ("statsDay", DAY_MS),
            )
        }
        if None in rates.values():
            raise Refused(RefusalReason.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
        body = {member: _show_rate(rate) for member, rate in rates.items() if rate is not None}
        return RemotingCommand(ResponseCode.SUCCESS, body=msgspec.json.encode(body))

    def get_namesrv_config(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Return the settings of the name-server role."""
        settings = self._broker.settings
        shown = {"bindAddress": settings.bind_address, "listenPort": str(settings.listen_port)}
        return RemotingCommand(ResponseCode.SUCCESS, body=_format_properties(shown))

    def update_namesrv_config(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Refuse: the name-server role has nothing to change at run time."""
        keys = ", ".join(_parse_properties(request.body_bytes))
        raise Refused(
            RefusalReason.INVALID_PARAMETER,
            f"updateNamesrvConfig: expected a key that can be changed at run time, found {keys}",
        )


def _list_store_settings(config: StoreConfig) -> dict[str, str]:
    shown = {}
    for key, info in FIELDS_BY_KEY.items():
        value = getattr(config, info.name)
        shown[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return shown


def _parse_properties(body: bytes) -> dict[str, str]:
    """Parse `key=value` lines, as Java's Properties."""
    import javaproperties

    try:
        return dict(javaproperties.loads(body.decode()))
    except (UnicodeDecodeError, javaproperties.InvalidUEscapeError) as error:
        raise Refused(RefusalReason.INVALID_PARAMETER, f"body: {error}") from None


def _format_properties(settings: Mapping[str, str]) -> bytes:
    lines = (f"{key}={value}" for key, value in sorted(settings.items()))
    return ("\n".join(lines) + "\n").encode()


def _format_tps(tps: float) -> str:
    """Java shows three windows; here they are one."""
    return f"{tps:.4f} {tps:.4f} {tps:.4f}"


def _format_duration(duration_ms: int) -> str:
    days, rest = divmod(duration_ms // 1000, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _show_rate(rate: Rate) -> dict[str, float]:
    return {"sum": rate.sum, "tps": rate.tps, "avgpt": 0.0}


def _measure_disk(root: Path) -> float:
    """Return the share of the disk that is in use."""
    usage = shutil.disk_usage(root)
    return usage.used / usage.total
