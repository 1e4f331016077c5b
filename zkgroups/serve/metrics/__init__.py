"""Metrics in the formats of Prometheus, written once for each picture."""
