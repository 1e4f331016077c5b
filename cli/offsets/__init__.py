"""The `zkgroups offsets` commands."""
