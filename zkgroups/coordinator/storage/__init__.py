"""Storages, the work that they carry out, and the strategies that assign partitions."""
