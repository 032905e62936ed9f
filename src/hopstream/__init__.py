"""Hopstream: its most used names, and its public modules.

``__init__.pyi`` lists them; each is loaded on first use, so importing the package loads neither torch nor numba.
``__version__`` is the version of the installed distribution. The build takes it from the tag in version control.
"""

from hopstream.public import public_names

_public_name, __dir__, __all__ = public_names(__name__, __file__)


def __getattr__(name: str) -> object:
    """Load a public name on first use; look the version up on first use, because that takes 60 ms."""
    if name != "__version__":
        return _public_name(name)
    from importlib.metadata import version

    globals()[name] = version("hopstream")
    return globals()[name]
