"""Everything that talks to ZooKeeper; the only folder that imports kazoo. Every value that leaves it is a model."""
