"""How the properties of the core are tried."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Servers of other tests run beside these: how long one example takes says nothing.
settings.register_profile("beside-servers", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("beside-servers")
