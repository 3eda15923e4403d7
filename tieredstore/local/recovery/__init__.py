"""What of a store counts when it is opened: who owned it, and where its log ends."""
