"""Manual operations on a tier (`docs/operating.md`). Each operation reports its effect. With `yes`
it also carries out the effect, as the tier's only writer. Operations keep no journal. An
interrupted operation is repeated, or the next writer of the tier finishes its recorded
deletions."""
