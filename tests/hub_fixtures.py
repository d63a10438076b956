"""The local Hub as a fixture: this process's client, and those of child processes, talk to it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import huggingface_hub
import huggingface_hub.constants
import pytest
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
from local_hub import LocalHub
from own_threads import end_loaders

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    constants = huggingface_hub.constants
    cache = str(tmp_path / "hf-cache")
    with LocalHub() as server:
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        for name, value in (
            ("ENDPOINT", server.url),
            ("HUGGINGFACE_CO_URL_TEMPLATE", template),
            ("HF_HUB_CACHE", cache),
            ("HF_HUB_DISABLE_XET", True),
        ):
            monkeypatch.setattr(constants, name, value)
        for name, value in hub_environment(server, tmp_path).items():
            monkeypatch.setenv(name, value)
        disable_progress_bars()
        yield server
        end_loaders()
        enable_progress_bars()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the client would have waited between its tries; it does not."""
    taken: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", taken.append)
    return taken


def hub_environment(server: LocalHub, tmp_path: Path) -> dict[str, str]:
    """The variables with which a process of its own uses this Hub."""
    return {
        "HF_ENDPOINT": server.url,
        "HF_HOME": str(tmp_path / "hf-home"),
        "HF_HUB_CACHE": str(tmp_path / "hf-cache"),
        "HF_TOKEN": server.token,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
