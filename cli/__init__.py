"""The `zkgroups` command, installed as the package `zkgroups_cli`. It only calls the library."""
