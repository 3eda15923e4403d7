"""Model of the requests that a chunk log makes. It uses the chunk log's own rules, without an
object store."""
