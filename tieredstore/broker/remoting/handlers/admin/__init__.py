"""Requests of operators, mostly from mqadmin."""
