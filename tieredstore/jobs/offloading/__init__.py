"""The job `offload`: copy data of a broker's store that a tier lacks."""
