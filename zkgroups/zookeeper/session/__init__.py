"""A connection to ZooKeeper and its session: options, errors, liveness, session files."""
