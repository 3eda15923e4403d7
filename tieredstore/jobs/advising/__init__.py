"""Advice on settings: the workload is replayed over a model that follows the store's rules."""
