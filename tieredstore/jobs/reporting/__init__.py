"""The job `report`: content and cost of a tier, as a page and as tables."""
