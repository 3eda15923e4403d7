"""Lite topics: the subscriptions of clients to them, and their expiry."""
