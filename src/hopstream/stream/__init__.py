"""How do servers sample for many trainers at once?"""
