"""Users, their signatures, and what they may do."""
