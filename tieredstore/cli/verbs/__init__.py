"""One module per verb: its options, one call of the layers below, its output."""
