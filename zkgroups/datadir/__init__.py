"""Read groups from the files of a ZooKeeper server, without the server."""
