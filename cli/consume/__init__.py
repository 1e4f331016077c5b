"""`zkgroups consume`: the messages of a group, written to stdout or to a command."""
