"""Messages that verbs print: which, in which order, as rows."""
