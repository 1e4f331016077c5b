"""`zkgroups serve`: metrics and a live page."""
