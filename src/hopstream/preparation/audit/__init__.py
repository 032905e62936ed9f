"""Audits a dataset: checks that it is consistent, and that it equals its source graph.

``docs/datasets.md`` describes the checks for users. An audit continues after a finding.
"""
