"""What a store counts and measures about itself (Java's StoreStatsService)."""
