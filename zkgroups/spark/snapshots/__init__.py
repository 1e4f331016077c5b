"""Snapshots as Parquet: taking, listing, comparing, verifying, plotting and restoring."""
