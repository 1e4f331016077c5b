"""The commands `zkgroups claim`, `release` and `owners`."""
