"""Remoting protocol: frames, headers, connections and the server."""
