"""Layouts: where systems keep offsets in ZooKeeper, and how paths and values become offsets."""
