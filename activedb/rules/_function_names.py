"""Names of functions in rule data, resolved only where the program allows it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from activedb.errors import DefinitionError

__all__ = ["FunctionNames"]


class FunctionNames:
    """Resolver of references such as ``"module:function"``.

    Only functions that a module itself defines, or lists in ``__all__``, can be named, without a
    leading underscore: a function that a module merely imports (``os.system``) is not offered by
    it. Nothing is evaluated, and a module that is not allowed is not imported.

    Parameters
    ----------
    modules : iterable of modules, or mapping of str to module
        Modules by their own names, or by the given ones.
    allow : iterable of str
        Full names of modules that are imported when a reference names them.

    Raises
    ------
    DefinitionError
        If an argument is invalid.
    """

    def __init__(
        self,
        modules: Iterable[ModuleType] | Mapping[str, ModuleType] = (),
        allow: Iterable[str] = (),
    ):
        if isinstance(allow, str):
            raise DefinitionError(f"allow takes a list of module names: allow=[{allow!r}]")
        if isinstance(modules, ModuleType):
            raise DefinitionError(f"modules takes a list: modules=[{modules.__name__}]")
        given = modules if isinstance(modules, Mapping) else {m.__name__: m for m in modules}
        self._modules: dict[str, ModuleType] = dict(given)
        self._allowed = frozenset(allow)

    def function(self, reference: Any) -> Callable[..., Any]:
        """Return the function that ``"module:function"`` names.

        Raises
        ------
        DefinitionError
            If the reference is malformed, the module is not allowed or cannot be imported, or it
            offers no such function.
        """
        if not isinstance(reference, str) or reference.count(":") != 1:
            raise DefinitionError(f"a function is named as 'module:function', not {reference!r}")
        module_name, name = reference.split(":")
        module = self._module(module_name)
        function = vars(module).get(name)
        is_offered = name in getattr(module, "__all__", ()) or (
            getattr(function, "__module__", None) == module.__name__
        )
        if name.startswith("_") or not callable(function) or not is_offered:
            raise DefinitionError(
                f"module {module_name} offers no function {name!r}: define it there, or list it in "
                f"__all__"
            )
        return function  # type: ignore[no-any-return]  # callable, as has been checked

    def _module(self, name: str) -> ModuleType:
        if name in self._modules:
            return self._modules[name]
        if name not in self._allowed:
            known = ", ".join(sorted({*self._modules, *self._allowed})) or "none"
            raise DefinitionError(
                f"functions of module {name!r} are not allowed here (allowed: {known}); pass the "
                f"module in modules=, or its name in allow="
            )
        try:
            return importlib.import_module(name)
        except Exception as error:
            raise DefinitionError(f"module {name!r} cannot be imported: {error}") from error
