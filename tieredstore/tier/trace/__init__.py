"""What was put and read, recorded for whoever plans ahead (`docs/formats/trace.md`)."""
