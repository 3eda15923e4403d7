"""What of a `broker.conf` the broker itself acts on; the store's part is `tieredstore.config`.

There is one object for all: who needs a setting reads it when it needs it, so that a change at run
time counts at once. `update_settings` alone changes it, and the store's part with it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, field

from tieredstore.config import FIELDS_BY_KEY, StoreConfig, change_config, parse_setting
from tieredstore.errors import Invalid
from tieredstore.message.index.tiered import check_capacity
from tieredstore.properties import fields_by_key, is_runtime, is_secret, make_extra, parse_value

_INT32_MAX: Final = 2**31 - 1
_STORE_DEFAULTS: Final = {info.name: info for info in msgspec.structs.fields(StoreConfig)}


def _text(description: str, pattern: str | None = None, *, runtime: bool = False) -> Meta:
    return Meta(description=description, pattern=pattern, extra=make_extra(runtime=runtime))


def _int(description: str, ge: int = 0, le: int = _INT32_MAX, *, runtime: bool = False) -> Meta:
    return Meta(description=description, ge=ge, le=le, extra=make_extra(runtime=runtime))


def _find_own_address() -> str:
    """Find the address from which this machine reaches others; nothing is sent for it."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def _name_servers() -> str:
    return os.environ.get("NAMESRV_ADDR", "")


