"""A RocketMQ 5 message store whose history lives in an object store, and the tools to use it."""

__version__ = "0.1.0"
