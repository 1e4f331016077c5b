"""The Spark data source: tables, options, batch and streaming reads."""
