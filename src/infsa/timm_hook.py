"""Registers the models with timm, whichever of the two packages is imported first."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def register_when_timm_loads() -> None:
    """Register now if timm is loaded, else right after its first import; timm is never imported for it."""
    if "timm" in sys.modules:
        importlib.import_module("infsa.models")
    else:
        sys.meta_path.insert(0, _AfterTimm())


class _AfterTimm(MetaPathFinder):
    """Finds timm as usual, but with a loader that registers our models when timm is loaded.

    Looking timm up without importing it, as some libraries do, changes nothing.
    """

    searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "timm" or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader, self)
        return spec


class _ThenRegister(Loader):
    def __init__(self, loader: Loader, finder: _AfterTimm) -> None:
        self.loader, self.finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader  # leave timm as if we had never been there
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        importlib.import_module("infsa.models")
