"""How are nodes and edges added to a dataset that is there?"""
