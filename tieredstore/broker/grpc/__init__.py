"""The gRPC v2 protocol: `apache.rocketmq.v2.MessagingService`."""

import os

# Before grpcio is imported: it prints a line for each handshake that a peer breaks off.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
