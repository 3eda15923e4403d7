"""Work on segments beside appending: merging, sealing, garbage."""
