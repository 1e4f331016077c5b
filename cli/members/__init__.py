"""The `zkgroups members` commands."""
