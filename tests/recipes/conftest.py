"""The local Hub for the tests of this folder, and tokenizers that are loaded once."""

from __future__ import annotations

import functools

import pytest
from hub_fixtures import hub

from tokenriver.recipes import engine

__all__ = ["hub"]

_load = functools.cache(engine.load_tokenizer)


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch):
    monkeypatch.setattr(engine, "load_tokenizer", _load)
    monkeypatch.setattr("tokenriver.recipes.plan._SAMPLE_BYTES", 1 << 14)
