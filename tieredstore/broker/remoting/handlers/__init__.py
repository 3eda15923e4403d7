"""Handlers of the remoting server, with one module per family of request codes."""
