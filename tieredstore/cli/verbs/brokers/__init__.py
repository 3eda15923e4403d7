"""Verbs that run a broker, or talk to one."""
