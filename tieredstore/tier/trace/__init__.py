"""Record of puts and reads, for the advice on settings (`docs/formats/trace.md`)."""
