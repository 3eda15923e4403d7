"""Extended units of consume queues: what a unit holds beyond its 20 bytes."""