class BrokerSettings(msgspec.Struct, kw_only=True):
    """All settings of the broker, defaults as in Apache RocketMQ 5.5.0 unless a description says
    "ours"."""

    # Who and where
    broker_name: Annotated[str, _text("Name in routes and in a tier.")] = field(
        name="brokerName", default_factory=lambda: socket.gethostname() or "DEFAULT_BROKER"
    )
    broker_cluster_name: Annotated[str, _text("Name of the cluster in routes.")] = field(
        name="brokerClusterName", default="DefaultCluster"
    )
    broker_id: Annotated[int, _int("0: a master. There are no others yet.", 0, 0)] = field(
        name="brokerId", default=0
    )
    broker_ip1: Annotated[
        str, _text("Address in routes and message ids: where clients reach the broker.")
    ] = field(name="brokerIP1", default_factory=_find_own_address)
    listen_port: Annotated[int, _int("Port of remoting; 0: a free one.", 0, 65_535)] = field(
        name="listenPort", default=10911
    )
    bind_address: Annotated[str, _text("Address on which all ports listen.")] = field(
        name="bindAddress",
        default="0.0.0.0",  # noqa: S104 - as Java: a broker serves other machines
    )
    grpc_server_port: Annotated[
        int, _int("Port of gRPC, a key of Java's proxy; 0: a free one.", 0, 65_535)
    ] = field(name="grpcServerPort", default=8081)
    grpc_max_long_polling_ms: Annotated[
        int,
        _int(
            "How long a gRPC consumer waits for messages at most, ms, a key of Java's proxy.",
            1,
            120_000,
            runtime=True,
        ),
    ] = field(name="grpcClientConsumerMaxLongPollingTimeoutMillis", default=20_000)
    tls_key_path: Annotated[
        str,
        _text(
            "Private key of all ports, PEM, a key of Java's proxy; empty: a certificate that "
            "signs itself is made for each start."
        ),
    ] = field(name="tlsKeyPath", default="")
    tls_cert_path: Annotated[
        str, _text("Its certificate chain, PEM, a key of Java's proxy; goes with `tlsKeyPath`.")
    ] = field(name="tlsCertPath", default="")
    tls_server_mode: Annotated[
        str,
        _text(
            "Which clients are served, a system property of Java: those without TLS (disabled), "
            "those with it (enforcing), both on one port (permissive).",
            "^(disabled|permissive|enforcing)$",
        ),
    ] = field(name="tls.server.mode", default="permissive")
    tls_client_auth: Annotated[
        str,
        _text(
            "Whether clients with TLS show a certificate, a system property of Java: they are not "
            "asked (none), one that is shown has to be good (optional; over gRPC nobody is asked "
            "then), there has to be one (require).",
            "^(?i:none|optional|require)$",
        ),
    ] = field(name="tls.server.need.client.auth", default="none")
    tls_auth_client: Annotated[
        bool,
        _text(
            "Whether a client's certificate has to be signed by one of `tls.server.trustCertPath`, "
            "a system property of Java; `require` goes with it alone."
        ),
    ] = field(name="tls.server.authClient", default=False)
    tls_trust_cert_path: Annotated[
        str, _text("Certificates that count for that, PEM, a system property of Java.")
    ] = field(name="tls.server.trustCertPath", default="")
    namesrv_listen_port: Annotated[
        int,
        _int(
            "Ours. A further port that answers as `listenPort` does, for clients that know where a "
            "name server is; 0: a free one, -1: none.",
            -1,
            65_535,
        ),
    ] = field(name="namesrvListenPort", default=-1)
    namesrv_addr: Annotated[
        str,
        _text(
            "Name servers to register with, `host:port` joined by semicolons; NAMESRV_ADDR of the "
            "environment without one.",
            runtime=True,
        ),
    ] = field(name="namesrvAddr", default_factory=_name_servers)
    register_name_server_period_ms: Annotated[
        int, _int("Time between two registrations, ms; 10 s to 60 s count.", 1)
    ] = field(name="registerNameServerPeriod", default=30_000)
    register_broker_timeout_ms: Annotated[
        int, _int("How long a registration may take, ms.", 1, runtime=True)
    ] = field(name="registerBrokerTimeoutMills", default=24_000)
    broker_permission: Annotated[
        int, _int("What the broker lets clients do: 4 read, 2 write, 6 both.", 0, 7, runtime=True)
    ] = field(name="brokerPermission", default=6)

    read_only_refresh_interval_ms: Annotated[
        int,
        _int(
            "Ours. With `--read-only`: time between two looks at what the tier has got, ms.",
            1,
            runtime=True,
        ),
    ] = field(name="readOnlyRefreshInterval", default=30_000)

    # Operations
    metrics_exporter_type: Annotated[
        str,
        _text(
            "PROM: `/metrics` and `/health` are served over HTTP; OTLP_GRPC: and metrics are sent "
            "to `metricsGrpcExporterTarget` (extra `otel`); DISABLE: none of it.",
            "^(PROM|OTLP_GRPC|DISABLE)$",
        ),
    ] = field(name="metricsExporterType", default="PROM")
    metrics_grpc_exporter_target: Annotated[
        str,
        _text(
            "Where metrics are sent by OTLP, `http://host:port` or `https://host:port`; without a "
            "scheme by TLS."
        ),
    ] = field(name="metricsGrpcExporterTarget", default="")
    metrics_grpc_exporter_header: Annotated[
        str,
        Meta(
            description="Headers of what is sent, `name:value` joined by commas.",
            extra={"secret": True},
        ),
    ] = field(name="metricsGrpcExporterHeader", default="")
    metric_grpc_exporter_interval_ms: Annotated[
        int, _int("Time between two sends of metrics, ms.", 1)
    ] = field(name="metricGrpcExporterIntervalInMills", default=60_000)
    metric_grpc_exporter_timeout_ms: Annotated[int, _int("How long a send may take, ms.", 1)] = (
        field(name="metricGrpcExporterTimeOutInMills", default=3000)
    )
    metrics_in_delta: Annotated[
        bool,
        _text(
            "Whether counters and histograms sent by OTLP say what has come since the last time; "
            "every series has the label `aggregation=delta` then."
        ),
    ] = field(name="metricsInDelta", default=False)
    metrics_label: Annotated[
        str, _text("Labels of every series, `name:value` joined by commas.")
    ] = field(name="metricsLabel", default="")
    metrics_prom_exporter_port: Annotated[
        int, _int("Port of `/metrics` and `/health`; 0: a free one.", 0, 65_535)
    ] = field(name="metricsPromExporterPort", default=5557)
    metrics_prom_exporter_host: Annotated[
        str, _text("Address on which they listen; empty for `bindAddress`.")
    ] = field(name="metricsPromExporterHost", default="")
    metrics_cardinality_limit: Annotated[
        int, _int("Most series that one scrape of `/metrics` gets.", 1)
    ] = field(name="metricsOtelCardinalityLimit", default=50_000)

    # Topics and groups
    auto_create_topic_enable: Annotated[
        bool, _text("Whether a send to an unknown topic makes it.", runtime=True)
    ] = field(name="autoCreateTopicEnable", default=True)
    default_topic_queue_nums: Annotated[
        int, _int("Most queues of a topic that a send makes.", 1, 65_535)
    ] = field(name="defaultTopicQueueNums", default=8)
    cluster_topic_enable: Annotated[
        bool, _text("Whether the topic named as the cluster may be used.")
    ] = field(name="clusterTopicEnable", default=True)
    broker_topic_enable: Annotated[
        bool, _text("Whether the topic named as the broker may be used.")
    ] = field(name="brokerTopicEnable", default=True)
    trace_topic_enable: Annotated[bool, _text("Whether the trace topic is made at the start.")] = (
        field(name="traceTopicEnable", default=False)
    )
    msg_trace_topic_name: Annotated[str, _text("Name of the trace topic.")] = field(
        name="msgTraceTopicName", default="RMQ_SYS_TRACE_TOPIC"
    )
    auto_create_subscription_group: Annotated[
        bool, _text("Whether a consumer of an unknown group makes it.", runtime=True)
    ] = field(name="autoCreateSubscriptionGroup", default=True)
    flush_consumer_offset_interval_ms: Annotated[
        int, _int("Time between two writes of changed files under `config/`, ms.", 1, runtime=True)
    ] = field(name="flushConsumerOffsetInterval", default=5000)

    # Producers
    max_message_size_bytes: Annotated[
        int, _int("Largest body, bytes; the store's setting of this name.", 0, runtime=True)
    ] = field(name="maxMessageSize", default=_STORE_DEFAULTS["max_message_size_bytes"].default)
    message_delay_level: Annotated[str, _text("Delays of the levels, level 1 first.")] = field(
        name="messageDelayLevel", default=_STORE_DEFAULTS["message_delay_level"].default
    )
    reject_transaction_message: Annotated[
        bool, _text("Whether half messages are refused.", runtime=True)
    ] = field(name="rejectTransactionMessage", default=False)
    transaction_timeout_ms: Annotated[
        int, _int("Age from which a half message is asked about, ms.", runtime=True)
    ] = field(name="transactionTimeOut", default=6000)
    transaction_check_max: Annotated[
        int, _int("How often a producer is asked about a half message.", 1, runtime=True)
    ] = field(name="transactionCheckMax", default=15)
    transaction_check_interval_ms: Annotated[
        int, _int("Time between two rounds of such questions, ms.", 1, runtime=True)
    ] = field(name="transactionCheckInterval", default=30_000)

    # Consumers
    long_polling_enable: Annotated[
        bool,
        _text(
            "Whether a pull that finds nothing is parked for as long as it asks for.", runtime=True
        ),
    ] = field(name="longPollingEnable", default=True)
    short_polling_time_ms: Annotated[
        int, _int("How long it is parked otherwise, ms.", runtime=True)
    ] = field(name="shortPollingTimeMills", default=1000)
    notify_consumer_ids_changed_enable: Annotated[
        bool, _text("Whether members of a group are told when others come or go.", runtime=True)
    ] = field(name="notifyConsumerIdsChangedEnable", default=True)
    enable_property_filter: Annotated[
        bool, _text("Whether consumers may filter by SQL92 expressions.", runtime=True)
    ] = field(name="enablePropertyFilter", default=False)

    # Access
    authentication_enabled: Annotated[
        bool, _text("Whether requests are refused that no user has signed.")
    ] = field(name="authenticationEnabled", default=False)
    authorization_enabled: Annotated[
        bool,
        _text(
            "Whether requests are refused that no policy of their user allows; goes with "
            "`authenticationEnabled`."
        ),
    ] = field(name="authorizationEnabled", default=False)
    init_authentication_user: Annotated[
        str,
        Meta(
            description="The first super user, made at the start where it is not there: "
            '`{"username":"…","password":"…"}`.',
            extra={"secret": True},
        ),
    ] = field(name="initAuthenticationUser", default="")
    inner_client_credentials: Annotated[
        str,
        Meta(
            description="What the broker signs its own requests with, those to name servers: "
            '`{"accessKey":"…","secretKey":"…"}`. A super user of that name is made at the start '
            "where it is not there.",
            extra={"secret": True},
        ),
    ] = field(name="innerClientAuthenticationCredentials", default="")
    migrate_auth_from_v1_enabled: Annotated[
        bool,
        _text(
            "Whether users and rules of `plain_acl.yml` (in `conf/` of ROCKETMQ_HOME, else in "
            "`config/` of the store) are made where they are not there."
        ),
    ] = field(name="migrateAuthFromV1Enabled", default=False)

    def __repr__(self) -> str:
        return f"BrokerSettings({self.broker_name!r})"  # secrets are among them


