"""Modules that Ray imports and a build has no use for: imported when something of them is first looked at.

Of the 0.6 s that importing Ray takes, requests (to ask clouds for their accelerators), jsonschema (to check plug-ins of
runtime environments) and yaml take 0.2. `importlib.util.LazyLoader` does not help: the second `import` of a module
looks at it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["UNUSED", "postponed"]

UNUSED = ("jsonschema", "requests", "yaml")


class _Postponed(ModuleType):
    """Stands for a module until an attribute of it is asked for; a submodule's import asks for one."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def postponed(*names: str) -> Iterator[None]:
    """Meanwhile, importing one of these modules imports nothing: who does has a module that is imported when used.

    Those that are imported already, or not installed, are as ever; all are once the context has ended.
    """
    stand_ins = []
    for name in names:
        if name not in sys.modules and (spec := importlib.util.find_spec(name)) is not None:
            stand_ins.append(_Postponed(name))
            stand_ins[-1].__spec__ = spec
            sys.modules[name] = stand_ins[-1]
    try:
        yield
    finally:
        for module in stand_ins:
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]
