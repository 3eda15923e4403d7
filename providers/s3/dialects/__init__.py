"""How the object stores of several vendors are asked to make an object only if it is absent."""
