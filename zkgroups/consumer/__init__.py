"""Members that share the partitions of their topics, and the generations in which they work on them."""
