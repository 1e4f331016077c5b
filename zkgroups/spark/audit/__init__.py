"""The audit: every commit of the stream, as Parquet."""
