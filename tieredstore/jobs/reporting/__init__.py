"""The job `report`: what a tier holds and what it costs, as a page and as tables."""
