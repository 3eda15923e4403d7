"""Routes: the name server's role, and registration with name servers outside."""
