"""What Ray imports and nobody uses is imported when somebody does."""

from __future__ import annotations

import importlib
import sys

import pytest

from tokenriver.cluster.own.postponed import postponed


@pytest.fixture(autouse=True)
def unknown(monkeypatch):
    """colorsys and wsgiref as never imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("colorsys", "wsgiref")]:
        monkeypatch.delitem(sys.modules, name)


def test_a_module_is_imported_when_something_of_it_is_used():
    with postponed("colorsys"):
        first, again = importlib.import_module("colorsys"), importlib.import_module("colorsys")
    assert first is again
    assert "colorsys" not in sys.modules
    assert first.rgb_to_hsv(0, 0, 0) == (0, 0, 0)
    assert sys.modules["colorsys"].rgb_to_hsv is first.rgb_to_hsv
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = first.no_such_name


def test_a_submodule_brings_the_whole_of_it_and_all_is_as_ever_afterwards():
    with postponed("wsgiref", "colorsys"):
        import wsgiref.headers

        assert wsgiref.headers.Headers
        assert sys.modules["wsgiref"].__file__
    import colorsys

    assert type(colorsys) is type(sys)


def test_what_is_imported_already_or_not_installed_is_left_alone():
    with postponed("json", "no_such_module_at_all"):
        assert sys.modules["json"].__file__
        with pytest.raises(ImportError):
            importlib.import_module("no_such_module_at_all")
