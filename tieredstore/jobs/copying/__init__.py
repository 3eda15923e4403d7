"""The job `copy`: copy a tier, or some of its topics, from one provider to another."""
