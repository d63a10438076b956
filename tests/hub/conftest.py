"""The local Hub for the tests of this folder."""

from hub_fixtures import hub, waits

__all__ = ["hub", "waits"]
