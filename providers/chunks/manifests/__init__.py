"""The valid objects of a chunk log: generations, segment manifests, and epoch manifests."""
