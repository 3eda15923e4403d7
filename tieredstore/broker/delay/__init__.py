"""Delayed messages: delay levels and timer messages."""
