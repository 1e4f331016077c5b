"""A TCP proxy for ZooKeeper connections, with faults on chosen frames."""
