"""Storages, the work that they are asked for, and the strategies by which partitions are assigned."""
