"""Sampling specs as JSON programs, which Hopstream's builder and the real TF-GNN's run alike.

Only the standard library is imported: the interpreter that has TF-GNN imports this file too.
"""

from __future__ import annotations

import random
from typing import Any

SCHEMAS = {
    "homogeneous": 'node_sets { key: "n" value {} } edge_sets { key: "e" value { source: "n" target: "n" } }',
    "typed": "".join(f'node_sets {{ key: "{name}" value {{}} }}' for name in ("author", "field", "paper"))
    + "".join(
        f'edge_sets {{ key: "{name}" value {{ source: "{source}" target: "{target}" }} }}'
        for name, source, target in (
            ("cites", "paper", "paper"), ("is_cited", "paper", "paper"), ("writes", "author", "paper"),
            ("written", "paper", "author"), ("about", "paper", "field"), ("holds", "field", "paper"),
            ("knows", "author", "author"), ("_hidden", "paper", "paper"),
        )
    ),
}  # fmt: skip
ENDS = {
    "homogeneous": {"e": ("n", "n")},
    "typed": {
        "cites": ("paper", "paper"), "is_cited": ("paper", "paper"), "writes": ("author", "paper"),
        "written": ("paper", "author"), "about": ("paper", "field"), "holds": ("field", "paper"),
        "knows": ("author", "author"), "_hidden": ("paper", "paper"),
    },
}  # fmt: skip


def run(program: dict[str, Any], schema: Any, builder_of: Any, make_tree: Any) -> list[Any]:
    """The spec that a program makes: name and node set of the seed op, then name, inputs, … of each op.

    Args:
        program: A tree (``tree``, ``sizes``), or ``steps``: the first is the seed, and each other one has the numbers
            of the steps that it draws for (``of``), how they are joined (``how``) and the arguments of ``sample``.
        schema: A ``GraphSchema`` message of the library.
        builder_of: ``SamplingSpecBuilder`` of the library.
        make_tree: ``make_sampling_spec_tree`` of the library.
    """
    if "tree" in program:
        spec = make_tree(schema, program["tree"], sample_sizes=program["sizes"], **program["options"])
        return ops_of(spec)
    seed, *steps = program["steps"]
    builder = builder_of(schema, *program["default"])
    made = [builder.seed(*seed)]
    for step in steps:
        first, *others = [made[number] for number in step["of"]]
        if step["how"] == "merge":
            made.append(first.merge_then_sample(others, *step["args"]))
            continue
        source = {"alone": first, "join": first.join(others) if others else first}.get(step["how"])
        made.append((source or builder_of.join([first, *others])).sample(*step["args"]))
    return ops_of(made[-1].to_sampling_spec())


def ops_of(spec: Any) -> list[Any]:
    """A spec as JSON values."""
    ops = [
        [op.op_name, list(op.input_op_names), op.edge_set_name, op.sample_size, op.strategy] for op in spec.sampling_ops
    ]
    return [[spec.seed_op.op_name, spec.seed_op.node_set_name], *ops]


def programs(rng_seed: int, count: int) -> list[dict[str, Any]]:
    """Random programs: lines, branches, joins, several sizes at once, names that are given, and trees.

    What TF-GNN 1.0.3 gets wrong is left out: an explicit strategy 0, which it replaces by the default, and names that
    are given twice, alone or by a list of sizes.
    """
    rng = random.Random(rng_seed)
    return [_tree(rng) if number % 4 == 3 else _steps(rng) for number in range(count)]


def _tree(rng: random.Random) -> dict[str, Any]:
    schema = rng.choice(sorted(SCHEMAS))
    start = rng.choice(sorted({end for ends in ENDS[schema].values() for end in ends}))
    sizes = [rng.randint(1, 9) for _ in range(rng.randint(0, 3))]
    options = rng.choice([{}, {"sampling_strategy": rng.randint(1, 2)}])
    return {"schema": schema, "tree": start, "sizes": sizes, "options": options}


def _steps(rng: random.Random) -> dict[str, Any]:
    schema = rng.choice(sorted(SCHEMAS))
    ends = ENDS[schema]
    reached = [rng.choice(sorted({source for source, _ in ends.values()}))]
    steps: list[Any] = [[] if schema == "homogeneous" and rng.random() < 0.5 else [reached[0]]]
    for number in range(rng.randint(0, 7)):
        name = rng.choice(sorted(name for name, (source, _) in ends.items() if source in reached))
        source, target = ends[name]
        fitting = [step for step, node_set in enumerate(reached) if node_set == source]
        of = rng.sample(fitting, rng.randint(1, min(3, len(fitting))))
        is_list = source == target and rng.random() < 0.3
        size = [rng.randint(1, 9) for _ in range(rng.randint(1, 3))] if is_list else rng.randint(1, 9)
        args: list[Any] = [size, None if schema == "homogeneous" and rng.random() < 0.5 else name]
        args.append(rng.choice([None, 1, 2]))
        if not is_list and rng.random() < 0.2:
            args.append(f"op{number}")
        how = rng.choice(["join", "static", "merge"] if len(of) > 1 else ["alone", "static"])
        steps.append({"of": of, "how": how, "args": args})
        reached.append(target)
    return {"schema": schema, "default": rng.choice([[], [1], [2]]), "steps": steps}
