"""The audit: a record of every commit, as Parquet."""
