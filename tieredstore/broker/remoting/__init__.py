"""The remoting protocol: frames, headers, connections, the server."""
