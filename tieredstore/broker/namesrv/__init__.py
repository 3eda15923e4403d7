"""Routes: the name-server role, and registration with other name servers."""
