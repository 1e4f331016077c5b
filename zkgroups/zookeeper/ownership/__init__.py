"""The registration and the owner nodes of an instance: create, check, use for commits, and delete them."""
