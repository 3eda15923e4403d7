"""A proxy in front of an S3 server that fails on purpose."""
