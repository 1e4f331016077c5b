"""The `zkgroups groups` commands."""
