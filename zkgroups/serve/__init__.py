"""`zkgroups serve`: metrics and a live page of all groups, from sweeps in the background."""
