"""Record of puts and reads, for recommending settings (`docs/formats/trace.md`)."""
