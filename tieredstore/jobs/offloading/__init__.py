"""The job `offload`: copies data of a broker's store that a tier lacks."""
