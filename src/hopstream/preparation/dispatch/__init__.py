"""How is a chunked graph written as a dataset, whatever its size?

``docs/guide-dispatch.md`` says it for users. A plan cuts the work so that it fits the memory (``plan``); nodes are
numbered and their features written (``nodes``), edges are spilled in pieces (``spill``) and put in order (``finish``);
tasks write their own stretches of the files (``regions``); ``run`` puts the stages together.
"""
