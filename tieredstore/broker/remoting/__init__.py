"""Remoting protocol: frames, headers, connections, the server."""
