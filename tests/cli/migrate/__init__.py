"""`zkgroups migrate`."""
