"""Where the recorded vectors and real data lie: beside the checkout."""

from __future__ import annotations

from pathlib import Path

SHARED = Path(__file__).resolve().parents[2] / "shared"
