"""Users, their signatures and their permissions."""
