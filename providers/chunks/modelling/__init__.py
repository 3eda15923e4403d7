"""Model of the requests that a chunk log makes. It applies the chunk log's own rules without an
object store."""
