"""History of lite topics in the tier (`docs/adr/0021-lite-topics-in-the-tier.md`)."""
