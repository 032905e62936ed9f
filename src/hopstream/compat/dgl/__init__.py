"""Which names do DGL's users know, and what are they here?"""
