"""Documentation site: the pages of the repository, and the reference generated from the code."""
