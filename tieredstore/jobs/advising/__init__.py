"""Advice on settings: replay the workload on a model that follows the store's rules."""
