"""What reads of the tier take: the fetcher itself, over modelled objects and time."""
