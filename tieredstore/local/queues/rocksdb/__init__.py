"""Consume queues in one RocksDB database (`storeType=defaultRocksDB`)."""
