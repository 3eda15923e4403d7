"""Users, their signatures and their rights."""
