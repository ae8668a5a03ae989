"""How property tests run here: no deadline for one example, as a machine may be busy; a failure can be repeated."""

from hypothesis import HealthCheck, settings

settings.register_profile("sandherd", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sandherd")
