"""What each instruction of PTX must give, by the ISA: tables and exact arithmetic, apart from the machine under test.

A module a family of instructions. `CHECKS` of each are functions that run their instructions on a driver and raise
AssertionError; test_instructions.py calls them all, and then asks the machine for the forms that none of them used.
"""
