"""The `zkgroups demo` command."""
