"""A connection to ZooKeeper and its session: options, errors, lifetime, session files."""
