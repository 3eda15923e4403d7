"""Finds messages that are in the commit log but in no consume queue, and builds their units."""