BROKER_FIELDS_BY_KEY: Final = fields_by_key(BrokerSettings)


def load_broker_settings(properties: Mapping[str, str], origin: str) -> BrokerSettings:
    """Read the settings from the strings of a `broker.conf`. Raises Invalid, naming the key."""
    return BrokerSettings(**_parse_known(properties, origin))


def list_settings(settings: BrokerSettings) -> dict[str, str]:
    """List all settings by their Java names, as text, without those that are secrets."""
    return {
        key: show_value(getattr(settings, info.name))
        for key, info in BROKER_FIELDS_BY_KEY.items()
        if not is_secret(info)
    }


def update_settings(
    settings: BrokerSettings, store_config: StoreConfig, properties: Mapping[str, str], origin: str
) -> Iterable[str]:
    """Change settings of the broker and of its store at run time, all or none; returns the keys
    that have changed.

    Raises Invalid for a bad value, for values that do not go together, and for a key that cannot be
    changed while the broker runs.
    """
    for key in properties:
        info = BROKER_FIELDS_BY_KEY.get(key) or FIELDS_BY_KEY.get(key)
        if info is None or not is_runtime(info):
            raise Invalid(f"{origin}: {key}: expected a key that can be changed at run time")
    values = _parse_known(properties, origin)
    for_store = {
        key: parse_setting(key, value, origin)
        for key, value in properties.items()
        if key in FIELDS_BY_KEY
    }
    wanted = {FIELDS_BY_KEY[key].name: value for key, value in for_store.items()}
    then: StoreConfig = msgspec.structs.replace(store_config, **wanted)
    check_capacity(then.index_file_max_hash_slot_num, then.index_file_max_index_num)
    changed = [name for name, value in values.items() if getattr(settings, name) != value]
    for name in changed:
        setattr(settings, name, values[name])
    keys = {info.name: key for key, info in BROKER_FIELDS_BY_KEY.items()}
    here = [keys[name] for name in changed]
    return dict.fromkeys(here + change_config(store_config, for_store))


def _parse_known(properties: Mapping[str, str], origin: str) -> dict[str, Any]:
    return {
        BROKER_FIELDS_BY_KEY[key].name: parse_value(BROKER_FIELDS_BY_KEY[key], value, origin)
        for key, value in properties.items()
        if key in BROKER_FIELDS_BY_KEY
    }


def show_value(value: object) -> str:
    """Return a setting's value as a broker.conf has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
