"""Groups out of ZooKeeper's own files: what a server wrote down, read without one."""
