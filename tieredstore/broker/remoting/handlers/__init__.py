"""What the remoting server answers, one module a family of request codes."""
