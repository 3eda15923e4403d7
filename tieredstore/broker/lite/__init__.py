"""Lite topics: client subscriptions and expiry."""
