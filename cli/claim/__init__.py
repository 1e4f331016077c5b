"""The `zkgroups claim`, `release` and `owners` commands."""
