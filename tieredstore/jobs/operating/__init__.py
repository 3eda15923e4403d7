"""Manual operations on a tier (`docs/operating.md`). Each operation reports its effect, and applies
it with `yes`, as the tier's only writer. There is no journal. An interrupted operation is repeated,
or the next writer of the tier finishes its recorded deletions."""
