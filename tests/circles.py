"""Find import cycles between modules, imports inside functions included.

``python -m tests.circles`` fails if there is a cycle.
"""

from __future__ import annotations

import sys

import grimp
import networkx


def circles(package: str) -> list[list[str]]:
    """Sets of modules that import each other, directly or not; type-checking imports do not count."""
    found = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    graph = networkx.DiGraph(
        (module, other) for module in found.modules for other in found.find_modules_directly_imported_by(module)
    )
    return sorted(sorted(group) for group in networkx.strongly_connected_components(graph) if len(group) > 1)


def main() -> None:
    """Print every import cycle; the exit status is an error if there is one."""
    found = circles("hopstream")
    for group in found:
        sys.stdout.write(f"import circle: {', '.join(group)}\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
