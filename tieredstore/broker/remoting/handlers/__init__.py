"""Handlers of the remoting server, one module per family of request codes."""
