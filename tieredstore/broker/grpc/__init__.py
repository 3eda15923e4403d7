"""The gRPC v2 protocol: `apache.rocketmq.v2.MessagingService`."""
