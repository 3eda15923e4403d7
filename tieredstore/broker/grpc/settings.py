"""What a client is told in answer to its settings. It differs by the client's language: each reads
another part of the backoff policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tieredstore.broker.grpc.conversion import read_group, write_duration_ms
from tieredstore.broker.grpc.stubs import Settings, list_values
from tieredstore.message.encoding import RECORD_SLACK_BYTES
from tieredstore.message.layout import BLANK_SIZE

if TYPE_CHECKING:
    from tieredstore.broker.state.groups import SubscriptionGroupConfig

PRODUCER_ATTEMPTS: Final = 3
RECEIVE_BATCH_SIZE: Final = 32
DEFAULT_REQUEST_TIMEOUT_MS: Final = 3_000
_DEFAULT_DELAYS_S: Final = (
    *(1, 5, 10, 30),
    *(60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)
DEFAULT_DELAYS_MS: Final = tuple(seconds * 1000 for seconds in _DEFAULT_DELAYS_S)
"""Between one delivery of a message and the next; the last one from then on."""
_LANGUAGES: Final = list_values("Language")


def merge_settings(
    asked: Any,
    group: SubscriptionGroupConfig | None,
    max_body_bytes: int,
    long_polling_timeout_ms: int,
) -> Any:
    """Make the Settings that answer a client's own: the same ones with the server's values.

    group: that of a consumer, None for a producer. Raises nothing: a client without publishing or
    subscription gets its settings back.
    """
    merged = Settings()
    merged.CopyFrom(asked)
    merged.metric.on = False
    arm = asked.WhichOneof("pub_sub")
    policy = merged.backoff_policy
    if arm == "publishing":
        merged.publishing.max_body_size = max_body_bytes
        merged.publishing.validate_message_type = True
        policy.max_attempts = PRODUCER_ATTEMPTS
        _set_exponential(policy, 10, 1_000, 2.0)
    elif arm == "subscription":
        subscription = merged.subscription
        subscription.fifo = group is not None and group.consume_message_orderly
        subscription.receive_batch_size = RECEIVE_BATCH_SIZE
        write_duration_ms(subscription.long_polling_timeout, long_polling_timeout_ms)
        policy.max_attempts = (16 if group is None else group.retry_max_times) + 1
        _set_consumer_backoff(policy, group, asked.user_agent.language)
    return merged


def find_body_limit(max_message_bytes: int, log_file_bytes: int) -> int:
    """Find the largest body that producers are told: as `maxMessageSize` says, where a file of the
    commit log has room for it and for all that may be around it; of a file that is smaller than
    twice that much, half."""
    room = log_file_bytes - BLANK_SIZE
    return min(max_message_bytes, max(room - RECORD_SLACK_BYTES, room // 2))


def find_consumer_group(settings: Any) -> str | None:
    """Return the group of a consumer's settings, None for a producer's. Raises Rejected."""
    if settings.WhichOneof("pub_sub") != "subscription":
        return None
    return read_group(settings.subscription.group)


def _set_consumer_backoff(
    policy: Any, group: SubscriptionGroupConfig | None, language: int
) -> None:
    configured = {} if group is None else group.group_retry_policy
    exponential = configured.get("exponentialRetryPolicy")
    if configured.get("type") == "EXPONENTIAL" and language != _LANGUAGES["PYTHON"]:
        values = exponential if isinstance(exponential, dict) else {}
        _set_exponential(
            policy,
            int(values.get("initial", 5_000)),
            int(values.get("max", 7_200_000)),
            float(values.get("multiplier", 2)),
        )
        return
    if language == _LANGUAGES["NODE_JS"]:
        # It reads this arm alone: with the other one it asks again without any delay.
        _set_exponential(policy, DEFAULT_DELAYS_MS[0], DEFAULT_DELAYS_MS[-1], 2.0)
        return
    customized = configured.get("customizedRetryPolicy")
    delays: Sequence[Any] = customized.get("next", ()) if isinstance(customized, dict) else ()
    policy.customized_backoff.SetInParent()
    for delay_ms in delays or DEFAULT_DELAYS_MS:
        write_duration_ms(policy.customized_backoff.next.add(), int(delay_ms))


def _set_exponential(policy: Any, initial_ms: int, max_ms: int, multiplier: float) -> None:
    backoff = policy.exponential_backoff
    write_duration_ms(backoff.initial, initial_ms)
    write_duration_ms(backoff.max, max_ms)
    backoff.multiplier = multiplier
