"""What uploads of a workload take: each queue by the rules of the dispatcher, and all together."""
