"""Which settings suit a workload: a replay over a model with the rules of the store itself."""
