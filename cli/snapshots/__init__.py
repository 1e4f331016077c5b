"""The `zkgroups snapshot`, `snapshots` and `audit` commands."""
