"""The commands `zkgroups snapshot`, `zkgroups snapshots` and `zkgroups audit`."""
