"""Snapshots of all offsets, owners and members as Parquet. `zkgroups/spark/snapshots` does the same with Spark."""
