"""Commands that run other programs: `zkgroups claim ... -- COMMAND` and `zkgroups consume ... -- COMMAND`."""
