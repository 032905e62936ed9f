"""How does what was appended become part of the parts that were there before?"""
