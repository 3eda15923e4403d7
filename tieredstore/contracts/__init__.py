"""The protocols between the layers, and the types that cross them. No implementation lives here."""
