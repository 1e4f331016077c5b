"""`zkgroups history`: every change to groups, from the transaction logs of a ZooKeeper server."""
