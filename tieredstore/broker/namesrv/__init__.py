"""Name-server role, and registration with other name servers."""
