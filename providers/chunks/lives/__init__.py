"""Which objects of a chunk log count: lives, the chain they form, and what epochs inherit."""
