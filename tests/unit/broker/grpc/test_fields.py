"""The broker handles every field that a client can set. It uses the field, ignores it as Java's
proxy does, or refuses the request. A field that is new in the protocol definition fails the
test."""

from __future__ import annotations

from tieredstore.broker.grpc.message_types import PACKAGE, list_methods

SERVED = {
    "Resource": {"name"},
    "Endpoints": {"scheme", "addresses"},
    "Address": {"host", "port"},
    "QueryRouteRequest": {"topic", "endpoints"},
    "QueryAssignmentRequest": {"topic", "group", "endpoints"},
    "HeartbeatRequest": {"group"},
    "NotifyClientTerminationRequest": {"group"},
    "SendMessageRequest": {"messages"},
    "Message": {"topic", "user_properties", "system_properties", "body"},
    "Message.UserPropertiesEntry": {"key", "value"},
    "SystemProperties": {
        *("tag", "keys", "message_id", "body_digest", "body_encoding", "message_type"),
        *("born_timestamp", "born_host", "delivery_timestamp", "message_group", "trace_context"),
        *("orphaned_transaction_recovery_duration", "priority", "lite_topic"),
    },
    "Digest": {"type", "checksum"},
    "EndTransactionRequest": {"topic", "transaction_id", "resolution"},
    "RecallMessageRequest": {"topic", "recall_handle"},
    "ReceiveMessageRequest": {
        *("group", "message_queue", "filter_expression", "batch_size", "invisible_duration"),
        *("auto_renew", "long_polling_timeout", "attempt_id"),
    },
    "MessageQueue": {"topic"},
    "FilterExpression": {"type", "expression"},
    "AckMessageRequest": {"group", "topic", "entries"},
    "AckMessageEntry": {"message_id", "receipt_handle"},
    "SyncLiteSubscriptionRequest": {"action", "topic", "group", "lite_topic_set", "offset_option"},
    "OffsetOption": {"policy", "offset", "tail_n"},
    "ForwardMessageToDeadLetterQueueRequest": {"group", "topic", "receipt_handle"},
    "ChangeInvisibleDurationRequest": {
        *("group", "topic", "receipt_handle", "invisible_duration", "suspend"),
    },
    "TelemetryCommand": {"settings", "status", "thread_stack_trace", "verify_message_result"},
    "Status": {"code", "message"},
    "Settings": {"client_type", "request_timeout", "publishing", "subscription", "user_agent"},
    "Publishing": {"topics"},
    "Subscription": {"group", "subscriptions"},
    "SubscriptionEntry": {"topic", "expression"},
    "UA": {"language"},
    "ThreadStackTrace": {"nonce", "thread_stack_trace"},
    "VerifyMessageResult": {"nonce"},
}
IGNORED = {
    "Resource": {"resource_namespace"},
    # The broker sets these in what it sends.
    "SystemProperties": {
        *("store_timestamp", "store_host", "receipt_handle", "queue_id", "queue_offset"),
        *("invisible_duration", "delivery_attempt", "dead_letter_queue"),
    },
    "DeadLetterQueue": {"topic", "message_id"},
    "Publishing": {"max_body_size", "validate_message_type"},
    "Subscription": {
        *("fifo", "receive_batch_size", "long_polling_timeout"),
        *("lite_subscription_quota", "max_lite_topic_size"),
    },
    "Settings": {"access_point", "backoff_policy", "metric"},
    "RetryPolicy": {"max_attempts", "exponential_backoff", "customized_backoff"},
    "ExponentialBackoff": {"initial", "max", "multiplier"},
    "CustomizedBackoff": {"next"},
    "Metric": {"on", "endpoints"},
    # Commands to clients, which no client sends.
    "TelemetryCommand": {
        *("recover_orphaned_transaction_command", "print_thread_stack_trace_command"),
        *("verify_message_command", "reconnect_endpoints_command"),
        "notify_unsubscribe_lite_command",
    },
    "RecoverOrphanedTransactionCommand": {"message", "transaction_id"},
    "PrintThreadStackTraceCommand": {"nonce"},
    "VerifyMessageCommand": {"nonce", "message"},
    "ReconnectEndpointsCommand": {"nonce"},
    "NotifyUnsubscribeLiteCommand": {"lite_topic"},
    # Other fields of the request say the same.
    "HeartbeatRequest": {"client_type"},
    "MessageQueue": {"id", "permission", "broker", "accept_message_types"},
    "Broker": {"name", "id", "endpoints"},
    "EndTransactionRequest": {"message_id", "source", "trace_context"},
    "ForwardMessageToDeadLetterQueueRequest": {
        *("message_id", "delivery_attempt", "max_delivery_attempts", "lite_topic"),
    },
    # The receipt handle has the lite topic.
    "AckMessageEntry": {"lite_topic"},
    "ChangeInvisibleDurationRequest": {"message_id", "lite_topic"},
    # Java's broker reads neither.
    "SyncLiteSubscriptionRequest": {"version"},
    "OffsetOption": {"timestamp"},
    "UA": {"version", "platform", "hostname"},
}
REFUSED = {
    # Java's proxy serves no method of these either.
    "PullMessageRequest": {
        *("group", "message_queue", "offset", "batch_size", "filter_expression"),
        "long_polling_timeout",
    },
    "UpdateOffsetRequest": {"group", "message_queue", "offset"},
    "GetOffsetRequest": {"group", "message_queue"},
    "QueryOffsetRequest": {"message_queue", "query_offset_policy", "timestamp"},
}


def list_fields() -> set[tuple[str, str]]:
    """Return the fields of all requests, as message and field name."""
    found: set[tuple[str, str]] = set()
    kinds = [method.input_type for method in list_methods()]
    seen = set()
    while kinds:
        kind = kinds.pop()
        if kind.full_name in seen or not kind.full_name.startswith(PACKAGE):
            continue
        seen.add(kind.full_name)
        for field in kind.fields:
            found.add((kind.full_name.removeprefix(f"{PACKAGE}."), field.name))
            if field.message_type is not None:
                kinds.append(field.message_type)
    return found


def test_each_field_has_one_row() -> None:
    rows = [
        (kind, name)
        for table in (SERVED, IGNORED, REFUSED)
        for kind, names in table.items()
        for name in names
    ]
    assert len(rows) == len(set(rows))
    assert set(rows) == list_fields()
