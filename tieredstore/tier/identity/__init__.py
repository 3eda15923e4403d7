"""Checks that a store, its state directory and its tier belong together."""
