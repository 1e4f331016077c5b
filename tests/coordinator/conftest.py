"""Settings of Hypothesis for the tests of the coordinator."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Other tests run in parallel, so the time of one example means nothing.
settings.register_profile("beside-servers", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("beside-servers")
