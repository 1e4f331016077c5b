"""The groups that are answered here: the coordinator in the event loop, and its storages."""
