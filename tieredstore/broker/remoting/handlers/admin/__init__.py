"""Handlers for operators' requests, mostly from mqadmin."""
