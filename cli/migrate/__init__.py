"""The `zkgroups migrate` commands."""
