"""The job `offload`: what a broker's store has and a tier lacks goes into the tier."""
