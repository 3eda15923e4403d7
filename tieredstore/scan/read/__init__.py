"""Reader of planned ranges, in batches of bounded size. Every record is checked."""
