"""Settings from `broker.conf` for the broker itself. Settings of the store are in
`tieredstore.config`. All parts share one settings object and read a setting when they need it, so
changes at run time take effect immediately. Only `update_settings` changes this object and the
store's settings."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, field

from tieredstore.config import (
    FIELDS_BY_KEY,
    Int32,
    Live,
    StoreConfig,
    Whole32,
    change_config,
    parse_setting,
)
from tieredstore.errors import Invalid
from tieredstore.message.index.tiered import check_capacity
from tieredstore.properties import (
    Secret,
    fields_by_key,
    is_runtime,
    is_secret,
    make_key,
    parse_value,
)

Port = Annotated[int, Meta(ge=0, le=65_535)]
_STORE_DEFAULTS: Final = {info.name: info for info in msgspec.structs.fields(StoreConfig)}


def _find_own_address() -> str:
    """Return the address from which this machine reaches other machines. Sends no packet."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def _name_servers() -> str:
    return os.environ.get("NAMESRV_ADDR", "")


class BrokerSettings(msgspec.Struct, kw_only=True, rename=make_key):
    """All settings of the broker. The defaults are those of Apache RocketMQ 5.5.0, unless a
    description says "Ours"."""

    # Identity
    broker_name: str = field(default_factory=lambda: socket.gethostname() or "DEFAULT_BROKER")
    """Name of the broker in routes and in a tier."""
    broker_cluster_name: str = "DefaultCluster"
    """Name of the cluster in routes."""
    broker_id: Annotated[int, Meta(ge=0, le=0)] = 0
    """0: the broker is a master. Other roles are not supported yet."""
    broker_ip1: str = field(name="brokerIP1", default_factory=_find_own_address)
    """Address in routes and message ids, at which clients reach the broker."""
    listen_port: Port = 10911
    """Port of the remoting protocol. 0: a free port."""
    enable_topic_message_type_check: Live[bool] = True
    """Whether a message sent over gRPC must have its topic's `message.type`. A topic without that
    attribute takes normal messages. In Java, the proxy has this setting."""
    auto_create_mixed_topics: Live[bool] = False
    """Ours. Topics that clients create take messages of all types, and a gRPC client's request for
    a route creates its topic. `tieredstore dev` sets it."""
    fast_remoting_enable: bool = True
    """Ours. Whether `listenPort` - 2 answers all requests but pulls, as in Java. Old clients and
    tools send there by default."""
    bind_address: str = "0.0.0.0"  # noqa: S104 - as Java: a broker serves other machines
    """Address on which all ports listen."""
    grpc_server_port: Port = 8081
    """Port of gRPC. 0: a free port. In Java, the proxy has this setting."""
    grpc_min_long_polling_ms: Live[Annotated[int, Meta(ge=0, le=120_000)]] = field(
        name="grpcClientConsumerMinLongPollingTimeoutMillis", default=5_000
    )
    """Minimum wait of a gRPC consumer for messages, ms. A call with less remaining time is refused.
    In Java, the proxy has this setting."""
    grpc_max_long_polling_ms: Live[Annotated[int, Meta(ge=1, le=120_000)]] = field(
        name="grpcClientConsumerMaxLongPollingTimeoutMillis", default=20_000
    )
    """Maximum wait of a gRPC consumer for messages, ms. In Java, the proxy has this setting."""
    tls_key_path: str = ""
    """Private key of all ports (PEM). Empty: each start generates a self-signed certificate. In
    Java, the proxy has this setting."""
    tls_cert_path: str = ""
    """Certificate chain of the private key (PEM). Required together with `tlsKeyPath`. In Java, the
    proxy has this setting."""
    tls_server_mode: Annotated[str, Meta(pattern="^(disabled|permissive|enforcing)$")] = field(
        name="tls.server.mode", default="permissive"
    )
    """Accepted clients: clients without TLS (disabled), clients with TLS (enforcing), or both kinds
    on one port (permissive). In Java, this is a system property."""
    tls_client_auth: Annotated[str, Meta(pattern="^(?i:none|optional|require)$")] = field(
        name="tls.server.need.client.auth", default="none"
    )
    """Whether TLS clients need certificates. `none`: certificates are not requested. `optional`: a
    certificate must be valid if the client sends one, and gRPC clients are not asked. `require`:
    each client must send one. In Java, this is a system property."""
    tls_auth_client: bool = field(name="tls.server.authClient", default=False)
    """Whether a client's certificate must be signed by a certificate in `tls.server.trustCertPath`.
    `require` is only possible if this is true. In Java, this is a system property."""
    tls_trust_cert_path: str = field(name="tls.server.trustCertPath", default="")
    """CA certificates (PEM). One of them must have signed a client's certificate. In Java, this is
    a system property."""
    namesrv_listen_port: Annotated[int, Meta(ge=-1, le=65_535)] = -1
    """Ours. Another port that answers as `listenPort` does, for clients that expect a name server
    there. 0: a free port, -1: no such port."""
    namesrv_addr: Live[str] = field(default_factory=_name_servers)
    """Addresses of name servers to register with, `host:port` separated by semicolons. Default: the
    environment variable NAMESRV_ADDR."""
    register_name_server_period_ms: Int32 = 30_000
    """Time between two registrations, ms. Smaller or larger values count as 10 s or 60 s."""
    register_broker_timeout_ms: Live[Int32] = field(
        name="registerBrokerTimeoutMills", default=24_000
    )
    """Time limit of a registration, ms."""
    broker_permission: Live[Annotated[int, Meta(ge=0, le=7)]] = 6
    """Permissions of clients: 4 read, 2 write, 6 both."""

    read_only_refresh_interval_ms: Live[Int32] = 30_000
    """Ours. Time between two reads of additions to the tier, with `--read-only`, ms."""

    # Operations
    metrics_exporter_type: Annotated[str, Meta(pattern="^(PROM|OTLP_GRPC|DISABLE)$")] = "PROM"
    """PROM: `/metrics` and `/health` are served over HTTP. OTLP_GRPC: in addition, metrics are sent
    to `metricsGrpcExporterTarget` (extra `otel`). DISABLE: neither."""
    metrics_grpc_exporter_target: str = ""
    """Receiver of metrics over OTLP, `http://host:port` or `https://host:port`. An address without
    a scheme uses TLS."""
    metrics_grpc_exporter_header: Secret = ""
    """Headers of each transmission of metrics, `name:value` separated by commas."""
    metric_grpc_exporter_interval_ms: Int32 = field(
        name="metricGrpcExporterIntervalInMills", default=60_000
    )
    """Time between two transmissions of metrics, ms."""
    metric_grpc_exporter_timeout_ms: Int32 = field(
        name="metricGrpcExporterTimeOutInMills", default=3000
    )
    """Time limit of a transmission of metrics, ms."""
    metrics_in_delta: bool = False
    """Whether OTLP transmits the growth of counters and histograms since the last transmission. If
    so, every series has the label `aggregation=delta`."""
    metrics_label: str = ""
    """Labels of every series, `name:value` separated by commas."""
    metrics_prom_exporter_port: Port = 5557
    """Port of `/metrics` and `/health`. 0: a free port."""
    metrics_prom_exporter_host: str = ""
    """Address on which `/metrics` and `/health` are served. Empty: `bindAddress`."""
    metrics_cardinality_limit: Int32 = field(name="metricsOtelCardinalityLimit", default=50_000)
    """Maximum number of series in one answer of `/metrics`."""

    # Topics and groups
    auto_create_topic_enable: Live[bool] = True
    """Whether a send to an unknown topic creates the topic."""
    default_topic_queue_nums: Annotated[int, Meta(ge=1, le=65_535)] = 8
    """Maximum number of queues of a topic that a send creates."""
    cluster_topic_enable: bool = True
    """Whether clients may use the topic that is named like the cluster."""
    broker_topic_enable: bool = True
    """Whether clients may use the topic that is named like the broker."""
    trace_topic_enable: bool = False
    """Whether a start creates the trace topic."""
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    """Name of the trace topic."""
    auto_create_subscription_group: Live[bool] = True
    """Whether a consumer of an unknown group creates the group."""
    flush_consumer_offset_interval_ms: Live[Int32] = 5000
    """Time between two writes of changed files under `config/`, ms."""

    # Producers
    max_message_size_bytes: Live[Whole32] = _STORE_DEFAULTS["max_message_size_bytes"].default
    """Maximum size of a message body, bytes. The store has the same setting."""
    message_delay_level: str = _STORE_DEFAULTS["message_delay_level"].default
    """Delays of the levels, level 1 first."""
    reject_transaction_message: Live[bool] = False
    """Whether half messages are refused."""
    transaction_timeout_ms: Live[Whole32] = field(name="transactionTimeOut", default=6000)
    """Age at which the producer is first asked for the outcome of a half message, ms."""
    transaction_check_max: Live[Int32] = 15
    """Maximum number of times that producers are asked for the outcome of a half message."""
    transaction_check_interval_ms: Live[Int32] = 30_000
    """Time between two rounds in which producers are asked for outcomes, ms."""

    # Consumers
    long_polling_enable: Live[bool] = True
    """Whether a pull without a result waits as long as it requests."""
    short_polling_time_ms: Live[Whole32] = field(name="shortPollingTimeMills", default=1000)
    """Time for which a pull without a result waits if `longPollingEnable` is false, ms."""
    init_pop_offset_by_check_msg_in_mem: Live[bool] = True
    """Whether a new group of gRPC or popping consumers begins at a queue's first message while the
    local log has it."""
    priority_order_asc: Live[bool] = True
    """Whether gRPC and popping consumers of a PRIORITY topic get the highest priority first.
    False: they get priority 0 first."""
    lite_ttl_check_interval_ms: Live[Whole32] = field(name="liteTtlCheckInterval", default=120_000)
    """Time between two searches for expired lite topics, ms."""
    min_lite_ttl_ms: Live[Whole32] = field(name="minLiteTTl", default=900_000)
    """A lite topic expires only if its last message and the broker's start are at least this old,
    ms."""
    lite_subscription_check_interval_ms: Live[Whole32] = field(
        name="liteSubscriptionCheckInterval", default=120_000
    )
    """Time between two searches for clients that repeat no subscription to lite topics, ms."""
    lite_subscription_check_timeout_ms: Live[Whole32] = field(
        name="liteSubscriptionCheckTimeoutMills", default=180_000
    )
    """Time after which a subscription to lite topics ends unless its client repeats it, ms."""
    max_lite_subscription_count: Live[Whole32] = 100_000
    """Maximum number of subscriptions to lite topics, of all clients together."""
    max_client_event_count: Live[Int32] = 100
    """Number of lite topics with messages that are noted for a client, unless its group sets it."""
    notify_consumer_ids_changed_enable: Live[bool] = True
    """Whether the members of a group are notified when a member joins or leaves."""
    server_load_balancer_enable: Live[bool] = True
    """Whether the broker shares the queues of a topic among the consumers that ask for an
    assignment. Otherwise each gets all queues."""
    default_message_request_mode: Live[Annotated[str, Meta(pattern="^(PULL|POP)$")]] = "PULL"
    """Mode of consumers that ask for an assignment, unless `mqadmin setConsumeMode` has
    set it for their group: PULL or POP."""
    default_pop_share_queue_num: Live[int] = -1
    """Number of other consumers whose queues a consumer pops too by default. 0 or less: each
    consumer pops all queues."""
    load_balance_poll_name_server_interval_ms: Live[Whole32] = field(
        name="loadBalancePollNameServerInterval", default=30_000
    )
    """Time for which the broker uses a route from a name server for assignments, ms."""
    enable_property_filter: Live[bool] = False
    """Whether consumers may filter by SQL92 expressions."""

    # Access
    authentication_enabled: bool = False
    """Whether requests without the signature of a user are refused."""
    authorization_enabled: bool = False
    """Whether requests that no policy of their user allows are refused. Requires
    `authenticationEnabled`."""
    init_authentication_user: Secret = ""
    """First super user, `{"username":"…","password":"…"}`. A start creates the user if it does not
    exist."""
    inner_client_credentials: Secret = field(
        name="innerClientAuthenticationCredentials", default=""
    )
    """Credentials of the broker's own requests to name servers,
    `{"accessKey":"…","secretKey":"…"}`. A start creates a super user of this name if it does not
    exist."""
    migrate_auth_from_v1_enabled: bool = False
    """Whether a start creates the users and rules of `plain_acl.yml` (in `conf/` of ROCKETMQ_HOME,
    otherwise in `config/` of the store) if they do not exist."""

    def __repr__(self) -> str:
        return f"BrokerSettings({self.broker_name!r})"  # secrets are among them


BROKER_FIELDS_BY_KEY: Final = fields_by_key(BrokerSettings)


def load_broker_settings(properties: Mapping[str, str], origin: str) -> BrokerSettings:
    """Parse the broker's settings from the strings of a `broker.conf`. Raises Invalid with the key
    in the message."""
    return BrokerSettings(**_parse_known(properties, origin))


def list_settings(settings: BrokerSettings, config: StoreConfig) -> dict[str, str]:
    """Return the settings of a broker and its store as strings, by Java name. Secrets and settings
    of plugins are omitted."""
    parts = ((config, FIELDS_BY_KEY), (settings, BROKER_FIELDS_BY_KEY))
    return {
        key: show_value(getattr(owner, info.name))
        for owner, fields in parts
        for key, info in fields.items()
        if not is_secret(info)
    }


def update_settings(
    settings: BrokerSettings, store_config: StoreConfig, properties: Mapping[str, str], origin: str
) -> Iterable[str]:
    """Change settings of the broker and its store at run time, all or none. Returns the changed
    keys. Raises Invalid for invalid or contradictory values, and for keys that cannot change at run
    time."""
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
    """Format a value as in a broker.conf."""
    return str(value).lower() if isinstance(value, bool) else str(value)
