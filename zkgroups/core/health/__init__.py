"""The health of groups: a status for each partition and group with its reason, time lag, rates, time to catch up."""
